/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PTWRITE_H
#define UCKPT_PTWRITE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"

struct bytebuf;
struct errmsg;

/*
 * The layout of a file as torch.save (2.7 and later) writes it, which is known before any tensor's
 * bytes:
 *
 *     literal 0 | storage 0 | literal 1 | ... | storage n-1 | literal n
 *
 * Literals are zip headers, the pickle and, in the last one, the directory.  Literal i holds
 * CRC-32s of storages before it, so it is rendered when those are known.  Immutable after
 * ptwrite_init.
 */
struct ptwrite {
	char *prefix;	    /* the record prefix: the file's stem */
	struct span pickle; /* owned */
	size_t n;	    /* storages */
	uint64_t *len;	    /* of each storage, bytes */
	uint64_t *offset;   /* of each storage's first byte in the file */
	uint64_t *header;   /* local header of each of the n + 6 records */
	uint64_t directory; /* offset of the central directory */
	uint64_t size;	    /* of the file */
};

/* Lay out a file of `n` storages.  Takes over the bytes of `pickle`, on
 * success only.  -EFBIG if the sizes overflow, -ENOMEM. */
int ptwrite_init(struct ptwrite *w, const char *prefix, struct bytebuf *pickle,
		 const uint64_t *len, size_t n, struct errmsg *err);
void ptwrite_done(struct ptwrite *w);

/* Return the offset of literal i in the file. */
uint64_t ptwrite_literal_offset(const struct ptwrite *w, size_t i);
uint64_t ptwrite_literal_len(const struct ptwrite *w, size_t i);

/*
 * Append literal i to `out`.  `crc` has the CRC-32 of each storage; literal 0
 * of a file that has storages needs none of them.  NULL writes a file without
 * checksums, all zero, as torch.serialization.set_crc32_options(False) does.
 */
int ptwrite_literal(const struct ptwrite *w, size_t i, const uint32_t *crc,
		    struct bytebuf *out, struct errmsg *err);

#endif
