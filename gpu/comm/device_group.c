/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's operations of all groups are queued on QUEUE_COMM, in the order of the
 * calls: on queues of their own, two that wait for different peers could each occupy
 * a device that the other needs.
 */
#include "gpu/comm/device_group.h"

#include <assert.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"

static int take_events(struct device_group *g, struct errmsg *err)
{
	g->before = g->b->ops->event_new(g->b);
	g->after = g->b->ops->event_new(g->b);
	return g->before && g->after ? 0 : errmsg_nomem(err, NULL);
}

int device_group_init(struct device_group *g, struct comm *comm,
		      struct backend *b, struct errmsg *err)
{
	int rc;

	*g = (struct device_group){ .comm = comm, .b = b };
	if (comm->size == 1 || b->on_host)
		return 0;
	rc = comm_agree(comm, take_events(g, err), err);
	if (!rc)
		rc = devcomm_new(&g->direct, comm, b, err);
	if (rc)
		device_group_done(g);
	return rc;
}

void device_group_done(struct device_group *g)
{
	devcomm_free(g->direct);
	if (g->before)
		g->b->ops->event_free(g->b, g->before);
	if (g->after)
		g->b->ops->event_free(g->b, g->after);
	*g = (struct device_group){ 0 };
}

static void after_compute(struct device_group *g)
{
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

static void sum_direct(struct device_group *g, void *x, size_t n,
		       enum dtype dtype)
{
	after_compute(g);
	devcomm_sum(g->direct, x, n, dtype);
}

void device_group_sum(struct device_group *g, void *x, size_t n)
{
	struct backend *const b = g->b;

	if (g->direct) {
		sum_direct(g, x, n, b->dtype);
	} else if (b->on_host) {
		comm_sum(g->comm, x, n, DTYPE_F32);
		b->ops->round(b, x, x, n);
	}
}

void device_group_sum_float(struct device_group *g, float *x, size_t n)
{
	if (g->direct) {
		sum_direct(g, x, n, DTYPE_F32);
		device_group_wait(g);
	} else if (g->b->on_host) {
		comm_sum(g->comm, x, n, DTYPE_F32);
	}
}

void device_group_sum_double(struct device_group *g, double *x)
{
	if (g->direct) {
		sum_direct(g, x, 1, DTYPE_F64);
		device_group_wait(g);
	} else if (g->b->on_host) {
		comm_sum_double(g->comm, x, 1);
	}
}

void device_group_reduce_scatter(struct device_group *g, const void *parts,
				 void *mine, size_t n)
{
	struct backend *const b = g->b;

	assert(g->direct || b->on_host);
	if (g->direct) {
		after_compute(g);
		devcomm_reduce_scatter_equal(g->direct, parts, n, b->dtype,
					     mine);
	} else {
		comm_reduce_scatter_equal(g->comm, parts, n, mine);
		b->ops->round(b, mine, mine, n);
	}
}

void device_group_all_gather(struct device_group *g, const void *mine,
			     void *all, size_t bytes)
{
	assert(g->direct || g->b->on_host);
	if (g->direct) {
		after_compute(g);
		devcomm_all_gather_equal(g->direct, mine, bytes, all);
		device_group_wait(g);
	} else {
		comm_all_gather_equal(g->comm, mine, bytes, all);
	}
}

void device_group_all_to_all(struct device_group *g, const void *parts,
			     void *all, size_t bytes)
{
	assert(g->direct || g->b->on_host);
	if (g->direct) {
		after_compute(g);
		devcomm_all_to_all(g->direct, parts, all, bytes);
		device_group_wait(g);
	} else {
		comm_all_to_all(g->comm, parts, all, bytes);
	}
}

void device_group_exchange(struct device_group *g, unsigned peer,
			   const void *out, void *in, size_t bytes)
{
	assert(g->direct || g->b->on_host);
	if (g->direct) {
		after_compute(g);
		devcomm_exchange(g->direct, peer, out, in, bytes);
		if (in)
			device_group_wait(g);
	} else {
		comm_exchange(g->comm, peer, out, in, bytes);
	}
}
