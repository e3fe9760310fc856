/* SPDX-License-Identifier: Apache-2.0 */
/* Names of files in checkpoints, and the grids of ranks that they form. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/names.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/zero_dir.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static void names_tell_kind_and_ranks(void **state)
{
	static const struct {
		const char *name;
		enum ckpt_file_kind kind;
		unsigned dp, mp;
	} cases[] = {
		{ "mp_rank_00_model_states.pt", CKPT_FILE_MODEL, 0, 0 },
		{ "mp_rank_07_model_states.pt", CKPT_FILE_MODEL, 0, 7 },
		{ "mp_rank_100_model_states.pt", CKPT_FILE_MODEL, 0, 100 },
		{ "zero_pp_rank_3_mp_rank_01_model_states.pt", CKPT_FILE_MODEL3, 3,
		  1 },
		{ "zero_pp_rank_0_mp_rank_00_optim_states.pt", CKPT_FILE_OPTIM, 0,
		  0 },
		{ "zero_pp_rank_12_mp_rank_03_optim_states.pt", CKPT_FILE_OPTIM,
		  12, 3 },
		{ "bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OPTIM, 5, 0 },
		{ "fp16_zero_pp_rank_5_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OPTIM, 5, 0 },
		/* the oldest spelling */
		{ "zero_pp_rank_5_mp_rank_00optim_states.pt", CKPT_FILE_OPTIM, 5,
		  0 },
		{ "zero_pp_rank_1000000_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OPTIM, 1000000, 0 },
		{ "layer_01-model_00-model_states.pt", CKPT_FILE_LAYER, 0, 0 },
		{ "layer_12-model_states.pt", CKPT_FILE_LAYER, 0, 0 },
		{ "layer_12-model_-1-model_states.pt", CKPT_FILE_OTHER, 0, 0 },
		{ "layer_1-model_3-model_states.pt", CKPT_FILE_LAYER, 0, 3 },
		{ "layer_01-axis_02-model_03-model_states.pt", CKPT_FILE_LAYER, 0,
		  3 },
		{ "layer_1_expert_2_mp_rank_00_model_states.pt", CKPT_FILE_EXPERT,
		  0, 0 },
		{ "layer_12_expert_127_mp_rank_03_model_states.pt",
		  CKPT_FILE_EXPERT, 0, 3 },
		{ "expert_2_mp_rank_00_model_states.pt", CKPT_FILE_EXPERT_OLD, 0,
		  0 },
		{ "expp_rank_0_mp_rank_00_optim_states.pt", CKPT_FILE_EXPERT_OPTIM,
		  0, 0 },
		/* other files */
		{ "", CKPT_FILE_OTHER, 0, 0 },
		{ "latest", CKPT_FILE_OTHER, 0, 0 },
		{ "mp_rank_00_model_states.pt.bak", CKPT_FILE_OTHER, 0, 0 },
		{ "xmp_rank_00_model_states.pt", CKPT_FILE_OTHER, 0, 0 },
		{ "mp_rank__model_states.pt", CKPT_FILE_OTHER, 0, 0 },
		{ "mp_rank_-1_model_states.pt", CKPT_FILE_OTHER, 0, 0 },
		{ "mp_rank_0x1_model_states.pt", CKPT_FILE_OTHER, 0, 0 },
		{ "bf16_bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OTHER, 0, 0 },
		{ "zero_pp_rank_1000001_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OTHER, 0, 0 },
		{ "zero_pp_rank_99999999999999999999_mp_rank_00_optim_states.pt",
		  CKPT_FILE_OTHER, 0, 0 },
		{ "zero_pp_rank_0_mp_rank_00_optim_states", CKPT_FILE_OTHER, 0, 0 },
		{ "zero_pp_rank_ 1_mp_rank_00_optim_states.pt", CKPT_FILE_OTHER, 0,
		  0 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		const struct ckname n = names_parse(cases[i].name);

		if (n.kind != cases[i].kind || n.dp != cases[i].dp ||
		    n.mp != cases[i].mp)
			fail_msg("%s: kind %d, dp %u, mp %u", cases[i].name,
				 (int)n.kind, n.dp, n.mp);
	}
}

static void names_are_formatted_as_deepspeed_does(void **state)
{
	static const char *const names[] = {
		"mp_rank_07_model_states.pt",
		"mp_rank_100_model_states.pt",
		"zero_pp_rank_3_mp_rank_01_model_states.pt",
		"zero_pp_rank_12_mp_rank_03_optim_states.pt",
		"bf16_zero_pp_rank_5_mp_rank_00_optim_states.pt",
		"layer_01-model_03-model_states.pt",
		"layer_12_expert_127_mp_rank_03_model_states.pt",
		"expp_rank_10_mp_rank_00_optim_states.pt",
	};
	char name[NAME_MAX + 1];

	for (size_t i = 0; i < COUNT(names); i++) {
		names_format(names_parse(names[i]), *names[i] == 'b', name);
		assert_string_equal(name, names[i]);
	}
}

static void touch(const char *dir, const char *fmt, unsigned dp, unsigned mp)
{
	char path[4096];
	size_t n = (size_t)snprintf(path, sizeof(path), "%s/", dir);

	snprintf(path + n, sizeof(path) - n, fmt, dp, mp);
	mkpt_save(path, "", 0);
}

#define OPTIM "zero_pp_rank_%u_mp_rank_%02u_optim_states.pt"
#define MODEL3 "zero_pp_rank_%u_mp_rank_%02u_model_states.pt"

/* As strings, rank 10 would come before rank 2, and mp 100 before mp 99. */
static void ranks_are_in_order_of_numbers(void **state)
{
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct zero_dir d;

	for (unsigned mp = 0; mp < 3; mp++)
		for (unsigned dp = 0; dp < 12; dp++) {
			touch(dir, OPTIM, dp, mp);
			touch(dir, MODEL3, dp, mp);
		}
	touch(dir, "latest", 0, 0);
	if (zero_dir_scan(test_context(), &d, dir, NULL, &err))
		fail_msg("%s", err.text);
	assert_int_equal(d.dp_degree, 12);
	assert_int_equal(d.mp_degree, 3);
	assert_true(d.zero3);
	assert_int_equal(d.noptim, 36);
	assert_int_equal(d.nmodel, 36);
	for (size_t i = 0; i < d.noptim; i++) {
		assert_int_equal(d.optim[i].id.mp, i / 12);
		assert_int_equal(d.optim[i].id.dp, i % 12);
		assert_string_equal(d.optim[i].path + strlen(dir) + 1,
				    d.optim[i].name);
	}
	zero_dir_done(&d);
	zero_dir_done(&d);
	assert_true(detect_has_views(test_context(), dir));
	mkckpt_free_dir(dir);
}

static void each_hole_in_the_grid_is_told(void **state)
{
	for (unsigned hole = 0; hole < 5; hole++) {
		char *const dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		char expect[64];
		struct zero_dir d;

		for (unsigned dp = 0; dp < 6; dp++)
			if (dp != hole)
				touch(dir, OPTIM, dp, 0);
		touch(dir, "mp_rank_00_model_states.pt", 0, 0);
		assert_int_equal(zero_dir_scan(test_context(), &d, dir, NULL, &err),
				 -EBADMSG);
		snprintf(expect, sizeof(expect), "data-parallel rank %u,", hole);
		assert_non_null(strstr(err.text, expect));
		mkckpt_free_dir(dir);
	}
}

/* Files by layer and expert, in some order. */
struct expert_case {
	int rc;
	unsigned files[6][2];
	const char *expect; /* expected in the message */
};

static void check_experts(const struct expert_case *x)
{
	char *const dir = mkckpt_new_dir();
	struct errmsg err = { "" };
	struct zero_dir d;

	touch(dir, OPTIM, 0, 0);
	touch(dir, "mp_rank_00_model_states.pt", 0, 0);
	for (size_t i = 0; i < COUNT(x->files); i++)
		touch(dir, "layer_%u_expert_%u_mp_rank_00_model_states.pt",
		      x->files[i][0], x->files[i][1]);
	assert_int_equal(zero_dir_scan(test_context(), &d, dir, NULL, &err), x->rc);
	if (x->rc)
		assert_non_null(strstr(err.text, x->expect));
	for (size_t i = 1; i < d.nexpert; i++) {
		const struct ckname *const a = &d.expert[i - 1].id;
		const struct ckname *const b = &d.expert[i].id;

		assert_true(a->layer < b->layer || (a->layer == b->layer &&
						    a->expert < b->expert));
	}
	if (!x->rc)
		assert_int_equal(d.nexpert, COUNT(x->files));
	zero_dir_done(&d);
	mkckpt_free_dir(dir);
}

static void experts_are_there_from_the_first_on(void **state)
{
	static const struct expert_case cases[] = {
		{ 0, { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 0 }, { 1, 1 },
		       { 1, 2 } }, NULL },
		{ 0, { { 1, 1 }, { 1, 0 }, { 0, 3 }, { 0, 2 }, { 0, 0 },
		       { 0, 1 } }, NULL },
		{ -EBADMSG, { { 0, 0 }, { 0, 2 }, { 0, 3 }, { 1, 0 }, { 1, 1 },
			      { 1, 2 } }, "expert 1 in MoE layer 0" },
		{ -EBADMSG, { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 1, 1 }, { 1, 2 },
			      { 1, 3 } }, "expert 0 in MoE layer 1" },
		{ -EBADMSG, { { 0, 0 }, { 0, 1 }, { 0, 2 }, { 2, 0 }, { 2, 1 },
			      { 2, 2 } }, "expert 3 in MoE layer 0" },
		{ -EBADMSG, { { 1, 0 }, { 1, 1 }, { 1, 2 }, { 2, 0 }, { 2, 1 },
			      { 2, 2 } }, "expert 0 in MoE layer 0" },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		check_experts(&cases[i]);
}

static void other_files_of_experts_are_refused(void **state)
{
	static const struct {
		const char *name;
		int rc;
		const char *expect;
	} cases[] = {
		{ "layer_0_expert_00_mp_rank_00_model_states.pt", -EBADMSG,
		  "is there twice" },
		{ "layer_0_expert_1_mp_rank_01_model_states.pt", -EBADMSG,
		  "is of model-parallel rank 1: there are 1" },
		{ "expert_0_mp_rank_00_model_states.pt", -ENOTSUP, "too old" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *const dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct zero_dir d;

		touch(dir, OPTIM, 0, 0);
		touch(dir, "mp_rank_00_model_states.pt", 0, 0);
		touch(dir, "layer_0_expert_0_mp_rank_00_model_states.pt", 0, 0);
		touch(dir, cases[i].name, 0, 0);
		assert_int_equal(zero_dir_scan(test_context(), &d, dir, NULL, &err),
				 cases[i].rc);
		assert_non_null(strstr(err.text, cases[i].expect));
		mkckpt_free_dir(dir);
	}
}

/* Different names can mean the same layer. */
static void a_layer_is_there_once(void **state)
{
	static const struct {
		const char *a, *b;
		int rc;
	} cases[] = {
		{ "layer_01-model_00-model_states.pt",
		  "layer_1-model_00-model_states.pt", -EBADMSG },
		{ "layer_01-model_01-model_states.pt",
		  "layer_01-model_1-model_states.pt", -EBADMSG },
		{ "layer_01-model_00-model_states.pt",
		  "layer_01-model_states.pt", -EBADMSG },
		{ "layer_01-model_00-model_states.pt",
		  "layer_01-model_01-model_states.pt", 0 },
		{ "layer_01-model_states.pt", "layer_11-model_states.pt", 0 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		char *const dir = mkckpt_new_dir();
		struct errmsg err = { "" };
		struct zero_dir d;

		touch(dir, OPTIM, 0, 0);
		touch(dir, "mp_rank_00_model_states.pt", 0, 0);
		touch(dir, cases[i].a, 0, 0);
		touch(dir, cases[i].b, 0, 0);
		assert_int_equal(zero_dir_scan(test_context(), &d, dir, NULL, &err),
				 cases[i].rc);
		if (cases[i].rc) {
			assert_non_null(strstr(err.text, "is there twice"));
			assert_non_null(strstr(err.text, cases[i].a));
			assert_non_null(strstr(err.text, cases[i].b));
		} else {
			assert_int_equal(d.nlayer, 2);
		}
		zero_dir_done(&d);
		mkckpt_free_dir(dir);
	}
}

static void other_directories_are_no_tags(void **state)
{
	char *const dir = mkckpt_new_dir();

	assert_false(detect_has_views(test_context(), dir));
	touch(dir, "mp_rank_00_model_states.pt", 0, 0);
	assert_false(detect_has_views(test_context(), dir));
	touch(dir, "expp_rank_0_mp_rank_00_optim_states.pt", 0, 0);
	assert_false(detect_has_views(test_context(), dir));
	assert_false(detect_has_views(test_context(), "/nonexistent"));
	mkckpt_free_dir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(names_tell_kind_and_ranks),
		cmocka_unit_test(names_are_formatted_as_deepspeed_does),
		cmocka_unit_test(ranks_are_in_order_of_numbers),
		cmocka_unit_test(each_hole_in_the_grid_is_told),
		cmocka_unit_test(experts_are_there_from_the_first_on),
		cmocka_unit_test(other_files_of_experts_are_refused),
		cmocka_unit_test(a_layer_is_there_once),
		cmocka_unit_test(other_directories_are_no_tags),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
