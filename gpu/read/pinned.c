/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/read/pinned.h"

#include "gpu/backend/backend.h"

static void *take(void *arg)
{
	struct pinned *const m = arg;

	m->p = m->b->ops->host_alloc(m->b, m->bytes);
	return NULL;
}

void pinned_begin(struct pinned *m, struct backend *b, size_t bytes)
{
	*m = (struct pinned){ .b = b, .bytes = bytes };
	m->running = pthread_create(&m->thread, NULL, take, m) == 0;
	if (!m->running)
		take(m);
}

void *pinned_memory(struct pinned *m)
{
	if (m->running)
		pthread_join(m->thread, NULL);
	m->running = false;
	return m->p;
}

void pinned_done(struct pinned *m)
{
	void *const p = pinned_memory(m);

	if (p)
		m->b->ops->host_free(m->b, p);
	*m = (struct pinned){ 0 };
}
