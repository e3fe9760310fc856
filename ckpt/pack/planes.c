/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte planes.
 *
 * In a trained float the exponent compresses well, the sign and the mantissa hardly
 * at all.  So the same byte of all elements is coded together, and the sign, which
 * would spoil the byte with the exponent, is moved to another.
 *
 * Compilers make vectors of these loops; gcc does so for loops of any length at -O3 only.
 */
#include "ckpt/pack/planes.h"

#include <assert.h>
#include <string.h>

#include "ckpt/sys/cpu_clones.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

#ifndef __clang__
#pragma GCC optimize("O3")
#endif

#define LEFT(x, bits) ((x) << 1 | (x) >> ((bits)-1))
#define RIGHT(x, bits) ((x) >> 1 | (x) << ((bits)-1))

CPU_CLONES static void split16(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t x;

		memcpy(&x, in + 2 * i, 2);
		x = (uint16_t)LEFT(x, 16);
		out[i] = (uint8_t)x;
		out[n + i] = (uint8_t)(x >> 8);
	}
}

CPU_CLONES static void split32(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t x;

		memcpy(&x, in + 4 * i, 4);
		x = LEFT(x, 32);
		out[i] = (uint8_t)x;
		out[n + i] = (uint8_t)(x >> 8);
		out[2 * n + i] = (uint8_t)(x >> 16);
		out[3 * n + i] = (uint8_t)(x >> 24);
	}
}

static inline uint16_t join(uint8_t low, uint8_t high)
{
	return (uint16_t)(low | high << 8);
}

CPU_CLONES static void merge16(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint16_t x = join(in[i], in[n + i]);

		x = (uint16_t)RIGHT(x, 16);
		memcpy(out + 2 * i, &x, 2);
	}
}

CPU_CLONES static void merge32(const uint8_t *restrict in,
			       uint8_t *restrict out, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const uint16_t low = join(in[i], in[n + i]);
		const uint16_t high = join(in[2 * n + i], in[3 * n + i]);
		uint32_t x = low | (uint32_t)high << 16;

		x = RIGHT(x, 32);
		memcpy(out + 4 * i, &x, 4);
	}
}

void planes_split(const void *floats, uint8_t *planes, size_t n, unsigned width)
{
	assert(width == 2 || width == 4);
	(width == 2 ? split16 : split32)(floats, planes, n);
}

void planes_merge(const uint8_t *planes, void *floats, size_t n, unsigned width)
{
	assert(width == 2 || width == 4);
	(width == 2 ? merge16 : merge32)(planes, floats, n);
}
