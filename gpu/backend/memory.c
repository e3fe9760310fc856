/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/backend/memory.h"

#include <stdlib.h>

#include "ckpt/base/array.h"
#include "gpu/backend/backend.h"

static void *take(struct backend_memory *m, size_t bytes, bool pinned)
{
	void *p = NULL;

	if (array_reserve(&m->of, &m->cap, m->n + 1, sizeof(*m->of)))
		p = pinned ? m->b->ops->host_alloc(m->b, bytes) : m->b->ops->alloc(m->b, bytes);
	if (p)
		m->of[m->n++] = (struct backend_block){ p, pinned };
	else
		m->lacking += bytes;
	return p;
}

void *backend_take(struct backend_memory *m, size_t bytes)
{
	m->bytes += bytes;
	return take(m, bytes, false);
}

void *backend_take_pinned(struct backend_memory *m, size_t bytes)
{
	return take(m, bytes, true);
}

void backend_give_back(struct backend_memory *m)
{
	while (m->n) {
		const struct backend_block b = m->of[--m->n];

		if (b.pinned)
			m->b->ops->host_free(m->b, b.p);
		else
			m->b->ops->free(m->b, b.p);
	}
	free(m->of);
	*m = (struct backend_memory){ 0 };
}
