/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GEOMETRY_IMPL_H
#define UCKPT_GEOMETRY_IMPL_H

#include "ckpt/model/geometry.h"

struct expert_layer;
struct value;

/* Shared by geometry*.c. */

/* Append a segment, unless it is empty. -ENOMEM, also when the limit is
 * reached. */
int geometry_add(struct geometry *g, struct geometry_segment s);

int geometry_set_shape(struct geometry *g, const char *name,
		       const uint64_t *shape, unsigned ndim,
		       struct errmsg *err);

/* The rule of an affine map; `holder` as in struct merge. */
int geometry_affine(struct geometry *g, const struct value *map,
		    size_t holder, const char *name, const struct geometry_slice *s, size_t n,
		    struct errmsg *err);

/* Merge all experts of a layer from the expert-parallel ranks' slices. */
int geometry_experts(struct geometry *g, const struct expert_layer *l,
		     const char *name, const struct geometry_slice *s,
		     size_t n, struct errmsg *err);

#endif
