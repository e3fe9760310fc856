/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ORIGIN_H
#define UCTRAIN_ORIGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"

struct errmsg;
struct origin_file;

/*
 * Finds where the bytes of a mount's files come from, past the mount; of
 * files that are in no mount, or whose shards cannot be opened, in the files
 * themselves.  Zero initialised it knows no shards.
 */
struct origin {
	struct origin_file *files; /* shards that have been asked for */
	size_t nfiles;
	struct ucfs_extents *extents; /* of the file that is being read */
	int fd;
	uint64_t direct; /* bytes that were found past the mount */
};

/* Begin with an open file, which must stay so.  -ENOMEM. */
int origin_begin(struct origin *o, int fd, struct errmsg *err);

/* Does the mount know the file to hold one storage, and where?  False for
 * files that are in no mount. */
bool origin_storage(struct origin *o, uint64_t *start, uint64_t *len);

/* Bytes that lie together. */
struct origin_run {
	struct source file; /* the shard, or the file itself; borrowed */
	uint64_t off;
	size_t len;
};

/* Where bytes [off, off + len) of `file`, the one that was begun with, are to
 * be read, or the first of them.  -EIO if a shard is not the one any more that
 * the mount has planned with. */
int origin_find(struct origin *o, const struct source *file, uint64_t off,
		size_t len, struct origin_run *run, struct errmsg *err);
void origin_done(struct origin *o);

#endif
