/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of units in use.  All that a pass needs at once are allocated at the start: an
 * allocation that failed later, on one rank, would leave the others waiting in collectives that
 * this rank does not join.
 */
#include <assert.h>

#include "ckpt/base/array.h"
#include "gpu/zero/zero_impl.h"

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

	/* All blocks are alike.  One is in use, and between devices also the one that is gathered
	 * ahead or reduced meanwhile. */
	for (unsigned i = 0; i < blocks && i < (z->impl->group->direct ? 2u : 1u); i++)
		add_buffer(z, all, GPT2_UNIT_BLOCK(part->first_layer), size);
	if (z->model->units[GPT2_UNIT_EMBED].numel)
		add_buffer(z, all, GPT2_UNIT_EMBED, size);
	if (z->model->units[last].numel)
		add_buffer(z, all, last, size);
}

void *unit_buffers_take(const struct zero *z, struct unit_buffers *all, unsigned unit)
{
	const uint64_t numel = z->model->units[unit].numel;
	unsigned i = 0;

	while (i < all->n && (all->of[i].taken || all->of[i].numel != numel))
		i++;
	assert(i < all->n);
	all->of[i].taken = true;
	return all->of[i].p;
}

void unit_buffers_give(struct unit_buffers *all, const void *p)
{
	unsigned i = 0;

	while (i < all->n && all->of[i].p != p)
		i++;
	assert(i < all->n && all->of[i].taken);
	all->of[i].taken = false;
}
