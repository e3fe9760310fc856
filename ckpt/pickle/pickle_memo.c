/* SPDX-License-Identifier: Apache-2.0 */
/* A pickler's memo: a hash table of addresses and one of names. */
#include "ckpt/pickle/pickle_memo.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"

/* Different addresses have different hashes, so the first find is right. */
static uint64_t hash_object(const void *object)
{
	return hash_number((uint64_t)(uintptr_t)object);
}

bool pickle_memo_find(const struct pickle_memo *m, const void *object,
		      uint32_t *index)
{
	size_t pos = 0;

	return hashtab_next(&m->objects, hash_object(object), &pos, index);
}

bool pickle_memo_add(struct pickle_memo *m, const void *object, uint32_t index)
{
	return hashtab_add(&m->objects, hash_object(object), index);
}

static bool says(const struct pickle_memo_interned *e, const char *a,
		 const char *b, size_t len)
{
	return e->len == len && memcmp(e->b, b, len) == 0 && !e->a == !a &&
	       (!a || strcmp(e->a, a) == 0);
}

struct pickle_memo_entry *pickle_memo_intern(struct pickle_memo *m,
					     const char *a, const char *b,
					     size_t len)
{
	const uint64_t hash =
		hash_bytes(a ? hash_bytes(0, a, strlen(a)) : 0, b, len);
	size_t pos = 0;
	uint32_t i;

	while (hashtab_next(&m->names, hash, &pos, &i))
		if (says(&m->interned[i], a, b, len))
			return &m->interned[i].entry;
	if (!array_reserve(&m->interned, &m->cap, m->ninterned + 1,
			   sizeof(*m->interned)) ||
	    !hashtab_add(&m->names, hash, (uint32_t)m->ninterned))
		return NULL;
	m->interned[m->ninterned] =
		(struct pickle_memo_interned){ .a = a, .b = b, .len = len };
	return &m->interned[m->ninterned++].entry;
}

size_t pickle_memo_number(const struct pickle_memo *m,
			  const struct pickle_memo_entry *e)
{
	const char *const first = (const char *)&m->interned->entry;
	const size_t i =
		(size_t)((const char *)e - first) / sizeof(*m->interned);

	assert(i < m->ninterned && e == &m->interned[i].entry);
	return i;
}

void pickle_memo_done(struct pickle_memo *m)
{
	hashtab_done(&m->objects);
	hashtab_done(&m->names);
	free(m->interned);
	*m = (struct pickle_memo){ 0 };
}
