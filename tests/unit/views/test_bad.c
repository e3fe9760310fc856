/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged checkpoints: a good one, wrong in one place, must be refused, by
 * view_open or at the first use of what is wrong, with a message that names
 * the file and the cause.
 *
 * Two kinds of cases: those in the tables of bad_*.c, and the files of
 * tests/bad (its README.md explains them), which are put in the place of an
 * optimizer shard and of a model-states file.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/views/view.h"
#include "ckpt/zero/checkpoint.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"
#include "tests/unit/views/bad.h"

static const struct mkckpt_param params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 }, { "l1.weight", 2, { 7, 5 }, 0 },
	{ "l1.bias", 1, { 5 }, 0 },        { "l2.weight", 2, { 5, 7 }, 1 },
	{ "l2.bias", 1, { 7 }, 1 },
};

static const struct mkckpt_extra extras[] = {
	{ .name = "frozen", .dtype = DTYPE_BF16, .ndim = 2, .shape = { 3, 4 } },
	{ .name = "steps", .dtype = DTYPE_I64 },
};

static struct mkckpt good(int stage)
{
	return (struct mkckpt){
		.stage = stage,
		.ranks = BAD_RANKS,
		.params = params,
		.nparams = COUNT(params),
		.ngroups = 2,
		.extras = extras,
		.nextras = stage < 3 ? COUNT(extras) : 0,
		.seed = 1,
	};
}

/* Two MoE layers of four experts, two of them on a rank: a native one (layer 0)
 * and one of AutoEP with another order (layer 1), which is alone in stage 3. */
#define NATIVE "moe.deepspeed_moe.experts.deepspeed_experts."

static const struct mkckpt_param expert_params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 },       { NATIVE "0.bias", 1, { 3 }, 1 },
	{ NATIVE "1.bias", 1, { 3 }, 1 },        { NATIVE "2.bias", 1, { 3 }, 1 },
	{ NATIVE "3.bias", 1, { 3 }, 1 },        { "mlp.experts.w1", 3, { 4, 2, 3 }, 2 },
	{ "mlp.experts.w2", 3, { 4, 3, 2 }, 2 }, { "mlp.experts.w3", 3, { 4, 2, 3 }, 2 },
};

static const struct mkckpt_param fused_params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 },
	{ "mlp.experts.w1", 3, { 4, 2, 3 }, 1 },
	{ "mlp.experts.w2", 3, { 4, 3, 2 }, 1 },
	{ "mlp.experts.w3", 3, { 4, 2, 3 }, 1 },
};

static const struct mkckpt_extra expert_extras[] = {
	{ .name = NATIVE "0.frozen", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 3 }, .first = 10 },
	{ .name = NATIVE "1.frozen", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 3 }, .first = 20 },
	{ .name = NATIVE "2.frozen", .dtype = DTYPE_F32, .ndim = 1, .shape = { 3 }, .first = 30 },
	{ .name = NATIVE "3.frozen", .dtype = DTYPE_BF16, .ndim = 1, .shape = { 3 }, .first = 40 },
};

static const unsigned expert_order[] = { 2, 0, 3, 1 };

static const struct mkckpt_layer expert_layers[] = {
	{ .prefix = NATIVE, .n = 4, .ep = 2 },
	{ .prefix = "mlp.experts", .fused = true, .n = 4, .ep = 2, .order = expert_order },
};

static struct mkckpt good_experts(int stage)
{
	const bool fused = stage == 3;

	return (struct mkckpt){
		.stage = stage,
		.ranks = 4,
		.params = fused ? fused_params : expert_params,
		.nparams = fused ? COUNT(fused_params) : COUNT(expert_params),
		.ngroups = fused ? 2 : 3,
		.layers = fused ? &expert_layers[1] : expert_layers,
		.nlayers = fused ? 1 : 2,
		.extras = expert_extras,
		.nextras = fused ? 0 : COUNT(expert_extras),
		.seed = 1,
	};
}

static int open_and_walk(const char *dir, struct errmsg *err)
{
	static const struct view_options options = { .crc_zero = false };
	struct view *v = NULL;
	int rc = view_open(test_context(), dir, &options, &v, err);

	if (!rc)
		rc = walk_view(v, err);
	view_close(v);
	return rc;
}

/* Failed cases of the current test, which do not stop the others. */
static unsigned failures;

static int forget_failures(void **state)
{
	failures = 0;
	return 0;
}

/* Other views may not need the damaged part. */
static void check_views(const char *name, const char *dir)
{
	static const struct view_options options = { .crc_zero = true };
	struct errmsg err = { "" };
	struct view *universal;

	if (view_open(test_context(), dir, &options, &universal, &err))
		return;
	if (walk_views(universal, &err)) {
		failures++;
		print_error("%s: %s\n", name, err.text);
	}
	view_close(universal);
}

static void check_fails(const char *name, const char *dir, const char *file, const char *expect)
{
	struct errmsg err = { "" };
	const int rc = open_and_walk(dir, &err);

	check_views(name, dir);
	if (rc < 0 && rc != WALK_BROKEN && strstr(err.text, expect) && strstr(err.text, file))
		return;
	failures++;
	if (rc >= 0)
		print_error("%s: is not noticed\n", name);
	else
		print_error("%s: expected \"%s\" and \"%s\", got \"%s\" (%s)\n", name, file, expect,
			    err.text, strerror(-rc));
}

static void edit_one(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		     void *ctx)
{
	const struct bad *b = ctx;

	if (b->change && b->kind == kind && b->rank == rank)
		literal_change(m, root, b->change);
}

typedef struct mkckpt (*make_good)(int stage);

static void check_bad(const struct bad *b, int stage, make_good make)
{
	struct mkckpt c = make(stage);
	char *dir = mkckpt_new_dir();
	char name[128];

	c.edit = edit_one;
	c.ctx = (void *)b;
	mkckpt_write(&c, dir);
	if (b->shell)
		mkckpt_shell(dir, b->shell);
	snprintf(name, sizeof(name), "%s, stage %d", b->name, stage);
	check_fails(name, dir, b->file, b->expect);
	mkckpt_free_dir(dir);
}

static void check_good(make_good make)
{
	static const struct view_options options = { .crc_zero = false };

	for (int stage = 1; stage <= 3; stage++) {
		const struct mkckpt c = make(stage);
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct view *v = NULL;
		char why[1024];

		mkckpt_write(&c, dir);
		if (open_and_walk(dir, &err) || view_open(test_context(), dir, &options, &v, &err))
			fail_msg("stage %d: %s", stage, err.text);
		if (!mkckpt_check(&c, v, why, sizeof(why)))
			fail_msg("stage %d: %s", stage, why);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void undamaged_is_served(void **state)
{
	check_good(good);
	check_good(good_experts);
}

static void check_table(const struct bad *v, size_t n, make_good make)
{
	for (size_t i = 0; i < n; i++)
		for (int stage = 1; stage <= 3; stage++)
			if (v[i].stages & STAGE(stage))
				check_bad(&v[i], stage, make);
	assert_int_equal(failures, 0);
}

static void defects_of_files_are_reported(void **state)
{
	check_table(bad_files, bad_files_n, good);
}

static void defects_of_model_states_are_reported(void **state)
{
	check_table(bad_model, bad_model_n, good);
}

static void defects_of_optimizer_shards_are_reported(void **state)
{
	check_table(bad_optim, bad_optim_n, good);
}

static void defects_of_experts_are_reported(void **state)
{
	check_table(bad_experts, bad_experts_n, good_experts);
}

static void check_truncated(const struct mkckpt *c, const char *dir, enum mkckpt_file kind,
			    unsigned rank, const char *file)
{
	char path[PATH_MAX];
	struct bytebuf whole;

	mkckpt_path(c, dir, kind, rank, path);
	whole = mkpt_load(path);
	for (size_t n = 0; n < whole.len; n += n < 64 ? 1 + n / 8 : 1 + whole.len / 37) {
		const char *expect = n == 0  ? "empty file"
				     : n < 4 ? "not a file of torch.save"
					     : "truncated?";
		char name[64];

		mkpt_save(path, whole.data, n);
		snprintf(name, sizeof(name), "%s cut to %zu", file, n);
		check_fails(name, dir, file, expect);
	}
	mkpt_save(path, whole.data, whole.len - 1);
	check_fails("last byte lost", dir, file, "truncated?");
	mkpt_save(path, whole.data, whole.len);
	bytebuf_done(&whole);
}

static void truncated_files_are_reported(void **state)
{
	for (int stage = 2; stage <= 3; stage++) {
		const struct mkckpt c = good(stage);
		char *dir = mkckpt_new_dir();

		mkckpt_write(&c, dir);
		check_truncated(&c, dir, MKCKPT_OPTIM, 0, SHARD_0);
		check_truncated(&c, dir, MKCKPT_OPTIM, 1, SHARD_1);
		check_truncated(&c, dir, MKCKPT_MODEL, 0, MODEL);
		mkckpt_free_dir(dir);
	}
	assert_int_equal(failures, 0);
}

static void unreadable_files_are_reported(void **state)
{
	const struct mkckpt c = good(2);
	char path[PATH_MAX], *dir;

	if (geteuid() == 0) {
		print_message("skipped: root may read everything\n");
		skip();
	}
	dir = mkckpt_new_dir();
	mkckpt_write(&c, dir);
	mkckpt_path(&c, dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(chmod(path, 0), 0);
	check_fails("shard", dir, SHARD_1, "cannot open: Permission denied");
	mkckpt_path(&c, dir, MKCKPT_MODEL, 0, path);
	assert_int_equal(chmod(path, 0), 0);
	check_fails("model states", dir, MODEL, "Permission denied");
	mkckpt_free_dir(dir);
	assert_int_equal(failures, 0);
}

/* A module of strings has no tensors to serve; it is not damaged. */
static void strings_in_the_module_are_left_out(void **state)
{
	static const struct view_options options = { .crc_zero = true };
	static const struct bad b = { .kind = MKCKPT_MODEL,
				      .change = "['module']['frozen'] = 'text'" };
	struct mkckpt c = good(2);
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct view *v;
	uint64_t node;

	c.edit = edit_one;
	c.ctx = (void *)&b;
	mkckpt_write(&c, dir);
	if (view_open(test_context(), dir, &options, &v, &err) || walk_view(v, &err))
		fail_msg("%s", err.text);
	assert_int_equal(view_lookup(v, VIEW_ZERO, "frozen", &node, &err), -ENOENT);
	assert_int_equal(zero_of(view_checkpoint(v))->model.ranks[0].warnings.n, 1);
	assert_string_equal(zero_of(view_checkpoint(v))->model.ranks[0].warnings.v[0],
			    "module: frozen: left out: not a tensor");
	view_close(v);
	mkckpt_free_dir(dir);
}

/* An enum's member is accepted as a number. */
static void dimensions_may_be_members_of_enums(void **state)
{
	static const struct bad b = {
		.kind = MKCKPT_MODEL,
		.change = "['universal_checkpoint_info']['parameter_with_sub_params'] ="
			  " [{'patterns': ['l1.weight'], 'shape': (7, 5),"
			  " 'partition_dim': Call('mine', 'Dim', 1)}]",
	};
	struct mkckpt c = good(2);
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };

	c.edit = edit_one;
	c.ctx = (void *)&b;
	mkckpt_write(&c, dir);
	if (open_and_walk(dir, &err))
		fail_msg("%s", err.text);
	mkckpt_free_dir(dir);
}

static void set_module(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		       void *ctx)
{
	static const uint64_t none = 0;
	struct value *module = mkpt_ordered_dict(m);

	if (kind != MKCKPT_MODEL)
		return;
	mkpt_set(m, module, "l1.weight", mkpt_tensor(m, DTYPE_I8, &none, 1, ""));
	mkpt_set(m, root, "module", module);
}

/* Stages 1 and 2 would have to cast the master weights to an unsupported type. */
static void modules_of_integers_are_not_filled(void **state)
{
	static const struct view_type type = { VIEW_RECUT, .ranks = 2, .stage = 1 };
	static const struct view_options options = { .crc_zero = true };
	struct mkckpt c = good(3);
	char *dir = mkckpt_new_dir();
	struct view *universal, *p = NULL;
	struct errmsg err = { "" };

	c.edit = set_module;
	mkckpt_write(&c, dir);
	if (view_open(test_context(), dir, &options, &universal, &err))
		fail_msg("%s", err.text);
	assert_true(view_open_derived(universal, &type, &p, &err) || walk_view(p, &err));
	assert_non_null(strstr(err.text, "l1.weight: no cast from the master weights"));
	view_close(p);
	view_close(universal);
	mkckpt_free_dir(dir);
}

/* The global number of a native expert is larger than its number on a rank, so its name is longer
 * in the tree. */
static void long_names_of_experts_are_refused(void **state)
{
	enum { N = 20, LEN = NAME_MAX - (int)sizeof(NATIVE "0") };
	static const struct mkckpt_layer layer = { .prefix = NATIVE, .n = N, .ep = 2 };
	static char names[N][NAME_MAX + 64];
	struct mkckpt_param p[N];
	const struct mkckpt c = { .stage = 1,
				  .ranks = 2,
				  .params = p,
				  .nparams = N,
				  .ngroups = 1,
				  .layers = &layer,
				  .nlayers = 1 };
	char *dir = mkckpt_new_dir();

	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), NATIVE "%d.%0*d", i, LEN, 0);
		p[i] = (struct mkckpt_param){ names[i], 1, { 3 }, 0 };
	}
	mkckpt_write(&c, dir);
	check_fails("long names", dir, MODEL, "0: cannot be a file name");
	assert_int_equal(failures, 0);
	mkckpt_free_dir(dir);
}

/* Load a case as a .pt file; wrap bare pickles into one. */
static struct bytebuf load_case(const char *path)
{
	struct bytebuf b = mkpt_load(path), out = { 0 };

	if (strcmp(path + strlen(path) - 4, ".pkl") != 0)
		return b;
	mkpt_emit_pickle(NULL, (struct span){ b.data, b.len }, "archive", &out);
	bytebuf_done(&b);
	return out;
}

static void check_in_place(const char *name, const struct bytebuf *file, int stage,
			   enum mkckpt_file kind, const char *place, const char *expect)
{
	const struct mkckpt c = good(stage);
	char *dir = mkckpt_new_dir();
	char path[PATH_MAX];

	mkckpt_write(&c, dir);
	mkckpt_path(&c, dir, kind, 0, path);
	mkpt_save(path, file->data, file->len);
	check_fails(name, dir, place, expect);
	mkckpt_free_dir(dir);
}

static void each_file_is_refused(void **state)
{
	glob_t g;

	realfiles_glob(&g, "tests/bad/*.p[kt]*.expect");
	for (size_t i = 0; i < g.gl_pathc; i++) {
		char *path = g.gl_pathv[i];
		char *expect = realfiles_expect(path);
		struct bytebuf file = load_case(path);

		for (int stage = 2; stage <= 3; stage++) {
			check_in_place(path, &file, stage, MKCKPT_OPTIM, SHARD_0, expect);
			check_in_place(path, &file, stage, MKCKPT_MODEL, MODEL, expect);
		}
		bytebuf_done(&file);
		free(expect);
	}
	globfree(&g);
	assert_int_equal(failures, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(undamaged_is_served),
		cmocka_unit_test_setup(defects_of_files_are_reported, forget_failures),
		cmocka_unit_test_setup(defects_of_model_states_are_reported, forget_failures),
		cmocka_unit_test_setup(defects_of_optimizer_shards_are_reported, forget_failures),
		cmocka_unit_test_setup(defects_of_experts_are_reported, forget_failures),
		cmocka_unit_test_setup(truncated_files_are_reported, forget_failures),
		cmocka_unit_test_setup(unreadable_files_are_reported, forget_failures),
		cmocka_unit_test(strings_in_the_module_are_left_out),
		cmocka_unit_test(dimensions_may_be_members_of_enums),
		cmocka_unit_test(modules_of_integers_are_not_filled),
		cmocka_unit_test_setup(long_names_of_experts_are_refused, forget_failures),
		cmocka_unit_test_setup(each_file_is_refused, forget_failures),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
