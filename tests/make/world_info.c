/* SPDX-License-Identifier: Apache-2.0 */
/* Declare a world's rules as its author would: universal_checkpoint_info. */
#include "tests/make/world.h"

static struct value *ints(struct mkpt *m, const uint64_t *v, unsigned n)
{
	struct value *l = mkpt_list(m);

	for (unsigned i = 0; i < n; i++)
		mkpt_add(m, l, mkpt_int(m, (int64_t)v[i]));
	return l;
}

/* Append to the list under `key`; create it if it is missing. */
static void add_to(struct mkpt *m, struct value *dict, const char *key, struct value *v)
{
	struct value *l = value_find(dict, key);

	if (!l) {
		l = mkpt_list(m);
		mkpt_set(m, dict, key, l);
	}
	mkpt_add(m, l, v);
}

/* Return the sizes of the parts or, for the oldest files, their number. */
static struct value *part_sizes(struct mkpt *m, const struct world_tensor *t, bool spelled)
{
	struct value *sizes = mkpt_tuple(m, 0);

	if (t->counted && !spelled)
		return mkpt_int(m, (int64_t)t->parts);
	for (size_t j = 0; j < t->parts; j++) {
		uint64_t size = 0;

		for (unsigned k = 0; k < WORLD_TP_MAX; k++)
			size += t->widths[j][k];
		mkpt_add(m, sizes, mkpt_int(m, (int64_t)size));
	}
	return sizes;
}

struct value *world_sub_param_shape(struct mkpt *m, const struct world_tensor *t, bool spelled)
{
	struct value *d = mkpt_dict(m), *shape = mkpt_tuple(m, 0);

	for (unsigned i = 0; i < t->ndim; i++)
		mkpt_add(m, shape,
			 i == t->dim    ? part_sizes(m, t, spelled)
			 : i == t->open ? mkpt_int(m, -1)
					: mkpt_int(m, (int64_t)t->shape[i]));
	add_to(m, d, "patterns", mkpt_str(m, t->name));
	mkpt_set(m, d, "shape", shape);
	mkpt_set(m, d, "partition_dim", mkpt_int(m, t->dim));
	return d;
}

static void add_sub_params(struct mkpt *m, struct value *info, const struct world *w,
			   const struct world_tensor *t)
{
	struct value *widths = mkpt_list(m);

	add_to(m, info, "parameter_with_sub_params", world_sub_param_shape(m, t, false));
	if (w->before_04)
		return;
	for (size_t j = 0; j < t->parts; j++)
		mkpt_add(m, widths, ints(m, t->widths[j], w->tp));
	mkpt_set(m, value_find(info, "sub_param_shard_widths"), t->name, widths);
}

/* Compute the row-major strides of `shape`, but with `size` along the partitioned dimension. */
static void strides(const struct world_tensor *t, uint64_t size, uint64_t *out)
{
	uint64_t s = 1;

	for (unsigned i = t->ndim; i-- > 0;) {
		out[i] = s;
		s *= i == t->dim ? size : t->shape[i];
	}
}

static struct value *affine_place(struct mkpt *m, const struct world_tensor *t, uint64_t size,
				  uint64_t at)
{
	uint64_t s[WORLD_DIMS_MAX];

	strides(t, size, s);
	return mkpt_tuple(m, 2, mkpt_int(m, (int64_t)(at * s[t->dim])), ints(m, s, t->ndim));
}

/* Return rank k's share of part j, which begins at `at` of the partitioned dimension. */
static struct value *affine_piece(struct mkpt *m, const struct world *w,
				  const struct world_tensor *t, size_t j, unsigned k, uint64_t at)
{
	struct value *piece = mkpt_dict(m);
	uint64_t shape[WORLD_DIMS_MAX], from = 0;

	for (unsigned i = 0; i < t->ndim; i++)
		shape[i] = i == t->dim ? t->widths[j][k] : t->shape[i];
	for (size_t i = 0; i < j; i++)
		from += t->widths[i][k];
	mkpt_set(m, piece, "shape", ints(m, shape, t->ndim));
	mkpt_set(m, piece, "source", affine_place(m, t, t->shape[t->dim], at));
	mkpt_set(m, piece, "dest", affine_place(m, t, t->shapes[k][t->dim], from));
	for (unsigned i = 0; i < w->tp; i++)
		if (i == k || t->copied[j])
			add_to(m, piece, "locations", mkpt_int(m, i));
	mkpt_set(m, piece, "scale", mkpt_float(m, 1.0));
	return piece;
}

static void add_affine(struct mkpt *m, struct value *info, const struct world *w,
		       const struct world_tensor *t)
{
	struct value *map = mkpt_dict(m), *ranks = mkpt_dict(m);
	struct value *of[WORLD_TP_MAX];
	uint64_t at = 0;

	for (unsigned k = 0; k < w->tp; k++) {
		of[k] = mkpt_dict(m);
		mkpt_set(m, of[k], "pieces", mkpt_list(m));
		mkpt_set_key(m, ranks, mkpt_int(m, k), of[k]);
	}
	for (size_t j = 0; j < t->parts; j++)
		for (unsigned k = 0; k < w->tp; k++) {
			mkpt_add(m, value_find(of[k], "pieces"), affine_piece(m, w, t, j, k, at));
			if (!t->copied[j] || k == w->tp - 1)
				at += t->widths[j][k];
		}
	mkpt_set(m, map, "logical_shape", ints(m, t->shape, t->ndim));
	mkpt_set(m, map, "ranks", ranks);
	mkpt_set(m, value_find_path(info, "affine_map", "params", NULL), t->name, map);
}

static void add_tensor(struct mkpt *m, struct value *info, const struct world *w,
		       const struct world_tensor *t)
{
	static const char *const keys[] = {
		[MERGE_CAT] = "parameter_with_row_parallelism_patterns",
		[MERGE_REPLICATED] = "tp_replicated_parameter_patterns",
		[MERGE_AVERAGE] = "parameter_to_average_patterns",
		[MERGE_TWO_SUB_PARAMS] = "parameter_with_2_sub_params_cat_dim_0",
	};
	struct value *name = mkpt_str(m, t->name);

	if (t->listed)
		add_to(m, info, "pipeline_replicated_parameter_patterns", name);
	if (t->vocab)
		add_to(m, info, "vocabulary_parameter_patterns", name);
	if (t->rule == MERGE_SUB_PARAMS)
		add_sub_params(m, info, w, t);
	else if (t->rule == MERGE_AFFINE)
		add_affine(m, info, w, t);
	else if (t->rule != MERGE_CAT || t->dim) /* 0 needs no pattern */
		add_to(m, info, keys[t->rule], name);
}

struct value *world_info(struct mkpt *m, const struct world *w)
{
	struct value *info = mkpt_dict(m), *affine = mkpt_dict(m);

	mkpt_set(m, info, "universal_checkpoint_version", mkpt_float(m, w->before_04 ? 0.2 : 0.4));
	mkpt_set(m, info, "original_vocab_size", mkpt_int(m, WORLD_VOCAB_ROWS));
	mkpt_set(m, info, "sub_param_shard_widths", mkpt_dict(m));
	mkpt_set(m, info, "affine_map", affine);
	mkpt_set(m, affine, "version", mkpt_int(m, 1));
	mkpt_set(m, affine, "params", mkpt_dict(m));
	for (size_t i = 0; i < w->n; i++)
		add_tensor(m, info, w, &w->v[i]);
	return info;
}
