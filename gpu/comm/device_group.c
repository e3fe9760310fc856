/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All groups queue NCCL's operations on QUEUE_COMM, in call order: on separate queues, two
 * operations that wait for different peers could each occupy a device that the other needs.
 */
#include "gpu/comm/device_group.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"

static int take_events(struct device_group *g, struct errmsg *err)
{
	g->before = g->b->ops->event_new(g->b);
	g->after = g->b->ops->event_new(g->b);
	g->equal = calloc(g->comm->size, sizeof(*g->equal));
	return g->before && g->after && g->equal ? 0 : errmsg_nomem(err, NULL);
}

int device_group_connect(struct device_group *g, struct backend *b, struct errmsg *err)
{
	int rc;

	*g = (struct device_group){ .comm = g->comm, .b = b };
	rc = comm_agree(g->comm, take_events(g, err), err);
	if (!rc && !b->on_host)
		rc = devcomm_new(&g->direct, g->comm, b, err);
	if (rc)
		device_group_disconnect(g);
	return rc;
}

void device_group_disconnect(struct device_group *g)
{
	devcomm_free(g->direct);
	if (g->before)
		g->b->ops->event_free(g->b, g->before);
	if (g->after)
		g->b->ops->event_free(g->b, g->after);
	free(g->equal);
	*g = (struct device_group){ 0 };
}

void device_group_follow(struct device_group *g)
{
	if (!g->direct || g->grouped)
		return;
	g->b->ops->event_record(g->b, g->before, QUEUE_COMPUTE);
	g->b->ops->queue_wait(g->b, QUEUE_COMM, g->before);
}

void device_group_wait(struct device_group *g)
{
	if (!g->direct)
		return;
	g->b->ops->event_record(g->b, g->after, QUEUE_COMM);
	g->b->ops->queue_wait(g->b, QUEUE_COMPUTE, g->after);
}

void device_group_begin(struct device_group *g)
{
	if (!g->direct)
		return;
	device_group_follow(g);
	g->grouped = true;
	devcomm_group_begin(g->direct);
}

void device_group_end(struct device_group *g)
{
	if (!g->direct)
		return;
	devcomm_group_end(g->direct);
	g->grouped = false;
}

const size_t *device_group_equal(struct device_group *g, size_t n)
{
	for (unsigned r = 0; r < g->comm->size; r++)
		g->equal[r] = n;
	return g->equal;
}

/* Does the operation that begins now run on devices? */
static bool is_direct(struct device_group *g)
{
	assert(g->direct || g->b->on_host || g->comm->size == 1);
	device_group_follow(g);
	return g->direct;
}

/* Perform an operation of a group of one rank. */
static void keep(struct device_group *g, void *to, const void *from, size_t bytes)
{
	if (to != from)
		g->b->ops->copy(g->b, QUEUE_COMPUTE, to, from, bytes);
}

void device_group_sum(struct device_group *g, void *x, size_t n, enum dtype dtype)
{
	if (is_direct(g))
		devcomm_sum(g->direct, x, n, dtype);
	else if (dtype == DTYPE_F64)
		comm_sum_double(g->comm, x, n);
	else
		comm_sum(g->comm, x, n, dtype);
}

void device_group_reduce_scatter(struct device_group *g, const void *parts, const size_t *n,
				 enum dtype dtype, void *mine)
{
	if (is_direct(g))
		devcomm_reduce_scatter(g->direct, parts, n, dtype, mine);
	else if (g->comm->size > 1)
		comm_reduce_scatter(g->comm, parts, n, dtype, mine);
	else
		keep(g, mine, parts, n[0] * dtype_size(dtype));
}

void device_group_all_gather(struct device_group *g, const void *mine, const size_t *bytes,
			     void *all)
{
	if (is_direct(g))
		devcomm_all_gather(g->direct, mine, bytes, all);
	else if (g->comm->size > 1)
		comm_all_gather(g->comm, mine, bytes, all);
	else
		keep(g, all, mine, bytes[0]);
}

void device_group_all_to_all(struct device_group *g, const void *parts, void *all, size_t bytes)
{
	if (is_direct(g))
		devcomm_all_to_all(g->direct, parts, all, bytes);
	else
		comm_all_to_all(g->comm, parts, all, bytes);
}

void device_group_exchange(struct device_group *g, unsigned peer, const void *out, void *in,
			   size_t bytes)
{
	if (is_direct(g))
		devcomm_exchange(g->direct, peer, out, in, bytes);
	else
		comm_exchange(g->comm, peer, out, in, bytes);
}

static void gather(const struct backend_group *group, const float *mine, size_t n, float *all)
{
	struct device_group *const g = group->ctx;

	device_group_all_gather(g, mine, device_group_equal(g, n * sizeof(*mine)), all);
	device_group_wait(g);
}

static void fail(const struct backend_group *group, struct backend *b)
{
	struct device_group *const g = group->ctx;
	struct errmsg err = { "an operation failed" };

	b->ops->sync(b, &err);
	comm_abort(g->comm, &err);
}

struct backend_group device_group_of_backend(struct device_group *g)
{
	return (struct backend_group){ .rank = g->comm->rank,
				       .size = g->comm->size,
				       .ctx = g,
				       .gather = gather,
				       .fail = fail };
}
