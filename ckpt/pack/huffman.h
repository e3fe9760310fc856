/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HUFFMAN_H
#define UCKPT_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of a frame besides its codes, at most. */
#define HUFFMAN_HEAD_MAX 96

/* Most bytes in a frame: those of a zstd block. */
#define HUFFMAN_MAX ((size_t)128 << 10)

/* The longest code that zstd allows. */
#define HUFFMAN_BITS 11

/* Working memory of one thread at a time; its content is the encoder's own. */
struct huffman_work {
	size_t weights_len;
	uint8_t weights[72];
	uint64_t code[256];
	uint8_t streams[4][HUFFMAN_MAX / 4 * HUFFMAN_BITS / 8 + 16];
};

/*
 * Encode `n` bytes (at most HUFFMAN_MAX) into a zstd frame of Huffman codes
 * alone.  Returns its size, or 0 if it would not fit into `room` or the bytes are
 * not of the kind that this encoder is for: at least 4096 bytes of at least two
 * values, none above 128, as the exponents of floats are.
 */
size_t huffman_frame(struct huffman_work *w, const uint8_t *bytes, size_t n,
		     uint8_t *out, size_t room);

#endif
