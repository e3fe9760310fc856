/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table from paths to numbers that only ever grows. */
#include "fs/tree/pathtab.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct real {
	char *path; /* immutable once there */
	uint64_t parent;
};

struct reals {
	pthread_mutex_t lock; /* protects all below */
	struct real *v;
	size_t n, cap;
	size_t *buckets; /* index + 1; 0 is empty */
	size_t nbuckets;
};

struct reals *reals_new(void)
{
	struct reals *const r = calloc(1, sizeof(*r));

	if (r)
		pthread_mutex_init(&r->lock, NULL);
	return r;
}

void reals_free(struct reals *r)
{
	if (!r)
		return;
	for (size_t i = 0; i < r->n; i++)
		free(r->v[i].path);
	free(r->v);
	free(r->buckets);
	pthread_mutex_destroy(&r->lock);
	free(r);
}

static size_t hash(const char *s)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325); /* FNV-1a */

	for (; *s; s++)
		h = (h ^ (unsigned char)*s) * UINT64_C(0x100000001b3);
	return (size_t)(h ^ h >> 32);
}

/* Where `path` is, or where it would go. */
static size_t *find(struct reals *r, const char *path)
{
	size_t i = hash(path) & (r->nbuckets - 1);

	while (r->buckets[i] &&
	       strcmp(r->v[r->buckets[i] - 1].path, path) != 0)
		i = (i + 1) & (r->nbuckets - 1);
	return &r->buckets[i];
}

static bool grow(struct reals *r)
{
	size_t *const old = r->buckets;
	const size_t n = r->nbuckets;

	if (r->n == r->cap) {
		const size_t cap = r->cap ? r->cap * 2 : 64;
		void *const v = realloc(r->v, cap * sizeof(*r->v));

		if (!v)
			return false;
		r->v = v;
		r->cap = cap;
	}
	if (r->n * 2 < n)
		return true;
	r->nbuckets = n ? n * 2 : 256;
	r->buckets = calloc(r->nbuckets, sizeof(*r->buckets));
	if (!r->buckets) {
		r->buckets = old;
		r->nbuckets = n;
		return false;
	}
	for (size_t i = 0; i < r->n; i++)
		*find(r, r->v[i].path) = i + 1;
	free(old);
	return true;
}

int reals_add(struct reals *r, const char *path, uint64_t parent,
	      uint64_t *index)
{
	int rc = -ENOMEM;

	pthread_mutex_lock(&r->lock);
	if (grow(r)) {
		size_t *const slot = find(r, path);

		if (*slot == 0) {
			char *const copy = strdup(path);

			if (!copy)
				goto out;
			r->v[r->n] = (struct real){ copy, parent };
			*slot = ++r->n;
		}
		*index = *slot - 1;
		rc = 0;
	}
out:
	pthread_mutex_unlock(&r->lock);
	return rc;
}

const char *reals_path(struct reals *r, uint64_t index, uint64_t *parent)
{
	const char *path = NULL;

	pthread_mutex_lock(&r->lock);
	if (index < r->n) {
		path = r->v[index].path;
		if (parent)
			*parent = r->v[index].parent;
	}
	pthread_mutex_unlock(&r->lock);
	return path;
}
