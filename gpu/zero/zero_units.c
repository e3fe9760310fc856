/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buffers of units in use.  All that a pass needs at once are allocated at the start:
 * an allocation that failed later, on one rank, would leave the others waiting in
 * collectives that this rank does not join.
 */
#include <assert.h>
#include <errno.h>

#include "ckpt/base/array.h"
#include "gpu/zero/zero_impl.h"

/* Blocks whose buffers are in use at once: one, and between devices also the one
 * that is gathered ahead or reduced meanwhile. */
static unsigned blocks_at_once(const struct zero *z)
{
	const unsigned blocks = gpt2_unit_last(z->model) - GPT2_UNIT_BLOCK(0);

	return z->impl->device && blocks > 1 ? 2 : 1;
}

static int add_buffer(struct zero *z, struct unit_buffers *all, unsigned unit,
		      struct errmsg *err)
{
	struct unit_buffer *const b = &all->of[all->n];

	assert(all->n < COUNT(all->of));
	b->numel = z->model->units[unit].numel;
	b->p = zero_alloc(z, b->numel, all->size, err);
	if (!b->p)
		return -ENOMEM;
	all->n++;
	return 0;
}

int unit_buffers_init(struct zero *z, struct unit_buffers *all, size_t size,
		      struct errmsg *err)
{
	int rc;

	*all = (struct unit_buffers){ .size = size };
	rc = add_buffer(z, all, GPT2_UNIT_EMBED, err);
	for (unsigned i = 0; !rc && i < blocks_at_once(z); i++)
		rc = add_buffer(z, all, GPT2_UNIT_BLOCK(0), err);
	return rc ? rc : add_buffer(z, all, gpt2_unit_last(z->model), err);
}

void unit_buffers_done(struct zero *z, struct unit_buffers *all)
{
	while (all->n) {
		const struct unit_buffer *const b = &all->of[--all->n];

		zero_free(z, b->p, b->numel, all->size);
	}
}

void *unit_buffers_take(const struct zero *z, struct unit_buffers *all,
			unsigned unit)
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
