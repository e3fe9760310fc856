/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SPLITMIX_H
#define UCTRAIN_SPLITMIX_H

#include <stdint.h>

/* CUDA kernels draw the same numbers as the host. */
#if defined(__CUDACC__)
#define SPLITMIX_FN static inline __host__ __device__
#else
#define SPLITMIX_FN static inline
#endif

/*
 * splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014), by
 * index: the i-th number, from 1, of the generator seeded with `seed`.  The sequences of seeds
 * that differ by a small multiple of its increment overlap; derive related seeds by splitmix64
 * itself.
 */
SPLITMIX_FN uint64_t splitmix64(uint64_t seed, uint64_t i)
{
	uint64_t x = seed + i * UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

/* The seed whose i-th number is the (n + i)-th of `seed`. */
SPLITMIX_FN uint64_t splitmix64_skip(uint64_t seed, uint64_t n)
{
	return seed + n * UINT64_C(0x9e3779b97f4a7c15);
}

/* The next number of the generator in `*state`. */
SPLITMIX_FN uint64_t splitmix64_next(uint64_t *state)
{
	*state += UINT64_C(0x9e3779b97f4a7c15);
	return splitmix64(*state, 0);
}

#endif
