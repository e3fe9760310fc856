/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GEOMETRY_H
#define UCKPT_GEOMETRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/vfile/gather.h"

struct errmsg;
struct merge;

/* The slice of one tensor-parallel or expert-parallel rank. */
struct geometry_slice {
	bool present; /* false: the rank has no slice; all is 0 */
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
};

/* Limit of the segments of one row. */
#define GEOMETRY_SEGMENTS_MAX (1u << 22)

/* Find how a rule gathers the slices of `n` ranks. `name` is for messages. -EBADMSG if
 * shapes and rule do not agree, or an element of the output has no source. */
int geometry_init(struct geometry *g, const struct merge *m, const char *name,
		  const struct geometry_slice *slices, size_t n,
		  struct errmsg *err);

#endif
