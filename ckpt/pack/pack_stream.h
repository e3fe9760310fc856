/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PACK_STREAM_H
#define UCKPT_PACK_STREAM_H

#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct source;

/*
 * Reads an index or a table front to back, and hashes it.  A pack may claim any size
 * for either, so memory for one step is all that a stream takes: the caller checks
 * each record before it asks for the next, and keeps only those.
 */
struct pack_stream {
	const struct source *src; /* borrowed */
	uint64_t at, end;         /* what has not been read of the source */
	uint8_t *buf;
	size_t first, have; /* bytes of `buf` that have not been taken */
	struct XXH3_state_s *hash;
};

/* Bytes of a record, at most. */
#define PACK_STREAM_RECORD_MAX 4096u

/* Begin bytes [at, at + len) of `src`; -ENOMEM.  Close it in any case. */
int pack_stream_open(struct pack_stream *s, const struct source *src,
		     uint64_t at, uint64_t len, struct errmsg *err);

/* Take the next `n` bytes, which must be there (asserted); they are valid until the
 * next call.  Errors as source_read. */
int pack_stream_next(struct pack_stream *s, size_t n, const uint8_t **out,
		     struct errmsg *err);

/* The XXH3-64 of all bytes, which must have been taken. */
uint64_t pack_stream_hash(const struct pack_stream *s);

void pack_stream_close(struct pack_stream *s);

#endif
