/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_MOUNT_EXTENTS_H
#define UCTRAIN_MOUNT_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"

struct errmsg;
struct mount_extents_file;

/*
 * Maps the bytes of a mount's files to the shards they come from.  Bytes of
 * files outside mounts, and of shards that cannot be opened, map to the file
 * itself.  Zero-initialised it has no shards open.
 */
struct mount_extents {
	struct mount_extents_file *files; /* shards seen so far */
	size_t nfiles;
	struct ucfs_extents *extents; /* of the current file */
	int fd;
	uint64_t direct; /* bytes that were mapped to shards */
};

/* Start with an open file, which must stay open. -ENOMEM. */
int mount_extents_begin(struct mount_extents *o, int fd, struct errmsg *err);

/* Get the range of the single storage in the file.  False if the mount does not
 * know it, or the file is in no mount. */
bool mount_extents_storage(struct mount_extents *o, uint64_t *start,
			   uint64_t *len);

/* A contiguous range. */
struct mount_extents_run {
	struct source file; /* the shard, or the file itself; borrowed */
	uint64_t off;
	size_t len;
};

/* Map bytes [off, off + len) of `file`, the current one, or the first of them,
 * to a contiguous range. -EIO if a shard was replaced since the mount planned
 * with it. */
int mount_extents_find(struct mount_extents *o, const struct source *file,
		       uint64_t off, size_t len, struct mount_extents_run *run,
		       struct errmsg *err);
void mount_extents_done(struct mount_extents *o);

#endif
