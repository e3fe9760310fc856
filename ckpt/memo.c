/* SPDX-License-Identifier: Apache-2.0 */
/* A pickler's memo: a hash table of addresses and a short list of names. */
#include "ckpt/memo.h"

#include <stdlib.h>
#include <string.h>

#define SLOTS_MIN 256

static size_t find_slot(const struct memo *m, const void *object)
{
	const uint64_t h = (uint64_t)(uintptr_t)object *
			   UINT64_C(0x9e3779b97f4a7c15);
	size_t i = (size_t)(h >> 32) & (m->nslots - 1);

	while (m->slots[i].object && m->slots[i].object != object)
		i = (i + 1) & (m->nslots - 1);
	return i;
}

bool memo_find(const struct memo *m, const void *object, uint32_t *index)
{
	const struct memo_slot *s;

	if (!m->nslots)
		return false;
	s = &m->slots[find_slot(m, object)];
	if (!s->object)
		return false;
	*index = s->index;
	return true;
}

static bool grow(struct memo *m)
{
	struct memo_slot *const old = m->slots;
	const size_t n = m->nslots;

	if (m->used * 2 < n)
		return true;
	m->nslots = n ? n * 2 : SLOTS_MIN;
	m->slots = calloc(m->nslots, sizeof(*m->slots));
	if (!m->slots) {
		m->slots = old;
		m->nslots = n;
		return false;
	}
	for (size_t i = 0; i < n; i++)
		if (old[i].object)
			m->slots[find_slot(m, old[i].object)] = old[i];
	free(old);
	return true;
}

bool memo_add(struct memo *m, const void *object, uint32_t index)
{
	if (!grow(m))
		return false;
	m->slots[find_slot(m, object)] =
		(struct memo_slot){ .object = object, .index = index };
	m->used++;
	return true;
}

struct memo_entry *memo_intern(struct memo *m, const char *a, const char *b,
			       size_t len)
{
	for (size_t i = 0; i < m->ninterned; i++) {
		struct memo_interned *const e = &m->interned[i];

		if (e->len == len && memcmp(e->b, b, len) == 0 &&
		    !e->a == !a && (!a || strcmp(e->a, a) == 0))
			return &e->entry;
	}
	if (m->ninterned == m->cap) {
		const size_t cap = m->cap ? m->cap * 2 : 32;
		void *const grown = realloc(m->interned,
					    cap * sizeof(*m->interned));

		if (!grown)
			return NULL;
		m->interned = grown;
		m->cap = cap;
	}
	m->interned[m->ninterned] =
		(struct memo_interned){ .a = a, .b = b, .len = len };
	return &m->interned[m->ninterned++].entry;
}

void memo_done(struct memo *m)
{
	free(m->slots);
	free(m->interned);
	*m = (struct memo){ 0 };
}
