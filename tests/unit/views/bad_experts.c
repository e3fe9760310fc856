/* SPDX-License-Identifier: Apache-2.0 */
/* Defects of experts: in their files, and in other files' records of them. */
#include "ckpt/base/array.h"
#include "tests/unit/views/bad.h"

#define EXPERT(layer, n) "layer_" #layer "_expert_" #n "_mp_rank_00_model_states.pt"
#define NATIVE "moe.deepspeed_moe.experts.deepspeed_experts."
#define FUSED "mlp.experts"

#define FILES(name, shell, file, expect)                                     \
	{                                                                    \
#name, STAGES_12, expect, file, MKCKPT_OPTIM, 0, NULL, shell \
	}
#define INSIDE(name, change, n, file, expect)                                  \
	{                                                                      \
#name, STAGES_12, expect, file, MKCKPT_EXPERT, n, change, NULL \
	}
#define STATES(name, change, stages, expect)                                            \
	{                                                                               \
#name, stages, expect, "model_states.pt", MKCKPT_MODEL, 0, change, NULL \
	}
#define SHARD(name, change, stages, expect)                                   \
	{                                                                     \
#name, stages, expect, SHARD_1, MKCKPT_OPTIM, 1, change, NULL \
	}
#define SHAPES "['param_shapes'][1]"
#define AUTOEP "['ds_autoep_layers'][0]"
#define PLACED AUTOEP "['expert_placement']"
#define PLACED_ON(rank) PLACED "['ranks'][" #rank "]['experts']"
#define GROUPS "['optimizer_state_dict']['base_optimizer_state']['param_groups']"
#define PARTITIONS "['optimizer_state_dict']['ds_zero_partition_groups']"
#define DATA_FIRST "['ds_config']['use_data_before_expert_parallelism'] = True"


/* Affine map of a parameter of four experts of 2 x 3 elements, and pieces of one of them. */
#define W1_MAP(ranks) \
	AUTOEP "['affine_maps'] = {'version': 1, 'params': {'" FUSED \
	       ".w1': {'logical_shape': (4, 2, 3), 'ranks': {" ranks "}}}}"
#define P(from, to, source, dest) \
	"{'shape': Size(1, 2, 3), 'source': (" #from ", [" source "]), 'dest': (" #to ", [" dest "])}"
#define R0 "0: {'pieces': ["
#define R1 "1: {'pieces': ["
#define PLACED_AS_RECORDED(source, dest)                                        \
	R0 P(12, 0, source, dest) ", " P(0, 6, source, dest) "]}, "               \
	R1 P(18, 0, source, dest) ", " P(6, 6, source, dest) "]}"

const struct bad bad_experts[] = {
	FILES(lose_middle, "rm " EXPERT(0, 1), DIRECTORY,
	      "the file of expert 1 in MoE layer 0 is missing"),
	FILES(lose_last, "rm " EXPERT(0, 3), MODEL,
	      "MoE layer 0 has 4 experts, but there are files (layer_0_expert_*) of 3"),
	FILES(lose_layer, "rm layer_1_*", MODEL, "MoE layer 1 has 4 experts"),
	FILES(double_expert, "cp " EXPERT(0, 0) " " EXPERT(0, 01), DIRECTORY,
	      "is there twice: layer_0_expert_"),
	FILES(add_layer, "cp " EXPERT(0, 0) " " EXPERT(2, 0), MODEL, "the model has 2 MoE layers"),
	FILES(exchange_experts, "cp " EXPERT(0, 1) " " EXPERT(0, 0), EXPERT(0, 0),
	      "has no parameters of expert 0"),
	FILES(cut, "truncate -s 700 " EXPERT(0, 0), EXPERT(0, 0), "truncated?"),

	INSIDE(no_dict, "= []", 0, EXPERT(0, 0), "expected a dict, found list"),
	INSIDE(tensor_missing, "del ['" NATIVE "0.bias']", 0, EXPERT(0, 0),
	       "has no " NATIVE "0.bias"),
	INSIDE(fused_missing, "del ['" FUSED ".w2.0']", 4, EXPERT(1, 0), "has no " FUSED ".w2.0"),
	INSIDE(other_shape, "['" NATIVE "0.bias'] = Halves(4)", 0, EXPERT(0, 0),
	       "is of another shape"),
	INSIDE(fused_of_other_shape, "['" FUSED ".w1.0'] = Halves(3, 2)", 4, EXPERT(1, 0),
	       "is of another shape"),
	INSIDE(no_tensor, "['" NATIVE "0.bias'] = 'x'", 0, EXPERT(0, 0),
	       "expected a tensor, found str"),
	INSIDE(hostile, "['" NATIVE "0.bias'] = Call('os', 'system', 'true')", 0, EXPERT(0, 0),
	       "refusing global os.system"),
	INSIDE(stranger, "['other.weight'] = 1", 2, EXPERT(0, 2),
	       "has a other.weight, which does not belong"),

	STATES(no_layers, "del ['num_experts']; del ['ds_autoep_layers']", STAGES_12,
	       "of a model without any"),
	STATES(no_counts, "del ['num_experts']", STAGES_ALL, "num_experts counts 0 layers"),
	STATES(more_experts, "['num_experts'][0] = 6", STAGES_12, "MoE layer 0 has 6 experts"),
	STATES(count_of_text, "['num_experts'][0] = '4'", STAGES_ALL,
	       "num_experts[0] is not a number"),
	STATES(too_many_experts, "['num_experts'] += 999997", STAGES_ALL,
	       "more than 1000000 experts"),
	STATES(third_layer, "['num_experts'] += 4", STAGES_12, "MoE layer 2 has 4 experts"),
	STATES(third_layer, "['num_experts'] += 4", STAGE(3), "MoE layer 1 is not of AutoEP"),
	STATES(uneven, SHAPES "['" NATIVE "2.bias'] = Size(3)", STAGES_12, "cannot be divided"),
	STATES(mixed_group, SHAPES "['dense'] = Size(3)", STAGES_12, "others in its group by"),
	STATES(autoep_of_text, "['ds_autoep_layers'] = 'x'", STAGES_ALL, "ds_autoep_layers is a str"),
	STATES(autoep_twice, "['ds_autoep_layers'] += @" AUTOEP, STAGES_ALL,
	       "of the same layer as another"),
	STATES(layer_unknown, AUTOEP "['moe_layer_id'] = 9", STAGES_ALL,
	       "moe_layer_id is missing or not"),
	STATES(wrong_ep_size, AUTOEP "['ep_size'] = 4", STAGES_ALL, "ep_size is missing or not"),
	STATES(wrong_local,
	       AUTOEP "['num_local_experts'] = 1;" AUTOEP "['ep_size'] = 4; del " AUTOEP
		      "['expert_placement']",
	       STAGES_ALL, "is not of 1 experts"),
	STATES(other_format, AUTOEP "['checkpoint_format'] = 'newer'", STAGE(3),
	       "checkpoint_format is not the one"),
	STATES(newer_format, AUTOEP "['checkpoint_format_version'] = 2", STAGE(3),
	       "checkpoint_format_version is missing"),
	STATES(no_prefix, AUTOEP "['expert_key_prefix'] = None", STAGES_ALL,
	       "expert_key_prefix is no name"),
	STATES(newer_placement, PLACED "['version'] = 2", STAGES_ALL, "version is missing or not"),
	STATES(placed_twice, PLACED_ON(0) "[1] = @" PLACED_ON(0) "[0]", STAGES_ALL, "or one twice"),
	STATES(left_out, PLACED_ON(1) "[0] = @" PLACED_ON(0) "[0]", STAGES_ALL, "leaves out expert 3"),
	STATES(too_many_places, AUTOEP "['ep_size'] = 3; del " PLACED, STAGES_ALL,
	       "2 experts on each of 3 ranks (ep_size) are not 4"),
	STATES(placed_nowhere, PLACED_ON(1) "[0] = 4", STAGES_ALL, "that is not there"),
	STATES(placed_unevenly, PLACED_ON(1) "+= @" PLACED_ON(0) "[1]; del " PLACED_ON(0) "[1]",
	       STAGES_ALL, "different numbers of experts"),
	STATES(rank_twice, PLACED "['ranks'][1]['rank'] = 0", STAGES_ALL, "or twice"),
	STATES(rank_missing, "del " PLACED "['ranks'][1]", STAGES_ALL, "does not list the ranks"),
	STATES(other_map,
	       W1_MAP(R0 P(0, 0, "6, 3, 1", "6, 3, 1") ", " P(6, 6, "6, 3, 1", "6, 3, 1") "]}, "
		      R1 P(12, 0, "6, 3, 1", "6, 3, 1") ", " P(18, 6, "6, 3, 1", "6, 3, 1") "]}"),
	       STAGES_ALL, "affine_maps place the experts of " FUSED ".w1 elsewhere"),
	STATES(transposed_in_rank, W1_MAP(PLACED_AS_RECORDED("6, 3, 1", "6, 1, 2")), STAGES_ALL,
	       "affine_maps place the experts of " FUSED ".w1 elsewhere"),
	STATES(transposed_in_whole, W1_MAP(PLACED_AS_RECORDED("6, 1, 2", "6, 3, 1")), STAGES_ALL,
	       "affine_maps place the experts of " FUSED ".w1 elsewhere"),
	STATES(map_without_strides, W1_MAP(PLACED_AS_RECORDED("6, 3", "6, 3")), STAGES_ALL,
	       "affine_maps: parameter " FUSED ".w1: a piece of its affine map lies outside"),
	STATES(map_with_hole, W1_MAP(R0 P(0, 0, "6, 3, 1", "6, 3, 1") "]}"), STAGES_ALL,
	       "parameter " FUSED ".w1: the pieces of its affine map leave elements out, from 6 on"),
	STATES(map_of_two_owners,
	       W1_MAP(PLACED_AS_RECORDED("6, 3, 1", "6, 3, 1") "," R1 P(0, 0, "6, 3, 1", "6, 3, 1") "]}"),
	       STAGES_ALL, "ranks 0 and 1 have element 0, and their locations do not say so"),
	STATES(map_beyond,
	       W1_MAP(R0 P(9223372036854775807, 0, "9223372036854775807, 3, 1", "6, 3, 1") "]}"),
	       STAGES_ALL, "lies outside of it or of the slice of rank 0"),
	STATES(map_of_another_layer,
	       W1_MAP(PLACED_AS_RECORDED("6, 3, 1", "6, 3, 1")) ";" AUTOEP
		      "['affine_maps']['params']['" FUSED ".w1']['logical_shape'] = (8, 2, 3)",
	       STAGES_ALL, "affine_maps: " FUSED ".w1: is not of 4 experts"),
	STATES(newer_map,
	       W1_MAP(PLACED_AS_RECORDED("6, 3, 1", "6, 3, 1")) ";" AUTOEP
		      "['affine_maps']['version'] = 2",
	       STAGES_ALL, "version is missing or not"),

	/* Entries that contradict the shards. */
	{ "other_degree", STAGES_12, "is partitioned over 2 ranks", SHARD_0, MKCKPT_MODEL, 0,
	  SHAPES "['" NATIVE "2.bias'] = Size(3);" SHAPES "['" NATIVE "3.bias'] = Size(3)", NULL },
	{ "data_first", STAGES_12, "disagree on where", SHARD_1, MKCKPT_MODEL, 0, DATA_FIRST, NULL },
	{ "data_first", STAGE(3), "is cut over 2 ranks, one in 1", SHARD_0, MKCKPT_MODEL, 0,
	  DATA_FIRST, NULL },
	SHARD(other_group_name, GROUPS "[1]['name'] = 'ep_size_4'", STAGES_12,
	      "is not the group of experts (ep_size_2)"),
	SHARD(unmarked_group, "del " GROUPS "[1]['moe']", STAGES_12, "is not the group of experts"),
	SHARD(marked_group, GROUPS "[0]['moe'] = True; " GROUPS "[0]['name'] = 'ep_size_2'",
	      STAGES_12, "is not the group of experts"),
	SHARD(whole_partition, "['optimizer_state_dict']['partition_count'][1] = 4", STAGES_12,
	      "is partitioned over 4 ranks"),
	SHARD(no_partition_groups, "del " PARTITIONS, STAGE(3), "is cut over 2 ranks"),
	SHARD(other_partition_rank, PARTITIONS "[1]['partition_rank'] = 1", STAGE(3),
	      "is cut over 2 ranks, one in 2"),
	SHARD(other_partition_ranks, PARTITIONS "[1]['partition_ranks'][1] = 2", STAGE(3),
	      "is cut over 2 ranks"),
};
const size_t bad_experts_n = COUNT(bad_experts);
