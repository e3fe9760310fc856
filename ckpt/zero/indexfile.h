/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_INDEXFILE_H
#define UCKPT_INDEXFILE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytebuf.h"

struct errmsg;

/* Limits. */
#define INDEXFILE_RECORDS_MAX 64         /* tags in one file: the newest */
#define INDEXFILE_BYTES_MAX (256u << 20) /* of a file, and of a tag's bytes */
#define INDEXFILE_FILES_MAX 64 /* in the cache directory: the newest */

/*
 * A file that keeps data of the tags of one source from one mount to the next:
 * for the path of each tag some bytes (see plan_index.c), compressed.
 */
struct indexfile {
	char *path; /* absolute */
	bool cached; /* in the user's cache directory, which is made if
		      * needed */
};

/* The index file of a source, below $XDG_CACHE_HOME/ucfs or ~/.cache/ucfs.
 * `path` is NULL if neither is known or memory runs out. */
struct indexfile indexfile_default(const char *source);

/*
 * Append the bytes of a tag. -ENOENT without a message if there are none. With a
 * message that names the file: -EPERM if it does not belong to the user or others
 * may write to it, -EBADMSG if it is damaged or not an index, -E2BIG, -ENOMEM or
 * the system's error.
 */
int indexfile_find(const struct indexfile *f, const char *tag,
		   struct bytebuf *out, struct errmsg *err);

/* The bytes to save for a tag. */
struct indexfile_record {
	const char *tag;
	struct bytebuf bytes;
};

/*
 * Save `n` records and keep those of other tags. The file is replaced atomically
 * by one that only the user can read. -EEXIST if the user chose the path and
 * the file there is not an index; other errors as indexfile_find.
 */
int indexfile_put(const struct indexfile *f, const struct indexfile_record *v,
		  size_t n, struct errmsg *err);

#endif
