/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/tensor_group.h"

#include <assert.h>

#include "gpu/backend/backend.h"
#include "gpu/comm/device_group.h"

static void group_sum(const struct backend_group *g, struct backend *b, void *x,
		      size_t n)
{
	struct device_group *const ranks = g->ctx;

	assert(b == ranks->b);
	device_group_sum(ranks, x, n);
}

static void group_gather(const struct backend_group *g, const float *mine,
			 size_t n, float *all)
{
	device_group_gather(g->ctx, mine, n, all);
}

void tensor_group_init(struct backend_group *g, struct device_group *ranks,
		       unsigned rank, unsigned size)
{
	*g = (struct backend_group){
		.rank = rank,
		.size = size,
		.ctx = ranks,
		.sum = group_sum,
		.gather = group_gather,
	};
}
