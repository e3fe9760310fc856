/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged checkpoints of several model-parallel ranks, here two pipeline stages
 * with two tensor-parallel ranks each: a file that does not fit the others must
 * be refused, at the latest when it is used, with its name and the cause.  (One
 * rank: test_bad.c.)
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/views/view.h"
#include "tests/make/literal.h"
#include "tests/make/mkckpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

#define TP 2u
#define PP 2u
#define RANKS (TP * PP)

#define MODEL(mp) "mp_rank_0" #mp "_model_states.pt"
#define SHARD(mp) "zero_pp_rank_0_mp_rank_0" #mp "_optim_states.pt"

/* A defect of model-parallel rank `mp` and its expected message. */
struct defect {
	const char *name;
	enum mkckpt_file kind;
	unsigned mp;               /* rank whose file `change` edits */
	const char *change;        /* statements applied before it is written: see literal.h */
	const char *shell;         /* shell commands in the directory */
	const char *file, *expect; /* expected in the message */
};

static const struct mkckpt_param stages[PP][2] = {
	{ { "1.weight", 2, { 4, 3 }, 0 }, { "1.bias", 1, { 4 }, 0 } },
	{ { "2.weight", 2, { 2, 5 }, 0 }, { "2.bias", 1, { 2 }, 0 } },
};

struct writing {
	const struct defect *defect;
	unsigned mp;
};

static void edit_one(struct mkpt *m, struct value *root, enum mkckpt_file kind, unsigned rank,
		     void *ctx)
{
	const struct writing *w = ctx;

	(void)rank;
	if (kind == MKCKPT_MODEL) {
		mkpt_set(m, root, "global_steps", mkpt_int(m, 4));
		mkpt_set(m, root, "mp_world_size", mkpt_int(m, RANKS));
	}
	if (w->defect && w->defect->change && w->defect->kind == kind && w->defect->mp == w->mp)
		literal_change(m, root, w->defect->change);
}

static char *write_ranks(const struct defect *defect, bool degrees)
{
	struct writing w = { .defect = defect };
	struct mkckpt c = { .stage = 1,
			    .ranks = 1,
			    .nparams = 2,
			    .ngroups = 1,
			    .edit = edit_one,
			    .ctx = &w,
			    .tp = degrees ? TP : 0,
			    .pp = degrees ? PP : 0 };
	char *dir = mkckpt_new_dir();

	for (w.mp = 0; w.mp < RANKS; w.mp++) {
		c.mp = w.mp;
		c.seed = w.mp;
		c.params = stages[w.mp / TP];
		mkckpt_write(&c, dir);
	}
	if (defect && defect->shell)
		mkckpt_shell(dir, defect->shell);
	return dir;
}

/* Plan the directory and read it like a mount. */
static int serve(const char *dir, struct errmsg *err)
{
	static const struct view_options options = { .crc_zero = false };
	struct view *v = NULL;
	int rc = view_open(test_context(), dir, &options, &v, err);

	if (!rc)
		rc = view_check(v, err);
	if (!rc)
		rc = walk_view(v, err);
	view_close(v);
	return rc;
}

#define FILES(name, shell, file, expect)                          \
	{                                                         \
#name, MKCKPT_MODEL, 0, NULL, shell, file, expect \
	}
#define EDIT(name, kind, mp, change, file, expect)                   \
	{                                                            \
#name, MKCKPT_##kind, mp, change, NULL, file, expect \
	}
#define SHAPE "['param_shapes'][0]['1.weight']"
#define STATES "['optimizer_state_dict']['base_optimizer_state']['state'][0]"
#define FP32 "['optimizer_state_dict']['single_partition_of_fp32_groups'][0]"
#define LATER STATES "['step'] = Scalar(5.0)"

static const struct defect defects[] = {
	FILES(lose_model, "rm " MODEL(2), "",
	      "the model-states file of data-parallel rank 0, model-parallel rank 2 is missing"),
	FILES(lose_shard, "rm " SHARD(1), "",
	      "the optimizer shard of data-parallel rank 0, model-parallel rank 1 is missing"),
	FILES(rank_too_many, "cp " MODEL(3) " mp_rank_05_model_states.pt", "",
	      "model-parallel rank 4 is missing"),
	FILES(model_twice, "cp " MODEL(1) " mp_rank_1_model_states.pt", MODEL(1), "is there twice"),
	FILES(shard_twice, "cp " SHARD(1) " zero_pp_rank_0_mp_rank_01optim_states.pt", SHARD(1),
	      "is there twice"),
	FILES(cut_model, "truncate -s 500 " MODEL(3), MODEL(3), "truncated?"),
	FILES(cut_shard, "truncate -s 500 " SHARD(3), SHARD(3), "truncated?"),
	/* Replace a shard by one of the other stage. */
	FILES(shard_of_another, "cp " SHARD(0) " " SHARD(2), SHARD(2), "elements"),
	EDIT(later_step, MODEL, 1, "['global_steps'] = 5", MODEL(1),
	     "is of global step 5, mp_rank_00_model_states.pt of 4"),
	EDIT(later_step, MODEL, 3, "['global_steps'] = 5", MODEL(3), "is of global step 5"),
	EDIT(later_optimizer, OPTIM, 1, LATER, SHARD(1),
	     "differ in step of group 0: not of one step?"),
	EDIT(later_optimizer, OPTIM, 2, LATER, SHARD(2), "differ in step of group 0"),
	EDIT(step_of_another_kind, OPTIM, 3, STATES "['step'] = 4", SHARD(3), "differ in step"),
	EDIT(other_version, OPTIM, 1, "['ds_version'] = '0.18.0'", SHARD(1),
	     "was written by DeepSpeed 0.18.0"),
	EDIT(wider, MODEL, 1, SHAPE "= Size(4, 4)", MODEL(0),
	     "1.weight: the slice of tensor-parallel rank 1 does not fit"),
	EDIT(more_dimensions, MODEL, 1, SHAPE "= Size(2, 2, 3)", MODEL(0), "1.weight: the slice of"),
	/* The slices fit each other, but not the shard's lengths. */
	EDIT(longer, MODEL, 1, SHAPE "= Size(40, 3)", SHARD(1),
	     "group 0 (1.weight, ...): the fp32 partition has"),
	EDIT(other_type, OPTIM, 1, FP32 "= Halves(16)", SHARD(1),
	     "fp32 of parameter 1.bias is bfloat16, but float32 on other ranks"),
	EDIT(fewer_states, OPTIM, 1, "del " STATES "['exp_avg_sq']", SHARD(1),
	     "exp_avg_sq of parameter 1.bias is missing"),
};

static void defects_are_reported(void **state)
{
	unsigned failures = 0;

	for (size_t i = 0; i < COUNT(defects); i++) {
		char *dir = write_ranks(&defects[i], true);
		struct errmsg err = { "" };
		const int rc = serve(dir, &err);

		if (rc >= 0 || rc == WALK_BROKEN || !strstr(err.text, defects[i].expect) ||
		    !strstr(err.text, defects[i].file)) {
			failures++;
			print_error("%s, rank %u: %d, \"%s\"\n", defects[i].name, defects[i].mp, rc,
				    err.text);
		}
		mkckpt_free_dir(dir);
	}
	assert_int_equal(failures, 0);
}

static void undamaged_is_served(void **state)
{
	char *dir = write_ranks(NULL, true);
	struct errmsg err = { "" };

	if (serve(dir, &err))
		fail_msg("%s", err.text);
	mkckpt_free_dir(dir);
}

/* Without its last rank the grid looks complete; the recorded number of ranks,
 * or the model-parallel size of older files, shows that it is not. */
static void a_lost_last_rank_is_missed(void **state)
{
	const struct defect d = { .shell = "rm " MODEL(3) " " SHARD(3) };

	for (int degrees = 0; degrees < 2; degrees++) {
		char *dir = write_ranks(&d, degrees);
		struct errmsg err = { "" };

		assert_true(serve(dir, &err) < 0);
		assert_non_null(strstr(err.text, "the files of model-parallel"
						 " ranks 3 to 3 are missing"));
		mkckpt_free_dir(dir);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(undamaged_is_served),
		cmocka_unit_test(defects_are_reported),
		cmocka_unit_test(a_lost_last_rank_is_missed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
