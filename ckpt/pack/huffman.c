/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A zstd frame without matches, RFC 8878: one block, whose literals are Huffman
 * codes and whose sequences are none.  Any zstd decoder reads it.
 *
 * libzstd can be told to find no matches but searches for them all the same, and
 * its encoder takes a symbol at a time; here a plane takes half as long.
 *
 *     magic, frame header        which give the size of the content
 *     block header
 *     literals section header    sizes of the content and of what follows
 *     weights                    4 bits for each value but the last
 *     sizes of streams 1 to 3
 *     4 streams                  a quarter of the content each, last byte first
 *     0                          sequences
 *
 * A weight is BITS + 1 less the length of the code, or 0 for a value that does
 * not occur.
 */
#include "ckpt/pack/huffman.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"

#define FRAME_MAGIC UINT32_C(0xfd2fb528)
#define FRAME_HEADER_SIZE 9 /* with the magic and a size of 4 bytes */
#define BLOCK_HEADER_SIZE 3
#define LITERALS_HEADER_SIZE 5
#define STREAMS 4
#define JUMPS_SIZE (2 * (STREAMS - 1))

/* For fewer bytes the weights cost too much: libzstd compresses these, too. */
#define BYTES_MIN 4096

/* Values whose weights can be given as they are; the last one's follows from the
 * others'. */
#define VALUES 129

/* The longest code that the format allows. */
#define BITS_MAX 11

/* Codes that surely fit into the accumulator, beside 7 bits that wait in it. */
#define CODES_AT_ONCE 4

struct huffman {
	uint32_t count[VALUES];
	uint8_t value[VALUES]; /* those that occur, the rarest first */
	unsigned n;            /* how many */
	unsigned last;         /* the highest of them */
	uint8_t length[VALUES];
	unsigned bits; /* of the longest code */
};

/* --- how often, and how long ------------------------------------------------- */

/* Four counters for each value, since equal bytes often follow each other and
 * would wait for each other's sum.  False if there are values too high. */
static bool count_values(struct huffman *h, const uint8_t *bytes, size_t n)
{
	uint32_t count[4][256] = { { 0 } };
	size_t i = 0;

	for (; i + 8 <= n; i += 8) {
		const uint64_t x = get_le64(bytes + i);

		count[0][x & 0xff]++;
		count[1][x >> 8 & 0xff]++;
		count[2][x >> 16 & 0xff]++;
		count[3][x >> 24 & 0xff]++;
		count[0][x >> 32 & 0xff]++;
		count[1][x >> 40 & 0xff]++;
		count[2][x >> 48 & 0xff]++;
		count[3][x >> 56]++;
	}
	for (; i < n; i++)
		count[0][bytes[i]]++;
	h->n = 0;
	for (unsigned v = 0; v < 256; v++) {
		const uint32_t sum =
			count[0][v] + count[1][v] + count[2][v] + count[3][v];

		if (sum && v >= VALUES)
			return false;
		if (!sum)
			continue;
		h->count[v] = sum;
		h->value[h->n++] = (uint8_t)v;
		h->last = v;
	}
	return true;
}

/* Insertion: values are a few dozens, and exponents have a single peak. */
static void sort_values(struct huffman *h)
{
	for (unsigned i = 1; i < h->n; i++) {
		const uint8_t v = h->value[i];
		unsigned k = i;

		for (; k && h->count[h->value[k - 1]] > h->count[v]; k--)
			h->value[k] = h->value[k - 1];
		h->value[k] = v;
	}
}

/*
 * Lengths of the shortest codes of at most BITS_MAX bits, by package-merge
 * (Larmore and Hirschberg): on every level the values and the pairs of the level
 * below are merged by weight; a value's length is how often it is among what the
 * top level needs.
 */
static void find_lengths(struct huffman *h)
{
	bool is_value[BITS_MAX][2 * VALUES];
	uint32_t weight[2][2 * VALUES];
	unsigned n = 0, needed = 2 * h->n - 2;

	for (unsigned level = 0; level < BITS_MAX; level++) {
		uint32_t *const to = weight[level % 2];
		const uint32_t *const below = weight[(level + 1) % 2];
		const unsigned pairs = n / 2;

		n = 0;
		for (unsigned v = 0, p = 0; v < h->n || p < pairs; n++) {
			const bool value =
				p == pairs ||
				(v < h->n &&
				 h->count[h->value[v]] <=
					 below[2 * p] + below[2 * p + 1]);

			is_value[level][n] = value;
			to[n] = value ? h->count[h->value[v++]]
				      : below[2 * p] + below[2 * p + 1];
			p += !value;
		}
	}
	memset(h->length, 0, sizeof(h->length));
	for (unsigned level = BITS_MAX; level-- > 0 && needed;) {
		unsigned values = 0;

		for (unsigned i = 0; i < needed; i++)
			values += is_value[level][i];
		for (unsigned i = 0; i < values; i++)
			h->length[h->value[i]]++;
		needed = 2 * (needed - values);
	}
	h->bits = h->length[h->value[0]];
}

/* Of each value the code in the highest bits, and its length in the lowest byte.
 * Codes of a length follow each other in the order of their values, the longest
 * from 0 on. */
static void assign_codes(const struct huffman *h, uint64_t code[VALUES])
{
	unsigned number[BITS_MAX + 1] = { 0 }, next[BITS_MAX + 1], first = 0;

	for (unsigned v = 0; v <= h->last; v++)
		number[h->length[v]]++;
	for (unsigned bits = h->bits; bits > 0; bits--) {
		next[bits] = first;
		first = (first + number[bits]) / 2;
	}
	for (unsigned v = 0; v <= h->last; v++) {
		const unsigned bits = h->length[v];

		if (bits)
			code[v] = (uint64_t)next[bits]++ << (64 - bits) | bits;
	}
}

/* --- output ------------------------------------------------------------------ */

/* Bytes of all streams, not less than they will be. */
static size_t streams_size(const struct huffman *h)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < h->n; i++)
		bits += (uint64_t)h->count[h->value[i]] * h->length[h->value[i]];
	return (size_t)(bits / 8) + 2 * STREAMS;
}

static uint8_t *put_weights(const struct huffman *h, uint8_t *to)
{
	uint8_t weight[VALUES + 1] = { 0 };

	for (unsigned v = 0; v < h->last; v++)
		if (h->length[v])
			weight[v] = (uint8_t)(h->bits + 1 - h->length[v]);
	*to++ = (uint8_t)(127 + h->last);
	for (unsigned v = 0; v < h->last; v += 2)
		*to++ = (uint8_t)(weight[v] << 4 | weight[v + 1]);
	return to;
}

/*
 * A stream.  The newest code is in the highest bits of the accumulator, whose
 * lowest byte is dirty with the codes' lengths.
 */
struct stream {
	uint64_t bits;
	uint64_t used; /* how many, in the lowest byte */
};

static inline void stream_add(struct stream *s, uint64_t code)
{
	s->bits = s->bits >> (code & 63) | code;
	s->used += code;
}

/* Add four bytes, last first: pairs first, so that only one step in four waits for
 * the one before. */
static inline void stream_add4(struct stream *s, const uint64_t *code,
			       const uint8_t *bytes)
{
	const uint64_t a = code[bytes[3]], b = code[bytes[2]];
	const uint64_t c = code[bytes[1]], d = code[bytes[0]];
	const uint64_t ab = a >> (b & 63) | b, cd = c >> (d & 63) | d;
	const uint64_t used = a + b + c + d;

	s->bits = s->bits >> (used & 63) | ab >> ((c + d) & 63) | cd;
	s->used += used;
}

/* Writes 8 bytes, of which those that are complete count. */
static inline uint8_t *stream_flush(struct stream *s, uint8_t *to)
{
	const unsigned used = s->used & 0xff;

	put_le64(to, s->bits >> (64 - used));
	s->used = used & 7;
	return to + used / 8;
}

static uint8_t *put_stream(const uint64_t *code, const uint8_t *bytes, size_t n,
			   uint8_t *to)
{
	struct stream s = { 0 };

	for (; n % CODES_AT_ONCE; n--)
		stream_add(&s, code[bytes[n - 1]]);
	if (s.used)
		to = stream_flush(&s, to);
	for (; n; n -= CODES_AT_ONCE) {
		stream_add4(&s, code, bytes + n - CODES_AT_ONCE);
		to = stream_flush(&s, to);
	}
	/* The highest bit that is set ends the stream. */
	stream_add(&s, UINT64_C(1) << 63 | 1);
	to = stream_flush(&s, to);
	if (s.used)
		*to++ = (uint8_t)(s.bits >> (64 - s.used));
	return to;
}

static uint8_t *put_streams(const uint64_t *code, const uint8_t *bytes,
			    size_t n, uint8_t *to)
{
	const size_t quarter = (n + STREAMS - 1) / STREAMS;
	uint8_t *const jumps = to;

	to += JUMPS_SIZE;
	for (size_t i = 0; i < STREAMS; i++) {
		const size_t first = i * quarter;
		uint8_t *const end =
			put_stream(code, bytes + first,
				   i < STREAMS - 1 ? quarter : n - first, to);

		if (i < STREAMS - 1)
			put_le16(jumps + 2 * i, (uint16_t)(end - to));
		to = end;
	}
	return to;
}

size_t huffman_frame(const uint8_t *bytes, size_t n, uint8_t *out, size_t room)
{
	uint8_t *const block = out + FRAME_HEADER_SIZE;
	uint8_t *const literals = block + BLOCK_HEADER_SIZE;
	uint8_t *const weights = literals + LITERALS_HEADER_SIZE;
	struct huffman h;
	uint64_t code[VALUES];
	uint8_t *to;
	uint64_t head;

	assert(n <= HUFFMAN_MAX);
	if (n < BYTES_MIN || !count_values(&h, bytes, n) || h.n < 2)
		return 0;
	sort_values(&h);
	find_lengths(&h);
	if (HUFFMAN_HEAD_MAX + streams_size(&h) > room)
		return 0;
	assign_codes(&h, code);
	to = put_streams(code, bytes, n, put_weights(&h, weights));

	/* Huffman codes in four streams, two sizes of 18 bits. */
	head = 2 | 3 << 2 | (uint64_t)n << 4 | (uint64_t)(to - weights) << 22;
	put_le32(literals, (uint32_t)head);
	literals[4] = (uint8_t)(head >> 32);
	*to++ = 0;
	/* The last block, compressed. */
	put_le16(block, (uint16_t)(1 | 2 << 1 | (to - literals) << 3));
	block[2] = (uint8_t)((to - literals) >> 13);
	/* A size of 4 bytes, and no window besides. */
	put_le32(out, FRAME_MAGIC);
	out[4] = 2 << 6 | 1 << 5;
	put_le32(out + 5, (uint32_t)n);
	return (size_t)(to - out);
}
