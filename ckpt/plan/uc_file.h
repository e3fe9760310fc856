/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CONTENT_H
#define UCKPT_CONTENT_H

#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/format/ptwrite.h"

struct errmsg;
struct param;
struct resolve;
struct shard_group;
struct value;

/* What a universal .pt file consists of. */
struct content {
	struct ptwrite w;
	struct extent_map *storages;
	size_t nstorages;
	struct gathers gathers; /* that extents refer to */
};

void content_done(struct content *c);

/*
 * Lay out the file of torch.save(root), which refers to `n` storages of these
 * lengths in bytes; their extents remain to be added.  `root` may be NULL: out
 * of memory.  Errors as pickle_dump and ptwrite_init.
 */
int content_lay_out(struct content *c, const char *prefix,
		    const struct value *root, const uint64_t *len, size_t n,
		    struct errmsg *err);

/*
 * The files of a parameter: slot 0 is fp32.pt, slot i the i-th optimizer
 * state of its group.
 */
#define CONTENT_SLOTS 16

/* The stem of the file in `slot` ("exp_avg"), or NULL if there is none.  `g`
 * is the parameter's group, NULL for one that the optimizer does not own. */
const char *content_name(const struct resolve *r,
			 const struct shard_group *g, const struct param *p,
			 unsigned slot);

/* Can the parameter's files be made, if anything in them is computed?
 * -ENOTSUP or -EBADMSG if not; opens no shard but the first of its rank. */
int content_check_param(struct resolve *r, const struct param *p,
			struct errmsg *err);

/*
 * The content of a parameter's file.  Without `extents` only what is needed
 * to know the size is filled in, and no shard but rank 0's is opened.
 */
int content_of_param(struct resolve *r, const struct param *p, unsigned slot,
		     bool extents, struct content *out, struct errmsg *err);

/* zero/optimizer_state.pt.  Its extents refer to shard 0. */
int content_of_optimizer(struct resolve *r, struct content *out,
			 struct errmsg *err);

#endif
