/* SPDX-License-Identifier: Apache-2.0 */
/* TAG_hf of PEFT runs equals the files that PEFT saved beside the tag, for any method. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/adapter.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"
#define BASE "base_model.model."

/* Cases of tests/good, described in its README.md. */
static const struct {
	const char *run, *saved; /* where PEFT saved the adapter that is at the top */
	const char *dirs[2];     /* names of the other adapters in the view and in the run */
	bool whole;              /* the tag has the frozen weights */
} runs[] = {
	{ "lora_trainer_z2_dp2/checkpoint-4", "lora_trainer_z2_dp2/checkpoint-4", { NULL },
	  false },
	{ "lora_dora_z3_dp2", "lora_dora_z3_dp2", { "reference" }, true },
	{ "lora_named_z1_dp2", "lora_named_z1_dp2/mine", { "mine" }, true },
	{ "lora_two_z2_dp2", "lora_two_z2_dp2/early", { "late", "early" }, false },
	{ "peft_ia3_z3_dp2", "peft_ia3_z3_dp2", { NULL }, false },
	{ "peft_prompt_z2_dp2", "peft_prompt_z2_dp2", { NULL }, false },
};

static char *path_of(const char *dir, const char *name)
{
	const char *const top = getenv("top_srcdir");
	char *path;

	assert_true(asprintf(&path, "%s/tests/good/%s/%s", top ?: ".", dir, name) > 0);
	return path;
}

static struct view *open_view(const char *run, struct view_options options)
{
	char *const tag = path_of(run, "global_step4");
	struct errmsg err = { "" };
	struct view *v = NULL;

	if (view_open(test_context(), tag, &options, &v, &err))
		fail_msg("%s: %s", run, err.text);
	free(tag);
	return v;
}

/* Check that a directory of the view has these names, separated by blanks. */
static void assert_names(struct view *v, uint64_t dir, const char *names)
{
	struct view_entry e;
	char found[1000] = "";
	uint64_t pos = 0;

	while (view_next(v, dir, &pos, &e, NULL) == 1)
		snprintf(found + strlen(found), sizeof(found) - strlen(found),
			 "%s%s", *found ? " " : "", e.name);
	assert_string_equal(found, names);
}

/* Check that a file of the view equals the one that PEFT saved in `dir`. */
static void assert_saved(struct view *v, uint64_t at, const char *dir, const char *name)
{
	char *const path = path_of(dir, name);
	struct errmsg err = { "" };
	uint8_t *want, *have;
	struct vfile *f = NULL;
	struct source src;
	uint64_t node;

	if (io_open(test_context(), path, NULL, &src, &err) ||
	    view_lookup(v, at, name, &node, &err) ||
	    view_file_open(v, node, &f, &err))
		fail_msg("%s: %s", path, err.text);
	assert_int_equal(vfile_size(f), src.size);
	want = malloc(src.size);
	have = malloc(src.size);
	assert_int_equal(source_read(&src, want, src.size, 0, &err), 0);
	assert_int_equal(vfile_read(f, have, src.size, 0, &err), src.size);
	if (memcmp(want, have, src.size) != 0)
		fail_msg("%s: other bytes", path);
	free(want);
	free(have);
	vfile_free(f);
	source_close(&src);
	free(path);
}

static void assert_dir(struct view *v, const char *run, const char *name)
{
	char *dir;
	uint64_t node;

	assert_true(asprintf(&dir, "%s/%s", run, name) > 0);
	assert_int_equal(view_lookup(v, VIEW_ROOT, name, &node, NULL), 0);
	assert_names(v, node, WEIGHTS " " CONFIG);
	assert_saved(v, node, dir, WEIGHTS);
	assert_saved(v, node, dir, CONFIG);
	free(dir);
}

static void the_adapters_are_what_peft_saved(void **state)
{
	/* PEFT loads a single file of any size. */
	static const uint64_t sizes[] = { 0, 100 };

	for (size_t i = 0; i < COUNT(runs); i++)
		for (size_t k = 0; k < COUNT(sizes); k++) {
			struct view *const v = open_view(
				runs[i].run, (struct view_options){
						     .type.kind = VIEW_HF,
						     .shard_size = sizes[k] });
			char names[200] = WEIGHTS " " CONFIG;

			for (size_t d = 0; d < COUNT(runs[i].dirs) && runs[i].dirs[d]; d++) {
				strcat(strcat(names, " "), runs[i].dirs[d]);
				assert_dir(v, runs[i].run, runs[i].dirs[d]);
			}
			assert_names(v, VIEW_ROOT, names);
			assert_saved(v, VIEW_ROOT, runs[i].saved, WEIGHTS);
			assert_saved(v, VIEW_ROOT, runs[i].saved, CONFIG);
			view_close(v);
		}
}

static void all_weights_are_in_the_other_view(void **state)
{
	for (size_t i = 0; i < COUNT(runs); i++) {
		struct view *const v = open_view(
			runs[i].run, (struct view_options){ .type.kind = VIEW_FP32 });

		assert_names(v, VIEW_ROOT, "pytorch_model.bin");
		view_close(v);
	}
}

static void names_of_lora_are_peft_s(void **state)
{
	static const struct {
		const char *name;
		bool trained;
		const char *key; /* expected key; NULL: not in the file */
	} names[] = {
		{ BASE "q.lora_A.one.weight", true, BASE "q.lora_A.weight" },
		{ BASE "q.lora_A.one.weight", false, BASE "q.lora_A.weight" },
		{ BASE "q.lora_A.two.weight", true, NULL },
		{ BASE "q.lora_A.ones.weight", true, NULL },
		{ BASE "q.lora_A.on.weight", true, NULL },
		{ BASE "head.modules_to_save.one.ln.bias", true, BASE "head.ln.bias" },
		{ BASE "head.modules_to_save.two.weight", true, NULL },
		{ BASE "q.base_layer.bias", true, BASE "q.base_layer.bias" },
		{ BASE "q.base_layer.weight", false, NULL },
		{ BASE "my_lora_block.weight", false, NULL },
		{ BASE "lora_like.weight", false, NULL },
		{ BASE "road_net.0.weight", false, NULL },
		{ "model." BASE "q.lora_A.one.weight", true, BASE "q.lora_A.weight" },
		{ "value_head.weight", true, NULL },
		{ "q.lora_A.one.weight", true, NULL },
		{ "prompt_encoder.point_embed.weight", true, NULL },
	};
	struct adapters all = { .n = 0 };
	struct arena a = { 0 };

	for (int trained = 1; trained >= 0; trained--)
		for (size_t i = 0; i < COUNT(names); i++)
			if (names[i].trained == trained)
				adapters_add(&all, &a, names[i].name, trained);
	assert_int_equal(all.n, 4);
	assert_string_equal(adapters_top(&all)->name, "on");
	assert_string_equal(all.v[0].name, "one");
	for (size_t i = 0; i < COUNT(names); i++) {
		/* The bias belongs to the adapter at the top. */
		const bool bias = strstr(names[i].name, "base_layer.bias");
		const char *const key =
			adapter_key(&all, bias ? adapters_top(&all) : &all.v[0], &a,
				    names[i].name, names[i].trained);

		if (!key != !names[i].key || (key && strcmp(key, names[i].key)))
			fail_msg("%s: %s", names[i].name, key ?: "left out");
	}
	arena_done(&a);
}

/* The lines of one method in peft_names.txt. */
struct method {
	char name[500];
	struct {
		char kind, name[200], key[200];
	} v[100];
	size_t n;
	bool computed;
};

static void check_method(const struct method *m)
{
	struct adapters all = { .n = 0 };
	struct arena a = { 0 };

	for (int trained = 1; trained >= 0; trained--)
		for (size_t i = 0; i < m->n; i++)
			if ((m->v[i].kind == 't') == trained)
				adapters_add(&all, &a, m->v[i].name, trained);
	if (all.n != 1 || adapters_top(&all) != all.v ||
	    !all.v->computed != !m->computed)
		fail_msg("%s: %zu adapters", m->name, all.n);
	for (size_t i = 0; !m->computed && i < m->n; i++) {
		const char *const key = adapter_key(&all, all.v, &a, m->v[i].name,
						    m->v[i].kind == 't');

		if (strcmp(key ?: "-", m->v[i].key) != 0)
			fail_msg("%s: %s: %s", m->name, m->v[i].name, key ?: "left out");
	}
	arena_done(&a);
}

static void names_of_all_methods_are_peft_s(void **state)
{
	char *const path = path_of("peft_names.txt", "");
	struct method m = { .n = 0 };
	char line[500];
	size_t n = 0;
	FILE *f;

	path[strlen(path) - 1] = '\0';
	f = fopen(path, "r");
	assert_non_null(f);
	for (bool more = true; more;) {
		more = fgets(line, sizeof(line), f);
		if (!more || strncmp(line, "method ", 7) == 0) {
			if (n++)
				check_method(&m);
			m = (struct method){ .n = 0 };
			snprintf(m.name, sizeof(m.name), "%s", line + 7);
		} else if (strncmp(line, "computed ", 9) == 0) {
			m.computed = true;
		} else {
			assert_true(m.n < COUNT(m.v));
			assert_int_equal(sscanf(line, "%c %199s %199s", &m.v[m.n].kind,
						m.v[m.n].name, m.v[m.n].key),
					 3);
			m.n++;
		}
	}
	assert_int_equal(n, 46);
	fclose(f);
	free(path);
}

static void put_text(void *text, const char *warning)
{
	snprintf(text, ERRMSG_MAX, "%s", warning);
}

static void assert_noticed(const char *run, bool noticed)
{
	struct view *const v =
		open_view(run, (struct view_options){ .type.kind = VIEW_UNIVERSAL });
	char text[ERRMSG_MAX] = "";

	view_warn(v, &(struct errmsg_sink){ put_text, text });
	if (!strstr(text, "no frozen weights") != !noticed)
		fail_msg("%s: %s", run, text);
	view_close(v);
}

static void a_tag_without_frozen_weights_is_noticed(void **state)
{
	for (size_t i = 0; i < COUNT(runs); i++)
		assert_noticed(runs[i].run, !runs[i].whole);
	/* Stages 2 and 3 record the exclusion in the files. */
	assert_noticed("z2_frozen_exclude_dp2", true);
	assert_noticed("z3_frozen_exclude_dp2", true);
	assert_noticed("z3_tied_frozen_buffers_dp2", false);
	assert_noticed("z3_fp32_dp2", false);
	assert_noticed("z1_fp32_dp2", false);
}

static void append_text(void *text, const char *warning)
{
	strncat(strncat(text, warning, ERRMSG_MAX / 2), "\n", 2);
}

/* A warning names weights that are in no file. */
static void what_is_left_out_is_named(void **state)
{
	static const struct {
		const char *names[3];
		const char *files; /* expected names at the top */
		const char *left_out, *said;
	} cases[] = {
		{ { BASE "q.lora_A.default.weight" }, WEIGHTS " " CONFIG, NULL, NULL },
		{ { BASE "q.lora_A.default.weight", BASE "q.lora_A.two.weight" },
		  WEIGHTS " " CONFIG " two",
		  NULL, "no " CONFIG " of the adapter 'two'" },
		{ { BASE "q.lora_A.default.weight", "value_head.weight" },
		  WEIGHTS " " CONFIG, "value_head.weight", NULL },
		{ { BASE "q.lora_A.default.weight", BASE "q.lora_A..weight" },
		  WEIGHTS " " CONFIG, BASE "q.lora_A..weight", NULL },
		{ { "prompt_encoder.default.embedding.weight",
		    "prompt_encoder.default.mlp_head.0.weight" },
		  "model.safetensors", NULL,
		  "prompt_encoder.default.mlp_head.0.weight: PEFT saves what it computes" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct view_options options = { .type.kind = VIEW_HF };
		struct mkckpt_param params[COUNT(cases[i].names)];
		struct mkckpt c = mkckpt_small(2);
		char *const dir = mkckpt_new_dir();
		char text[4 * ERRMSG_MAX] = "";
		struct errmsg err = { "" };
		struct view *v = NULL;
		char *config;

		for (c.nparams = 0; cases[i].names[c.nparams]; c.nparams++)
			params[c.nparams] = (struct mkckpt_param){
				.name = cases[i].names[c.nparams],
				.ndim = 2,
				.shape = { 2, 5 }
			};
		c.params = params;
		c.ngroups = 1;
		mkckpt_write(&c, dir);
		assert_true(asprintf(&config, "%s/" CONFIG, dir) > 0);
		fclose(fopen(config, "w"));
		if (view_open(test_context(), dir, &options, &v, &err))
			fail_msg("%s", err.text);
		assert_names(v, VIEW_ROOT, cases[i].files);
		view_warn(v, &(struct errmsg_sink){ append_text, text });
		assert_int_equal(cases[i].left_out != NULL, strstr(text, "left out") != NULL);
		if (cases[i].left_out)
			assert_ptr_equal(strstr(text, cases[i].left_out), text);
		if (cases[i].said && !strstr(text, cases[i].said))
			fail_msg("%zu: %s", i, text);
		view_close(v);
		unlink(config);
		free(config);
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_adapters_are_what_peft_saved),
		cmocka_unit_test(all_weights_are_in_the_other_view),
		cmocka_unit_test(names_of_lora_are_peft_s),
		cmocka_unit_test(names_of_all_methods_are_peft_s),
		cmocka_unit_test(a_tag_without_frozen_weights_is_noticed),
		cmocka_unit_test(what_is_left_out_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
