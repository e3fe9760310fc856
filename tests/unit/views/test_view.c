/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Planned trees: listed files can be looked up, have the size that stat reports and the trained
 * elements, for any shapes, groups, numbers of ranks and stages.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/shards.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "ckpt/views/view_impl.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define PARAMS_MAX 9
#define NAME_LEN 32

static struct view *open_view(const char *dir, bool crc_zero)
{
	const struct view_options options = { .crc_zero = crc_zero };
	struct errmsg err = { "" };
	struct view *v = NULL;

	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("%s", err.text);
	return v;
}

/* A small checkpoint on disk, and its view. */
struct opened {
	struct mkckpt c;
	char *dir;
	struct view *v;
};

static struct opened set_up(int stage)
{
	struct opened x = { mkckpt_small(stage), mkckpt_new_dir(), NULL };

	mkckpt_write(&x.c, x.dir);
	x.v = open_view(x.dir, false);
	return x;
}

static void tear_down(struct opened *x)
{
	view_close(x->v);
	mkckpt_free_dir(x->dir);
}

static uint64_t find(struct view *v, uint64_t dir, const char *name)
{
	struct errmsg err = { "" };
	uint64_t node = 0;

	if (view_lookup(v, dir, name, &node, &err))
		fail_msg("%s: %s", name, err.text);
	return node;
}

static void check_listing(struct view *v, uint64_t dir, const char *const *expect)
{
	struct view_entry e;
	uint64_t pos = 0;
	size_t i = 0;

	while (view_next(v, dir, &pos, &e, NULL) == 1) {
		assert_non_null(expect[i]);
		assert_string_equal(e.name, expect[i++]);
	}
	assert_null(expect[i]);
}

static void stage_2_has_the_converters_files(void **state)
{
	static const char *const root[] = { "zero", "mp_rank_00_model_states.pt", NULL };
	static const char *const zero[] = {
		"optimizer_state.pt", "bias", "buffer", "emb.weight", "frozen", "scalar", NULL
	};
	static const char *const owned[] = { "fp32.pt", "step.pt", "exp_avg.pt", "exp_avg_sq.pt",
					     NULL };
	static const char *const module[] = { "fp32.pt", NULL };
	struct opened x = set_up(2);

	check_listing(x.v, VIEW_ROOT, root);
	check_listing(x.v, VIEW_ZERO, zero);
	check_listing(x.v, find(x.v, VIEW_ZERO, "bias"), owned);
	check_listing(x.v, find(x.v, VIEW_ZERO, "frozen"), module);
	assert_string_equal(view_checkpoint(x.v)->tag, strrchr(x.dir, '/') + 1);
	tear_down(&x);
}

/* Stage 3: no step.pt, and the model states of all ranks. */
static void stage_3_has_the_converters_files(void **state)
{
	static const char *const root[] = { "zero", "zero_pp_rank_0_mp_rank_00_model_states.pt",
					    "zero_pp_rank_1_mp_rank_00_model_states.pt", NULL };
	static const char *const owned[] = { "fp32.pt", "exp_avg.pt", "exp_avg_sq.pt", NULL };
	struct opened x = set_up(3);

	check_listing(x.v, VIEW_ROOT, root);
	check_listing(x.v, find(x.v, VIEW_ZERO, "bias"), owned);
	tear_down(&x);
}

static void a_path_may_end_in_slashes(void **state)
{
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir(), path[PATH_MAX];
	struct view *v;

	mkckpt_write(&c, dir);
	snprintf(path, sizeof(path), "%s//", dir);
	v = open_view(path, false);
	assert_string_equal(view_checkpoint(v)->path, dir);
	assert_string_equal(view_checkpoint(v)->tag, strrchr(dir, '/') + 1);
	view_close(v);
	mkckpt_free_dir(dir);
}

/* An engine in stage 1 or 2 may have more groups than the saving one. */
static void any_stage_has_groups_for_an_engine_with_more(void **state)
{
	const struct view_options options = { .any_stage = true };
	const struct mkckpt c = mkckpt_small(3);
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	const struct value_seq *groups;
	struct source src;
	struct ptfile pt;
	struct vfile *f;
	struct view *v;
	uint8_t bytes[8192];
	int64_t len;

	mkckpt_write(&c, dir);
	assert_int_equal(view_open(test_context(), dir, &options, &v, &err), 0);
	assert_int_equal(view_file_open(v, find(v, VIEW_ZERO, "optimizer_state.pt"), &f, &err), 0);
	len = vfile_read(f, bytes, sizeof(bytes), 0, &err);
	assert_true(len >= 1 && len < (int64_t)sizeof(bytes));
	source_init_span(&src, "optimizer_state.pt", (struct span){ bytes, (size_t)len });
	assert_int_equal(ptfile_open_source(&pt, &src, &err), 0);
	groups = value_find_items(pt.root, "param_groups");
	assert_int_equal(groups->n, ENGINE_GROUPS_MAX);
	for (size_t i = 0; i < groups->n; i++) {
		const struct value_dict *g = value_pairs(groups->v[i]);

		assert_true(value_find(groups->v[i], "lr")->f == 0.01);
		assert_true(i < c.ngroups ? g->n > 1 : g->n == 1);
	}
	/* Stage 3 reads its own groups, and expects as many as it saved. */
	groups = value_items(value_find_path(pt.root, "optimizer_state_dict", "param_groups", NULL));
	assert_int_equal(groups->n, c.ngroups);
	ptfile_close(&pt);
	vfile_free(f);
	view_close(v);
	mkckpt_free_dir(dir);
}

static void what_is_not_there_is_not_found(void **state)
{
	static const char *const names[] = { "nothing",     "",        ".",        "..", "fp32",
					     "fp32.pt.bak", "FP32.pt", "zero/bias" };
	struct opened x = set_up(2);
	uint64_t dirs[3], node;

	dirs[0] = VIEW_ROOT;
	dirs[1] = VIEW_ZERO;
	dirs[2] = find(x.v, VIEW_ZERO, "bias");
	for (size_t i = 0; i < COUNT(dirs); i++)
		for (size_t k = 0; k < COUNT(names); k++)
			assert_int_equal(view_lookup(x.v, dirs[i], names[k], &node, NULL), -ENOENT);
	tear_down(&x);
}

/* Invalid node numbers, and operations on the wrong kind of node. */
static void wrong_nodes_are_refused(void **state)
{
	struct opened x = set_up(2);
	struct view_entry e;
	struct view_stat st;
	struct vfile *f;
	uint64_t file, pos = 0, node;

	file = find(x.v, find(x.v, VIEW_ZERO, "bias"), "fp32.pt");
	assert_int_equal(view_next(x.v, file, &pos, &e, NULL), -ENOTDIR);
	assert_int_equal(view_lookup(x.v, file, "x", &node, NULL), -ENOTDIR);
	assert_int_equal(view_file_open(x.v, VIEW_ROOT, &f, NULL), -EISDIR);
	assert_int_equal(view_file_open(x.v, VIEW_ZERO, &f, NULL), -EISDIR);
	assert_int_equal(view_file_open(x.v, find(x.v, VIEW_ZERO, "bias"), &f, NULL), -EISDIR);
	/* The parameter does not have this state. */
	assert_true(view_file_open(x.v, file + 12, &f, NULL) < 0);
	assert_true(view_stat(x.v, file + 12, &st, NULL) < 0);
	assert_true(view_stat(x.v, 3, &st, NULL) < 0);
	assert_true(view_stat(x.v, VIEW_NODE_END - 1, &st, NULL) < 0);
	assert_true(view_stat(x.v, UINT64_MAX, &st, NULL) < 0);
	tear_down(&x);
}

static void directories_have_the_links_of_theirs(void **state)
{
	struct opened x = set_up(2);
	struct view_stat st;

	assert_int_equal(view_stat(x.v, VIEW_ROOT, &st, NULL), 0);
	assert_true(st.is_dir);
	assert_int_equal(st.nlink, 3);
	assert_int_equal(view_stat(x.v, VIEW_ZERO, &st, NULL), 0);
	assert_int_equal(st.nlink, 2 + 5);
	assert_int_equal(view_stat(x.v, find(x.v, VIEW_ZERO, "bias"), &st, NULL), 0);
	assert_int_equal(st.nlink, 2);
	assert_true(st.mtime_s > 0);
	tear_down(&x);
}

static void crc_zero_changes_nothing_but_sums(void **state)
{
	const struct mkckpt c = mkckpt_small(2);
	char *dir = mkckpt_new_dir();
	uint64_t files[2], bytes[2];
	char why[1024];

	mkckpt_write(&c, dir);
	for (int zero = 0; zero <= 1; zero++) {
		struct view *v = open_view(dir, zero);
		struct errmsg err = { "" };

		if (!mkckpt_check(&c, v, why, sizeof(why)))
			fail_msg("%s", why);
		if (walk_view(v, &err))
			fail_msg("%s", err.text);
		assert_int_equal(view_totals(v, &files[zero], &bytes[zero], NULL), 0);
		view_close(v);
	}
	assert_int_equal(files[0], files[1]);
	assert_int_equal(bytes[0], bytes[1]);
	mkckpt_free_dir(dir);
}

/* Opening a file checks every shard that it names. */
static void replaced_shards_are_noticed_at_open(void **state)
{
	struct opened x = set_up(2);
	char path[PATH_MAX], other[PATH_MAX + 8];
	struct errmsg err = { "" };
	struct bytebuf b;
	struct vfile *f;
	uint64_t bias;

	bias = find(x.v, find(x.v, VIEW_ZERO, "bias"), "fp32.pt");
	assert_int_equal(view_file_open(x.v, bias, &f, &err), 0);
	vfile_free(f);
	usleep(120000);
	for (unsigned r = 0; r < x.c.ranks; r++) {
		mkckpt_path(&x.c, x.dir, MKCKPT_OPTIM, r, path);
		b = mkpt_load(path);
		snprintf(other, sizeof(other), "%s.new", path);
		mkpt_save(other, b.data, b.len);
		assert_int_equal(rename(other, path), 0);
		bytebuf_done(&b);
	}
	assert_int_equal(view_file_open(x.v, bias, &f, &err), -EIO);
	assert_non_null(strstr(err.text, "was replaced since"));
	tear_down(&x);
}

struct walker {
	struct view *v;
	struct errmsg err;
	int rc;
	pthread_t thread;
};

static void *walk_on(void *arg)
{
	struct walker *w = arg;

	w->rc = walk_view(w->v, &w->err);
	return NULL;
}

/* Any thread may be the first to need a shard and load it. */
static void threads_share_a_view(void **state)
{
	struct walker walkers[4];

	for (int stage = 2; stage <= 3; stage++) {
		struct mkckpt c = mkckpt_small(stage);
		char *dir = mkckpt_new_dir();
		struct view *v;

		c.ranks = 5;
		mkckpt_write(&c, dir);
		v = open_view(dir, false);
		for (size_t i = 0; i < COUNT(walkers); i++) {
			walkers[i] = (struct walker){ .v = v };
			assert_int_equal(
				pthread_create(&walkers[i].thread, NULL, walk_on, &walkers[i]), 0);
		}
		for (size_t i = 0; i < COUNT(walkers); i++) {
			pthread_join(walkers[i].thread, NULL);
			if (walkers[i].rc)
				fail_msg("%s", walkers[i].err.text);
		}
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

static void random_param(const struct mkckpt *c, struct mkckpt_param *p, char *name, size_t i,
			 uint64_t *s)
{
	snprintf(name, NAME_LEN, "p%zu.w", i);
	*p = (struct mkckpt_param){
		.name = name,
		.ndim = (unsigned)(test_random(s) % 4),
		.group = (unsigned)(test_random(s) % c->ngroups),
	};
	for (unsigned d = 0; d < p->ndim; d++)
		p->shape[d] = test_random(s) % (d ? 5 : 40);
}

static void check_random(uint64_t seed)
{
	uint64_t s = seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
	struct mkckpt_param v[PARAMS_MAX];
	char names[PARAMS_MAX][NAME_LEN], why[1024];
	char *dir = mkckpt_new_dir();
	struct mkckpt c = {
		.stage = 1 + (int)(test_random(&s) % 3),
		.ranks = 1 + (unsigned)(test_random(&s) % 7),
		.params = v,
		.nparams = 1 + test_random(&s) % PARAMS_MAX,
		.ngroups = 1 + test_random(&s) % 3,
		.align = test_random(&s) % 2 ? 8 : 0,
		.round_robin = test_random(&s) % 2,
		.padded = test_random(&s) % 2,
		.bf16 = test_random(&s) % 2,
		.seed = seed,
	};
	struct errmsg err = { "" };
	struct view *view;

	for (size_t i = 0; i < c.nparams; i++)
		random_param(&c, &v[i], names[i], i, &s);
	mkckpt_write(&c, dir);
	view = open_view(dir, test_random(&s) % 2);
	if (!mkckpt_check(&c, view, why, sizeof(why)))
		fail_msg("seed %llu, stage %d, %u ranks: %s", (unsigned long long)seed, c.stage,
			 c.ranks, why);
	if (walk_view(view, &err))
		fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
	view_close(view);
	mkckpt_free_dir(dir);
}

static void any_geometry_is_put_together_again(void **state)
{
	for (uint64_t seed = 1; seed <= 150; seed++)
		check_random(seed);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(stage_2_has_the_converters_files),
		cmocka_unit_test(stage_3_has_the_converters_files),
		cmocka_unit_test(a_path_may_end_in_slashes),
		cmocka_unit_test(any_stage_has_groups_for_an_engine_with_more),
		cmocka_unit_test(what_is_not_there_is_not_found),
		cmocka_unit_test(wrong_nodes_are_refused),
		cmocka_unit_test(directories_have_the_links_of_theirs),
		cmocka_unit_test(crc_zero_changes_nothing_but_sums),
		cmocka_unit_test(replaced_shards_are_noticed_at_open),
		cmocka_unit_test(threads_share_a_view),
		cmocka_unit_test(any_geometry_is_put_together_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
