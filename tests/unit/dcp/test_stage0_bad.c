/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged ZeRO-0 checkpoints, or ones whose numbers cannot be matched with parameters: the
 * checkpoint is refused with a message that names the file and the cause, or only its optimizer is,
 * and weights are served.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/io/io.h"
#include "ckpt/views/view.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/changed.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"
#include "tests/unit/dcp/mutate.h"

/* Sanitizers take six times as long for each. */
#ifdef __SANITIZE_ADDRESS__
#define MUTANTS 1500u
#else
#define MUTANTS 9000u
#endif

#define FP32 "z0_groups2_dp2/global_step4" /* parameters: the embedding and a matrix; a vector */
#define FP16 "z0_fp16_groups2_dp2/global_step4"
#define FUSED "z0_bf16_fused_groups2_dp2/global_step4"
#define PIPELINE "pp2_dp2_z0_fp32/global_step4"
#define MOE "moe_ep2_dp2_z0/global_step4"
#define AUTOEP "autoep2_dp2_z0/global_step3"
#define FIRST "mp_rank_00_model_states.pt"

#define STATE(n) "['optimizer']['state'][" #n "]"
#define GROUP "['optimizer']['param_groups'][0]"
#define MASTERS "['optimizer']['fp32_groups']"

#define ONES_16 "1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1"
#define ONES_64 ONES_16 ", " ONES_16 ", " ONES_16 ", " ONES_16

#define SERVED 0

static const struct damage {
	const char *from;
	/* Statements that change FIRST or the file that they name first; or the name of a missing
	 * file. */
	const char *change;
	int rc; /* error of views that need the optimizer; SERVED: weights are still served */
	const char *expect;
} damages[] = {
	{ FP32, "['optimizer'] = None", SERVED, "copy the optimizer shards of all ranks" },
	{ FP32, "['num_experts'] = [4]", -EBADMSG,
	  "MoE layer 0 has 4 experts, but there are files (layer_0_expert_*) of 0" },
	{ MOE, "expp_rank_0_mp_rank_00_optim_states.pt", -EBADMSG,
	  "expp_rank_0_mp_rank_00_optim_states.pt: missing" },
	{ MOE, "expp_rank_1_mp_rank_00_optim_states.pt", -EBADMSG,
	  "of 1 expert-parallel ranks (expp_rank_*) are there, and there were 2" },
	{ MOE, "layer_0_expert_3_mp_rank_00_model_states.pt", -EBADMSG,
	  "layer_0_expert_3_mp_rank_00_model_states.pt: missing" },
	{ MOE, "['num_experts'] = [6]", -EBADMSG, "MoE layer 0 has 6 experts" },
	{ MOE, "['module']['frozen'] = Zeros(4, 6)", SERVED, "which ones is not recorded" },
	{ FP32, "['optimizer']['single_partition_of_fp32_groups'] = []", SERVED,
	  "BF16_Optimizer, which saves the states of one data-parallel rank" },
	{ FP32, "del ['optimizer']['param_groups']", SERVED, "no param_groups" },
	{ FP32, "del ['optimizer']['state']", SERVED, "has no state" },
	{ FP32, GROUP "['params'][1] = 7", SERVED,
	  "param_groups[0] are not numbered as torch does" },
	{ FP32, GROUP "['params'][0] = -1", SERVED, "not numbered" },
	{ FP32, "['optimizer']['state'][99] = {}", SERVED,
	  "a state of a parameter that is in none of its groups" },
	{ FP32, STATE(0) " = 'text'", SERVED, "state[0] is no dict" },
	{ FP32, "['optimizer']['state']['note'] = {}", SERVED, "in none of its groups" },
	{ FP32, STATE(0) "['note'] = 'text'", SERVED, "state[0][note]: is no number but a str" },
	{ FP32, STATE(0) "['exp_avg'] = []", SERVED,
	  "state[0][exp_avg]: is no number but a list, which a ZeRO checkpoint" },
	{ FP32, "del " STATE(0) "['exp_avg_sq']", SERVED,
	  "inner.weight has 3 states, of which 2 are among" },
	{ FP32, STATE(0) "['exp_avg'] = Zeros(3, 3)", SERVED,
	  "state[0][exp_avg]: no parameter of the model has this shape" },
	{ FP32, STATE(0) "['exp_avg_sq'] = Zeros(7)", SERVED,
	  "state[0][exp_avg_sq]: has another shape than the parameter" },
	{ FP32, STATE(0) "['exp_avg'].args[1] = 1000", -EBADMSG,
	  "tensor reaches" },
	{ FP32, "['module']['frozen'] = Zeros(5, 5)", SERVED,
	  "the model has 2 parameters of the shape of inner.weight, and the optimizer"
	  " 1" },
	{ FP32,
	  "['module']['inner.bias'] = Zeros(5, 5);" STATE(
		  2) "['exp_avg'] = Zeros(5, 5);" STATE(2) "['exp_avg_sq'] = Zeros(5, 5)",
	  SERVED,
	  "several groups of the optimizer have parameters of the shape of"
	  " inner.weight" },
	{ FP16, "del " MASTERS "[1]", -EBADMSG, "has 2 masters of 3 parameters" },
	{ FP16, MASTERS "[0][0] = 'text'", -EBADMSG, "master 0: is no tensor" },
	{ FP16, MASTERS "[0][0] = Zeros(7, 5)", SERVED,
	  "for embed.weight by its shape is another parameter" },
	{ FUSED, "['optimizer']['fp32_groups_flat'][0] = Zeros(9)", SERVED,
	  "neither all parameters of the model nor its matrices and its vectors" },
	{ FUSED, "['module']['frozen'] = Zeros(5)", SERVED, "neither all" },
	{ PIPELINE, "mp_rank_01_model_states.pt", -EBADMSG,
	  "is of 2 model-parallel ranks, and the model states of 1 are there" },
	{ PIPELINE, "['global_steps'] = 3", -EBADMSG,
	  "is of global step 4, mp_rank_00_model_states.pt of 3" },
	{ PIPELINE, "layer_02-model_states.pt", -ENOTSUP, "which ones is not" },
	{ PIPELINE, "layer_05-model_states.pt", -ENOTSUP,
	  "no parameter of the model has this shape" },
	{ PIPELINE, "['optimizer'] = None", -ENOTSUP,
	  "copy the optimizer shards of all ranks" },
	{ AUTOEP,
	  "del ['ds_autoep_layers'][0]['expert_placement'];"
	  " ['ds_autoep_layers'][0]['affine_maps'] = {'params': {'model.layers.0.mlp.experts.w1': {"
	  "  'logical_shape': (4, 6, 8), 'ranks': {"
	  "  0: {'pieces': [{'shape': (4, 6, 4), 'source': (0, [48, 8, 1]), 'dest': (0, [24, 4, 1])}]},"
	  "  1: {'pieces': [{'shape': (4, 6, 4), 'source': (4, [48, 8, 1]), 'dest': (0, [24, 4, 1])}]}"
	  "}}}}",
	  SERVED, "affine_maps place parts of model.layers.0.mlp.experts's experts" },
	{ AUTOEP,
	  "layer_0_expert_2_mp_rank_00_model_states.pt"
	  "['model.layers.0.mlp.experts.w1.2'] = Zeros(" ONES_64 ")",
	  -EBADMSG, "model.layers.0.mlp.experts.w1: an expert has 64 dimensions" },
};

/* Make a directory that links to all files except the damaged one. */
static char *damage(const struct damage *d)
{
	const char *const end = strstr(d->change, ".pt[");
	char *const which = end ? strndup(d->change, (size_t)(end + 3 - d->change)) : strdup(FIRST);
	const bool change = strchr(d->change, '[');
	char *const dir = changed_tag(d->from, change ? NULL : d->change, change ? which : NULL,
				      end ? end + 3 : d->change);

	free(which);
	return dir;
}

static const struct view_options options = { .crc_zero = true };

/* Weights are served, and the universal tree is refused. */
static int prove(const char *dir, struct errmsg *err)
{
	static const enum view_kind kinds[] = { VIEW_HF, VIEW_FP32, VIEW_DCP };
	struct view *v = NULL, *other;
	int rc = view_open(test_context(), dir, &options, &v, err);

	for (size_t i = 0; !rc && i < COUNT(kinds); i++) {
		const struct view_type type = { .kind = kinds[i] };

		rc = view_open_derived(v, &type, &other, err);
		if (rc)
			break;
		rc = view_prove(other, false, err) ?: walk_view(other, err);
		view_close(other);
	}
	if (!rc)
		rc = view_prove(v, false, err) == -ENOTSUP ? SERVED : 1;
	view_close(v);
	return rc;
}

static void damage_is_refused(void **state)
{
	unsigned failures = 0;

	(void)state;
	for (size_t i = 0; i < COUNT(damages); i++) {
		const struct damage *const d = &damages[i];
		char *const dir = damage(d);
		struct errmsg err = { "" };
		const int rc = prove(dir, &err);

		if (rc != d->rc || !strstr(err.text, d->expect) ||
		    !strstr(err.text, dir)) {
			print_error("%s: %s: %d, %s\n", d->from, d->change, rc,
				    err.text);
			failures++;
		}
		mkckpt_free_dir(dir);
	}
	assert_int_equal(failures, 0);
}

static void append(void *ctx, const char *text)
{
	bytebuf_add_format(ctx, "%s\n", text);
}

/* The warning about steps also reads Python's numbers. */
static void steps_may_be_numbers(void **state)
{
	static const struct damage steps[] = {
		{ FP32, STATE(0) "['step'] = 4", 0, "" },
		{ FP32, STATE(0) "['step'] = 2", 0, "has made 2 steps" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(steps); i++) {
		char *const dir = damage(&steps[i]);
		struct bytebuf said = { 0 };
		struct view *v;

		assert_int_equal(view_open(test_context(), dir, &options, &v, NULL), 0);
		assert_int_equal(view_check(v, NULL), 0);
		view_warn(v, &(struct errmsg_sink){ append, &said });
		bytebuf_add(&said, "", 1);
		assert_int_equal(!strstr((const char *)said.data, "has made "), !*steps[i].expect);
		assert_non_null(strstr((const char *)said.data, steps[i].expect));
		bytebuf_done(&said);
		view_close(v);
		mkckpt_free_dir(dir);
	}
}

/* Only the first model-states file is opened to detect the directory. */
static void first_model_states_show_a_checkpoint(void **state)
{
	static const struct damage first[] = {
		{ PIPELINE, "layer_05-model_states.pt", STAGE0_OPTIMIZER, "" },
		{ PIPELINE, "mp_rank_01_model_states.pt", STAGE0_OPTIMIZER, "" },
		{ PIPELINE, FIRST, STAGE0_NONE, "" },
		{ PIPELINE, "['optimizer'] = None", STAGE0_NONE, "" },
		{ FP32, "['optimizer'] = None", STAGE0_WEIGHTS, "" },
		{ MOE, "expp_rank_0_mp_rank_00_optim_states.pt", STAGE0_OPTIMIZER, "" },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(first); i++) {
		char *const dir = damage(&first[i]);

		assert_int_equal(stage0_look(test_context(), dir, NULL), first[i].rc);
		mkckpt_free_dir(dir);
	}
}

/* Python shares one dict of a thousand options among a thousand groups. */
static void memory_is_bounded_by_the_file(void **state)
{
	const struct damage none = { FP32, "['global_steps'] = 4", 0, "" };
	char *const dir = damage(&none);
	char *const file = changed_path(dir, FIRST);
	struct bytebuf out = { 0 };
	struct errmsg err = { "" };
	struct mkpt m = { 0 };
	struct value *group, *groups;
	char names[1000][8];
	struct ptfile pt;
	struct view *v;

	(void)state;
	changed_open(file, &pt, &m);
	group = mkpt_dict(&m);
	groups = value_find_path(pt.root, "optimizer", "param_groups", NULL);
	for (size_t i = 0; i < COUNT(names); i++) {
		snprintf(names[i], sizeof(names[i]), "o%zu", i);
		mkpt_set_new(&m, group, names[i], mkpt_int(&m, 0));
		mkpt_add(&m, groups, group);
	}
	mkpt_emit(&m, pt.root, "mp_rank_00_model_states", &out);
	mkpt_save(file, out.data, out.len);
	assert_int_equal(view_open(test_context(), dir, &options, &v, &err), -E2BIG);
	assert_non_null(strstr(err.text, "describes too much for its size"));
	bytebuf_done(&out);
	mkpt_done(&m);
	ptfile_close(&pt);
	free(file);
	mkckpt_free_dir(dir);
}

/* Of two model states and six layer files one is open at a time. */
static void layers_do_not_stay_open(void **state)
{
	const struct damage none = { PIPELINE, "none", 0, "" };
	char *const dir = damage(&none);
	const int first = open(dir, O_RDONLY);
	struct rlimit limit, low;
	struct errmsg err;
	struct view *v;

	(void)state;
	close(first);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	low = (struct rlimit){ (rlim_t)first + 7, limit.rlim_max };
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
	if (view_open(test_context(), dir, &options, &v, &err))
		fail_msg("%s", err.text);
	view_close(v);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	mkckpt_free_dir(dir);
}

/* A rank has no sign, even if sscanf accepts one. */
static void a_negative_rank_has_no_layer(void **state)
{
	static const char own[] = "layer_05-model_states.pt";
	const struct damage missing = { PIPELINE, own, 0, "" };
	char *const dir = damage(&missing);
	char *const layer = changed_path(dir, "layer_05-model_-1-model_states.pt");
	struct errmsg err = { "" };
	struct view *v;

	(void)state;
	mkpt_save(layer, "", 0);
	assert_int_equal(view_open(test_context(), dir, &options, &v, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "no parameter of the model has this shape"));
	free(layer);
	mkckpt_free_dir(dir);
}

/* A topology may have further axes, which are not distinguished here. */
static void a_layer_has_one_file(void **state)
{
	static const char own[] = "layer_05-model_states.pt";
	const struct damage missing = { PIPELINE, own, 0, "" };
	char *const dir = damage(&missing);
	char *const one = changed_path(dir, own);
	char *const other = changed_path(dir, "layer_05-axis_01-model_states.pt");
	struct errmsg err = { "" };
	struct view *v;

	(void)state;
	mkpt_save(one, "", 0);
	mkpt_save(other, "", 0);
	assert_int_equal(view_open(test_context(), dir, &options, &v, &err), -EBADMSG);
	assert_non_null(strstr(err.text, ": is there twice: "));
	free(other);
	free(one);
	mkckpt_free_dir(dir);
}

/* Replace a value by another one, of the same or another kind, or by one inside it; or drop its
 * last entries. */
static void mutate_value(struct value *v, const struct mutate_nodes *all, uint64_t seed)
{
	static const struct value others[] = {
		{ .kind = VALUE_NONE },
		{ .kind = VALUE_LIST },
		{ .kind = VALUE_DICT },
		{ .kind = VALUE_STR, .str = { "text", 4 } },
		{ .kind = VALUE_FLOAT, .f = -1 },
		{ .kind = VALUE_INT, .i = -1 },
		{ .kind = VALUE_INT, .i = 7 },
		{ .kind = VALUE_INT, .i = INT32_MAX },
		{ .kind = VALUE_INT, .i = INT64_MAX },
		{ .kind = VALUE_INT, .i = INT64_MIN },
	};

	switch (mutate_draw(&seed, 4)) {
	case 0:
		*v = *all->v[mutate_draw(&seed, all->n)];
		break;
	case 1:
		if (v->kind == VALUE_LIST || v->kind == VALUE_TUPLE)
			v->seq.n = mutate_draw(&seed, v->seq.n + 1);
		else if (v->kind == VALUE_DICT)
			v->dict.n = mutate_draw(&seed, v->dict.n + 1);
		else if (v->kind == VALUE_INT)
			v->i += (int64_t)mutate_draw(&seed, 5) - 2;
		break;
	default:
		*v = others[mutate_draw(&seed, COUNT(others))];
	}
}

/* Change a value or bytes of model states; return false if the result cannot be written. */
static bool write_mutant(const struct mkpt *m, struct value *root,
			 const struct mutate_nodes *all, const char *to, uint64_t seed)
{
	struct value *const v = all->v[mutate_draw(&seed, all->n)], before = *v;
	struct bytebuf pickle = { 0 }, out = { 0 };
	struct pickle_storages met = { 0 };
	const bool of_bytes = mutate_draw(&seed, 4) == 0;
	struct errmsg err;
	uint8_t *bytes;
	int rc;

	if (!of_bytes)
		mutate_value(v, all, seed);
	rc = pickle_dump(root, &pickle, &met, &err);
	*v = before;
	if (!rc) {
		mkpt_emit_pickle(m, (struct span){ pickle.data, pickle.len },
				 "mp_rank_00_model_states", &out);
		bytes = of_bytes ? mutate_bytes(out.data, &out.len, seed) : NULL;
		mkpt_save(to, bytes ? bytes : out.data, out.len);
		free(bytes);
	}
	pickle_storages_done(&met);
	bytebuf_done(&pickle);
	bytebuf_done(&out);
	return !rc;
}

/* Open a checkpoint and read some of its trees. */
static int read_all(const char *dir, bool walk, struct errmsg *err)
{
	struct view *v;
	int rc = view_open(test_context(), dir, &options, &v, err);

	if (rc)
		return rc;
	rc = view_prove(v, true, err);
	if (!rc && walk)
		rc = walk_view(v, err);
	view_close(v);
	assert_int_not_equal(rc, WALK_BROKEN);
	return rc;
}

/* Buffers under further names, in the set that DeepSpeed saved up to 0.16, and results of
 * get_extra_state() may have a parameter's shape, but are no parameters. */
static void what_is_no_parameter_is_matched_with_none(void **state)
{
	static const char *const changes[] = {
		"['module']['b'] = Zeros(5, 5); ['buffer_names'] += 'b'",
		"['module']['b'] = Zeros(5, 5); ['buffer_names'] += 'b';"
		" ['module']['again'] = @['module']['b']",
		"['module']['b'] = Zeros(5, 5); ['buffer_names'] = Call('builtins', 'set', ['b'])",
		"['module']['inner._extra_state'] = Zeros(5, 5)",
	};

	(void)state;
	for (size_t i = 0; i < COUNT(changes); i++) {
		const struct damage change = { FP32, changes[i], 0, "" };
		char *const dir = damage(&change);
		struct errmsg err = { "" };

		if (read_all(dir, true, &err))
			fail_msg("%s: %s", changes[i], err.text);
		mkckpt_free_dir(dir);
	}
}

/* Changed model states are read, or refused with a message that names the directory. */
static void mutants_are_read_or_refused(void **state)
{
	static const char *const from[] = { FP32, FP16, FUSED };
	static struct mutate_nodes all;
	unsigned read = 0, refused = 0;

	(void)state;
	for (size_t i = 0; i < COUNT(from); i++) {
		const struct damage none = { from[i], "['global_steps'] = 4", 0, "" };
		char *const dir = damage(&none);
		char *const file = changed_path(dir, FIRST);
		struct mkpt m = { 0 };
		struct ptfile pt;

		changed_open(file, &pt, &m);
		all.n = 0;
		mutate_collect(pt.root, &all);
		for (unsigned k = 0; k < MUTANTS / COUNT(from); k++) {
			struct errmsg err = { "" };

			if (!write_mutant(&m, pt.root, &all, file, k))
				continue;
			if (!read_all(dir, k % 50 == 0, &err))
				read++;
			else if (strstr(err.text, dir))
				refused++;
			else
				fail_msg("%s, mutant %u: %s", from[i], k, err.text);
		}
		ptfile_close(&pt);
		mkpt_done(&m);
		free(file);
			mkckpt_free_dir(dir);
	}
	assert_true(read > MUTANTS / 10 && refused > MUTANTS / 10);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(damage_is_refused),
		cmocka_unit_test(steps_may_be_numbers),
		cmocka_unit_test(first_model_states_show_a_checkpoint),
		cmocka_unit_test(memory_is_bounded_by_the_file),
		cmocka_unit_test(layers_do_not_stay_open),
		cmocka_unit_test(a_negative_rank_has_no_layer),
		cmocka_unit_test(a_layer_has_one_file),
		cmocka_unit_test(what_is_no_parameter_is_matched_with_none),
		cmocka_unit_test(mutants_are_read_or_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
