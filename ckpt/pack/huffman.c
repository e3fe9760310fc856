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
 * not occur.  BITS is the length of the longest code.
 */
#include "ckpt/pack/huffman.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/sys/cpu_clones.h"

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

/* So many of COUNTED_OF bytes are counted: codes hardly get longer by that. */
#define COUNTED ((size_t)16)
#define COUNTED_OF ((size_t)64)

/* How far below and above values that were counted there are others: the smaller an
 * exponent is, the rarer. */
#define BELOW 6
#define ABOVE 1

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

/* What stands for the code of a value that has none: a bit between a code's and its
 * length's, and where it is in a sum of a few of these. */
#define NO_CODE (UINT64_C(1) << 32 | 1)
#define NO_CODE_SEEN (UINT64_C(7) << 32)

/* --- how often, and how long ------------------------------------------------- */

/* Counts 8 bytes.  Four counters for each value, since equal bytes often follow
 * each other and would wait for each other's sum. */
static inline void count_some(uint32_t count[4][256], const uint8_t *bytes)
{
	const uint64_t x = get_le64(bytes);

	count[0][x & 0xff]++;
	count[1][x >> 8 & 0xff]++;
	count[2][x >> 16 & 0xff]++;
	count[3][x >> 24 & 0xff]++;
	count[0][x >> 32 & 0xff]++;
	count[1][x >> 40 & 0xff]++;
	count[2][x >> 48 & 0xff]++;
	count[3][x >> 56]++;
}

/* Count the bytes, or of each `step` of them COUNTED, besides the last ones.  False if
 * there are values too high. */
static bool count_values(struct huffman *h, const uint8_t *bytes, size_t n,
			 size_t step)
{
	uint32_t count[4][256] = { { 0 } };
	size_t i = 0;

	for (; i + step <= n; i += step)
		for (size_t k = 0; k < COUNTED; k += 8)
			count_some(count, bytes + i + k);
	for (; i < n; i++)
		count[0][bytes[i]]++;
	h->n = 0;
	for (unsigned v = 0; v < 256; v++) {
		const uint32_t sum =
			count[0][v] + count[1][v] + count[2][v] + count[3][v];

		if (sum && v >= VALUES)
			return false;
		if (v < VALUES)
			h->count[v] = sum;
		h->n += sum > 0;
	}
	return true;
}

/* Count as rare what may be among the bytes that were not counted: exponents near
 * those that were. */
static void add_neighbours(struct huffman *h)
{
	bool near[VALUES] = { false };

	for (unsigned v = 0; v < VALUES; v++)
		for (unsigned k = v < BELOW ? 0 : v - BELOW;
		     h->count[v] && k <= v + ABOVE && k < VALUES; k++)
			near[k] = true;
	for (unsigned v = 0; v < VALUES; v++)
		h->count[v] += near[v] && !h->count[v];
}

static void list_values(struct huffman *h)
{
	h->n = 0;
	for (unsigned v = 0; v < VALUES; v++)
		if (h->count[v]) {
			h->value[h->n++] = (uint8_t)v;
			h->last = v;
		}
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
 * Lengths of the shortest codes of at most HUFFMAN_BITS bits, by package-merge
 * (Larmore and Hirschberg): on every level the values and the pairs of the level
 * below are merged by weight; a value's length is how often it is among what the
 * top level needs.
 */
static void find_lengths(struct huffman *h)
{
	bool is_value[HUFFMAN_BITS][2 * VALUES];
	uint32_t weight[2][2 * VALUES];
	unsigned n = 0, needed = 2 * h->n - 2;

	for (unsigned level = 0; level < HUFFMAN_BITS; level++) {
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
	for (unsigned level = HUFFMAN_BITS; level-- > 0 && needed;) {
		unsigned values = 0;

		for (unsigned i = 0; i < needed; i++)
			values += is_value[level][i];
		for (unsigned i = 0; i < values; i++)
			h->length[h->value[i]]++;
		needed = 2 * (needed - values);
	}
	h->bits = h->length[h->value[0]];
}

/* Codes of a length follow each other in the order of their values, the longest
 * from 0 on. */
static void assign_codes(const struct huffman *h, uint64_t code[256])
{
	unsigned number[HUFFMAN_BITS + 1] = { 0 }, next[HUFFMAN_BITS + 1];
	unsigned first = 0;

	for (unsigned v = 0; v <= h->last; v++)
		number[h->length[v]]++;
	for (unsigned bits = h->bits; bits > 0; bits--) {
		next[bits] = first;
		first = (first + number[bits]) / 2;
	}
	for (unsigned v = 0; v < 256; v++) {
		const unsigned bits = v <= h->last ? h->length[v] : 0;

		code[v] = bits ? (uint64_t)next[bits]++ << (64 - bits) | bits
			       : NO_CODE;
	}
}

static size_t put_weights(const struct huffman *h, uint8_t *to)
{
	uint8_t weight[VALUES + 1] = { 0 };
	size_t n = 0;

	for (unsigned v = 0; v < h->last; v++)
		if (h->length[v])
			weight[v] = (uint8_t)(h->bits + 1 - h->length[v]);
	to[n++] = (uint8_t)(127 + h->last);
	for (unsigned v = 0; v < h->last; v += 2)
		to[n++] = (uint8_t)(weight[v] << 4 | weight[v + 1]);
	return n;
}

/* Make codes from some of the bytes or, if `all`, from all of them.  False if the bytes
 * are not of this encoder's kind. */
static bool make_codes(struct huffman_work *w, const uint8_t *bytes, size_t n,
		       bool all)
{
	struct huffman h;

	if (!count_values(&h, bytes, n, all ? COUNTED : COUNTED_OF) || h.n < 2)
		return false;
	if (!all)
		add_neighbours(&h);
	list_values(&h);
	sort_values(&h);
	find_lengths(&h);
	assign_codes(&h, w->code);
	w->weights_len = put_weights(&h, w->weights);
	return true;
}

/* --- output ------------------------------------------------------------------ */

/*
 * A stream.  The newest code is in the highest bits of the accumulator, whose
 * lowest byte is dirty with the codes' lengths.
 */
struct stream {
	uint64_t bits;
	uint64_t used; /* how many, in the lowest byte */
	uint8_t *to;
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
static inline void stream_flush(struct stream *s)
{
	const unsigned used = s->used & 0xff;

	put_le64(s->to, s->bits >> (64 - used));
	s->to += used / 8;
	s->used = used & 7;
}

/* Begin with the last bytes of `n`, so that groups of CODES_AT_ONCE remain. */
static uint64_t stream_begin(struct stream *s, const uint64_t *code,
			     const uint8_t *bytes, size_t n)
{
	uint64_t seen = 0;

	for (; n % CODES_AT_ONCE; n--)
		stream_add(s, code[bytes[n - 1]]);
	seen = s->used;
	if (s->used)
		stream_flush(s);
	return seen;
}

static inline uint64_t stream_group(struct stream *s, const uint64_t *code,
				    const uint8_t *bytes)
{
	uint64_t seen;

	stream_add4(s, code, bytes);
	seen = s->used;
	stream_flush(s);
	return seen;
}

static void stream_end(struct stream *s)
{
	/* The highest bit that is set ends the stream. */
	stream_add(s, UINT64_C(1) << 63 | 1);
	stream_flush(s);
	if (s->used)
		*s->to++ = (uint8_t)(s->bits >> (64 - s->used));
}

/*
 * Encode two streams to `to[0]` and `to[1]`, which move to their ends; the first is
 * not the shorter one.  A group of each in turn: within a stream each group waits for
 * the one before.  False if a value has no code.
 */
CPU_CLONES static bool put_pair(const uint64_t *code, const uint8_t *a,
				size_t na, const uint8_t *b, size_t nb,
				uint8_t *to[2])
{
	struct stream x = { .to = to[0] }, y = { .to = to[1] };
	uint64_t seen = stream_begin(&x, code, a, na);

	seen |= stream_begin(&y, code, b, nb);
	na -= na % CODES_AT_ONCE;
	nb -= nb % CODES_AT_ONCE;
	for (; na > nb; na -= CODES_AT_ONCE)
		seen |= stream_group(&x, code, a + na - CODES_AT_ONCE);
	for (; na; na -= CODES_AT_ONCE) {
		seen |= stream_group(&x, code, a + na - CODES_AT_ONCE);
		seen |= stream_group(&y, code, b + na - CODES_AT_ONCE);
	}
	stream_end(&x);
	stream_end(&y);
	to[0] = x.to;
	to[1] = y.to;
	return !(seen & NO_CODE_SEEN);
}

/* Encode all four, of which the last one may be shorter. */
static bool put_streams(struct huffman_work *w, const uint8_t *bytes, size_t n,
			size_t len[STREAMS])
{
	const size_t quarter = (n + STREAMS - 1) / STREAMS;
	bool known = true;

	for (size_t k = 0; k < STREAMS; k += 2) {
		const uint8_t *const a = bytes + k * quarter, *const b = a +
									 quarter;
		const size_t left = n - (k + 1) * quarter;
		uint8_t *to[2] = { w->streams[k], w->streams[k + 1] };

		known &= put_pair(w->code, a, quarter, b,
				  left < quarter ? left : quarter, to);
		len[k] = (size_t)(to[0] - w->streams[k]);
		len[k + 1] = (size_t)(to[1] - w->streams[k + 1]);
	}
	return known;
}

/* All before the streams' sizes. */
static uint8_t *put_head(const struct huffman_work *w, uint8_t *out, size_t n,
			 size_t streams)
{
	const size_t literals = w->weights_len + JUMPS_SIZE + streams;
	const size_t block = LITERALS_HEADER_SIZE + literals + 1;
	uint8_t *to = out + FRAME_HEADER_SIZE;
	/* Huffman codes in four streams, two sizes of 18 bits. */
	const uint64_t head =
		2 | 3 << 2 | (uint64_t)n << 4 | (uint64_t)literals << 22;

	/* A size of 4 bytes, and no window besides. */
	put_le32(out, FRAME_MAGIC);
	out[4] = 2 << 6 | 1 << 5;
	put_le32(out + 5, (uint32_t)n);
	/* The last block, compressed. */
	put_le16(to, (uint16_t)(1 | 2 << 1 | block << 3));
	to[2] = (uint8_t)(block >> 13);
	to += BLOCK_HEADER_SIZE;
	put_le32(to, (uint32_t)head);
	to[4] = (uint8_t)(head >> 32);
	to += LITERALS_HEADER_SIZE;
	memcpy(to, w->weights, w->weights_len);
	return to + w->weights_len;
}

size_t huffman_frame(struct huffman_work *w, const uint8_t *bytes, size_t n,
		     uint8_t *out, size_t room)
{
	size_t len[STREAMS], all = 0;
	uint8_t *to;

	assert(n <= HUFFMAN_MAX);
	if (n < BYTES_MIN)
		return 0;
	if (!(make_codes(w, bytes, n, false) && put_streams(w, bytes, n, len)) &&
	    !(make_codes(w, bytes, n, true) && put_streams(w, bytes, n, len)))
		return 0;
	for (size_t k = 0; k < STREAMS; k++)
		all += len[k];
	if (HUFFMAN_HEAD_MAX + all > room)
		return 0;
	to = put_head(w, out, n, all);
	for (size_t k = 0; k < STREAMS - 1; k++, to += 2)
		put_le16(to, (uint16_t)len[k]);
	for (size_t k = 0; k < STREAMS; k++, to += len[k - 1])
		memcpy(to, w->streams[k], len[k]);
	*to++ = 0;
	return (size_t)(to - out);
}
