/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's reductions of gradients.  GPUs run them in a separate queue, concurrently with the
 * computation of other units.
 */
#include <assert.h>

#include "gpu/comm/pieces.h"
#include "gpu/zero/zero_impl.h"

/* Graphs with collectives of several NCCL communicators are not supported: NVIDIA warns of
 * deadlocks between graphs of different communicators. */
bool zero_is_recorded(const struct zero *z, const char **why)
{
	const struct topology *const ranks = z->ranks;
	const struct devcomm *const device = ranks->replicas_device.direct;

	*why = NULL;
	if (z->impl->exact)
		*why = "sums over ranks are made by hosts";
	else if (ranks->tensor.size > 1 || ranks->sequence.size > 1 || ranks->pipe.size > 1)
		*why = "ranks share a model or its rows";
	else if (device && !devcomm_is_recorded(device))
		*why = "NCCL is older than 2.9.6";
	return !*why;
}

void zero_set_pieces(struct zero *z, size_t param, size_t size)
{
	assert(z->stage == 3 && param < z->model->nparams);
	for (unsigned r = 0; r < z->comm->size; r++)
		z->impl->pieces[r] = partition_fragment(&z->partition, param, r).numel * size;
}

/* Stages 1 and 2: intersect a range of the flat group with each rank's part. */
static void set_pieces_within(struct zero *z, uint64_t start, uint64_t numel)
{
	const uint64_t part = z->local, end = start + numel;

	assert(end <= part * z->partition.ranks);
	for (unsigned r = 0; r < z->comm->size; r++) {
		const uint64_t lo = r * part > start ? r * part : start;
		const uint64_t hi = (r + 1) * part < end ? (r + 1) * part : end;

		z->impl->pieces[r] = lo < hi ? hi - lo : 0;
	}
}

/* A range of a unit's gradient, of which every rank gets a piece; impl->pieces has the lengths. */
struct range {
	uint64_t start; /* offset in the unit */
	uint64_t own;   /* offset of this rank's piece in the unit */
	float *sum;     /* destination of the piece's sum */
};

/* The number of a unit's ranges: one per parameter in stage 3, which partitions each parameter. */
static size_t ranges(const struct zero *z, const struct gpt2_unit *u)
{
	return z->stage == 3 ? u->n : 1;
}

/* Set impl->pieces to the pieces of range i. */
static struct range set_range(struct zero *z, const struct gpt2_unit *u, size_t i)
{
	const struct zero_impl *const m = z->impl;
	struct range r = { .sum = zero_own_gradient(z) };

	if (z->stage == 3) {
		zero_set_pieces(z, u->first + i, 1);
		r.start = z->model->params[u->first + i].start;
		r.sum += z->partition.start[u->first + i];
	} else {
		const uint64_t start = z->partition.start[u->first];
		const uint64_t part = z->part * z->local;

		set_pieces_within(z, start, u->numel);
		if (start > part && m->pieces[z->part])
			r.sum += start - part;
	}
	r.own = r.start + pieces_start(m->pieces, z->comm->rank);
	return r;
}

/* Element `at` of the 16-bit numbers. */
static void *narrow_at(const struct zero *z, uint64_t at)
{
	const struct zero_impl *m = z->impl;

	return (uint8_t *)m->narrow + at * dtype_size(m->comm_dtype);
}

/* Round a unit's gradient to 16 bits, on QUEUE_COMM. */
static void narrow(struct zero *z, const float *gradient, uint64_t n)
{
	struct zero_impl *m = z->impl;
	struct backend *b = z->backend;

	assert(n <= m->nnarrow);
	device_group_follow(m->group);
	b->ops->narrow(b, QUEUE_COMM, m->narrow, m->comm_dtype, gradient, n);
}

/* dst = or, with `add`, += n elements of a rounded gradient, starting at element `at`. */
static void widen(struct zero *z, uint64_t at, float *dst, uint64_t n, bool add)
{
	struct backend *b = z->backend;

	b->ops->cast(b, QUEUE_COMM, dst, narrow_at(z, at), z->impl->comm_dtype, n, add);
}

static void accumulate(struct zero *z, float *dst, const float *src)
{
	const size_t n = z->impl->pieces[z->comm->rank];

	if (n)
		z->backend->ops->accumulate(z->backend, dst, src, n);
}

/* Start the reduction of all ranges of a unit as one operation. */
static void reduce_ranges(struct zero *z, const struct gpt2_unit *u, float *from, bool in_place)
{
	struct zero_impl *const m = z->impl;

	if (z->stage == 3)
		device_group_begin(m->group);
	for (size_t i = 0; i < ranges(z, u); i++) {
		const struct range r = set_range(z, u, i);

		if (m->narrow)
			device_group_reduce_scatter(m->group, narrow_at(z, r.start), m->pieces,
						    m->comm_dtype, narrow_at(z, r.own));
		else
			device_group_reduce_scatter(m->group, from + r.start, m->pieces, DTYPE_F32,
						    in_place ? from + r.own : r.sum);
	}
	if (z->stage == 3)
		device_group_end(m->group);
}

/* Between devices, add the sum so far to this rank's gradient before the reduction, so that no
 * addition remains afterwards.  With 16 bits that would round the sum. */
void zero_reduce_unit(struct zero *z, unsigned unit, float *from, bool add)
{
	const struct gpt2_unit *const u = &z->model->units[unit];
	struct zero_impl *const m = z->impl;
	const bool before = add && !m->narrow && m->group->direct;
	const bool after = add && !m->narrow && !before;

	if (m->narrow)
		narrow(z, from, u->numel);
	for (size_t i = 0; before && i < ranges(z, u); i++) {
		const struct range r = set_range(z, u, i);

		accumulate(z, from + r.own, r.sum);
	}
	reduce_ranges(z, u, from, after);
	for (size_t i = 0; (m->narrow || after) && i < ranges(z, u); i++) {
		const struct range r = set_range(z, u, i);

		if (m->narrow)
			widen(z, r.own, r.sum, m->pieces[z->comm->rank], add);
		else
			accumulate(z, r.sum, from + r.own);
	}
}

/* x = its sum over ranks. */
static void sum(struct zero *z, float *x, uint64_t n)
{
	struct zero_impl *m = z->impl;

	if (!m->narrow) {
		device_group_sum(m->group, x, n, DTYPE_F32);
		return;
	}
	narrow(z, x, n);
	device_group_sum(m->group, m->narrow, n, m->comm_dtype);
	widen(z, 0, x, n, false);
}

void zero_sum_unit(struct zero *z, unsigned unit)
{
	float *const gradient = z->impl->gradient + zero_unit_start(z, unit);

	if (z->stage == 0)
		sum(z, gradient, z->model->units[unit].numel);
	else
		zero_reduce_unit(z, unit, gradient, false);
}
