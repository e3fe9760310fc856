/* SPDX-License-Identifier: Apache-2.0 */
/* Defects of experts: their files, and what other files say about them. */
#include "tests/unit/plan/bad.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

#define DIRECTORY "ucfs-test-"
#define EXPERT(layer, n) \
	"layer_" #layer "_expert_" #n "_mp_rank_00_model_states.pt"
#define NATIVE "moe.deepspeed_moe.experts.deepspeed_experts."
#define FUSED "mlp.experts"

static void in_dir(const char *dir, const char *name, char *path)
{
	snprintf(path, PATH_MAX, "%s/%s", dir, name);
}

static void lose(const char *dir, const char *name)
{
	char path[PATH_MAX];

	in_dir(dir, name, path);
	assert_int_equal(unlink(path), 0);
}

static void lose_middle(const struct mkckpt *c, const char *dir)
{
	(void)c;
	lose(dir, EXPERT(0, 1));
}

static void lose_last(const struct mkckpt *c, const char *dir)
{
	(void)c;
	lose(dir, EXPERT(0, 3));
}

static void lose_layer(const struct mkckpt *c, const char *dir)
{
	(void)c;
	for (char n = '0'; n < '4'; n++) {
		char name[] = EXPERT(1, 0);

		name[strlen("layer_1_expert_")] = n;
		lose(dir, name);
	}
}

static void copy_expert(const char *dir, const char *to)
{
	char path[PATH_MAX];
	struct bytebuf b;

	in_dir(dir, EXPERT(0, 0), path);
	b = mkpt_load(path);
	in_dir(dir, to, path);
	mkpt_save(path, b.data, b.len);
	bytebuf_done(&b);
}

static void double_expert(const struct mkckpt *c, const char *dir)
{
	(void)c;
	copy_expert(dir, EXPERT(0, 01));
}

static void add_layer(const struct mkckpt *c, const char *dir)
{
	(void)c;
	copy_expert(dir, EXPERT(2, 0));
}

static void exchange_experts(const struct mkckpt *c, const char *dir)
{
	char from[PATH_MAX], to[PATH_MAX];

	(void)c;
	in_dir(dir, EXPERT(0, 1), from);
	in_dir(dir, EXPERT(0, 0), to);
	assert_int_equal(rename(from, to), 0);
	copy_expert(dir, EXPERT(0, 1));
}

static void cut(const struct mkckpt *c, const char *dir)
{
	char path[PATH_MAX];

	(void)c;
	in_dir(dir, EXPERT(0, 0), path);
	assert_int_equal(truncate(path, 700), 0);
}

static void no_dict(struct mkpt *m, struct value *root)
{
	*root = *mkpt_list(m);
}

static void other_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape = 4;
	const uint16_t zeros[4] = { 0 };

	mkpt_set(m, root, NATIVE "0.bias",
		 mkpt_tensor(m, DTYPE_BF16, &shape, 1, zeros));
}

static void fused_of_other_shape(struct mkpt *m, struct value *root)
{
	const uint64_t shape[] = { 3, 2 };
	const uint16_t zeros[6] = { 0 };

	mkpt_set(m, root, FUSED ".w1.0",
		 mkpt_tensor(m, DTYPE_BF16, shape, 2, zeros));
}

static void hostile(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, NATIVE "0.bias",
		 mkpt_reduce(m, mkpt_global(m, "os", "system"),
			     mkpt_tuple(m, 1, mkpt_str(m, "true"))));
}

static struct value *autoep(struct value *root)
{
	return value_find(root, "ds_autoep_layers")->seq.v[0];
}

static struct value *placed_on(struct value *root, size_t rank)
{
	struct value *const ranks = value_find(
		value_find(autoep(root), "expert_placement"), "ranks");

	return value_find(ranks->seq.v[rank], "experts");
}

static void autoep_twice(struct mkpt *m, struct value *root)
{
	mkpt_add(m, value_find(root, "ds_autoep_layers"), autoep(root));
}

static void placed_twice(struct mkpt *m, struct value *root)
{
	(void)m;
	placed_on(root, 1)->seq.v[0] = placed_on(root, 0)->seq.v[0];
}

static void placed_unevenly(struct mkpt *m, struct value *root)
{
	struct value *const from = placed_on(root, 0);

	mkpt_add(m, placed_on(root, 1), from->seq.v[--from->seq.n]);
}

#define FILES(damage, file, expect)                                      \
	{                                                                \
#damage, STAGES_12, expect, file, MKCKPT_OPTIM, 0, NULL, \
			damage, NULL                                     \
	}
#define INSIDE(edit, n, file, expect)                                         \
	{                                                                     \
#edit, STAGES_12, expect, file, MKCKPT_EXPERT, n, edit, NULL, \
			NULL                                                  \
	}
#define INSIDE_SET(name, change, n, file, expect)                             \
	{                                                                     \
#name, STAGES_12, expect, file, MKCKPT_EXPERT, n, NULL, NULL, \
			change                                                \
	}
#define STATES(edit, stages, expect)                                       \
	{                                                                  \
#edit, stages, expect, "model_states.pt", MKCKPT_MODEL, 0, \
			edit, NULL, NULL                                   \
	}
#define STATES_SET(name, change, stages, expect)                           \
	{                                                                  \
#name, stages, expect, "model_states.pt", MKCKPT_MODEL, 0, \
			NULL, NULL, change                                 \
	}
#define SHARD_SET(name, change, stages, expect)                              \
	{                                                                    \
#name, stages, expect, SHARD_1, MKCKPT_OPTIM, 1, NULL, NULL, \
			change                                               \
	}
#define SHAPES "['param_shapes'][1]"
#define AUTOEP "['ds_autoep_layers'][0]"
#define PLACED AUTOEP "['expert_placement']"
#define GROUPS \
	"['optimizer_state_dict']['base_optimizer_state']['param_groups']"
#define PARTITIONS "['optimizer_state_dict']['ds_zero_partition_groups']"
#define DATA_FIRST "['ds_config']['use_data_before_expert_parallelism'] = True"

const struct bad bad_experts[] = {
	FILES(lose_middle, DIRECTORY,
	      "the file of expert 1 in MoE layer 0 is missing"),
	FILES(lose_last, MODEL,
	      "MoE layer 0 has 4 experts, but there are files"
	      " (layer_0_expert_*) of 3"),
	FILES(lose_layer, MODEL, "MoE layer 1 has 4 experts"),
	FILES(double_expert, DIRECTORY, "is there twice: layer_0_expert_"),
	FILES(add_layer, MODEL, "the model has 2 MoE layers"),
	FILES(exchange_experts, EXPERT(0, 0), "has no parameters of expert 0"),
	FILES(cut, EXPERT(0, 0), "truncated?"),

	INSIDE(no_dict, 0, EXPERT(0, 0), "expected a dict, found list"),
	INSIDE_SET(tensor_missing, "del ['" NATIVE "0.bias']", 0, EXPERT(0, 0),
		   "has no " NATIVE "0.bias"),
	INSIDE_SET(fused_missing, "del ['" FUSED ".w2.0']", 4, EXPERT(1, 0),
		   "has no " FUSED ".w2.0"),
	INSIDE(other_shape, 0, EXPERT(0, 0), "is of another shape"),
	INSIDE(fused_of_other_shape, 4, EXPERT(1, 0), "is of another shape"),
	INSIDE_SET(no_tensor, "['" NATIVE "0.bias'] = 'x'", 0, EXPERT(0, 0),
		   "expected a tensor, found str"),
	INSIDE(hostile, 0, EXPERT(0, 0), "refusing global os.system"),
	INSIDE_SET(stranger, "['other.weight'] = 1", 2, EXPERT(0, 2),
		   "has a other.weight, which does not belong"),

	STATES_SET(no_layers, "del ['num_experts']; del ['ds_autoep_layers']",
		   STAGES_12, "of a model without any"),
	STATES_SET(no_counts, "del ['num_experts']", STAGES_ALL,
		   "num_experts counts 0 layers"),
	STATES_SET(more_experts, "['num_experts'][0] = 6", STAGES_12,
		   "MoE layer 0 has 6 experts"),
	STATES_SET(count_of_text, "['num_experts'][0] = '4'", STAGES_ALL,
		   "num_experts[0] is not a number"),
	STATES_SET(too_many_experts, "['num_experts'] += 999997", STAGES_ALL,
		   "more than 1000000 experts"),
	STATES_SET(third_layer, "['num_experts'] += 4", STAGES_12,
		   "MoE layer 2 has 4 experts"),
	STATES_SET(third_layer, "['num_experts'] += 4", STAGE(3),
		   "MoE layer 1 is not of AutoEP"),
	STATES_SET(uneven, SHAPES "['" NATIVE "2.bias'] = Size(3)", STAGES_12,
		   "cannot be divided"),
	STATES_SET(mixed_group, SHAPES "['dense'] = Size(3)", STAGES_12,
		   "others in its group by"),
	STATES_SET(autoep_of_text, "['ds_autoep_layers'] = 'x'", STAGES_ALL,
		   "ds_autoep_layers is a str"),
	STATES(autoep_twice, STAGES_ALL, "of the same layer as another"),
	STATES_SET(layer_unknown, AUTOEP "['moe_layer_id'] = 9", STAGES_ALL,
		   "moe_layer_id is missing or not"),
	STATES_SET(wrong_ep_size, AUTOEP "['ep_size'] = 4", STAGES_ALL,
		   "ep_size is missing or not"),
	STATES_SET(wrong_local,
		   AUTOEP "['num_local_experts'] = 1;" AUTOEP
			  "['ep_size'] = 4; del " AUTOEP "['expert_placement']",
		   STAGES_ALL, "is not of 1 experts"),
	STATES_SET(other_format, AUTOEP "['checkpoint_format'] = 'newer'",
		   STAGE(3), "checkpoint_format is not the one"),
	STATES_SET(newer_format, AUTOEP "['checkpoint_format_version'] = 2",
		   STAGE(3), "checkpoint_format_version is missing"),
	STATES_SET(no_prefix, AUTOEP "['expert_key_prefix'] = None", STAGES_ALL,
		   "expert_key_prefix is no name"),
	STATES_SET(newer_placement, PLACED "['version'] = 2", STAGES_ALL,
		   "version is missing or not"),
	STATES(placed_twice, STAGES_ALL, "or one twice"),
	STATES_SET(placed_nowhere, PLACED "['ranks'][1]['experts'][0] = 4",
		   STAGES_ALL, "that is not there"),
	STATES(placed_unevenly, STAGES_ALL, "different numbers of experts"),
	STATES_SET(rank_twice, PLACED "['ranks'][1]['rank'] = 0", STAGES_ALL,
		   "or twice"),
	STATES_SET(rank_missing, "del " PLACED "['ranks'][1]", STAGES_ALL,
		   "does not list the ranks"),
	STATES_SET(other_map,
		   AUTOEP
		   "['affine_maps'] = {'params': {'" FUSED ".w1': {'ranks': {0:"
		   "{'pieces': [{'shape': Size(2, 2, 3), 'source': (0, []),"
		   "'dest': (0, [])}]}}}}}",
		   STAGES_ALL, "affine_maps place experts elsewhere"),

	/* Entries that contradict the shards. */
	{ "other_degree", STAGES_12, "is partitioned over 2 ranks", SHARD_0,
	  MKCKPT_MODEL, 0, NULL, NULL,
	  SHAPES "['" NATIVE "2.bias'] = Size(3);" SHAPES "['" NATIVE
		 "3.bias'] = Size(3)" },
	{ "data_first", STAGES_12, "disagree on where", SHARD_1, MKCKPT_MODEL,
	  0, NULL, NULL, DATA_FIRST },
	{ "data_first", STAGE(3), "is cut over 2 ranks, one in 1", SHARD_0,
	  MKCKPT_MODEL, 0, NULL, NULL, DATA_FIRST },
	SHARD_SET(other_group_name, GROUPS "[1]['name'] = 'ep_size_4'",
		  STAGES_12, "is not the group of experts (ep_size_2)"),
	SHARD_SET(unmarked_group, "del " GROUPS "[1]['moe']", STAGES_12,
		  "is not the group of experts"),
	SHARD_SET(marked_group,
		  GROUPS "[0]['moe'] = True; " GROUPS "[0]['name'] = 'ep_size_2'",
		  STAGES_12, "is not the group of experts"),
	SHARD_SET(whole_partition,
		  "['optimizer_state_dict']['partition_count'][1] = 4",
		  STAGES_12, "is partitioned over 4 ranks"),
	SHARD_SET(no_partition_groups, "del " PARTITIONS, STAGE(3),
		  "is cut over 2 ranks"),
	SHARD_SET(other_partition_rank, PARTITIONS "[1]['partition_rank'] = 1",
		  STAGE(3), "is cut over 2 ranks, one in 2"),
	SHARD_SET(other_partition_ranks,
		  PARTITIONS "[1]['partition_ranks'][1] = 2", STAGE(3),
		  "is cut over 2 ranks"),
};
const size_t bad_experts_n = COUNT(bad_experts);
