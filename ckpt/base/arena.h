/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_ARENA_H
#define UCKPT_ARENA_H

#include <stdbool.h>
#include <stddef.h>

/*
 * A bump allocator: everything parsed from one file lives in one arena and
 * dies with it.  Zero initialised (with `limit` set) it is empty and valid.
 * Not thread-safe.
 */
struct arena {
	struct arena_block *head;
	size_t used;  /* bytes handed out and block overhead */
	size_t limit; /* most that `used` may reach; 0 means no limit */
	bool refused; /* the limit has refused an allocation */
	bool failed;  /* an allocation has failed: a caller that makes many may check once */
};

/* `size` bytes, 16-aligned and zeroed; NULL when memory or the limit is
 * exhausted. */
void *arena_alloc(struct arena *a, size_t size);

/* A copy of `size` bytes, or of a string.  arena_strndup adds a NUL to `len`
 * bytes.  NULL as arena_alloc. */
void *arena_copy(struct arena *a, const void *from, size_t size);
char *arena_strdup(struct arena *a, const char *s);
char *arena_strndup(struct arena *a, const char *s, size_t len);

/* A formatted string, of any length.  NULL as arena_alloc. */
char *arena_format(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/*
 * Make room for `want` elements of `elem` bytes in an array of which `n` are in
 * use and `*cap` allocated.  `array` is the address of the caller's pointer to
 * it.  An array that grows is moved; the old copy stays in the arena.  False as
 * arena_alloc; the array is then as before.
 */
bool arena_reserve(struct arena *a, void *array, size_t n, size_t *cap,
		   size_t want, size_t elem);

void arena_done(struct arena *a);

/*
 * Temporary buffers for the duration of a call.  Each thread keeps a few buffers until it ends, so
 * that only its first reads allocate memory.
 */

/* Take `len` bytes, uninitialised and aligned as by malloc; NULL when memory runs
 * out. */
void *scratch_take(size_t len);

/* Release a buffer, in any order and on any thread.  `p` may be NULL. */
void scratch_give(void *p);

#endif
