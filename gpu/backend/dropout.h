/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_PATTERN_H
#define UCTRAIN_PATTERN_H

#include <stdint.h>

/* What devices have in common is compiled for each of them. */
#if defined(__CUDACC__)
#define PATTERN_EVERYWHERE __host__ __device__
#else
#define PATTERN_EVERYWHERE
#endif

/* The i-th random number of a seed (splitmix64).  Seeds of sequences that
 * belong together must be far apart: let them be such numbers themselves. */
static inline PATTERN_EVERYWHERE uint64_t pattern_random(uint64_t seed,
							 uint64_t i)
{
	uint64_t x = seed + i * UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* Of element i of the row that a random number was drawn for, in arithmetic of 32
 * bits: what is multiplied for each element is that which devices do fast, and
 * many at once.  The number's halves come in apart, or rows whose first halves
 * are a few steps apart would have the same pattern, shifted. */
static inline PATTERN_EVERYWHERE uint32_t pattern_element(uint64_t row,
							  uint32_t i)
{
	uint32_t x = (uint32_t)row + i * UINT32_C(0x9e3779b9);

	x = (x ^ x >> 16) * UINT32_C(0x21f0aaad);
	x = (x ^ x >> 15) + (uint32_t)(row >> 32);
	x *= UINT32_C(0xd35a2d97);
	return x ^ x >> 15;
}

/* What dropout makes of an element. */
static inline PATTERN_EVERYWHERE float pattern_drop(float x, uint32_t random,
						    float drop)
{
	return random < (uint32_t)(drop * 0x1p32f) ? 0
						   : x * (1.0f / (1.0f - drop));
}

#endif
