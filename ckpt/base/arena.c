/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bump allocation in blocks that double from 512 bytes to 1 MiB: thousands of
 * shards each have an arena with a few names.  The limit keeps a hostile pickle
 * from turning few bytes of input into much memory; the parser sets it in
 * proportion to the file.
 *
 * With AddressSanitizer each allocation is a separate block, so that overruns are detected.
 */
#include "ckpt/base/arena.h"

#include <assert.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_ALIGN 16
#define ARENA_BLOCK_MIN 512
#define ARENA_BLOCK_MAX (1u << 20)

#if defined(__has_feature) /* clang */
#if __has_feature(address_sanitizer)
#define EXACT true
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define EXACT true
#endif
#ifndef EXACT
#define EXACT false
#endif

struct arena_block {
	struct arena_block *next;
	size_t size; /* payload bytes */
	size_t used;
	size_t pad; /* keeps `data` on ARENA_ALIGN */
	unsigned char data[];
};

static struct arena_block *add_block(struct arena *a, size_t size)
{
	size_t want = a->head ? a->head->size * 2 : ARENA_BLOCK_MIN;

	if (want > ARENA_BLOCK_MAX)
		want = ARENA_BLOCK_MAX;
	if (want < size || EXACT)
		want = size;
	if (want > SIZE_MAX - sizeof(struct arena_block))
		return NULL;
	if (a->limit && (a->used > a->limit || want > a->limit - a->used))
		want = size;
	if (a->limit && (a->used > a->limit || want > a->limit - a->used)) {
		a->refused = true;
		return NULL;
	}

	struct arena_block *b = malloc(sizeof(*b) + want);

	if (!b)
		return NULL;
	b->used = 0;
	b->size = want;
	b->next = a->head;
	a->head = b;
	a->used += want;
	return b;
}

/* Hand out bytes, which are not zeroed. */
static void *take(struct arena *a, size_t size)
{
	struct arena_block *b = a->head;

	if (size > SIZE_MAX / 2) {
		a->failed = true;
		return NULL;
	}
	if (!EXACT)
		size = (size + ARENA_ALIGN - 1) & ~(size_t)(ARENA_ALIGN - 1);
	if (!b || EXACT || size > b->size - b->used) {
		b = add_block(a, size);
		a->failed |= !b;
		if (!b)
			return NULL;
	}
	assert(size <= b->size - b->used);
	b->used += size;
	return b->data + b->used - size;
}

void *arena_alloc(struct arena *a, size_t size)
{
	void *p = take(a, size);

	return p ? memset(p, 0, size) : NULL;
}

void *arena_copy(struct arena *a, const void *from, size_t size)
{
	void *copy = take(a, size);

	if (copy && size)
		memcpy(copy, from, size);
	return copy;
}

char *arena_strdup(struct arena *a, const char *s)
{
	return arena_copy(a, s, strlen(s) + 1);
}

char *arena_strndup(struct arena *a, const char *s, size_t len)
{
	char *copy = take(a, len + 1);

	if (copy && len)
		memcpy(copy, s, len);
	if (copy)
		copy[len] = '\0';
	return copy;
}

char *arena_format(struct arena *a, const char *fmt, ...)
{
	va_list args, again;
	char *out;
	int n;

	va_start(args, fmt);
	va_copy(again, args);
	n = vsnprintf(NULL, 0, fmt, args);
	out = arena_alloc(a, (size_t)n + 1);
	if (out)
		vsnprintf(out, (size_t)n + 1, fmt, again);
	va_end(args);
	va_end(again);
	return out;
}

bool arena_reserve(struct arena *a, void *array, size_t n, size_t *cap,
		   size_t want, size_t elem)
{
	size_t more = *cap ? *cap : 4;
	void *grown, *v;

	assert(elem > 0 && n <= *cap);
	if (want <= *cap)
		return true;
	while (more < want)
		more = more > SIZE_MAX / 2 ? want : more * 2;
	grown = arena_alloc(a, more > SIZE_MAX / elem ? SIZE_MAX : more * elem);
	if (!grown)
		return false;
	/* `array` is a T **: copying the pointer breaks no aliasing rule. */
	memcpy(&v, array, sizeof(v));
	if (n)
		memcpy(grown, v, n * elem);
	memcpy(array, &grown, sizeof(grown));
	*cap = more;
	return true;
}

void arena_done(struct arena *a)
{
	while (a->head) {
		struct arena_block *b = a->head;

		a->head = b->next;
		free(b);
	}
	a->used = 0;
}

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, len)   ((void)(p), (void)(len))
#define ASAN_UNPOISON_MEMORY_REGION(p, len) ((void)(p), (void)(len))
#endif

/* Buffers that one read nests: a window, a cast, a gather, a checksum.  A thread frees any further
 * buffers after use. */
#define KEPT_MAX 8

struct buffer {
	/* ALONE: belongs to no thread; its user frees it. */
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

/* Take the thread's first free buffer, and enlarge it if it is too small. */
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
