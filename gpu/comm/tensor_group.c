/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/tensor_group.h"

#include <assert.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/device_group.h"

static void group_sum(const struct backend_group *g, struct backend *b, void *x,
		      size_t n)
{
	struct device_group *const ranks = g->ctx;

	assert(b == ranks->b);
	device_group_sum(ranks, x, n);
}

static void group_wait(const struct backend_group *g)
{
	device_group_wait(g->ctx);
}

static void group_gather(const struct backend_group *g, const float *mine,
			 size_t n, float *all)
{
	device_group_all_gather(g->ctx, mine, all, n * sizeof(*mine));
}

static void group_fail(const struct backend_group *g, struct backend *b)
{
	struct device_group *const ranks = g->ctx;
	struct errmsg err = { "an operation failed" };

	b->ops->sync(b, &err);
	comm_abort(ranks->comm, &err);
}

static void group_sum_floats(const struct backend_group *g, struct backend *b,
			     float *x, size_t n)
{
	(void)b;
	device_group_sum_float(g->ctx, x, n);
}

static void group_reduce_scatter(const struct backend_group *g,
				 struct backend *b, const void *parts,
				 void *mine, size_t n)
{
	(void)b;
	device_group_reduce_scatter(g->ctx, parts, mine, n);
}

static void group_all_gather(const struct backend_group *g, struct backend *b,
			     const void *mine, void *all, size_t n)
{
	device_group_all_gather(g->ctx, mine, all, n * b->act_size);
}

static void group_all_to_all(const struct backend_group *g, struct backend *b,
			     const void *parts, void *all, size_t n)
{
	device_group_all_to_all(g->ctx, parts, all, n * b->act_size);
}

void tensor_group_init(struct backend_group *g, struct device_group *ranks,
		       unsigned rank, unsigned size)
{
	*g = (struct backend_group){
		.rank = rank,
		.size = size,
		.ctx = ranks,
		.sum = group_sum,
		.wait = group_wait,
		.gather = group_gather,
		.fail = group_fail,
		.sum_floats = group_sum_floats,
		.reduce_scatter = group_reduce_scatter,
		.all_gather = group_all_gather,
		.all_to_all = group_all_to_all,
	};
}
