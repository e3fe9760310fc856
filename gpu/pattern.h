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

/* What dropout makes of an element that its random number belongs to. */
static inline PATTERN_EVERYWHERE float pattern_drop(float x, uint64_t random,
						    float drop)
{
	const float r = (float)(int32_t)(random >> 40) * 0x1p-24f;

	return r < drop ? 0 : x * (1.0f / (1.0f - drop));
}

#endif
