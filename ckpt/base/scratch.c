/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/arena.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, len)   ((void)(p), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(p, len) ((void)(p), (void)(len))
#endif

/* Nested uses in a read: a window, a cast, a gather, a checksum.  What is taken beside so
 * many is not kept. */
#define KEPT_MAX 8

struct buffer {
	/* ALONE: no thread keeps it, so that whoever gives it back frees it. */
	_Atomic enum { FREE, TAKEN, ALONE } state;
	size_t room;
	_Alignas(max_align_t) uint8_t data[];
};

static _Thread_local struct scratch {
	bool ends; /* scratch_end will be called */
	struct buffer *v[KEPT_MAX];
} own;

static pthread_key_t key;

static void scratch_end(void *arg)
{
	const struct scratch *s = arg;

	for (size_t i = 0; i < KEPT_MAX; i++)
		if (s->v[i] && atomic_exchange(&s->v[i]->state, ALONE) == FREE)
			free(s->v[i]);
}

__attribute__((constructor)) static void make_key(void)
{
	pthread_key_create(&key, scratch_end);
}

static struct buffer *buffer_new(size_t len)
{
	struct buffer *b = len < SIZE_MAX / 2 ? malloc(sizeof(*b) + len) : NULL;

	if (b) {
		atomic_init(&b->state, ALONE);
		b->room = len;
	}
	return b;
}

/* Take the first of the thread's buffers that is free, which becomes large enough. */
static struct buffer *take_kept(size_t len)
{
	struct buffer **b = own.v, **end = b + KEPT_MAX;

	while (b < end && *b && atomic_load(&(*b)->state) == TAKEN)
		b++;
	own.ends = own.ends || pthread_setspecific(key, &own) == 0;
	if (b == end || !own.ends)
		return buffer_new(len);
	if (!*b || (*b)->room < len) {
		free(*b);
		*b = buffer_new(len);
	}
	if (*b)
		atomic_store(&(*b)->state, TAKEN);
	return *b;
}

void *scratch_take(size_t len)
{
	struct buffer *b = take_kept(len);

	if (!b)
		return NULL;
	ASAN_POISON_MEMORY_REGION(b->data, b->room);
	ASAN_UNPOISON_MEMORY_REGION(b->data, len);
	return b->data;
}

void scratch_give(void *p)
{
	struct buffer *b;

	if (!p)
		return;
	b = (struct buffer *)((uint8_t *)p - offsetof(struct buffer, data));
	ASAN_UNPOISON_MEMORY_REGION(p, b->room);
	if (atomic_exchange(&b->state, FREE) == ALONE)
		free(b);
}
