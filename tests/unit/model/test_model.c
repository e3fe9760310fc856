/* SPDX-License-Identifier: Apache-2.0 */
/* The model of a checkpoint of several model-parallel ranks. test_property.c compares its tensors
 * with the originals. */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/model.h"
#include "tests/make/world.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static int load(const char *dir, struct model *m, struct errmsg *err)
{
	struct zero_dir d;
	int rc = zero_dir_scan(test_context(), &d, dir, NULL, err);

	if (rc)
		fail_msg("%s", err->text);
	rc = model_load(m, &d, NULL, NULL, err);
	zero_dir_done(&d);
	return rc;
}

/* Make one 4 x 6 matrix of `rule` on each rank. */
static void make_small(struct world *w, enum merge_rule rule, unsigned tp, unsigned pp)
{
	*w = (struct world){ .tp = tp,
			     .pp = pp,
			     .n = 1,
			     .as = { .stage = 1, .ranks = 1, .ngroups = 1, .tp = tp, .pp = pp } };
	w->v[0] = (struct world_tensor){ .name = "w",
					 .rule = rule,
					 .ndim = 2,
					 .shape = { 4, 6 },
					 .parts = 1,
					 .tied = pp > 1,
					 .listed = pp > 1 };
	if (rule == MERGE_CAT)
		for (unsigned k = 0; k < tp; k++)
			w->v[0].widths[0][k] = 4 / tp;
	world_cut(&w->v[0], tp);
}

static void touch_layer(const char *dir, unsigned layer, unsigned slice)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), "%s/layer_%02u-model_%02u-model_states.pt", dir, layer, slice);
	mkpt_save(path, "", 0);
}

/* Checkpoints that do not record degrees have them in their layer files. */
static void degrees_are_found(void **state)
{
	static const struct {
		unsigned tp, pp; /* recorded degrees */
		unsigned layers; /* number of files of layers 1 and 2 */
		unsigned want_tp, want_pp;
		int rc;
	} cases[] = {
		{ 2, 2, 0, 2, 2, 0 },        { 4, 1, 0, 4, 1, 0 },
		{ 2, 2, 4, 2, 2, 0 }, /* the recorded degree wins */
		{ 0, 0, 0, 4, 1, 0 },        { 0, 0, 2, 2, 2, 0 },
		{ 0, 0, 4, 4, 1, 0 },        { 1, 3, 2, 2, 2, 0 },
		{ 0, 0, 3, 0, 0, -EBADMSG },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const unsigned tp = cases[i].want_tp ? cases[i].want_tp : 4;
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct model m = { 0 };
		struct world w;

		make_small(&w, MERGE_REPLICATED, tp, 4 / tp);
		w.as.tp = cases[i].tp;
		w.as.pp = cases[i].pp;
		world_write(&w, dir);
		for (unsigned k = 0; k < cases[i].layers; k++) {
			touch_layer(dir, 1, k);
			touch_layer(dir, 2, k);
		}
		if (load(dir, &m, &err) != cases[i].rc)
			fail_msg("case %zu: %s", i, err.text);
		if (cases[i].rc)
			assert_non_null(strstr(err.text, "tensor-parallel degree 3"));
		assert_int_equal(m.tp, cases[i].want_tp);
		assert_int_equal(m.pp, cases[i].want_pp);
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

/* With DeepSpeed's Ulysses mpu, tp_degree is the number of sequence-parallel ranks. */
static void sequence_parallel_ranks_have_no_files(void **state)
{
	static const struct {
		unsigned tp, mp; /* recorded degrees */
		int rc;
	} cases[] = {
		{ 2, 1, 0 },
		{ 4, 1, 0 },
		{ 2, 2, -EBADMSG },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct model m = { 0 };
		struct world w;

		make_small(&w, MERGE_REPLICATED, 1, 1);
		w.as.tp = cases[i].tp;
		w.as.mp_world = cases[i].mp;
		world_write(&w, dir);
		assert_int_equal(load(dir, &m, &err), cases[i].rc);
		if (!cases[i].rc)
			assert_int_equal(m.tp * m.pp, 1);
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

/* A stray file of one layer makes the layers' numbers of files differ. That
 * matters only where the degrees are not recorded. */
static void layers_have_as_many_files(void **state)
{
	static const struct {
		unsigned degree, first, second, rc;
	} cases[] = {
		{ 0, 2, 2, 0 },       { 0, 4, 2, EBADMSG }, { 0, 2, 3, EBADMSG },
		{ 0, 1, 2, EBADMSG }, { 2, 4, 2, 0 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct model m = { 0 };
		struct world w;

		make_small(&w, MERGE_REPLICATED, 2, 2);
		w.as.tp = w.as.pp = cases[i].degree;
		world_write(&w, dir);
		for (unsigned k = 0; k < cases[i].first; k++)
			touch_layer(dir, 1, k);
		for (unsigned k = 0; k < cases[i].second; k++)
			touch_layer(dir, 2, k);
		assert_int_equal(load(dir, &m, &err), -(int)cases[i].rc);
		if (cases[i].rc)
			assert_non_null(strstr(err.text, "layer_02-model_00-model_states.pt"));
		else
			assert_int_equal(m.tp, 2);
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

static void parameters_know_their_slices(void **state)
{
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	const struct param *p;
	struct world w;
	struct model m;
	size_t pos = 0;

	make_small(&w, MERGE_CAT, 2, 2);
	world_write(&w, dir);
	if (load(dir, &m, &err))
		fail_msg("%s", err.text);
	assert_int_equal(m.nparams, 1); /* the last stage only repeats the
					 * parameter */
	assert_null(merge_rules_next_unused(m.ranks->rules, &pos));
	p = array_find(m.params, m.nparams, sizeof(*p), "w");
	assert_non_null(p);
	assert_int_equal(p->ndim, 2);
	assert_int_equal(p->shape[0], 4);
	assert_int_equal(p->shape[1], 6);
	assert_int_equal(p->numel, 24);
	for (unsigned t = 0; t < 2; t++) {
		assert_int_equal(p->slices[t]->mp, t);
		assert_int_equal(p->slices[t]->numel, 12);
	}
	assert_ptr_equal(p->first, p->slices[0]);
	model_done(&m);
	world_done(&w);
	mkckpt_free_dir(dir);
}

/* The first of two stages owns a parameter, whether the list of pipeline replicas names it or not.
 * Like the converter, the model does not search later stages for a listed one. */
static void later_stages_do_not_count_if_listed(void **state)
{
	static const struct {
		unsigned stage; /* another stage that has it */
		bool listed, there;
	} cases[] = {
		{ 0, true, true },
		{ 0, false, true },
		{ 1, true, false },
		{ 1, false, true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		const struct param *p;
		struct world w;
		struct model m;

		make_small(&w, MERGE_REPLICATED, 2, 2);
		w.v[0].stage = cases[i].stage;
		w.v[0].listed = cases[i].listed;
		/* Make no stage empty. */
		w.v[1] = w.v[0];
		w.v[1].stage = 0;
		strcpy(w.v[1].name, "other");
		world_cut(&w.v[1], 2);
		w.n = 2;
		world_write(&w, dir);
		if (load(dir, &m, &err))
			fail_msg("case %zu: %s", i, err.text);
		p = array_find(m.params, m.nparams, sizeof(*p), "w");
		assert_int_equal(!!p, cases[i].there);
		if (p) {
			assert_int_equal(p->first->mp, 2 * cases[i].stage);
			assert_int_equal(p->slices[1]->mp, 2 * cases[i].stage + 1);
		}
		model_done(&m);
		world_done(&w);
		mkckpt_free_dir(dir);
	}
}

static void check_refused(struct world *w, int rc, const char *says)
{
	char *dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct model m;

	world_write(w, dir);
	assert_int_equal(load(dir, &m, &err), rc);
	assert_non_null(strstr(err.text, says));
	world_done(w);
	mkckpt_free_dir(dir);
}

/* Rank 1's slice is a row short. */
static void slices_that_do_not_fit_name_the_file(void **state)
{
	struct world w;

	make_small(&w, MERGE_REPLICATED, 2, 1);
	w.v[0].shapes[1][0]--;
	check_refused(&w, -EBADMSG,
		      "mp_rank_00_model_states.pt: parameter w: is not of one shape");
}

static void vocabularies_are_matrices(void **state)
{
	struct world w;

	make_small(&w, MERGE_REPLICATED, 2, 1);
	w.v[0].vocab = true;
	w.v[0].ndim = 1;
	check_refused(&w, -EBADMSG, "is a vocabulary parameter of 1");
}

static void stage_3_has_no_pipeline(void **state)
{
	struct world w;

	make_small(&w, MERGE_REPLICATED, 1, 2);
	w.as.stage = 3;
	check_refused(&w, -ENOTSUP, "ZeRO-3 with pipeline parallelism");
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(degrees_are_found),
		cmocka_unit_test(sequence_parallel_ranks_have_no_files),
		cmocka_unit_test(layers_have_as_many_files),
		cmocka_unit_test(parameters_know_their_slices),
		cmocka_unit_test(later_stages_do_not_count_if_listed),
		cmocka_unit_test(slices_that_do_not_fit_name_the_file),
		cmocka_unit_test(vocabularies_are_matrices),
		cmocka_unit_test(stage_3_has_no_pipeline),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
