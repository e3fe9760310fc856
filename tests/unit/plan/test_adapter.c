/* SPDX-License-Identifier: Apache-2.0 */
/* What TAG_hf shows of runs that train LoRA: the files that PEFT saved beside the tag. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/weights/adapter.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define CONFIG "adapter_config.json"
#define WEIGHTS "adapter_model.safetensors"
#define BASE "base_model.model."

/* Of tests/good; its README.md says how they were made. */
static const struct {
	const char *run, *saved; /* where PEFT saved the adapter */
	bool whole;              /* the tag has the frozen weights */
} runs[] = {
	{ "lora_trainer_z2_dp2/checkpoint-4", "lora_trainer_z2_dp2/checkpoint-4",
	  false },
	{ "lora_dora_z3_dp2", "lora_dora_z3_dp2", true },
	{ "lora_named_z1_dp2", "lora_named_z1_dp2/mine", true },
};

static char *path_of(const char *dir, const char *name)
{
	const char *const top = getenv("top_srcdir");
	char *path;

	assert_true(asprintf(&path, "%s/tests/good/%s/%s", top ?: ".", dir, name) > 0);
	return path;
}

static struct plan *open_plan(const char *run, struct plan_options options)
{
	char *const tag = path_of(run, "global_step4");
	struct errmsg err = { "" };
	struct plan *p = NULL;

	if (plan_open(test_context(), tag, &options, &p, &err))
		fail_msg("%s: %s", run, err.text);
	free(tag);
	return p;
}

/* The plan has these names, separated by blanks. */
static void assert_names(struct plan *p, const char *names)
{
	struct plan_entry e;
	char found[1000] = "";
	uint64_t pos = 0;

	while (plan_next(p, PLAN_ROOT, &pos, &e, NULL) == 1)
		snprintf(found + strlen(found), sizeof(found) - strlen(found),
			 "%s%s", *found ? " " : "", e.name);
	assert_string_equal(found, names);
}

/* A file of the plan has the bytes of the one that PEFT saved. */
static void assert_saved(struct plan *p, const char *dir, const char *name)
{
	char *const path = path_of(dir, name);
	struct errmsg err = { "" };
	uint8_t *want, *have;
	struct vfile *f = NULL;
	struct source src;
	uint64_t node;

	if (files_open(test_context(), &src, path, &err) ||
	    plan_lookup(p, PLAN_ROOT, name, &node, &err) ||
	    plan_file_open(p, node, &f, &err))
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

static void the_adapter_is_what_peft_saved(void **state)
{
	/* PEFT loads one file, however large. */
	static const uint64_t sizes[] = { 0, 100 };

	for (size_t i = 0; i < COUNT(runs); i++)
		for (size_t k = 0; k < COUNT(sizes); k++) {
			struct plan *const p = open_plan(
				runs[i].run, (struct plan_options){
						     .type.kind = PLAN_HF,
						     .shard_size = sizes[k] });

			assert_names(p, WEIGHTS " " CONFIG);
			assert_saved(p, runs[i].saved, WEIGHTS);
			assert_saved(p, runs[i].saved, CONFIG);
			plan_close(p);
		}
}

static void all_weights_are_in_the_other_view(void **state)
{
	for (size_t i = 0; i < COUNT(runs); i++) {
		struct plan *const p = open_plan(
			runs[i].run, (struct plan_options){ .type.kind = PLAN_FP32 });

		assert_names(p, "pytorch_model.bin");
		plan_close(p);
	}
}

static void names_are_peft_s(void **state)
{
	static const struct {
		const char *name;
		bool trained;
		const char *key; /* NULL: is not in the file */
	} names[] = {
		{ BASE "q.lora_A.one.weight", true, BASE "q.lora_A.weight" },
		{ BASE "q.lora_A.one.weight", false, BASE "q.lora_A.weight" },
		{ BASE "q.lora_A.two.weight", true, NULL },
		{ BASE "q.lora_A.ones.weight", true, NULL },
		{ BASE "q.lora_A.on.weight", true, NULL },
		{ BASE "q.lora_B.one.bias", true, BASE "q.lora_B.bias" },
		{ BASE "wte.lora_embedding_A.one", true, BASE "wte.lora_embedding_A" },
		{ BASE "q.lora_magnitude_vector.one.weight", true,
		  BASE "q.lora_magnitude_vector" },
		{ BASE "q.lora_magnitude_vector.one", true,
		  BASE "q.lora_magnitude_vector" },
		{ BASE "head.modules_to_save.one.weight", true, BASE "head.weight" },
		{ BASE "head.modules_to_save.one.ln.bias", true, BASE "head.ln.bias" },
		{ BASE "head.modules_to_save.two.weight", true, NULL },
		{ BASE "wte.token_adapter.trainable_tokens_delta.one", true,
		  BASE "wte.token_adapter.trainable_tokens_delta" },
		{ BASE "q.base_layer.bias", true, BASE "q.base_layer.bias" },
		{ BASE "q.base_layer.weight", false, NULL },
		{ BASE "my_lora_block.weight", false, NULL },
		{ "model." BASE "q.lora_A.one.weight", true, BASE "q.lora_A.weight" },
		{ "value_head.weight", true, NULL },
		{ "q.lora_A.one.weight", true, NULL },
	};
	struct arena a = { 0 };

	for (size_t i = 0; i < COUNT(names); i++) {
		const char *const key = adapter_key(&a, "one", names[i].name,
						    names[i].trained);

		if (!key != !names[i].key || (key && strcmp(key, names[i].key)))
			fail_msg("%s: %s", names[i].name, key ?: "left out");
	}
	arena_done(&a);
}

static void put_text(void *text, const char *warning)
{
	snprintf(text, ERRMSG_MAX, "%s", warning);
}

static void a_tag_without_frozen_weights_is_noticed(void **state)
{
	for (size_t i = 0; i < COUNT(runs); i++) {
		struct plan *const p = open_plan(
			runs[i].run,
			(struct plan_options){ .type.kind = PLAN_UNIVERSAL });
		char text[ERRMSG_MAX] = "";

		plan_warn(p, &(struct errmsg_sink){ put_text, text });
		assert_int_equal(!strstr(text, "no frozen weights"), runs[i].whole);
		plan_close(p);
	}
}

/* Of two adapters that are trained, and of what is trained beside them, one is shown. */
static void what_is_left_out_is_named(void **state)
{
	static const struct mkckpt_param params[] = {
		{ .name = BASE "q.lora_A.one.weight", .ndim = 2, .shape = { 2, 5 } },
		{ .name = BASE "q.lora_A.two.weight", .ndim = 2, .shape = { 2, 5 } },
		{ .name = "value_head.weight", .ndim = 1, .shape = { 5 } },
	};

	for (size_t n = 1; n <= COUNT(params); n++) {
		const struct plan_options options = { .type.kind = PLAN_HF };
		struct mkckpt c = mkckpt_small(2);
		char *const dir = mkckpt_new_dir();
		char text[ERRMSG_MAX] = "";
		const struct errmsg_sink to = { put_text, text };
		struct errmsg err = { "" };
		struct plan *p = NULL;
		char *config;

		c.params = params;
		c.nparams = n;
		c.ngroups = 1;
		mkckpt_write(&c, dir);
		assert_true(asprintf(&config, "%s/" CONFIG, dir) > 0);
		fclose(fopen(config, "w"));
		if (plan_open(test_context(), dir, &options, &p, &err))
			fail_msg("%s", err.text);
		plan_warn(p, &to);
		if (n == 1)
			assert_string_equal(text, "");
		else
			assert_ptr_equal(strstr(text, params[n - 1].name), text);
		plan_close(p);
		unlink(config);
		free(config);
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_adapter_is_what_peft_saved),
		cmocka_unit_test(all_weights_are_in_the_other_view),
		cmocka_unit_test(names_are_peft_s),
		cmocka_unit_test(a_tag_without_frozen_weights_is_noticed),
		cmocka_unit_test(what_is_left_out_is_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
