/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_DCP_FUSED_H
#define UCKPT_VIEW_DCP_FUSED_H

#include "ckpt/format/tensor.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/qkv.h"

/* A parameter whose optimizer states are made of those of three weights (qkv.h). */
struct view_dcp_fused {
	const char *name;
	const struct param *parts[QKV_PARTS];
	struct qkv qkv;
	uint64_t shape[TENSOR_DIMS_MAX];
};

/*
 * Find the rows that have their states in a fused parameter: in out[i] for row i of the order, else
 * NULL.  Memory comes from the arena.  -ENOTSUP, with the row's name, if the optimizer has only some
 * of the weights, if their states or their shapes do not fit, or if their heads are unknown.
 */
int view_dcp_fused_find(struct checkpoint *c, struct arena *a, const struct view_dcp_fused ***out,
		       struct errmsg *err);

/* Append the elements of a state; `state` is that of the first weight. */
int view_dcp_fused_extents(struct checkpoint *c, const struct view_dcp_fused *x,
			  const struct param_state *state, struct extent_map *out,
			  struct gathers *gathers, struct errmsg *err);

#endif
