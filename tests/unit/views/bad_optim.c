/* SPDX-License-Identifier: Apache-2.0 */
/* Defects in optimizer shards. */
#include "tests/unit/views/bad.h"

#include "ckpt/base/array.h"

#define SHARD_SET(name, change, rank, stages, expect)                                 \
	{                                                                             \
#name, stages, expect, SHARD_##rank, MKCKPT_OPTIM, rank, change, NULL \
	}
#define SHARD_DICT "['optimizer_state_dict']"
#define BASE SHARD_DICT "['base_optimizer_state|optimizer_state_dict']"
#define FP32 SHARD_DICT "['single_partition_of_fp32_groups|fp32_flat_groups']"
#define STATE(n) BASE "['state'][" #n "]"
#define MAPPING SHARD_DICT "['param_slice_mappings'][0]['l1.weight']"
#define PADDINGS SHARD_DICT "['param_alignment_paddings'][0]"

/* Damage ZeRO-3; the message names the missing file. */
#define LOST(name, change, expect)                                         \
	{                                                                  \
#name, STAGE(3), expect, "", MKCKPT_OPTIM, 1, change, NULL \
	}

#define NO_FILE "and does not say to which file it was offloaded"

const struct bad bad_optim[] = {
	SHARD_SET(root_is_a_list, "= []", 1, STAGES_ALL, "not an optimizer shard"),
	SHARD_SET(no_optimizer_dict, "del ['optimizer_state_dict']", 0, STAGES_ALL,
		  "not an optimizer shard"),
	SHARD_SET(stage_three, SHARD_DICT "['zero_stage'] = 3", 1, STAGES_12,
		  "is of ZeRO stage 3, but the model-states files are of stage 1"),
	SHARD_SET(stage_two, SHARD_DICT "['zero_stage'] = 2", 1, STAGE(3), "are of stage 3"),
	SHARD_SET(stage_of_text, SHARD_DICT "['zero_stage'] = 'two'", 1, STAGES_ALL,
		  "zero_stage is a str"),
	SHARD_SET(other_version, "['ds_version'] = '0.18.0'", 1, STAGES_ALL,
		  "was written by DeepSpeed 0.18.0, the model states by 0.19.8"),
	SHARD_SET(other_step, STATE(0) "['step'] = Scalar(5.0)", 1, STAGES_ALL,
		  "differ in step of group 0"),
	SHARD_SET(fewer_states, "del " STATE(0) "['exp_avg_sq']", 1, STAGES_ALL,
		  "do not hold the same"),
	SHARD_SET(fewer_groups, "del " FP32 "[1]", 1, STAGES_ALL, "groups, param_shapes 2"),
	SHARD_SET(short_fp32, FP32 "[1] = Zeros(9)", 1, STAGES_ALL, "9 elements"),
	SHARD_SET(short_state, STATE(1) "['exp_avg'] = Zeros(9)", 1, STAGES_ALL,
		  "exp_avg of group 1 (l2.weight, ...) has 9 elements, expected"),
	SHARD_SET(empty_state, STATE(1) "['exp_avg'] = Zeros(0)", 1, STAGES_12,
		  "has 0 elements, expected"),
	SHARD_SET(empty_state, STATE(1) "['exp_avg'] = Zeros(0)", 1, STAGE(3), NO_FILE),
	SHARD_SET(empty_fp32, FP32 "[1] = Zeros(0)", 1, STAGE(3), NO_FILE),
	SHARD_SET(offloaded_to_a_number, FP32 "[1] = Nvme(3)", 1, STAGE(3), NO_FILE),
	LOST(offloaded_fp32, FP32 "[1] = Nvme('3_../5')",
	     "/offloaded_tensors/rank01/3_../5.tensor.swp: is"
	     " missing: fp32_flat_groups of group 1 (l2.weight, ...)"),
	LOST(offloaded_state, STATE(1) "['exp_avg'] = Nvme('exp_avg-3_5')",
	     "/offloaded_tensors/rank01/exp_avg-3_5.tensor.swp:"
	     " is missing: exp_avg of group 1 (l2.weight, ...)"),
	SHARD_SET(state_of_text, STATE(1) "['exp_avg'] = 'text'", 1, STAGES_ALL,
		  "state exp_avg of group 1 is a str"),
	SHARD_SET(state_with_slash, STATE(1) "['../fp32'] = 1", 0, STAGES_ALL, "no usable name"),
	SHARD_SET(state_called_fp32, STATE(1) "['fp32'] = 1", 0, STAGES_ALL, "no usable name"),
	SHARD_SET(state_is_a_string, BASE "['state'] = 'none'", 0, STAGES_ALL,
		  "the optimizer's state is a str"),
	SHARD_SET(state_of_no_group, BASE "['state'][77] = {}", 0, STAGES_ALL,
		  "belongs to none of 2 groups"),
	SHARD_SET(states_are_a_list, STATE(1) " = []", 0, STAGES_ALL,
		  "states of group 1 are not a dict but a list"),
	SHARD_SET(state_twice, STATE(1) " += {'step': 4}", 0, STAGES_ALL,
		  "step of group 1 occurs twice"),
	SHARD_SET(too_many_states,
		  STATE(1) " += {'a': 1, 'b': 1, 'c': 1, 'd': 1, 'e': 1, 'f': 1,"
			   "'g': 1, 'h': 1, 'i': 1, 'j': 1, 'k': 1, 'l': 1, 'm': 1}",
		  0, STAGES_ALL, "has 16 optimizer states"),
	SHARD_SET(fp32_of_two_dimensions, FP32 "[0] = Zeros(2, 20)", 1, STAGES_ALL,
		  "is no flat tensor"),
	SHARD_SET(fp32_of_text, FP32 "[0] = 'text'", 1, STAGES_ALL, "expected a tensor, found str"),
	SHARD_SET(fp32_out_of_bounds, FP32 "[0].args[1] = 1000", 1, STAGES_ALL,
		  "tensor reaches element"),
	SHARD_SET(fp32_storage_lies, FP32 "[0].args[0].pid[4] = 100000", 1, STAGES_ALL,
		  "its tensors need 400000"),
	SHARD_SET(fp32_overflows,
		  FP32 "[0].args[2] = (9223372036854775807,);" FP32
		       "[0].args[3] = (9223372036854775807,)",
		  1, STAGES_ALL, "overflows"),
	SHARD_SET(fp32_strided, FP32 "[0].args[2] = (10,);" FP32 "[0].args[3] = (2,)", 1,
		  STAGES_ALL, "is no flat tensor"),
	SHARD_SET(wrong_partition_count, SHARD_DICT "['partition_count'][0] = 4", 1, STAGES_12,
		  "partitioned over 4 ranks, but there are 3"),
	SHARD_SET(wrong_partition_count, SHARD_DICT "['partition_count'] = 4", 1, STAGE(3),
		  "partitioned over 4 ranks, but there are 3"),
	SHARD_SET(mapping_overlaps, MAPPING ".state['start'] = 39", 1, STAGES_12,
		  "disagree on where"),
	SHARD_SET(mapping_incomplete, "del " MAPPING, 1, STAGES_12, "disagree on where"),
	SHARD_SET(paddings_of_text, PADDINGS "[1] = 'x'", 0, STAGES_12, "[0][1] is not a count"),
	SHARD_SET(paddings_too_few, PADDINGS "[0] = 1; del " PADDINGS "[2]", 0, STAGES_12,
		  "2 entries for 3 parameters"),
	SHARD_SET(paddings_too_large,
		  PADDINGS "[0] = 9223372036854775807;" PADDINGS "[1] = 9223372036854775807", 0,
		  STAGES_12, "group 0: Value too large"),
	SHARD_SET(expert_groups, SHARD_DICT "['ds_zero_partition_groups'] = []", 1, STAGE(3),
		  "does not say that sub-group 0"),
};
const size_t bad_optim_n = COUNT(bad_optim);
