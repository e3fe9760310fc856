/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_MOUNT_EXTENTS_H
#define UCTRAIN_MOUNT_EXTENTS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"

struct errmsg;
struct mount_shard;

/* What numbers the shards (UCFS_PLAN_SHIFT). */
struct mount_plan {
	uint64_t dev, number;
};

/*
 * The shards of mounts that have been opened, to be read past the mount.
 * Thread-safe: several are opened at once, since that takes time on storage that is
 * far away.  Valid when zero-initialised.
 */
struct mount_shards {
	_Atomic(struct mount_shard *) first; /* those seen so far */
};

void mount_shards_done(struct mount_shards *o);

/*
 * Maps the bytes of an open file of a mount to the shards they come from.  Bytes of
 * files outside mounts, and of shards that cannot be opened, map to the file itself.
 */
struct mount_extents {
	struct mount_shards *shards;
	struct ucfs_extents *extents; /* some of the file */
	int fd;
	struct mount_plan plan; /* that the file is of */
};

/* `fd` must stay open, and `shards` must stay; -1: a file on a server, which is in no
 * mount. -ENOMEM. */
int mount_extents_begin(struct mount_extents *o, struct mount_shards *shards,
			int fd, struct errmsg *err);
void mount_extents_end(struct mount_extents *o);

/* Get the range of the single storage in the file.  False if the mount does not
 * know it, or the file is in no mount. */
bool mount_extents_storage(struct mount_extents *o, uint64_t *start,
			   uint64_t *len);

/* Get the file's first `len` bytes, at most UCFS_LITERAL_MAX, which the mount has made.
 * False if it does not give them so. */
bool mount_extents_head(struct mount_extents *o, void *buf, size_t len);

/* A contiguous range. */
struct mount_extents_run {
	struct source file; /* the shard, or the file itself; borrowed */
	bool direct;        /* it is the shard */
	uint64_t off;
	size_t len;
};

/* Map bytes [off, off + len) of `file`, the one that is open, or the first of them,
 * to a contiguous range. -EIO if a shard was replaced since the mount planned
 * with it. */
int mount_extents_find(struct mount_extents *o, const struct source *file,
		       uint64_t off, size_t len, struct mount_extents_run *run,
		       struct errmsg *err);

#endif
