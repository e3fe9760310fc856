/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes.
 *
 * In a trained float the exponent compresses well, the sign and the mantissa hardly
 * at all.  So the same byte of all elements is coded together, and the sign, which
 * would spoil the byte with the exponent, is moved to another.
 *
 * Both are plain loops over groups of constant length, of which compilers make
 * vectors for each generation of processors.
 */
#include "ckpt/pack/planes.h"

#include <assert.h>
#include <string.h>

#include "ckpt/sys/cpu_clones.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

#define GROUP 64 /* elements */

/* Loops for constant lengths. */
#define INLINED static inline __attribute__((always_inline))

#define LEFT(x, bits) ((x) << 1 | (x) >> ((bits)-1))
#define RIGHT(x, bits) ((x) >> 1 | (x) << ((bits)-1))

/* Each takes `m` <= GROUP of the `n` elements, from element `i` on. */

INLINED void split16_some(const uint8_t *in, uint8_t *out, size_t n, size_t i,
			  size_t m)
{
	uint16_t x[GROUP];

	memcpy(x, in + 2 * i, 2 * m);
	for (size_t k = 0; k < m; k++)
		x[k] = (uint16_t)LEFT(x[k], 16);
	for (size_t k = 0; k < m; k++)
		out[i + k] = (uint8_t)x[k];
	for (size_t k = 0; k < m; k++)
		out[n + i + k] = (uint8_t)(x[k] >> 8);
}

INLINED void split32_some(const uint8_t *in, uint8_t *out, size_t n, size_t i,
			  size_t m)
{
	uint32_t x[GROUP];

	memcpy(x, in + 4 * i, 4 * m);
	for (size_t k = 0; k < m; k++)
		x[k] = LEFT(x[k], 32);
	for (size_t k = 0; k < m; k++)
		out[i + k] = (uint8_t)x[k];
	for (size_t k = 0; k < m; k++)
		out[n + i + k] = (uint8_t)(x[k] >> 8);
	for (size_t k = 0; k < m; k++)
		out[2 * n + i + k] = (uint8_t)(x[k] >> 16);
	for (size_t k = 0; k < m; k++)
		out[3 * n + i + k] = (uint8_t)(x[k] >> 24);
}

INLINED void join(const uint8_t *low, const uint8_t *high, uint16_t *out,
		  size_t m)
{
	for (size_t k = 0; k < m; k++)
		out[k] = (uint16_t)(low[k] | high[k] << 8);
}

INLINED void merge16_some(const uint8_t *in, uint8_t *out, size_t n, size_t i,
			  size_t m)
{
	uint16_t x[GROUP];

	join(in + i, in + n + i, x, m);
	for (size_t k = 0; k < m; k++)
		x[k] = (uint16_t)RIGHT(x[k], 16);
	memcpy(out + 2 * i, x, 2 * m);
}

INLINED void merge32_some(const uint8_t *in, uint8_t *out, size_t n, size_t i,
			  size_t m)
{
	uint16_t low[GROUP], high[GROUP];
	uint32_t x[GROUP];

	join(in + i, in + n + i, low, m);
	join(in + 2 * n + i, in + 3 * n + i, high, m);
	for (size_t k = 0; k < m; k++)
		x[k] = low[k] | (uint32_t)high[k] << 16;
	for (size_t k = 0; k < m; k++)
		x[k] = RIGHT(x[k], 32);
	memcpy(out + 4 * i, x, 4 * m);
}

#define ALL(some)                                               \
	CPU_CLONES static void some##_all(const uint8_t *in,    \
					  uint8_t *out, size_t n) \
	{                                                       \
		size_t i = 0;                                   \
                                                                \
		for (; i + GROUP <= n; i += GROUP)              \
			some(in, out, n, i, GROUP);             \
		some(in, out, n, i, n - i);                     \
	}

ALL(split16_some)
ALL(split32_some)
ALL(merge16_some)
ALL(merge32_some)

void planes_split(const void *floats, uint8_t *planes, size_t n, unsigned width)
{
	assert(width == 2 || width == 4);
	(width == 2 ? split16_some_all : split32_some_all)(floats, planes, n);
}

void planes_merge(const uint8_t *planes, void *floats, size_t n, unsigned width)
{
	assert(width == 2 || width == 4);
	(width == 2 ? merge16_some_all : merge32_some_all)(planes, floats, n);
}
