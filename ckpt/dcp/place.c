/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/dcp/place.h"

#include "ckpt/dcp/metadata.h"

uint64_t dcp_place_before(const struct dcp_item *t, const struct dcp_chunk *c,
			  uint64_t e)
{
	uint64_t step = t->numel, chunk_step = c->numel, n = 0;

	if (e >= t->numel || !c->numel)
		return c->numel;
	for (unsigned d = 0; d < t->ndim; d++) {
		uint64_t i;

		step /= t->shape[d];
		chunk_step /= c->size[d];
		i = e / step;
		e %= step;
		if (i < c->offset[d])
			return n;
		if (i - c->offset[d] >= c->size[d])
			return n + c->size[d] * chunk_step;
		n += (i - c->offset[d]) * chunk_step;
	}
	return n;
}

uint64_t dcp_place(const struct dcp_item *t, const struct dcp_chunk *c, uint64_t e,
		   uint64_t *at)
{
	uint64_t step = t->numel, chunk_step = c->numel, rest = e;
	uint64_t run = 1; /* elements of the chunk that lie in one piece */
	unsigned d = t->ndim;

	while (d && (run *= c->size[d - 1], c->size[d - 1] == t->shape[d - 1]))
		d--;
	*at = 0;
	for (d = 0; d < t->ndim; d++) {
		step /= t->shape[d];
		chunk_step /= c->size[d];
		*at += (rest / chunk_step + c->offset[d]) * step;
		rest %= chunk_step;
	}
	return run - e % run;
}
