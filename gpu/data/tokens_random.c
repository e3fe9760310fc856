/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/data/tokens_impl.h"

void tokens_random_init(struct tokens_random *r, uint64_t seed, unsigned seq,
			unsigned vocab)
{
	*r = (struct tokens_random){ .seed = seed, .seq = seq, .vocab = vocab };
	rng_seed(&r->rng, seed);
}

void tokens_random_row(struct tokens_random *r, uint64_t row, int32_t *out)
{
	if (row < r->next)
		tokens_random_init(r, r->seed, r->seq, r->vocab);
	rng_skip(&r->rng,
		 (row - r->next) * r->seq * rng_randint_draws(r->vocab));
	for (unsigned i = 0; i < r->seq; i++)
		out[i] = (int32_t)rng_randint(&r->rng, r->vocab);
	r->next = row + 1;
}
