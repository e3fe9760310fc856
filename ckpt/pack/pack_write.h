/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_WRITE_H
#define UCKPT_PACK_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/pack/pack_index.h"

struct errmsg;

/*
 * A run of a file to pack.  What is a PACK_COPY or PACK_ROUNDED of another file's
 * bytes is compared with them, and stored where it differs.
 */
struct pack_region {
	uint64_t start, len;
	enum pack_kind kind;
	enum block_type type; /* as struct pack_extent's; a PACK_COPY's is that of
			       * its bytes, for those that are stored after all */
	size_t source;        /* number of the file that has the original */
	uint64_t from;        /* first byte there, in one PACK_STORED region,
			       * that of a PACK_ROUNDED of BLOCK_F32 */
};

/* A file or a directory to pack.  Regions are in order, without gaps. */
struct pack_input {
	char *name; /* relative; "" of the directory itself; first: array_by_text */
	char *path;
	mode_t mode;
	int64_t mtime_s;
	uint32_t mtime_ns;
	struct fileid id; /* as it was when the regions were found */
	struct pack_region *regions;
	size_t nregions, cap;
};

struct pack_write_options {
	const char *name; /* of the pack, for messages */
	unsigned width;   /* threads */
	/* So many bytes of files have been packed; false to stop.  Called by
	 * several threads at once.  NULL: nobody asks. */
	bool (*progress)(void *ctx, uint64_t bytes);
	void *ctx;
};

/*
 * Write a pack of the inputs, sorted by name, to `fd`, which is empty.  Each block
 * is decoded again before it is written, and compared.  The same files give the
 * same bytes, on however many threads.  `*size` is how many.  -EINTR if progress
 * said so; -EIO if a file changed since it was looked at, or a block does not
 * decode; otherwise what the system said, or -ENOMEM, -E2BIG.
 */
int pack_write(int fd, const struct pack_input *v, size_t n,
	       const struct pack_write_options *o, uint64_t *size,
	       struct errmsg *err);

#endif
