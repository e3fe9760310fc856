/* SPDX-License-Identifier: Apache-2.0 */
/* Growing arrays, the only place that doubles a capacity and calls realloc; hash tables. */
#include "ckpt/base/array.h"

#include <assert.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of a new array: many arrays never hold more than a few elements. */
#define FIRST_BYTES 128

bool array_grow(void *array, size_t *cap, size_t want, size_t item)
{
	size_t room = *cap ? *cap : FIRST_BYTES / item;
	void *v;

	assert(item > 0 && want > *cap);
	/* `array` is a T **: copying the pointer breaks no aliasing rule. */
	memcpy(&v, array, sizeof(v));
	assert(!v == !*cap);
	while (room < want)
		room = room == 0 || room > SIZE_MAX / 2 ? want : room * 2;
	/* malloc refuses such sizes, too; a sanitizer's realloc aborts instead. */
	if (room > PTRDIFF_MAX / item)
		return false;
	v = realloc(v, room * item);
	if (!v)
		return false;
	memcpy(array, &v, sizeof(v));
	*cap = room;
	return true;
}

int array_by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

void *array_find(const void *v, size_t n, size_t item, const char *text)
{
	/* C23's bsearch() finds a const item in a const array. */
	return n ? (void *)bsearch(&text, v, n, item, array_by_text) : NULL;
}

size_t interval_find(const uint64_t *starts, size_t n, size_t stride,
		     uint64_t at)
{
	size_t low = 0, high = n;

	while (high - low > 1) {
		const size_t mid = low + (high - low) / 2;
		const void *start = (const char *)starts + mid * stride;

		*(*(const uint64_t *)start <= at ? &low : &high) = mid;
	}
	return low;
}

#define SLOTS_MIN 256

uint64_t hash_bytes(uint64_t hash, const void *p, size_t len)
{
	const uint8_t *bytes = p;

	hash ^= UINT64_C(0xcbf29ce484222325);
	for (size_t i = 0; i < len; i++)
		hash = (hash ^ bytes[i]) * UINT64_C(0x100000001b3);
	return hash;
}

/* The `probe`-th slot of a hash.  Multiplication mixes upwards, so the high half is used. */
static struct hashtab_slot *slot_of(const struct hashtab *t, uint64_t hash,
				    size_t probe)
{
	const uint64_t home = hash ^ hash >> 32;

	return &t->slots[(size_t)(home + probe) & (t->nslots - 1)];
}

bool hashtab_next(const struct hashtab *t, uint64_t hash, size_t *pos,
		  uint32_t *number)
{
	const struct hashtab_slot *s;

	if (!t->nslots)
		return false;
	while ((s = slot_of(t, hash, (*pos)++))->used)
		if (s->hash == hash) {
			*number = s->number;
			return true;
		}
	return false;
}

static void insert(struct hashtab *t, const struct hashtab_slot *new)
{
	size_t probe = 0;

	assert(t->n * 2 <= t->nslots); /* a full table would make the loop endless */
	while (slot_of(t, new->hash, probe)->used)
		probe++;
	*slot_of(t, new->hash, probe) = *new;
}

static bool hashtab_grow(struct hashtab *t)
{
	struct hashtab grown = { .nslots = t->nslots ? t->nslots * 2 : SLOTS_MIN,
				 .n = t->n };

	grown.slots = calloc(grown.nslots, sizeof(*grown.slots));
	if (!grown.slots)
		return false;
	for (size_t i = 0; i < t->nslots; i++)
		if (t->slots[i].used)
			insert(&grown, &t->slots[i]);
	free(t->slots);
	*t = grown;
	return true;
}

bool hashtab_add(struct hashtab *t, uint64_t hash, uint32_t number)
{
	if (t->n * 2 >= t->nslots && !hashtab_grow(t))
		return false;
	t->n++;
	insert(t, &(struct hashtab_slot){ hash, number, true });
	return true;
}

void hashtab_done(struct hashtab *t)
{
	free(t->slots);
	*t = (struct hashtab){ 0 };
}
