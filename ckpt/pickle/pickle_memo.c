/* SPDX-License-Identifier: Apache-2.0 */
/* A pickler's memo: a hash table of addresses and one of names. */
#include "ckpt/pickle/pickle_memo.h"

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

/* FNV-1a. */
static uint64_t hash_text(uint64_t h, const char *s, size_t len)
{
	for (size_t i = 0; i < len; i++)
		h = (h ^ (uint8_t)s[i]) * UINT64_C(0x100000001b3);
	return h;
}

/* The place of (a, b) in the table of names, or a free one for it. */
static size_t find_name(const struct memo *m, const char *a, const char *b,
			size_t len)
{
	uint64_t h = hash_text(UINT64_C(0xcbf29ce484222325), b, len);
	size_t i;

	if (a)
		h = hash_text(h, a, strlen(a));
	for (i = (size_t)(h ^ h >> 32) & (m->nnames - 1); m->names[i];
	     i = (i + 1) & (m->nnames - 1)) {
		const struct memo_interned *const e =
			&m->interned[m->names[i] - 1];

		if (e->len == len && memcmp(e->b, b, len) == 0 &&
		    !e->a == !a && (!a || strcmp(e->a, a) == 0))
			break;
	}
	return i;
}

static bool grow_names(struct memo *m)
{
	uint32_t *const old = m->names;
	const size_t n = m->nnames;

	if (m->ninterned * 2 < n)
		return true;
	m->nnames = n ? n * 2 : SLOTS_MIN;
	m->names = calloc(m->nnames, sizeof(*m->names));
	if (!m->names) {
		m->names = old;
		m->nnames = n;
		return false;
	}
	for (size_t i = 0; i < m->ninterned; i++) {
		const struct memo_interned *const e = &m->interned[i];

		m->names[find_name(m, e->a, e->b, e->len)] = (uint32_t)i + 1;
	}
	free(old);
	return true;
}

struct memo_entry *memo_intern(struct memo *m, const char *a, const char *b,
			       size_t len)
{
	size_t at;

	if (!grow_names(m))
		return NULL;
	at = find_name(m, a, b, len);
	if (m->names[at])
		return &m->interned[m->names[at] - 1].entry;
	if (m->ninterned == MEMO_INTERNED_MAX)
		return NULL;
	if (m->ninterned == m->cap) {
		const size_t cap = m->cap ? m->cap * 2 : 32;
		void *const grown = realloc(m->interned,
					    cap * sizeof(*m->interned));

		if (!grown)
			return NULL;
		m->interned = grown;
		m->cap = cap;
	}
	m->interned[m->ninterned++] =
		(struct memo_interned){ .a = a, .b = b, .len = len };
	m->names[at] = (uint32_t)m->ninterned;
	return &m->interned[m->ninterned - 1].entry;
}

size_t memo_number(const struct memo *m, const struct memo_entry *e)
{
	const char *const first = (const char *)&m->interned->entry;

	return (size_t)((const char *)e - first) / sizeof(*m->interned);
}

void memo_done(struct memo *m)
{
	free(m->slots);
	free(m->interned);
	free(m->names);
	*m = (struct memo){ 0 };
}
