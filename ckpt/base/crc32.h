/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CRC32_H
#define UCKPT_CRC32_H

#include <stddef.h>
#include <stdint.h>

struct errmsg;

/* A range of bytes and its CRC-32.  On entry `crc` is the CRC of the preceding bytes, or 0. */
struct crc_range {
	uint64_t off, len;
	uint32_t crc;
};

/* Bytes processed at a time: they fit in the second-level cache. */
#define CRC32_CHUNK (256u << 10)

/* Bytes of a piece: for less, one thread is faster than starting another. */
#define CRC32_PIECE (UINT64_C(4) << 20)

/* Extend `crc` (initially 0) by these bytes.  Uses ISA-L, which sums bytes in the
 * cache at 60 GB/s where other libraries reach 25 (tests/bench/RESULTS.md). */
uint32_t crc32_add(uint32_t crc, const void *bytes, size_t len);

/* The CRC-32 of `len` zeros. */
uint32_t crc32_zeros(uint64_t len);

/* Read `len` bytes at `off`; 0 or a negative errno.  Called by several threads
 * at once. */
typedef int crc32_read(void *ctx, void *buf, size_t len, uint64_t off,
		       struct errmsg *err);

/*
 * Sum `n` ranges on up to `width` threads, in pieces, because one range may be most
 * of a checkpoint.  Each byte is read once.  Returns the first error; the sums
 * are meaningless then.
 */
int crc32_ranges(struct crc_range *v, size_t n, unsigned width,
		 crc32_read *read, void *ctx, struct errmsg *err);

#endif
