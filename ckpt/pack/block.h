/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BLOCK_H
#define UCKPT_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a decoded block; the last one of an extent may have fewer. */
#define BLOCK_SIZE ((size_t)64 << 10)

/* The type of a block's elements.  The numbers are those of the format. */
enum block_type {
	BLOCK_BYTES = 0, /* anything: one plane */
	BLOCK_F16 = 1,
	BLOCK_BF16 = 2,
	BLOCK_F32 = 3,
	BLOCK_TYPES
};

/* Bytes of an element: a block has one plane for each. */
unsigned block_width(enum block_type type);

/* Most bytes of an encoded block: a frame has at most 18 + 3 bytes more than its
 * plane. */
#define BLOCK_STORED_MAX (BLOCK_SIZE + 128)

/* Encode `len` bytes (1 .. BLOCK_SIZE, a multiple of the width) into `out`, which has
 * room for BLOCK_STORED_MAX.  Returns the number of bytes, or 0 when memory runs
 * out.  Thread-safe. */
size_t block_encode(enum block_type type, const void *bytes, size_t len,
		    void *out);

/*
 * Decode `stored` bytes to exactly `len` (as block_encode) and compare their XXH3-64 with `hash`.
 * -EBADMSG if they differ; then the content of `out` is undefined.  -ENOMEM.  Writes nothing beyond
 * `out + len`, whatever the bytes are.  Thread-safe.
 */
int block_decode(enum block_type type, const void *bytes, size_t stored,
		 uint64_t hash, void *out, size_t len);

/* Round `n` floats to BLOCK_F16 or BLOCK_BF16, as ucpack(5) says. */
void block_round(enum block_type type, const void *floats, void *out, size_t n);

/* The XXH3-64 of a decoded block. */
uint64_t block_hash(const void *bytes, size_t len);

#endif
