/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MERGED_H
#define UCKPT_MERGED_H

#include "ckpt/tensor/tensor.h"

struct errmsg;
struct extent_map;
struct gathers;
struct geometry;
struct param;
struct resolve;

/* Can a parameter's state (NULL: its master weights) of that type be computed,
 * if anything in it is?  -ENOTSUP or -EBADMSG if not. */
int merged_check(const struct param *p, const struct geometry *g,
		 const char *state, enum dtype dtype, struct errmsg *err);

/*
 * Append the elements of a whole state, merged from all slices: runs of shards,
 * or a gather, which is added to `gathers`.  Errors as merged_check and
 * resolve_slice.
 */
int merged_add(struct resolve *r, const struct param *p, const char *state,
	       enum dtype dtype, struct extent_map *to, struct gathers *gathers,
	       struct errmsg *err);

#endif
