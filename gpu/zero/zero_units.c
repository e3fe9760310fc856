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

/* The units that this rank has a part of, from `first` on, before `end`: their
 * number, and one of them in *unit.  A pipeline's other stages have the rest. */
static unsigned count_units(const struct zero *z, unsigned first, unsigned end,
			    unsigned *unit)
{
	unsigned n = 0;

	for (unsigned i = first; i < end; i++)
		if (z->model->units[i].numel) {
			*unit = i;
			n++;
		}
	return n;
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
	const unsigned last = gpt2_unit_last(z->model);
	unsigned block = 0, n;
	int rc = 0;

	*all = (struct unit_buffers){ .size = size };
	/* All blocks are alike.  One is in use, and between devices also the one
	 * that is gathered ahead or reduced meanwhile. */
	n = count_units(z, GPT2_UNIT_BLOCK(0), last, &block);
	for (unsigned i = 0;
	     !rc && i < n && i < (z->impl->group->direct ? 2u : 1u); i++)
		rc = add_buffer(z, all, block, err);
	if (!rc && z->model->units[GPT2_UNIT_EMBED].numel)
		rc = add_buffer(z, all, GPT2_UNIT_EMBED, err);
	if (!rc && z->model->units[last].numel)
		rc = add_buffer(z, all, last, err);
	return rc;
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
