/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEXFILE_H
#define UCKPT_INDEXFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytebuf.h"

struct errmsg;

/* Limits of what is read and kept. */
#define INDEXFILE_RECORDS_MAX 64         /* tags in one file: the newest */
#define INDEXFILE_BYTES_MAX (256u << 20) /* of a file, and of a tag's bytes */
#define INDEXFILE_FILES_MAX 64 /* in the cache directory: the newest */

/*
 * A file that keeps what is known of the tags of one source from one mount to
 * the next: bytes by the path of the tag, compressed, see index.h for their
 * meaning.
 */
struct indexfile {
	char *path; /* absolute */
	bool cached; /* in the user's cache directory, which is made if need be */
};

/* The file for a source: below $XDG_CACHE_HOME/ucfs or ~/.cache/ucfs.  `path`
 * is NULL if neither is known, or memory is short. */
struct indexfile indexfile_default(const char *source);

/*
 * Append what is kept of a tag.  -ENOENT if nothing is.  With a message that
 * names the file: -EPERM if it is not the user's own or others may write to it,
 * -EBADMSG if it is damaged or no index, -E2BIG, -ENOMEM or what the system
 * said.
 */
int indexfile_find(const struct indexfile *f, const char *tag,
		   struct bytebuf *out, struct errmsg *err);

/* What is to be kept of a tag. */
struct indexfile_record {
	const char *tag;
	struct bytebuf bytes;
};

/*
 * Keep `n` records in place of those of the same tags; others stay.  The file
 * is replaced at once, by one that only the user can read.  A file at a path
 * that the user chose is left alone if it is no index: -EEXIST.  Other errors
 * as indexfile_find.
 */
int indexfile_put(const struct indexfile *f, const struct indexfile_record *v,
		  size_t n, struct errmsg *err);

#endif
