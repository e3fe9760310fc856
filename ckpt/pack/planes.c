/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes.
 *
 * Of a trained float only the exponent compresses, and only where it stands
 * apart from the mantissa: an entropy coder needs the same byte of all elements
 * together, and the sign, which is random, out of it.
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

static inline bytes16 left16(bytes16 v)
{
	const words8 x = (words8)v;

	return (bytes16)(x << 1 | x >> 15);
}

static inline bytes16 right16(bytes16 v)
{
	const words8 x = (words8)v;

	return (bytes16)(x >> 1 | x << 15);
}

static inline bytes16 left32(bytes16 v)
{
	const words4 x = (words4)v;

	return (bytes16)(x << 1 | x >> 31);
}

static inline bytes16 right32(bytes16 v)
{
	const words4 x = (words4)v;

	return (bytes16)(x >> 1 | x << 31);
}

/* --- one element at a time ------------------------------------------------- */

static void split_one(const uint8_t *in, uint8_t *out, size_t n, unsigned width)
{
	const unsigned top = 8 * width - 1;
	uint64_t x = 0;

	memcpy(&x, in, width);
	x = x << 1 | x >> top;
	for (unsigned k = 0; k < width; k++)
		out[k * n] = (uint8_t)(x >> 8 * k);
}

static void merge_one(const uint8_t *in, uint8_t *out, size_t n, unsigned width)
{
	const unsigned top = 8 * width - 1;
	uint64_t x = 0;

	for (unsigned k = 0; k < width; k++)
		x |= (uint64_t)in[k * n] << 8 * k;
	x = x >> 1 | (x & 1) << top;
	memcpy(out, &x, width);
}

/* --- groups ---------------------------------------------------------------- */

static size_t split_groups16(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 a = left16(load(in + 2 * i));
		const bytes16 b = left16(load(in + 2 * i + 16));

		store(out + i, even(a, b));
		store(out + n + i, odd(a, b));
	}
	return i;
}

static size_t merge_groups16(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 low = load(in + i), high = load(in + n + i);

		store(out + 2 * i, right16(zip_low(low, high)));
		store(out + 2 * i + 16, right16(zip_high(low, high)));
	}
	return i;
}

static size_t split_groups32(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 a = left32(load(in + 4 * i));
		const bytes16 b = left32(load(in + 4 * i + 16));
		const bytes16 c = left32(load(in + 4 * i + 32));
		const bytes16 d = left32(load(in + 4 * i + 48));
		const bytes16 even_ab = even(a, b), even_cd = even(c, d);
		const bytes16 odd_ab = odd(a, b), odd_cd = odd(c, d);

		store(out + i, even(even_ab, even_cd));
		store(out + n + i, even(odd_ab, odd_cd));
		store(out + 2 * n + i, odd(even_ab, even_cd));
		store(out + 3 * n + i, odd(odd_ab, odd_cd));
	}
	return i;
}

static size_t merge_groups32(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + GROUP <= n; i += GROUP) {
		const bytes16 p0 = load(in + i), p1 = load(in + n + i);
		const bytes16 p2 = load(in + 2 * n + i);
		const bytes16 p3 = load(in + 3 * n + i);
		const bytes16 even_low = zip_low(p0, p2);
		const bytes16 even_high = zip_high(p0, p2);
		const bytes16 odd_low = zip_low(p1, p3);
		const bytes16 odd_high = zip_high(p1, p3);

		store(out + 4 * i, right32(zip_low(even_low, odd_low)));
		store(out + 4 * i + 16, right32(zip_high(even_low, odd_low)));
		store(out + 4 * i + 32, right32(zip_low(even_high, odd_high)));
		store(out + 4 * i + 48, right32(zip_high(even_high, odd_high)));
	}
	return i;
}

void planes_split(const void *floats, void *planes, size_t n, unsigned width)
{
	const uint8_t *const in = floats;
	uint8_t *const out = planes;
	size_t i;

	assert(width == 2 || width == 4 || width == 8);
	i = width == 2   ? split_groups16(in, out, n)
	    : width == 4 ? split_groups32(in, out, n)
			 : 0; /* doubles are rare */
	for (; i < n; i++)
		split_one(in + width * i, out + i, n, width);
}

void planes_merge(const void *planes, void *floats, size_t n, unsigned width)
{
	const uint8_t *const in = planes;
	uint8_t *const out = floats;
	size_t i;

	assert(width == 2 || width == 4 || width == 8);
	i = width == 2   ? merge_groups16(in, out, n)
	    : width == 4 ? merge_groups32(in, out, n)
			 : 0;
	for (; i < n; i++)
		merge_one(in + i, out + width * i, n, width);
}
