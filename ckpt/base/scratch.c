/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/scratch.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, len)   ((void)(p), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(p, len) ((void)(p), (void)(len))
#endif

/* Nested uses in a read: a window, a cast, a gather, a checksum. */
#define DEPTH_MAX 8

static _Thread_local struct scratch {
	bool kept;    /* scratch_end frees the buffers */
	size_t depth; /* buffers in use */
	struct buffer {
		void *p;
		size_t room;
	} v[DEPTH_MAX];
} own;

static pthread_key_t key;

static void scratch_end(void *arg)
{
	const struct scratch *const s = arg;

	for (size_t i = 0; i < DEPTH_MAX; i++)
		free(s->v[i].p);
}

__attribute__((constructor)) static void make_key(void)
{
	pthread_key_create(&key, scratch_end);
}

void *scratch_take(size_t len)
{
	struct buffer *const b = &own.v[own.depth];

	assert(own.depth < DEPTH_MAX);
	own.kept = own.kept || pthread_setspecific(key, &own) == 0;
	if (!own.kept)
		return NULL;
	if (!b->p || b->room < len) {
		free(b->p);
		b->room = len;
		b->p = malloc(len ? len : 1);
		if (!b->p)
			return NULL;
	}
	own.depth++;
	ASAN_POISON_MEMORY_REGION(b->p, b->room);
	ASAN_UNPOISON_MEMORY_REGION(b->p, len);
	return b->p;
}

void scratch_give(void *p)
{
	if (!p)
		return;
	assert(own.depth && own.v[own.depth - 1].p == p);
	own.depth--;
	ASAN_UNPOISON_MEMORY_REGION(p, own.v[own.depth].room);
}
