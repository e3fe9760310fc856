/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_FROZEN_H
#define UCKPT_FROZEN_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/tensor.h"
#include "ckpt/vfile/extent.h"

struct checkpoint;
struct errmsg;
struct ptfile;

/* A frozen parameter, whole. */
struct frozen_param {
	const char *name; /* must be first: array_by_text */
	size_t index;     /* number among the file's frozen parameters */
	unsigned ndim;
	const uint64_t *shape;
	uint64_t numel;
	enum dtype dtype;
	const char *odd; /* reason why it cannot be read: it is not a plain tensor; or NULL */
};

/*
 * The frozen parameters of a model-parallel rank of ZeRO-3.  The model states of each
 * data-parallel rank have the shapes, and a slot of each parameter; slots are of equal
 * length, the last ones padded.  Not thread-safe.
 */
struct frozen {
	const struct checkpoint *c;
	unsigned mp;
	struct arena arena;
	struct frozen_param *v;             /* sorted by name */
	const struct frozen_param **listed; /* the same parameters, in the file's order */
	size_t n;
	uint64_t **at; /* of each rank, once needed: the offsets of the slots in its file, by
	                * number of the parameter */
};

/* Read the parameters from the open model states of data-parallel rank `rank`.
 * -EBADMSG for a parameter without a shape or a slot.  Call frozen_done in the end. */
int frozen_init(struct frozen *f, const struct checkpoint *c, unsigned mp, unsigned rank,
		const struct ptfile *pt, struct errmsg *err);
void frozen_done(struct frozen *f);

/* Return the parameter with that name, or NULL. */
const struct frozen_param *frozen_find(const struct frozen *f, const char *name);

/* Append elements [first, first + n), from the slots of all ranks that have some. -EBADMSG if a
 * slot has another length or type, -ENOTSUP if `odd` is set. */
int frozen_add(struct frozen *f, const struct frozen_param *p, uint64_t first, uint64_t n,
	       struct extent_map *out, struct errmsg *err);

#endif
