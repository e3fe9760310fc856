/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes.
 *
 * Of a trained float only the exponent compresses, and only where it stands
 * apart from the mantissa: an entropy coder needs the same byte of all elements
 * together, and the sign, where it is random, out of it.
 *
 * Groups of 16 elements go through vectors of 16 bytes, which every processor
 * that matters has (SSE2, NEON) and for which compilers emit scalar code where
 * it has not.  Splitting takes the even and the odd bytes of two vectors apart,
 * as often as an element has halves; merging interleaves them again.
 */
#include "ckpt/pack/planes.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

#define GROUP 16 /* elements */

/* Loops for each value of `turned`. */
#define INLINED static inline __attribute__((always_inline))

typedef uint8_t bytes16 __attribute__((vector_size(16)));
typedef uint16_t words8 __attribute__((vector_size(16)));
typedef uint32_t words4 __attribute__((vector_size(16)));

static inline bytes16 load(const uint8_t *p)
{
	bytes16 v;

	memcpy(&v, p, sizeof(v));
	return v;
}

static inline void store(uint8_t *p, bytes16 v)
{
	memcpy(p, &v, sizeof(v));
}

/* clang has one spelling of shuffles, and gcc before 12 another. */
#ifdef __clang__
#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (bytes16){ __VA_ARGS__ })
#endif

static inline bytes16 even(bytes16 a, bytes16 b)
{
	return SHUFFLE(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26,
		       28, 30);
}

static inline bytes16 odd(bytes16 a, bytes16 b)
{
	return SHUFFLE(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27,
		       29, 31);
}

static inline bytes16 zip_low(bytes16 a, bytes16 b)
{
	return SHUFFLE(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7,
		       23);
}

static inline bytes16 zip_high(bytes16 a, bytes16 b)
{
	return SHUFFLE(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14,
		       30, 15, 31);
}

static inline bytes16 left16(bytes16 v, bool turned)
{
	const words8 x = (words8)v;

	return !turned ? v : (bytes16)(x << 1 | x >> 15);
}

static inline bytes16 right16(bytes16 v, bool turned)
{
	const words8 x = (words8)v;

	return !turned ? v : (bytes16)(x >> 1 | x << 15);
}

static inline bytes16 left32(bytes16 v, bool turned)
{
	const words4 x = (words4)v;

	return !turned ? v : (bytes16)(x << 1 | x >> 31);
}

static inline bytes16 right32(bytes16 v, bool turned)
{
	const words4 x = (words4)v;

	return !turned ? v : (bytes16)(x >> 1 | x << 31);
}

/* --- one element at a time ------------------------------------------------- */

static void split_one(const uint8_t *in, uint8_t *const out[], size_t i,
		      unsigned width, bool turned)
{
	const unsigned top = 8 * width - 1;
	uint64_t x = 0;

	memcpy(&x, in + width * i, width);
	if (turned)
		x = x << 1 | x >> top;
	for (unsigned k = 0; k < width; k++)
		out[k][i] = (uint8_t)(x >> 8 * k);
}

static void merge_one(const uint8_t *const in[], uint8_t *out, size_t i,
		      unsigned width, bool turned)
{
	const unsigned top = 8 * width - 1;
	uint64_t x = 0;

	for (unsigned k = 0; k < width; k++)
		x |= (uint64_t)in[k][i] << 8 * k;
	if (turned)
		x = x >> 1 | (x & 1) << top;
	memcpy(out + width * i, &x, width);
}

/* --- groups ---------------------------------------------------------------- */

INLINED size_t split_groups16(const uint8_t *in, uint8_t *out0, uint8_t *out1,
			      size_t n, bool turned)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 a = left16(load(in + 2 * i), turned);
		const bytes16 b = left16(load(in + 2 * i + 16), turned);

		store(out0 + i, even(a, b));
		store(out1 + i, odd(a, b));
	}
	return i;
}

INLINED size_t merge_groups16(const uint8_t *in0, const uint8_t *in1,
			      uint8_t *out, size_t n, bool turned)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 low = load(in0 + i), high = load(in1 + i);

		store(out + 2 * i, right16(zip_low(low, high), turned));
		store(out + 2 * i + 16, right16(zip_high(low, high), turned));
	}
	return i;
}

INLINED size_t split_groups32(const uint8_t *in, uint8_t *const out[], size_t n,
			      bool turned)
{
	uint8_t *const out0 = out[0], *const out1 = out[1];
	uint8_t *const out2 = out[2], *const out3 = out[3];
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 a = left32(load(in + 4 * i), turned);
		const bytes16 b = left32(load(in + 4 * i + 16), turned);
		const bytes16 c = left32(load(in + 4 * i + 32), turned);
		const bytes16 d = left32(load(in + 4 * i + 48), turned);
		const bytes16 even_ab = even(a, b), even_cd = even(c, d);
		const bytes16 odd_ab = odd(a, b), odd_cd = odd(c, d);

		store(out0 + i, even(even_ab, even_cd));
		store(out1 + i, even(odd_ab, odd_cd));
		store(out2 + i, odd(even_ab, even_cd));
		store(out3 + i, odd(odd_ab, odd_cd));
	}
	return i;
}

INLINED size_t merge_groups32(const uint8_t *const in[], uint8_t *out, size_t n,
			      bool turned)
{
	const uint8_t *const in0 = in[0], *const in1 = in[1];
	const uint8_t *const in2 = in[2], *const in3 = in[3];
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 p0 = load(in0 + i), p1 = load(in1 + i);
		const bytes16 p2 = load(in2 + i), p3 = load(in3 + i);
		const bytes16 even_low = zip_low(p0, p2);
		const bytes16 even_high = zip_high(p0, p2);
		const bytes16 odd_low = zip_low(p1, p3);
		const bytes16 odd_high = zip_high(p1, p3);

		store(out + 4 * i, right32(zip_low(even_low, odd_low), turned));
		store(out + 4 * i + 16,
		      right32(zip_high(even_low, odd_low), turned));
		store(out + 4 * i + 32,
		      right32(zip_low(even_high, odd_high), turned));
		store(out + 4 * i + 48,
		      right32(zip_high(even_high, odd_high), turned));
	}
	return i;
}

/* What has two bytes or four; doubles are rare. */
INLINED size_t split_groups(const uint8_t *in, uint8_t *const out[], size_t n,
			    unsigned width, bool turned)
{
	return width == 2   ? split_groups16(in, out[0], out[1], n, turned)
	       : width == 4 ? split_groups32(in, out, n, turned)
			    : 0;
}

INLINED size_t merge_groups(const uint8_t *const in[], uint8_t *out, size_t n,
			    unsigned width, bool turned)
{
	return width == 2   ? merge_groups16(in[0], in[1], out, n, turned)
	       : width == 4 ? merge_groups32(in, out, n, turned)
			    : 0;
}

void planes_split(const void *floats, uint8_t *const plane[], size_t n,
		  unsigned width, bool turned)
{
	size_t i;

	assert(width == 2 || width == 4 || width == 8);
	i = turned ? split_groups(floats, plane, n, width, true)
		   : split_groups(floats, plane, n, width, false);
	for (; i < n; i++)
		split_one(floats, plane, i, width, turned);
}

void planes_merge(const uint8_t *const plane[], void *floats, size_t n,
		  unsigned width, bool turned)
{
	size_t i;

	assert(width == 2 || width == 4 || width == 8);
	i = turned ? merge_groups(plane, floats, n, width, true)
		   : merge_groups(plane, floats, n, width, false);
	for (; i < n; i++)
		merge_one(plane, floats, i, width, turned);
}
