/* SPDX-License-Identifier: Apache-2.0 */
/* Defects in optimizer shards. */
#include "tests/unit/plan/bad.h"

#include <stdint.h>

#include "ckpt/base/array.h"
#include "tests/make/mkpt.h"

static void root_is_a_list(struct mkpt *m, struct value *root)
{
	(void)m;
	*root = (struct value){ .kind = VALUE_LIST };
}

static struct value *shard_dict(struct value *root)
{
	return value_find(root, "optimizer_state_dict");
}

static struct value *optimizer_of(struct value *root)
{
	struct value *const d = shard_dict(root);
	struct value *const base = value_find(d, "base_optimizer_state");

	return base ? base : value_find(d, "optimizer_state_dict");
}

static struct value *states_of(struct value *root, size_t group)
{
	return value_find(optimizer_of(root), "state")->dict.v[group].val;
}

static struct value *fp32_of(struct value *root)
{
	struct value *const d = shard_dict(root);
	struct value *const v = value_find(d, "fp32_flat_groups");

	return v ? v : value_find(d, "single_partition_of_fp32_groups");
}

static struct value *some_floats(struct mkpt *m, uint64_t n)
{
	static const float zeros[1024];

	return mkpt_flat(m, DTYPE_F32, n, n, false, zeros);
}

static void other_step(struct mkpt *m, struct value *root)
{
	const float five = 5;

	mkpt_set(m, states_of(root, 0), "step",
		 mkpt_tensor(m, DTYPE_F32, NULL, 0, &five));
}

static void short_fp32(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[1] = some_floats(m, 9);
}

static void short_state(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg", some_floats(m, 9));
}

static void empty_state(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg", some_floats(m, 0));
}

static void empty_fp32(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[1] = some_floats(m, 0);
}

/* Tensors on NVMe, as DeepSpeed leaves them. */
static void offloaded_fp32(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[1] = mkpt_attribute(m, some_floats(m, 0), "ds_id",
						 mkpt_str(m, "3_../5"));
}

static void offloaded_state(struct mkpt *m, struct value *root)
{
	mkpt_set(m, states_of(root, 1), "exp_avg",
		 mkpt_attribute(m, some_floats(m, 0), "ds_id",
				mkpt_str(m, "exp_avg-3_5")));
}

static void offloaded_to_a_number(struct mkpt *m, struct value *root)
{
	fp32_of(root)->seq.v[1] =
		mkpt_attribute(m, some_floats(m, 0), "ds_id", mkpt_int(m, 3));
}

static void state_twice(struct mkpt *m, struct value *root)
{
	value_dict_add(&m->arena, &states_of(root, 1)->dict,
		       mkpt_str(m, "step"), mkpt_int(m, 4));
}

static void too_many_states(struct mkpt *m, struct value *root)
{
	static const char *const names[] = { "a", "b", "c", "d", "e", "f", "g",
					     "h", "i", "j", "k", "l", "m" };

	for (size_t i = 0; i < COUNT(names); i++)
		mkpt_set(m, states_of(root, 1), names[i], mkpt_int(m, 1));
}

static void fp32_of_two_dimensions(struct mkpt *m, struct value *root)
{
	static const float zeros[1024];
	const uint64_t shape[] = { 2, 20 };

	fp32_of(root)->seq.v[0] = mkpt_tensor(m, DTYPE_F32, shape, 2, zeros);
}

static void fp32_out_of_bounds(struct mkpt *m, struct value *root)
{
	bad_rebuild(fp32_of(root)->seq.v[0])->v[1] = mkpt_int(m, 1000);
}

static void fp32_storage_lies(struct mkpt *m, struct value *root)
{
	bad_rebuild(fp32_of(root)->seq.v[0])->v[0]->pid->seq.v[4] =
		mkpt_int(m, 100000);
}

static void fp32_overflows(struct mkpt *m, struct value *root)
{
	struct value_seq *const a = bad_rebuild(fp32_of(root)->seq.v[0]);

	a->v[2] = mkpt_tuple(m, 1, mkpt_int(m, INT64_MAX));
	a->v[3] = mkpt_tuple(m, 1, mkpt_int(m, INT64_MAX));
}

static void fp32_strided(struct mkpt *m, struct value *root)
{
	struct value_seq *const a = bad_rebuild(fp32_of(root)->seq.v[0]);

	a->v[2] = mkpt_tuple(m, 1, mkpt_int(m, 10));
	a->v[3] = mkpt_tuple(m, 1, mkpt_int(m, 2));
}

static void wrong_partition_count(struct mkpt *m, struct value *root)
{
	struct value *const v = value_find(shard_dict(root), "partition_count");

	if (v->kind == VALUE_LIST)
		v->seq.v[0] = mkpt_int(m, 4);
	else
		v->i = 4;
}

static struct value *mapping_of(struct value *root, size_t group)
{
	return value_find(shard_dict(root), "param_slice_mappings")->seq.v[group];
}

static void mapping_overlaps(struct mkpt *m, struct value *root)
{
	struct value_dict *const d = &mapping_of(root, 0)->obj->pairs;
	struct value *const address = d->v[d->n - 1].val;
	int64_t start = 0;

	value_get_int(value_find(address->obj->state, "start"), &start);
	mkpt_set(m, address->obj->state, "start", mkpt_int(m, start + 1));
}

static void mapping_incomplete(struct mkpt *m, struct value *root)
{
	(void)m;
	mapping_of(root, 0)->obj->pairs.n--;
}

#define SHARD(edit, rank, stages, expect)                                      \
	{                                                                      \
#edit, stages, expect, SHARD_##rank, MKCKPT_OPTIM, rank, edit, \
			NULL, NULL                                             \
	}
#define SHARD_SET(name, change, rank, stages, expect)                          \
	{                                                                      \
#name, stages, expect, SHARD_##rank, MKCKPT_OPTIM, rank, NULL, \
			NULL, change                                           \
	}
#define SHARD_DICT "['optimizer_state_dict']"
#define BASE SHARD_DICT "['base_optimizer_state|optimizer_state_dict']"
#define FP32 SHARD_DICT "['single_partition_of_fp32_groups|fp32_flat_groups']"
#define PADDINGS SHARD_DICT "['param_alignment_paddings'][0]"

/* ZeRO-3; the message names the missing file. */
#define LOST(edit, expect)                                                     \
	{                                                                      \
#edit, STAGE(3), expect, "", MKCKPT_OPTIM, 1, edit, NULL, NULL \
	}

#define NO_FILE "and does not say to which file it was offloaded"

const struct bad bad_optim[] = {
	SHARD(root_is_a_list, 1, STAGES_ALL, "not an optimizer shard"),
	SHARD_SET(no_optimizer_dict, "del ['optimizer_state_dict']", 0,
		  STAGES_ALL, "not an optimizer shard"),
	SHARD_SET(
		stage_three, SHARD_DICT "['zero_stage'] = 3", 1, STAGES_12,
		"is of ZeRO stage 3, but the model-states files are of stage 1"),
	SHARD_SET(stage_two, SHARD_DICT "['zero_stage'] = 2", 1, STAGE(3),
		  "are of stage 3"),
	SHARD_SET(stage_of_text, SHARD_DICT "['zero_stage'] = 'two'", 1,
		  STAGES_ALL, "zero_stage is a str"),
	SHARD_SET(other_version, "['ds_version'] = '0.18.0'", 1, STAGES_ALL,
		  "was written by DeepSpeed 0.18.0, the model states by 0.19.8"),
	SHARD(other_step, 1, STAGES_ALL, "differ in step of group 0"),
	SHARD_SET(fewer_states, "del " BASE "['state'][0]['exp_avg_sq']", 1,
		  STAGES_ALL, "do not hold the same"),
	SHARD_SET(fewer_groups, "del " FP32 "[1]", 1, STAGES_ALL,
		  "groups, param_shapes 2"),
	SHARD(short_fp32, 1, STAGES_ALL, "9 elements"),
	SHARD(short_state, 1, STAGES_ALL,
	      "exp_avg of group 1 (l2.weight, ...) has 9 elements,"
	      " expected"),
	SHARD(empty_state, 1, STAGES_12, "has 0 elements, expected"),
	SHARD(empty_state, 1, STAGE(3), NO_FILE),
	SHARD(empty_fp32, 1, STAGE(3), NO_FILE),
	SHARD(offloaded_to_a_number, 1, STAGE(3), NO_FILE),
	LOST(offloaded_fp32,
	     "/offloaded_tensors/rank01/3_../5.tensor.swp: is"
	     " missing: fp32_flat_groups of group 1 (l2.weight, ...)"),
	LOST(offloaded_state,
	     "/offloaded_tensors/rank01/exp_avg-3_5.tensor.swp:"
	     " is missing: exp_avg of group 1 (l2.weight, ...)"),
	SHARD_SET(state_of_text, BASE "['state'][1]['exp_avg'] = 'text'", 1,
		  STAGES_ALL, "state exp_avg of group 1 is a str"),
	SHARD_SET(state_with_slash, BASE "['state'][1]['../fp32'] = 1", 0,
		  STAGES_ALL, "no usable name"),
	SHARD_SET(state_called_fp32, BASE "['state'][1]['fp32'] = 1", 0,
		  STAGES_ALL, "no usable name"),
	SHARD_SET(state_is_a_string, BASE "['state'] = 'none'", 0, STAGES_ALL,
		  "the optimizer's state is a str"),
	SHARD_SET(state_of_no_group, BASE "['state'][77] = {}", 0, STAGES_ALL,
		  "belongs to none of 2 groups"),
	SHARD_SET(states_are_a_list, BASE "['state'][1] = []", 0, STAGES_ALL,
		  "states of group 1 are not a dict but a list"),
	SHARD(state_twice, 0, STAGES_ALL, "step of group 1 occurs twice"),
	SHARD(too_many_states, 0, STAGES_ALL, "has 16 optimizer states"),
	SHARD(fp32_of_two_dimensions, 1, STAGES_ALL, "is no flat tensor"),
	SHARD_SET(fp32_of_text, FP32 "[0] = 'text'", 1, STAGES_ALL,
		  "expected a tensor, found str"),
	SHARD(fp32_out_of_bounds, 1, STAGES_ALL, "tensor reaches element"),
	SHARD(fp32_storage_lies, 1, STAGES_ALL, "its tensors need 400000"),
	SHARD(fp32_overflows, 1, STAGES_ALL, "overflows"),
	SHARD(fp32_strided, 1, STAGES_ALL, "is no flat tensor"),
	SHARD(wrong_partition_count, 1, STAGES_ALL,
	      "partitioned over 4 ranks, but there are 3"),
	SHARD(mapping_overlaps, 1, STAGES_12, "disagree on where"),
	SHARD(mapping_incomplete, 1, STAGES_12, "disagree on where"),
	SHARD_SET(paddings_of_text, PADDINGS "[1] = 'x'", 0, STAGES_12,
		  "[0][1] is not a count"),
	SHARD_SET(paddings_too_few, PADDINGS "[0] = 1; del " PADDINGS "[2]", 0,
		  STAGES_12, "2 entries for 3 parameters"),
	SHARD_SET(paddings_too_large,
		  PADDINGS "[0] = 9223372036854775807;" PADDINGS
			   "[1] = 9223372036854775807",
		  0, STAGES_12, "group 0: Value too large"),
	SHARD_SET(expert_groups, SHARD_DICT "['ds_zero_partition_groups'] = []",
		  1, STAGE(3), "does not say that sub-group 0"),
};
const size_t bad_optim_n = COUNT(bad_optim);
