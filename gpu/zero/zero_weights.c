/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network's access to weights and gradients.  Up to stage 2 all weights, and up to stage 1
 * all gradients, have permanent buffers, and a unit is a range in them.  Otherwise a unit has its
 * own buffers while it is in use.
 */
#include <assert.h>

#include "ckpt/base/array.h"
#include "gpu/zero/zero_impl.h"

/*
 * Buffers of units in use.  All buffers that a pass needs at once are allocated at the start: if an
 * allocation failed later on one rank, the others would wait in collectives that this rank does not
 * join.
 */
static void add_buffer(struct zero *z, struct unit_buffers *all, unsigned unit, size_t size)
{
	const uint64_t numel = z->model->units[unit].numel;

	assert(all->n < COUNT(all->of));
	all->of[all->n++] =
		(struct unit_buffer){ .p = backend_take(&z->memory, numel * size), .numel = numel };
}

void unit_buffers_init(struct zero *z, struct unit_buffers *all, size_t size)
{
	const unsigned last = gpt2_unit_last(z->model);
	const struct gpt2_part *const part = &z->model->part;
	const unsigned blocks = part->end_layer - part->first_layer;

	/* All blocks have the same size.  One is in use; between devices another one is gathered
	 * ahead or reduced at the same time. */
	for (unsigned i = 0; i < blocks && i < (z->impl->group->direct ? 2u : 1u); i++)
		add_buffer(z, all, GPT2_UNIT_BLOCK(part->first_layer), size);
	if (z->model->units[GPT2_UNIT_EMBED].numel)
		add_buffer(z, all, GPT2_UNIT_EMBED, size);
	if (z->model->units[last].numel)
		add_buffer(z, all, last, size);
}

/* Take a buffer for a unit, with undefined content.  One must be free. */
static void *unit_buffers_take(const struct zero *z, struct unit_buffers *all, unsigned unit)
{
	const uint64_t numel = z->model->units[unit].numel;
	unsigned i = 0;

	while (i < all->n && (all->of[i].taken || all->of[i].numel != numel))
		i++;
	assert(i < all->n);
	all->of[i].taken = true;
	return all->of[i].p;
}

static void unit_buffers_give(struct unit_buffers *all, const void *p)
{
	unsigned i = 0;

	while (i < all->n && all->of[i].p != p)
		i++;
	assert(i < all->n && all->of[i].taken);
	all->of[i].taken = false;
}

static void gather_unit(struct zero *z, const struct gpt2_unit *unit, uint8_t *weights)
{
	const size_t size = z->backend->act_size;
	const uint8_t *own = z->impl->weights;

	device_group_begin(z->impl->group);
	for (size_t i = unit->first; i < unit->first + unit->n; i++) {
		zero_set_pieces(z, i, size);
		device_group_all_gather(z->impl->group, own + z->partition.start[i] * size,
					z->impl->pieces,
					weights + z->model->params[i].start * size);
	}
	device_group_end(z->impl->group);
}

static void start_gather(struct zero *z, unsigned unit)
{
	struct zero_unit *u = &z->impl->units[unit];

	assert(!u->weights);
	u->weights = unit_buffers_take(z, &z->impl->unit_weights, unit);
	gather_unit(z, &z->model->units[unit], u->weights);
}

/* The network acquires blocks in order, forwards or backwards: gather the next one while the device
 * computes with this one.  Embeddings are too large to gather speculatively. */
static void prefetch_unit(struct zero *z, unsigned unit)
{
	struct zero_impl *m = z->impl;
	const int step = (int)unit - (int)m->last;
	const unsigned next = unit + (unsigned)step;

	m->last = unit;
	if (!m->group->direct || (step != 1 && step != -1) || next < GPT2_UNIT_BLOCK(0) ||
	    next >= gpt2_unit_last(z->model) || m->units[next].weights)
		return;
	start_gather(z, next);
	m->units[next].prefetched = true;
	z->backend->ops->event_record(z->backend, m->arrived, QUEUE_COMM);
}

void zero_discard_prefetch(struct zero *z)
{
	for (unsigned i = 0; i < z->model->nunits; i++) {
		struct zero_unit *u = &z->impl->units[i];

		if (!u->prefetched)
			continue;
		device_group_wait(z->impl->group);
		unit_buffers_give(&z->impl->unit_weights, u->weights);
		*u = (struct zero_unit){ .gradient = u->gradient, .begun = u->begun };
	}
}

static const void *acquire(void *ctx, unsigned unit)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	assert(unit < z->model->nunits);
	if (z->stage < 3)
		return (uint8_t *)z->impl->weights +
		       zero_unit_start(z, unit) * z->backend->act_size;
	if (u->users++)
		return u->weights;
	if (u->prefetched) {
		z->backend->ops->queue_wait(z->backend, QUEUE_COMPUTE, z->impl->arrived);
	} else {
		start_gather(z, unit);
		device_group_wait(z->impl->group);
	}
	u->prefetched = false;
	prefetch_unit(z, unit);
	return u->weights;
}

static void release(void *ctx, unsigned unit)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	assert(z->stage < 3 || u->users);
	if (z->stage < 3 || --u->users)
		return;
	unit_buffers_give(&z->impl->unit_weights, u->weights);
	u->weights = NULL;
}

/* Is a unit's gradient reduced, or summed elsewhere, as soon as it is complete? */
static bool unit_gradients(const struct zero *z)
{
	return !z->whole_gradients || z->impl->exact;
}

static float *zero_weights_gradient(void *ctx, unsigned unit, bool *fresh)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	*fresh = true;
	if (!unit_gradients(z)) {
		*fresh = !u->begun;
		u->begun = true;
		return z->impl->gradient + zero_unit_start(z, unit);
	}
	assert(!u->gradient);
	/* The embeddings have one buffer, which the previous pass may still be using. */
	if (z->impl->reducing_unit == unit)
		zero_release_grad(z);
	u->gradient = unit_buffers_take(z, &z->impl->unit_gradients, unit);
	return u->gradient;
}

void zero_release_grad(struct zero *z)
{
	struct zero_impl *m = z->impl;

	if (!m->reducing)
		return;
	device_group_wait(z->impl->group);
	unit_buffers_give(&m->unit_gradients, m->reducing);
	m->reducing = NULL;
}

/* A unit's gradient is complete.  Between devices its reduction overlaps the computation of the
 * next unit's gradient. */
static void complete(void *ctx, unsigned unit)
{
	struct zero *z = ctx;
	struct zero_unit *u = &z->impl->units[unit];

	if (!unit_gradients(z)) {
		if (z->impl->last_pass && !(unit == GPT2_UNIT_EMBED && zero_shares_embedding(z)))
			zero_sum_unit(z, unit);
		return;
	}
	assert(u->gradient);
	zero_release_grad(z);
	if (z->impl->exact)
		zero_exact_add(z, unit, u->gradient);
	else
		zero_reduce_unit(z, unit, u->gradient, u->begun);
	u->begun = true;
	z->impl->reducing = u->gradient;
	z->impl->reducing_unit = unit;
	u->gradient = NULL;
	if (!z->impl->group->direct)
		zero_release_grad(z);
}

struct network_weights zero_weights(struct zero *z)
{
	return (struct network_weights){
		.ctx = z,
		.acquire = acquire,
		.release = release,
		.gradient = zero_weights_gradient,
		.complete = complete,
	};
}
