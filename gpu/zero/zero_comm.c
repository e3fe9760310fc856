/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's traffic.  What ranks exchange lies on devices.  Between devices that
 * reach each other it goes straight, in a queue of its own; otherwise through
 * host memory, window by window, so that the memory for it is bounded.
 */
#include "gpu/comm/pieces.h"
#include "gpu/zero/zero_impl.h"

/* --- straight -------------------------------------------------------------- */

/* What comes into QUEUE_COMM from now on waits for the computation. */
static void fork_comm(struct zero *z)
{
	struct backend *b = z->backend;

	b->ops->event_record(b, z->impl->before, QUEUE_COMPUTE);
	b->ops->queue_wait(b, QUEUE_COMM, z->impl->before);
}

void zero_join(struct zero *z)
{
	struct backend *b = z->backend;

	if (!z->impl->device)
		return;
	b->ops->event_record(b, z->impl->after, QUEUE_COMM);
	b->ops->queue_wait(b, QUEUE_COMPUTE, z->impl->after);
}

/* What was summed before counts as a part of ours. */
static void reduce_straight(struct zero *z, float *gradient, float *dst,
			    bool add)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	const unsigned me = z->comm->rank;

	if (add && m->pieces[me])
		b->ops->accumulate(b, gradient + pieces_start(m->pieces, me),
				   dst, m->pieces[me]);
	fork_comm(z);
	devcomm_reduce_scatter(m->device, gradient, m->pieces, dst);
}

void zero_reduce_all(struct zero *z, float *x, uint64_t n)
{
	fork_comm(z);
	devcomm_sum_float(z->impl->device, x, n);
}

static void gather_straight(struct zero *z, const void *mine, void *dst)
{
	struct zero_impl *m = z->impl;

	for (unsigned r = 0; r < z->comm->size; r++)
		m->window[r] = m->pieces[r] * z->backend->lp_size;
	fork_comm(z);
	devcomm_all_gather(m->device, mine, m->window, dst);
}

/* --- through the host ------------------------------------------------------ */

/* A sum has arrived: n elements for dst.  The window for all ranks is free
 * again. */
static void take(struct zero *z, float *dst, float *sum, size_t n, bool add)
{
	struct backend *b = z->backend;
	float *old = z->impl->host;

	if (add) {
		b->ops->to_host(b, old, dst, n * sizeof(*old));
		for (size_t i = 0; i < n; i++)
			sum[i] += old[i];
	}
	b->ops->to_device(b, dst, sum, n * sizeof(*sum));
}

void zero_reduce(struct zero *z, float *gradient, float *dst, bool add)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	const unsigned ranks = z->comm->size, me = z->comm->rank;
	const size_t most = pieces_longest(m->pieces, ranks);
	float *mine = m->host + ranks * m->share;

	if (m->device) {
		reduce_straight(z, gradient, dst, add);
		return;
	}
	if (ranks == 1 && add)
		b->ops->accumulate(b, dst, gradient, most);
	if (ranks == 1)
		return; /* otherwise it is there already */
	for (size_t at = 0; at < most; at += m->share) {
		const float *from = gradient + at;
		float *to = m->host;

		for (unsigned r = 0; r < ranks; r++) {
			const size_t n =
				pieces_within(m->pieces[r], at, m->share);

			if (n)
				b->ops->to_host(b, to, from, n * sizeof(*to));
			m->window[r] = n;
			from += m->pieces[r];
			to += n;
		}
		comm_reduce_scatter(z->comm, m->host, m->window, mine);

		if (m->window[me])
			take(z, dst + at, mine, m->window[me], add);
	}
}

void zero_gather(struct zero *z, const void *mine, void *dst)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;
	const size_t size = b->lp_size;
	const unsigned ranks = z->comm->size, me = z->comm->rank;
	const size_t most = pieces_longest(m->pieces, ranks);

	if (m->device) {
		gather_straight(z, mine, dst);
		return;
	}
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
			if (m->window[r])
				b->ops->to_device(b, to, from, m->window[r]);
			from += m->window[r];
			to += m->pieces[r] * size;
		}
	}
}
