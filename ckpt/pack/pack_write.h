/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_WRITE_H
#define UCKPT_PACK_WRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/pack/pack.h"

struct errmsg;

/*
 * A run of a file to pack.  Each block of a PACK_COPY or PACK_ROUNDED region is
 * compared with its source in another file, and stored where it differs.
 */
struct pack_region {
	uint64_t start, len;
	enum pack_kind kind;
	enum block_type type; /* as struct pack_extent's; for a PACK_COPY, the type of its bytes,
	                       * in case they are stored */
	size_t source;        /* number of the file that has the original */
	uint64_t from;        /* first byte in that file, within one PACK_STORED region, which
	                       * for a PACK_ROUNDED has BLOCK_F32 */
};

/* A file or a directory to pack.  Regions are in order, without gaps. */
struct pack_input {
	char *name; /* relative; "" of the directory itself; first: array_by_text */
	char *path;
	mode_t mode;
	int64_t mtime_s;
	uint32_t mtime_ns;
	struct fileid id; /* identity of the file when the regions were found */
	struct pack_region *regions;
	size_t nregions, cap;
};

/* Read bytes of a file; -EIO if it has changed, or as source_read. */
int pack_input_read(const struct pack_input *in, void *buf, size_t len,
		    uint64_t off, struct errmsg *err);

/*
 * Write a pack of the inputs, sorted by name, to `fd`, which is empty.  The same files give the
 * same bytes, on however many threads.  -EINTR as progress_add; -EIO if a file changed since its
 * regions were found; otherwise the system's error, -ENOMEM or -E2BIG.
 */
int pack_write(int fd, const struct pack_input *v, size_t n,
	       const struct pack_work *w, struct errmsg *err);

#endif
