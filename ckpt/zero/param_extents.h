/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PARAM_EXTENTS_H
#define UCKPT_PARAM_EXTENTS_H

#include "ckpt/tensor/tensor.h"

struct errmsg;
struct extent_map;
struct gathers;
struct geometry;
struct param;
struct zero_checkpoint;

/* Check that a parameter's state (NULL: its master weights) of that type can be
 * computed, if any of its elements are. -ENOTSUP or -EBADMSG if not. */
int param_extents_check(const struct param *p, const struct geometry *g,
			const char *state, enum dtype dtype, struct errmsg *err);

/* Append the elements of a whole state, merged from all slices: runs of shards,
 * or a gather, which is added to `gathers`. Errors as param_extents_check and
 * zckpt_slice. */
int param_extents_add(struct zero_checkpoint *r, const struct param *p,
		      const char *state, enum dtype dtype, struct extent_map *to,
		      struct gathers *gathers, struct errmsg *err);

#endif
