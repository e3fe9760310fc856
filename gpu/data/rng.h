/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_RNG_H
#define UCTRAIN_RNG_H

#include <stdint.h>

/* torch's CPU generator: the same numbers as after torch.manual_seed(seed). */
#define RNG_WORDS 624u

struct rng {
	uint32_t state[RNG_WORDS];
	unsigned next; /* next word of the state; RNG_WORDS: all used */
};

void rng_seed(struct rng *r, uint64_t seed);

/* Skip `n` 32-bit numbers. */
void rng_skip(struct rng *r, uint64_t n);

uint32_t rng_u32(struct rng *r);
uint64_t rng_u64(struct rng *r);

/* Return how many 32-bit numbers one element of torch.randint(0, high, ...) consumes. */
unsigned rng_randint_draws(uint64_t high);

/* Return one element of torch.randint(0, high, ...); high > 0. */
uint64_t rng_randint(struct rng *r, uint64_t high);

#endif
