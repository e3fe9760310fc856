/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sys/scratch.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, len)   ((void)(p), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(p, len) ((void)(p), (void)(len))
#endif

/* Nested uses in a read: a window, a cast, a gather, a checksum. */
#define DEPTH_MAX 8

struct buffer {
	void *p;
	size_t room;
};

struct scratch {
	size_t depth; /* buffers in use */
	struct buffer v[DEPTH_MAX];
};

static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void scratch_end(void *arg)
{
	struct scratch *const s = arg;

	for (size_t i = 0; i < DEPTH_MAX; i++)
		free(s->v[i].p);
	free(s);
}

static void make_key(void)
{
	pthread_key_create(&key, scratch_end);
}

static struct scratch *own(void)
{
	struct scratch *s;

	pthread_once(&once, make_key);
	s = pthread_getspecific(key);
	if (!s) {
		s = calloc(1, sizeof(*s));
		if (s && pthread_setspecific(key, s)) {
			free(s);
			s = NULL;
		}
	}
	return s;
}

void *scratch_take(size_t len)
{
	struct scratch *const s = own();
	struct buffer *b;

	if (!s)
		return NULL;
	assert(s->depth < DEPTH_MAX);
	b = &s->v[s->depth];
	if (!b->p || b->room < len) {
		free(b->p);
		b->room = len;
		b->p = malloc(len ? len : 1);
		if (!b->p)
			return NULL;
	}
	s->depth++;
	ASAN_POISON_MEMORY_REGION(b->p, b->room);
	ASAN_UNPOISON_MEMORY_REGION(b->p, len);
	return b->p;
}

void scratch_give(void *p)
{
	struct scratch *const s = p ? own() : NULL;
	struct buffer *b;

	if (!s)
		return;
	assert(s->depth && s->v[s->depth - 1].p == p);
	b = &s->v[--s->depth];
	ASAN_UNPOISON_MEMORY_REGION(b->p, b->room);
}
