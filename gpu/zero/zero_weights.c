/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the network sees of ZeRO: weights that come and go, and a place for
 * gradients.  Up to stage 2 weights are there, up to stage 1 gradients are,
 * and a unit is a part of them.  Otherwise a unit has buffers of its own for
 * as long as it is needed.
 */
#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "gpu/zero/zero_impl.h"

/* Stage 3: each parameter is cut by itself. */
static void set_pieces_of(struct zero *z, size_t param)
{
	for (unsigned r = 0; r < z->comm->size; r++)
		z->impl->pieces[r] =
			partition_fragment(&z->partition, param, r).numel;
}

/* Stage 2: what each rank keeps of a stretch of the group. */
static void set_pieces_within(struct zero *z, uint64_t start, uint64_t numel)
{
	const uint64_t part = z->local, end = start + numel;

	for (unsigned r = 0; r < z->comm->size; r++) {
		const uint64_t lo = r * part > start ? r * part : start;
		const uint64_t hi = (r + 1) * part < end ? (r + 1) * part : end;

		z->impl->pieces[r] = lo < hi ? hi - lo : 0;
	}
}

static void gather_unit(struct zero *z, const struct gpt2_unit *unit,
			uint8_t *weights)
{
	const size_t size = z->backend->lp_size;
	const uint8_t *own = z->impl->weights;

	for (size_t i = unit->first; i < unit->first + unit->n; i++) {
		set_pieces_of(z, i);
		zero_gather(z, own + z->partition.start[i] * size,
			    weights + z->model->params[i].start * size);
	}
}

static int begin_gather(struct zero *z, unsigned unit, struct errmsg *err)
{
	const struct gpt2_unit *shape = &z->model->units[unit];
	struct zero_unit *u = &z->impl->units[unit];

	u->weights = zero_alloc(z, shape->numel, z->backend->lp_size, err);
	if (!u->weights)
		return -ENOMEM;
	gather_unit(z, shape, u->weights);
	return 0;
}

/* Blocks are acquired one after another, this way or that: gather the next
 * while the device computes with this one.  Embeddings are too large to be
 * wrong about.  If there is no memory for it, it will be told in its turn. */
static void gather_ahead(struct zero *z, unsigned unit)
{
	struct zero_impl *m = z->impl;
	const int step = (int)unit - (int)m->last;
	const unsigned next = unit + (unsigned)step;
	struct errmsg none;

	m->last = unit;
	if (!m->device || (step != 1 && step != -1) ||
	    next < GPT2_UNIT_BLOCK(0) || next >= gpt2_unit_last(z->model) ||
	    m->units[next].weights)
		return;
	m->units[next].ahead = begin_gather(z, next, &none) == 0;
	z->backend->ops->event_record(z->backend, m->arrived, QUEUE_COMM);
}

void zero_drop_ahead(struct zero *z)
{
	for (unsigned i = 0; i < z->model->nunits; i++) {
		struct zero_unit *u = &z->impl->units[i];

		if (!u->ahead)
			continue;
		zero_join(z);
		zero_free(z, u->weights, z->model->units[i].numel,
			  z->backend->lp_size);
		*u = (struct zero_unit){ .gradient = u->gradient };
	}
}

static const void *acquire(void *ctx, unsigned unit, struct errmsg *err)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	if (z->stage < 3)
		return (uint8_t *)z->impl->weights +
		       zero_unit_start(z, unit) * z->backend->lp_size;
	if (u->users++)
		return u->weights;
	if (u->ahead) {
		z->backend->ops->queue_wait(z->backend, QUEUE_COMPUTE,
					    z->impl->arrived);
	} else if (begin_gather(z, unit, err)) {
		u->users = 0;
		return NULL;
	} else {
		zero_join(z);
	}
	u->ahead = false;
	gather_ahead(z, unit);
	return u->weights;
}

static void release(void *ctx, unsigned unit)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	if (z->stage < 3 || --u->users)
		return;
	zero_free(z, u->weights, z->model->units[unit].numel,
		  z->backend->lp_size);
	u->weights = NULL;
}

/* Is a unit's gradient cut up, or kept elsewhere, when it is complete? */
static bool gradients_leave(const struct zero *z)
{
	return z->stage >= 2 || z->impl->exact;
}

static float *gradient(void *ctx, unsigned unit, struct errmsg *err)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	if (!gradients_leave(z))
		return z->impl->gradient + zero_unit_start(z, unit);
	u->gradient = zero_alloc(z, z->model->units[unit].numel,
				 sizeof(*u->gradient), err);
	return u->gradient;
}

/* The sum of a stretch of the group, to what this rank keeps of it in `own`,
 * which has our part. */
static void reduce_stretch(struct zero *z, uint64_t start, uint64_t numel,
			   float *from, float *own, bool add)
{
	const uint64_t part = z->part * z->local;

	set_pieces_within(z, start, numel);
	if (start > part && z->impl->pieces[z->part])
		own += start - part;
	zero_reduce(z, from, own, add);
}

/* A unit of a gradient that is all there. */
static void sum_unit(struct zero *z, uint64_t start, uint64_t numel)
{
	float *gradient = z->impl->gradient;

	if (z->stage == 0)
		zero_reduce_all(z, gradient + start, numel);
	else
		reduce_stretch(z, start, numel, gradient + start,
			       gradient + z->part * z->local, false);
}

static void reduce_unit(struct zero *z, const struct gpt2_unit *unit,
			float *from)
{
	float *to = z->impl->gradient;

	if (z->stage == 2) {
		reduce_stretch(z, z->partition.start[unit->first], unit->numel,
			       from, to, true);
		return;
	}
	for (size_t i = unit->first; i < unit->first + unit->n; i++) {
		set_pieces_of(z, i);
		zero_reduce(z, from + z->model->params[i].start,
			    to + z->partition.start[i], true);
	}
}

void zero_let_leave(struct zero *z)
{
	struct zero_impl *m = z->impl;

	if (!m->leaving)
		return;
	zero_join(z);
	zero_free(z, m->leaving, m->nleaving, sizeof(*m->leaving));
	m->leaving = NULL;
}

/* The sum goes on while the next unit's gradient is computed. */
static int complete(void *ctx, unsigned unit, struct errmsg *err)
{
	struct zero *z = ctx;
	const struct gpt2_unit *shape = &z->model->units[unit];
	struct zero_unit *u = &z->impl->units[unit];

	(void)err;
	if (!gradients_leave(z)) {
		if (z->impl->device && z->impl->last_pass)
			sum_unit(z, zero_unit_start(z, unit), shape->numel);
		return 0;
	}
	zero_let_leave(z);
	if (z->impl->exact)
		zero_exact_add(z, unit, u->gradient);
	else
		reduce_unit(z, shape, u->gradient);
	z->impl->leaving = u->gradient;
	z->impl->nleaving = shape->numel;
	u->gradient = NULL;
	if (!z->impl->device)
		zero_let_leave(z);
	return 0;
}

struct network_weights zero_weights(struct zero *z)
{
	return (struct network_weights){
		.ctx = z,
		.acquire = acquire,
		.release = release,
		.gradient = gradient,
		.complete = complete,
	};
}
