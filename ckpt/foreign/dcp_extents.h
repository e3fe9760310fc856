/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_EXTENTS_H
#define UCKPT_DCP_EXTENTS_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/foreign/dcp_metadata.h"
#include "ckpt/format/tensor.h"

struct dcp_storage;
struct errmsg;
struct extent_map;
struct gathers;

/* Elements of a tensor, in row-major order. */
struct dcp_range {
	struct dcp_entry *t;
	uint64_t first, numel;
};

/* Locate all chunks that have any of the elements, in parallel.  -EBADMSG if a record contradicts
 * the metadata; -EIO if a file has changed. */
int dcp_extents_find(const struct dcp_storage *b, const struct dcp_range *v, size_t n,
		     struct errmsg *err);

/*
 * Append the elements, converted to `to`: their own type, or float32 if cast_knows() it.  A tensor
 * that is cut across its rows becomes gathers, or, if `gathers` is NULL or its chunks form no grid,
 * runs.  -E2BIG if there are too many; errors as dcp_extents_find.
 */
int dcp_extents_add(const struct dcp_storage *b, const struct dcp_range *r, enum dtype to,
		    struct extent_map *out, struct gathers *gathers, struct errmsg *err);

#endif
