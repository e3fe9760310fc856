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

/* --- files ----------------------------------------------------------------- */

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

/* --- what is in them ------------------------------------------------------- */

static void no_dict(struct mkpt *m, struct value *root)
{
	*root = *mkpt_list(m);
}

static void tensor_missing(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, NATIVE "0.bias", NULL);
}

static void fused_missing(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, FUSED ".w2.0", NULL);
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

static void no_tensor(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, NATIVE "0.bias", mkpt_str(m, "x"));
}

static void hostile(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, NATIVE "0.bias",
		 mkpt_reduce(m, mkpt_global(m, "os", "system"),
			     mkpt_tuple(m, 1, mkpt_str(m, "true"))));
}

/* In the file of an expert, which is opened for untrained tensors. */
static void stranger(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "other.weight", mkpt_int(m, 1));
}

/* --- model states ---------------------------------------------------------- */

static void no_counts(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "num_experts", NULL);
}

static void no_layers(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "num_experts", NULL);
	mkpt_set(m, root, "ds_autoep_layers", NULL);
}

static void more_experts(struct mkpt *m, struct value *root)
{
	value_find(root, "num_experts")->seq.v[0] = mkpt_int(m, 6);
}

static void count_of_text(struct mkpt *m, struct value *root)
{
	value_find(root, "num_experts")->seq.v[0] = mkpt_str(m, "4");
}

static void too_many_experts(struct mkpt *m, struct value *root)
{
	mkpt_add(m, value_find(root, "num_experts"), mkpt_int(m, 999997));
}

static void third_layer(struct mkpt *m, struct value *root)
{
	mkpt_add(m, value_find(root, "num_experts"), mkpt_int(m, 4));
}

/* Three of four experts on a rank. */
static void uneven(struct mkpt *m, struct value *root)
{
	struct value *const shapes = value_find(root, "param_shapes")->seq.v[1];
	const uint64_t shape = 3;

	mkpt_set(m, shapes, NATIVE "2.bias", mkpt_size(m, &shape, 1));
}

/* All four on one rank. */
static void other_degree(struct mkpt *m, struct value *root)
{
	uneven(m, root);
	struct value *const shapes = value_find(root, "param_shapes")->seq.v[1];
	const uint64_t shape = 3;

	mkpt_set(m, shapes, NATIVE "3.bias", mkpt_size(m, &shape, 1));
}

static void mixed_group(struct mkpt *m, struct value *root)
{
	struct value *const shapes = value_find(root, "param_shapes")->seq.v[1];
	const uint64_t shape = 3;

	mkpt_set(m, shapes, "dense", mkpt_size(m, &shape, 1));
}

static void data_first(struct mkpt *m, struct value *root)
{
	mkpt_set(m, value_find(root, "ds_config"),
		 "use_data_before_expert_parallelism", mkpt_bool(m, true));
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

static void autoep_of_text(struct mkpt *m, struct value *root)
{
	mkpt_set(m, root, "ds_autoep_layers", mkpt_str(m, "x"));
}

static void autoep_twice(struct mkpt *m, struct value *root)
{
	mkpt_add(m, value_find(root, "ds_autoep_layers"), autoep(root));
}

static void layer_unknown(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "moe_layer_id", mkpt_int(m, 9));
}

static void wrong_ep_size(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "ep_size", mkpt_int(m, 4));
}

static void wrong_local(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "num_local_experts", mkpt_int(m, 1));
	mkpt_set(m, autoep(root), "ep_size", mkpt_int(m, 4));
	mkpt_set(m, autoep(root), "expert_placement", NULL);
}

static void other_format(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "checkpoint_format", mkpt_str(m, "newer"));
}

static void newer_format(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "checkpoint_format_version", mkpt_int(m, 2));
}

static void no_prefix(struct mkpt *m, struct value *root)
{
	mkpt_set(m, autoep(root), "expert_key_prefix", mkpt_none(m));
}

static void newer_placement(struct mkpt *m, struct value *root)
{
	mkpt_set(m, value_find(autoep(root), "expert_placement"), "version",
		 mkpt_int(m, 2));
}

static void placed_twice(struct mkpt *m, struct value *root)
{
	(void)m;
	placed_on(root, 1)->seq.v[0] = placed_on(root, 0)->seq.v[0];
}

static void placed_nowhere(struct mkpt *m, struct value *root)
{
	placed_on(root, 1)->seq.v[0] = mkpt_int(m, 4);
}

static void placed_unevenly(struct mkpt *m, struct value *root)
{
	struct value *const from = placed_on(root, 0);

	mkpt_add(m, placed_on(root, 1), from->seq.v[--from->seq.n]);
}

static void rank_twice(struct mkpt *m, struct value *root)
{
	struct value *const ranks = value_find(
		value_find(autoep(root), "expert_placement"), "ranks");

	mkpt_set(m, ranks->seq.v[1], "rank", mkpt_int(m, 0));
}

static void rank_missing(struct mkpt *m, struct value *root)
{
	(void)m;
	value_find(value_find(autoep(root), "expert_placement"), "ranks")
		->seq.n--;
}

/* The map of a rank that claims experts 0 and 1, which it does not have. */
static void other_map(struct mkpt *m, struct value *root)
{
	struct value *const maps = mkpt_dict(m), *const params = mkpt_dict(m);
	struct value *const map = mkpt_dict(m), *const ranks = mkpt_dict(m);
	struct value *const rank = mkpt_dict(m), *const piece = mkpt_dict(m);
	struct value *const pieces = mkpt_list(m);
	const uint64_t shape[] = { 2, 2, 3 };

	mkpt_set(m, piece, "shape", mkpt_size(m, shape, 3));
	mkpt_set(m, piece, "source",
		 mkpt_tuple(m, 2, mkpt_int(m, 0), mkpt_list(m)));
	mkpt_set(m, piece, "dest",
		 mkpt_tuple(m, 2, mkpt_int(m, 0), mkpt_list(m)));
	mkpt_add(m, pieces, piece);
	mkpt_set(m, rank, "pieces", pieces);
	mkpt_set_key(m, ranks, mkpt_int(m, 0), rank);
	mkpt_set(m, map, "ranks", ranks);
	mkpt_set(m, params, FUSED ".w1", map);
	mkpt_set(m, maps, "params", params);
	mkpt_set(m, autoep(root), "affine_maps", maps);
}

/* --- optimizer shards ------------------------------------------------------ */

static struct value *dict_of(struct value *root)
{
	return value_find(root, "optimizer_state_dict");
}

static struct value *group_of(struct value *root, size_t g)
{
	return value_find_path(dict_of(root), "base_optimizer_state",
			       "param_groups", NULL)
		->seq.v[g];
}

static void other_group_name(struct mkpt *m, struct value *root)
{
	mkpt_set(m, group_of(root, 1), "name", mkpt_str(m, "ep_size_4"));
}

static void unmarked_group(struct mkpt *m, struct value *root)
{
	mkpt_set(m, group_of(root, 1), "moe", NULL);
}

static void marked_group(struct mkpt *m, struct value *root)
{
	mkpt_set(m, group_of(root, 0), "moe", mkpt_bool(m, true));
	mkpt_set(m, group_of(root, 0), "name", mkpt_str(m, "ep_size_2"));
}

static void whole_partition(struct mkpt *m, struct value *root)
{
	value_find(dict_of(root), "partition_count")->seq.v[1] = mkpt_int(m, 4);
}

static struct value *partition_group(struct value *root)
{
	return value_find(dict_of(root), "ds_zero_partition_groups")->seq.v[1];
}

static void no_partition_groups(struct mkpt *m, struct value *root)
{
	mkpt_set(m, dict_of(root), "ds_zero_partition_groups", NULL);
}

static void other_partition_rank(struct mkpt *m, struct value *root)
{
	mkpt_set(m, partition_group(root), "partition_rank", mkpt_int(m, 1));
}

static void other_partition_ranks(struct mkpt *m, struct value *root)
{
	value_find(partition_group(root), "partition_ranks")->seq.v[1] =
		mkpt_int(m, 2);
}

/* --- all of them ----------------------------------------------------------- */

#define FILES(damage, file, expect)                                       \
	{                                                                 \
#damage, STAGES_12, expect, file, MKCKPT_OPTIM, 0, NULL, damage \
	}
#define INSIDE(edit, n, file, expect)                                          \
	{                                                                      \
#edit, STAGES_12, expect, file, MKCKPT_EXPERT, n, edit, NULL          \
	}
#define STATES(edit, stages, expect)                                    \
	{                                                               \
#edit, stages, expect, "model_states.pt", MKCKPT_MODEL, 0, edit, \
			NULL                                            \
	}
#define SHARD(edit, stages, expect)                                           \
	{                                                                     \
#edit, stages, expect, SHARD_1, MKCKPT_OPTIM, 1, edit, NULL           \
	}

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
	INSIDE(tensor_missing, 0, EXPERT(0, 0), "has no " NATIVE "0.bias"),
	INSIDE(fused_missing, 4, EXPERT(1, 0), "has no " FUSED ".w2.0"),
	INSIDE(other_shape, 0, EXPERT(0, 0), "is of another shape"),
	INSIDE(fused_of_other_shape, 4, EXPERT(1, 0), "is of another shape"),
	INSIDE(no_tensor, 0, EXPERT(0, 0), "expected a tensor, found str"),
	INSIDE(hostile, 0, EXPERT(0, 0), "refusing global os.system"),
	INSIDE(stranger, 2, EXPERT(0, 2), "has a other.weight, which does not belong"),

	STATES(no_layers, STAGES_12, "of a model without any"),
	STATES(no_counts, STAGES_ALL, "num_experts counts 0 layers"),
	STATES(more_experts, STAGES_12, "MoE layer 0 has 6 experts"),
	STATES(count_of_text, STAGES_ALL, "num_experts[0] is not a number"),
	STATES(too_many_experts, STAGES_ALL, "more than 1000000 experts"),
	STATES(third_layer, STAGES_12, "MoE layer 2 has 4 experts"),
	STATES(third_layer, STAGE(3), "MoE layer 1 is not of AutoEP"),
	STATES(uneven, STAGES_12, "cannot be divided"),
	STATES(mixed_group, STAGES_12, "others in its group by"),
	STATES(autoep_of_text, STAGES_ALL, "ds_autoep_layers is a str"),
	STATES(autoep_twice, STAGES_ALL, "of the same layer as another"),
	STATES(layer_unknown, STAGES_ALL, "moe_layer_id is missing or not"),
	STATES(wrong_ep_size, STAGES_ALL, "ep_size is missing or not"),
	STATES(wrong_local, STAGES_ALL, "is not of 1 experts"),
	STATES(other_format, STAGE(3), "checkpoint_format is not the one"),
	STATES(newer_format, STAGE(3), "checkpoint_format_version is missing"),
	STATES(no_prefix, STAGES_ALL, "expert_key_prefix is no name"),
	STATES(newer_placement, STAGES_ALL, "version is missing or not"),
	STATES(placed_twice, STAGES_ALL, "or one twice"),
	STATES(placed_nowhere, STAGES_ALL, "that is not there"),
	STATES(placed_unevenly, STAGES_ALL, "different numbers of experts"),
	STATES(rank_twice, STAGES_ALL, "or twice"),
	STATES(rank_missing, STAGES_ALL, "does not list the ranks"),
	STATES(other_map, STAGES_ALL, "affine_maps place experts elsewhere"),

	/* Entries that contradict the shards. */
	{ "other_degree", STAGES_12, "is partitioned over 2 ranks", SHARD_0,
	  MKCKPT_MODEL, 0, other_degree, NULL },
	{ "data_first", STAGES_12, "disagree on where", SHARD_1, MKCKPT_MODEL,
	  0, data_first, NULL },
	{ "data_first", STAGE(3), "is cut over 2 ranks, one in 1", SHARD_0,
	  MKCKPT_MODEL, 0, data_first, NULL },
	SHARD(other_group_name, STAGES_12,
	      "is not the group of experts (ep_size_2)"),
	SHARD(unmarked_group, STAGES_12, "is not the group of experts"),
	SHARD(marked_group, STAGES_12, "is not the group of experts"),
	SHARD(whole_partition, STAGES_12, "is partitioned over 4 ranks"),
	SHARD(no_partition_groups, STAGE(3), "is cut over 2 ranks"),
	SHARD(other_partition_rank, STAGE(3), "is cut over 2 ranks, one in 2"),
	SHARD(other_partition_ranks, STAGE(3), "is cut over 2 ranks"),
};
const size_t bad_experts_n = COUNT(bad_experts);
