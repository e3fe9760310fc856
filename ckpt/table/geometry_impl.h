/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_GEOMETRY_IMPL_H
#define UCKPT_GEOMETRY_IMPL_H

#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/geometry.h"

/* Shared by geometry*.c: the arguments of geometry_init. */
struct geometry_args {
	struct geometry *g;
	const struct param *p;
	struct errmsg *err;
};

/* Return the number of elements of a rank's slice; 0 if it has none. */
static inline uint64_t geometry_numel(const struct geometry_args *j, size_t rank)
{
	return j->p->slices[rank] ? j->p->slices[rank]->numel : 0;
}

/* Report that slices and rule do not agree.  Returns -EBADMSG. */
#define GEOMETRY_BAD(j, fmt, ...) \
	errmsg_set((j)->err, -EBADMSG, "parameter %s: " fmt, (j)->p->name, ##__VA_ARGS__)

/* Append a segment, unless it is empty.  -ENOMEM, or -E2BIG with a message. */
int geometry_add(const struct geometry_args *j, struct geometry_segment s);

int geometry_set_shape(const struct geometry_args *j, const uint64_t *shape, size_t ndim);

/* Do the segments fill a row in order, without gap or overlap? */
bool geometry_is_covered(const struct geometry *g);

/* Apply the rule of an affine map. */
int geometry_affine(const struct geometry_args *j);

#endif
