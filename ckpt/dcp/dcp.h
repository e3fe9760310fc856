/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DCP_H
#define UCKPT_DCP_H

#include <stdbool.h>

#include "ckpt/base/permissions.h"
#include "ckpt/dcp/zerofile.h"

struct errmsg;
struct progress;
struct uckpt;

/*
 * A distributed checkpoint: a directory that FSDP or another user of
 * torch.distributed.checkpoint saved, or the pair of directories that Accelerate makes of
 * the model and the optimizer.  Immutable and thread-safe.
 */
struct dcp;

/* Does the directory hold one?  Looks at names only. */
bool dcp_is_one(struct uckpt *u, const char *dir);

/*
 * Open the checkpoint in a directory.  All who open it in a context while its files are
 * the same, or soon after they were looked at, share one; each calls dcp_close.  -ENOENT if
 * the directory holds none; errors as dcp_metadata_add, dcp_blobs_init and
 * dcp_model_find.
 */
int dcp_open(struct uckpt *u, const char *dir, struct dcp **out, struct errmsg *err);
void dcp_close(struct dcp *d);

/* Free the checkpoints that stay open without a user. */
void dcp_close_kept(struct uckpt *u);

/* The kind of a name; false: it has no such file. */
bool dcp_find(const char *name, enum dcp_zerofile_kind *kind);

/* The attributes of one of its files: the owner and time of the metadata, an inode number
 * that changes with any of the files behind it, and users that may read all of them. */
struct attrs dcp_attrs(const struct dcp *d, enum dcp_zerofile_kind kind);

/* Read bytes of one of its files; errors as dcp_zerofile_read. */
int dcp_read(struct dcp *d, enum dcp_zerofile_kind kind, void *buf, size_t len, uint64_t off,
	     struct errmsg *err);

/* The number of entries of its state dict, and a check of one; as dcp_blobs_check. */
size_t dcp_count(const struct dcp *d);
int dcp_check(struct dcp *d, size_t i, struct progress *progress, bool *summed,
	      struct errmsg *err);

#endif
