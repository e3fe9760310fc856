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
#include "gpu/comm/pieces.h"

/* Floats of a window, as in which they go through host memory. */
#define WINDOW ((size_t)1 << 20)
#define WINDOW_BYTES (WINDOW * sizeof(float))

/* --- beginning and end ----------------------------------------------------- */

static int take_events(struct device_group *g, struct errmsg *err)
{
	g->before = g->b->ops->event_new(g->b);
	g->after = g->b->ops->event_new(g->b);
	return g->before && g->after ? 0 : errmsg_nomem(err, NULL);
}

/* Two windows: one for what is sent and one for what is received. */
static int take_windows(struct device_group *g, struct errmsg *err)
{
	g->window = g->b->ops->host_alloc(g->b, 2 * WINDOW_BYTES);
	g->wide = g->b->ops->alloc(g->b, WINDOW_BYTES);
	return g->window && g->wide ? 0 : errmsg_nomem(err, NULL);
}

int device_group_init(struct device_group *g, struct comm *comm,
		      struct backend *b, bool direct, struct errmsg *err)
{
	int rc = 0;

	*g = (struct device_group){ .comm = comm, .b = b };
	if (comm->size == 1 || b->on_host)
		return 0;
	rc = direct ? take_events(g, err) : take_windows(g, err);
	rc = comm_agree(comm, rc, err);
	if (!rc && direct)
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
	if (g->window)
		g->b->ops->host_free(g->b, g->window);
	if (g->wide)
		g->b->ops->free(g->b, g->wide);
	*g = (struct device_group){ 0 };
}

/* --- direct ------------------------------------------------------------------ */

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

/* --- sums -------------------------------------------------------------------- */

static void sum_direct(struct device_group *g, void *x, size_t n,
		       enum dtype dtype)
{
	after_compute(g);
	devcomm_sum(g->direct, x, n, dtype);
}

/* Sum up to a window of floats on the device. */
static void sum_window(struct device_group *g, float *x, size_t n)
{
	const struct backend_ops *const o = g->b->ops;
	float *const window = (float *)g->window;

	o->to_host(g->b, window, x, n * sizeof(*x));
	comm_sum(g->comm, window, n, DTYPE_F32);
	o->to_device(g->b, x, window, n * sizeof(*x));
}

void device_group_sum(struct device_group *g, void *x, size_t n)
{
	struct backend *const b = g->b;

	if (g->direct) {
		sum_direct(g, x, n, b->dtype);
		return;
	}
	if (b->on_host) {
		comm_sum(g->comm, x, n, DTYPE_F32);
		b->ops->round(b, x, x, n);
		return;
	}
	for (size_t at = 0; g->comm->size > 1 && at < n; at += WINDOW) {
		const size_t len = pieces_within(n, at, WINDOW);
		char *const part = (char *)x + at * b->act_size;

		b->ops->widen(b, g->wide, part, len);
		sum_window(g, g->wide, len);
		b->ops->round(b, part, g->wide, len);
	}
}

void device_group_sum_float(struct device_group *g, float *x, size_t n)
{
	if (g->direct) {
		sum_direct(g, x, n, DTYPE_F32);
		device_group_wait(g);
	} else if (g->b->on_host)
		comm_sum(g->comm, x, n, DTYPE_F32);
	else
		for (size_t at = 0; g->comm->size > 1 && at < n; at += WINDOW)
			sum_window(g, x + at, pieces_within(n, at, WINDOW));
}

void device_group_sum_double(struct device_group *g, double *x)
{
	const struct backend_ops *const o = g->b->ops;
	double sum;

	if (g->direct) {
		sum_direct(g, x, 1, DTYPE_F64);
		device_group_wait(g);
		return;
	}
	o->to_host(g->b, &sum, x, sizeof(sum));
	comm_sum_double(g->comm, &sum, 1);
	o->to_device(g->b, x, &sum, sizeof(sum));
}

/* Floats of each rank that are in a window together. */
static size_t share_of(const struct device_group *g)
{
	const size_t share = WINDOW / g->comm->size;

	assert(share);
	return share;
}

/* The sum of up to `len` elements of each rank's part. */
static void reduce_window(struct device_group *g, const char *parts, char *mine,
			  size_t len, size_t n)
{
	const struct backend_ops *const o = g->b->ops;
	float *const sum = (float *)(g->window + WINDOW_BYTES);
	const unsigned size = g->comm->size;

	for (unsigned r = 0; r < size; r++)
		o->widen(g->b, g->wide + r * len,
			 parts + r * n * g->b->act_size, len);
	o->to_host(g->b, g->window, g->wide, size * len * sizeof(*sum));
	comm_reduce_scatter_equal(g->comm, (const float *)g->window, len, sum);
	o->to_device(g->b, g->wide, sum, len * sizeof(*sum));
	o->round(g->b, mine, g->wide, len);
}

void device_group_reduce_scatter(struct device_group *g, const void *parts,
				 void *mine, size_t n)
{
	struct backend *const b = g->b;

	if (g->direct) {
		after_compute(g);
		devcomm_reduce_scatter_equal(g->direct, parts, n, b->dtype,
					     mine);
		return;
	}
	if (b->on_host) {
		comm_reduce_scatter_equal(g->comm, parts, n, mine);
		b->ops->round(b, mine, mine, n);
		return;
	}

	const size_t share = share_of(g);

	for (size_t at = 0; at < n; at += share)
		reduce_window(g, (const char *)parts + at * b->act_size,
			      (char *)mine + at * b->act_size,
			      pieces_within(n, at, share), n);
}

/* --- copies ------------------------------------------------------------------- */

static void gather_window(struct device_group *g, const char *mine, size_t len,
			  char *all, size_t bytes)
{
	const struct backend_ops *const o = g->b->ops;
	uint8_t *const own = g->window + WINDOW_BYTES;

	o->to_host(g->b, own, mine, len);
	comm_all_gather_equal(g->comm, own, len, g->window);
	for (unsigned r = 0; r < g->comm->size; r++)
		o->to_device(g->b, all + r * bytes, g->window + r * len, len);
}

void device_group_all_gather(struct device_group *g, const void *mine,
			     void *all, size_t bytes)
{
	if (g->direct) {
		after_compute(g);
		devcomm_all_gather_equal(g->direct, mine, bytes, all);
		device_group_wait(g);
		return;
	}
	if (g->b->on_host) {
		comm_all_gather_equal(g->comm, mine, bytes, all);
		return;
	}

	const size_t share = share_of(g) * sizeof(float);

	for (size_t at = 0; at < bytes; at += share)
		gather_window(g, (const char *)mine + at,
			      pieces_within(bytes, at, share), (char *)all + at,
			      bytes);
}

static void all_to_all_window(struct device_group *g, const char *parts,
			      char *all, size_t len, size_t bytes)
{
	const struct backend_ops *const o = g->b->ops;
	uint8_t *const received = g->window + WINDOW_BYTES;
	const unsigned size = g->comm->size;

	for (unsigned r = 0; r < size; r++)
		o->to_host(g->b, g->window + r * len, parts + r * bytes, len);
	comm_all_to_all(g->comm, g->window, received, len);
	for (unsigned r = 0; r < size; r++)
		o->to_device(g->b, all + r * bytes, received + r * len, len);
}

void device_group_all_to_all(struct device_group *g, const void *parts,
			     void *all, size_t bytes)
{
	if (g->direct) {
		after_compute(g);
		devcomm_all_to_all(g->direct, parts, all, bytes);
		device_group_wait(g);
		return;
	}
	if (g->b->on_host) {
		comm_all_to_all(g->comm, parts, all, bytes);
		return;
	}

	const size_t share = share_of(g) * sizeof(float);

	for (size_t at = 0; at < bytes; at += share)
		all_to_all_window(g, (const char *)parts + at, (char *)all + at,
				  pieces_within(bytes, at, share), bytes);
}

static void exchange_window(struct device_group *g, unsigned peer,
			    const char *out, char *in, size_t bytes)
{
	const struct backend_ops *const o = g->b->ops;
	uint8_t *const received = g->window + WINDOW_BYTES;

	if (out)
		o->to_host(g->b, g->window, out, bytes);
	comm_exchange(g->comm, peer, out ? g->window : NULL,
		      in ? received : NULL, bytes);
	if (in)
		o->to_device(g->b, in, received, bytes);
}

void device_group_exchange(struct device_group *g, unsigned peer,
			   const void *out, void *in, size_t bytes)
{
	if (g->direct) {
		after_compute(g);
		devcomm_exchange(g->direct, peer, out, in, bytes);
		if (in)
			device_group_wait(g);
		return;
	}
	if (g->b->on_host) {
		comm_exchange(g->comm, peer, out, in, bytes);
		return;
	}
	for (size_t at = 0; at < bytes; at += WINDOW_BYTES)
		exchange_window(g, peer, out ? (const char *)out + at : NULL,
				in ? (char *)in + at : NULL,
				pieces_within(bytes, at, WINDOW_BYTES));
}
