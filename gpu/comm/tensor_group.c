/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/tensor_group.h"

#include <assert.h>

#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"

static void group_sum(const struct backend_group *g, struct backend *b, void *x,
		      size_t n)
{
	comm_sum_float(g->ctx, x, n);
	b->ops->round(b, x, x, n);
}

static void group_gather(const struct backend_group *g, const float *mine,
			 size_t n, float *all)
{
	comm_all_gather_equal(g->ctx, mine, n * sizeof(*mine), all);
}

void tensor_group_init(struct backend_group *g, struct comm *comm,
		       struct backend *b)
{
	assert(b->on_host && b->act_size == sizeof(float));
	*g = (struct backend_group){
		.rank = comm->rank,
		.size = comm->size,
		.ctx = comm,
		.sum = group_sum,
		.gather = group_gather,
	};
}
