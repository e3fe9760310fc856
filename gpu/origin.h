/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_ORIGIN_H
#define UCTRAIN_ORIGIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct source;
struct origin_file;

/*
 * Reads files of a mount where their bytes come from, past the mount; of
 * files that are in no mount, or where the shards cannot be opened, the files
 * themselves.  Zero initialised it knows no shards.
 */
struct origin {
	struct origin_file *files; /* shards that have been asked for */
	size_t nfiles;
	struct ucfs_extents *extents; /* of the file that is being read */
	int fd;
	uint64_t direct; /* bytes that were read past the mount */
};

/* Begin with an open file, which must stay so.  -ENOMEM. */
int origin_begin(struct origin *o, int fd, struct errmsg *err);

/* Does the mount know the file to hold one storage, and where?  False for
 * files that are in no mount. */
bool origin_storage(struct origin *o, uint64_t *start, uint64_t *len);

/* Read exactly [off, off + len) of `file`, the one that was begun with.  -EIO
 * if a shard is not the one any more that the mount has planned with. */
int origin_read(struct origin *o, const struct source *file, void *buf,
		size_t len, uint64_t off, struct errmsg *err);
void origin_done(struct origin *o);

#endif
