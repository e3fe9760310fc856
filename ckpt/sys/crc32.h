/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CHECKSUM_H
#define UCKPT_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct crew;
struct errmsg;

/*
 * A range of bytes, and its CRC-32: on entry that of what comes before it, 0
 * if that is nothing.  Who goes through bytes whose sum is known says so.
 */
struct checksum {
	uint64_t off, len;
	uint32_t crc;
	bool unsummed;
};

/* Bytes gone through at once: they stay in the second-level cache. */
#define CHECKSUM_CHUNK (256u << 10)

/* The CRC-32 of what `crc` is that of (nothing: 0) and these bytes.  By ISA-L,
 * which sums bytes in the cache at 60 GB/s where others have 25
 * (tests/bench/RESULTS.md). */
uint32_t checksum_add(uint32_t crc, const void *bytes, size_t len);

/* Of `len` zeros. */
uint32_t checksum_zeros(uint64_t len);

/* Read `len` bytes at `off`; 0 or a negative errno.  Called by several threads
 * at once. */
typedef int checksum_read(void *ctx, void *buf, size_t len, uint64_t off,
			  struct errmsg *err);

/*
 * Sum `n` ranges with up to `width` threads, by pieces, since one range may be
 * most of a checkpoint.  Each byte is read once.  On an error the first one is
 * told, and the sums say nothing.
 */
int checksum_ranges(struct checksum *v, size_t n, unsigned width,
		    checksum_read *read, void *ctx, struct errmsg *err);

/* Go through a piece, and unless it is `unsummed` extend its sum; 0 or a
 * negative errno.  Called by several threads at once. */
typedef int checksum_step(void *ctx, struct checksum *piece,
			  struct errmsg *err);

/* The same for who has something else to do with the bytes on the way, and for
 * who may come by and help (NULL: nobody). */
int checksum_pieces(struct checksum *v, size_t n, unsigned width,
		    struct crew *crew, checksum_step *step, void *ctx,
		    struct errmsg *err);

#endif
