/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MT19937 by Matsumoto and Nishimura (ACM TOMACS 8, 1998), seeded like its authors' init_genrand.
 * torch uses the low half of its 64-bit seed, composes 64-bit numbers high half first, and
 * reduces numbers by remainder; for ranges of 2^28 and more it uses 64-bit numbers, so that the
 * remainder's bias is negligible.
 */
#include "gpu/data/rng.h"

#include <assert.h>

#define SHIFT_WORDS 397
#define WIDE_FROM (UINT64_C(1) << 28)

void rng_seed(struct rng *r, uint64_t seed)
{
	r->state[0] = (uint32_t)seed;
	for (uint32_t i = 1; i < RNG_WORDS; i++) {
		const uint32_t last = r->state[i - 1];

		r->state[i] = 1812433253u * (last ^ last >> 30) + i;
	}
	r->next = RNG_WORDS;
}

static uint32_t twist(uint32_t high, uint32_t low, uint32_t far)
{
	const uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);

	return far ^ y >> 1 ^ (-(low & 1u) & 0x9908b0dfu);
}

/* Compute the next 624 words of state. */
static void renew(struct rng *r)
{
	const unsigned rest = RNG_WORDS - SHIFT_WORDS;
	uint32_t *const s = r->state;
	unsigned i;

	for (i = 0; i < rest; i++)
		s[i] = twist(s[i], s[i + 1], s[i + SHIFT_WORDS]);
	for (; i < RNG_WORDS - 1; i++)
		s[i] = twist(s[i], s[i + 1], s[i - rest]);
	s[i] = twist(s[i], s[0], s[i - rest]);
	r->next = 0;
}

void rng_skip(struct rng *r, uint64_t n)
{
	while (n > RNG_WORDS - r->next) {
		n -= RNG_WORDS - r->next;
		renew(r);
	}
	r->next += (unsigned)n;
}

uint32_t rng_u32(struct rng *r)
{
	uint32_t y;

	assert(r->next <= RNG_WORDS);
	if (r->next == RNG_WORDS)
		renew(r);
	y = r->state[r->next++];
	y ^= y >> 11;
	y ^= y << 7 & 0x9d2c5680u;
	y ^= y << 15 & 0xefc60000u;
	return y ^ y >> 18;
}

uint64_t rng_u64(struct rng *r)
{
	const uint64_t high = rng_u32(r);

	return high << 32 | rng_u32(r);
}

unsigned rng_randint_draws(uint64_t high)
{
	return high < WIDE_FROM ? 1 : 2;
}

uint64_t rng_randint(struct rng *r, uint64_t high)
{
	assert(high);
	return (high < WIDE_FROM ? rng_u32(r) : rng_u64(r)) % high;
}
