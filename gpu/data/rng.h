/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_RNG_H
#define UCTRAIN_RNG_H

#include <stdint.h>

/*
 * torch's generator for the CPU: what follows torch.manual_seed(seed), number
 * for number.
 */
#define RNG_WORDS 624

struct rng {
	uint32_t state[RNG_WORDS];
	unsigned next; /* word of the state; RNG_WORDS: all are used up */
};

void rng_seed(struct rng *r, uint64_t seed);

/* As if `n` 32-bit numbers had been drawn. */
void rng_skip(struct rng *r, uint64_t n);

uint32_t rng_u32(struct rng *r);
uint64_t rng_u64(struct rng *r);

/* 32-bit numbers that one element of torch.randint(0, high, ...) takes. */
unsigned rng_randint_draws(uint64_t high);

/* One element of it; high > 0. */
uint64_t rng_randint(struct rng *r, uint64_t high);

#endif
