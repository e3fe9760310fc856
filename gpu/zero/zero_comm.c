/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's collectives on device memory.  GPUs exchange it directly, in
 * a queue of their own.  What ranks on hosts exchange, and what --rank_invariant sums,
 * goes through host memory in windows, which bounds the memory needed.
 */
#include <assert.h>

#include "gpu/comm/pieces.h"
#include "gpu/zero/zero_impl.h"

/* Operations queued on QUEUE_COMM from now on wait for the computation so
 * far. */
static void fork_comm(struct zero *z)
{
	struct backend *b = z->backend;

	if (z->impl->grouped)
		return;
	b->ops->event_record(b, z->impl->before, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COMM, z->impl->before);
}

void zero_group_begin(struct zero *z)
{
	if (!z->impl->device)
		return;
	fork_comm(z);
	z->impl->grouped = true;
	devcomm_group_begin(z->impl->device);
}

void zero_group_end(struct zero *z)
{
	if (!z->impl->device)
		return;
	devcomm_group_end(z->impl->device);
	z->impl->grouped = false;
}

/* A graph with collectives of several communicators of NCCL is not tried: NVIDIA warns
 * of deadlocks between graphs of different ones. */
bool zero_is_recorded(const struct zero *z, const char **why)
{
	const struct topology *const ranks = z->ranks;
	const struct devcomm *const device = z->impl->device;

	*why = NULL;
	if (z->impl->exact)
		*why = "sums over ranks are made by hosts";
	else if (ranks->tensor.size > 1 || ranks->sequence.size > 1 ||
		 ranks->pipe.size > 1)
		*why = "ranks share a model or its rows";
	else if (device && !devcomm_is_recorded(device))
		*why = "NCCL is older than 2.9.6";
	return !*why;
}

void zero_wait_comm(struct zero *z)
{
	struct backend *b = z->backend;

	if (!z->impl->device)
		return;
	b->ops->event_record(b, z->impl->after, QUEUE_COMM);
	b->ops->queue_wait(b, QUEUE_COMPUTE, z->impl->after);
}

void zero_add_own(struct zero *z, float *gradient, const float *sum)
{
	const size_t *pieces = z->impl->pieces;
	const unsigned me = z->comm->rank;

	assert(me < z->comm->size);
	if (pieces[me])
		z->backend->ops->accumulate(z->backend,
					    gradient + pieces_start(pieces, me),
					    sum, pieces[me]);
}

/* Element `at` of the 16-bit numbers. */
static void *narrow_at(const struct zero *z, uint64_t at)
{
	const struct zero_impl *m = z->impl;

	return (uint8_t *)m->narrow + at * dtype_size(m->comm_dtype);
}

void zero_narrow(struct zero *z, const float *gradient, uint64_t n)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;

	assert(n <= m->nnarrow);
	fork_comm(z);
	b->ops->narrow(b, QUEUE_COMM, m->narrow, m->comm_dtype, gradient, n);
}

void zero_reduce_narrow(struct zero *z, uint64_t at)
{
	struct zero_impl *m = z->impl;

	devcomm_reduce_scatter(
		m->device, narrow_at(z, at), m->pieces, m->comm_dtype,
		narrow_at(z, at + pieces_start(m->pieces, z->comm->rank)));
}

void zero_widen(struct zero *z, uint64_t at, float *dst, bool add)
{
	const size_t *pieces = z->impl->pieces;
	struct backend *b = z->backend;
	const unsigned me = z->comm->rank;

	b->ops->cast(b, QUEUE_COMM, dst,
		     narrow_at(z, at + pieces_start(pieces, me)),
		     z->impl->comm_dtype, pieces[me], add);
}

/* In float32 the sum so far enters the reduction as part of this rank's gradient; it
 * is not rounded to 16 bits. */
static void reduce_direct(struct zero *z, float *gradient, float *dst, bool add)
{
	struct zero_impl *m = z->impl;

	if (m->narrow) {
		zero_narrow(z, gradient, pieces_start(m->pieces, z->comm->size));
		zero_reduce_narrow(z, 0);
		zero_widen(z, 0, dst, add);
		return;
	}
	if (add)
		zero_add_own(z, gradient, dst);
	fork_comm(z);
	devcomm_reduce_scatter(m->device, gradient, m->pieces, DTYPE_F32, dst);
}

void zero_sum_floats(struct zero *z, float *x, uint64_t n)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;

	assert(m->device);
	if (!m->narrow) {
		fork_comm(z);
		devcomm_sum(m->device, x, n, DTYPE_F32);
		return;
	}
	zero_narrow(z, x, n);
	devcomm_sum(m->device, m->narrow, n, m->comm_dtype);
	b->ops->cast(b, QUEUE_COMM, x, m->narrow, m->comm_dtype, n, false);
}

void zero_sum_double(struct zero *z, double *x)
{
	assert(z->impl->device);
	fork_comm(z);
	devcomm_sum(z->impl->device, x, 1, DTYPE_F64);
}

static void gather_direct(struct zero *z, const void *mine, void *dst)
{
	struct zero_impl *m = z->impl;

	for (unsigned r = 0; r < z->comm->size; r++)
		m->window[r] = m->pieces[r] * z->backend->act_size;
	fork_comm(z);
	devcomm_all_gather(m->device, mine, m->window, dst);
}

/* Store the n elements of a finished sum in dst, or add them: then by way of
 * `spent`, n elements on the device that are no longer needed. */
static void zero_store_sum(struct zero *z, float *dst, const float *sum,
			   size_t n, float *spent)
{
	struct backend *b = z->backend;

	assert(n <= z->impl->share);
	b->ops->to_device(b, spent ? spent : dst, sum, n * sizeof(*sum));
	if (spent)
		b->ops->accumulate(b, dst, spent, n);
}

/* Copy a window of all ranks' pieces to the host, from element `at` of each on; round
 * it if ranks exchange a 16-bit type. */
static void fetch_window(struct zero *z, const float *gradient, size_t at)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	size_t all = 0;

	for (unsigned r = 0; r < z->comm->size; r++) {
		const size_t n = pieces_within(m->pieces[r], at, m->share);

		if (m->narrow)
			b->ops->narrow(b, QUEUE_COMPUTE, narrow_at(z, all),
				       m->comm_dtype, gradient + at, n);
		else if (n)
			b->ops->to_host(b, m->host + all, gradient + at,
					n * sizeof(*gradient));
		m->window[r] = n;
		gradient += m->pieces[r];
		all += n;
	}
	if (m->narrow)
		b->ops->to_host(b, m->host, m->narrow,
				all * dtype_size(m->comm_dtype));
}

/* Store n reduced elements in dst, or add them. */
static void widen_window(struct zero *z, const void *sums, float *dst, size_t n,
			 bool add)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;

	b->ops->to_device(b, m->narrow, sums, n * dtype_size(m->comm_dtype));
	b->ops->cast(b, QUEUE_COMPUTE, dst, m->narrow, m->comm_dtype, n, add);
}

static void reduce_by_host(struct zero *z, float *gradient, float *dst, bool add)
{
	struct zero_impl *m = z->impl;
	const unsigned ranks = z->comm->size, me = z->comm->rank;
	const size_t most = pieces_longest(m->pieces, ranks);
	float *const mine = m->host + ranks * m->share;
	float *const own = gradient + pieces_start(m->pieces, me);

	for (size_t at = 0; at < most; at += m->share) {
		fetch_window(z, gradient, at);
		comm_reduce_scatter(z->comm, m->host, m->window,
				    m->narrow ? m->comm_dtype : DTYPE_F32, mine);
		if (!m->window[me])
			continue;
		if (m->narrow)
			widen_window(z, mine, dst + at, m->window[me], add);
		else
			zero_store_sum(z, dst + at, mine, m->window[me],
				       add ? own + at : NULL);
	}
}

/* Sum a window of the whole gradient. */
static void sum_window(struct zero *z, float *x, size_t n)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;

	if (m->narrow) {
		b->ops->narrow(b, QUEUE_COMPUTE, m->narrow, m->comm_dtype, x, n);
		b->ops->to_host(b, m->host, m->narrow,
				n * dtype_size(m->comm_dtype));
		comm_sum(z->comm, m->host, n, m->comm_dtype);
		widen_window(z, m->host, x, n, false);
		return;
	}
	b->ops->to_host(b, m->host, x, n * sizeof(*x));
	comm_sum(z->comm, m->host, n, DTYPE_F32);
	b->ops->to_device(b, x, m->host, n * sizeof(*x));
}

void zero_sum_by_host(struct zero *z, float *x, uint64_t n)
{
	const size_t share = z->impl->share;

	for (uint64_t at = 0; z->comm->size > 1 && at < n; at += share)
		sum_window(z, x + at, pieces_within(n, at, share));
}

void zero_reduce(struct zero *z, float *gradient, float *dst, bool add)
{
	struct backend *b = z->backend;
	const size_t n = z->impl->pieces[0];

	if (z->impl->device)
		reduce_direct(z, gradient, dst, add);
	else if (z->comm->size > 1)
		reduce_by_host(z, gradient, dst, add);
	else if (add)
		b->ops->accumulate(b, dst, gradient, n);
	else if (dst != gradient)
		b->ops->copy(b, QUEUE_COMPUTE, dst, gradient, n * sizeof(*dst));
}

/* Copy this rank's piece to its place in dst, on the device. */
static void place_own_piece(struct zero *z, const void *mine, uint8_t *dst)
{
	struct backend *b = z->backend;
	const size_t *pieces = z->impl->pieces;
	const unsigned me = z->comm->rank;
	uint8_t *to = dst + pieces_start(pieces, me) * b->act_size;

	if (to != mine)
		b->ops->copy(b, QUEUE_COMPUTE, to, mine,
			     pieces[me] * b->act_size);
}

void zero_gather(struct zero *z, const void *mine, void *dst)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	const size_t size = b->act_size;
	const unsigned ranks = z->comm->size, me = z->comm->rank;
	const size_t most = pieces_longest(m->pieces, ranks);

	if (m->device) {
		gather_direct(z, mine, dst);
		return;
	}
	place_own_piece(z, mine, dst);
	if (ranks == 1)
		return;
	for (size_t at = 0; at < most; at += m->share) {
		uint8_t *own = (uint8_t *)(m->host + ranks * m->share);
		const uint8_t *from = (const uint8_t *)m->host;
		uint8_t *to = (uint8_t *)dst + at * size;

		for (unsigned r = 0; r < ranks; r++)
			m->window[r] = size * pieces_within(m->pieces[r], at,
							    m->share);
		if (m->window[me])
			b->ops->to_host(b, own,
					(const uint8_t *)mine + at * size,
					m->window[me]);
		comm_all_gather(z->comm, own, m->window, m->host);
		for (unsigned r = 0; r < ranks; r++) {
			if (m->window[r] && r != me)
				b->ops->to_device(b, to, from, m->window[r]);
			from += m->window[r];
			to += m->pieces[r] * size;
		}
	}
}
