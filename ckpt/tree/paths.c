/* SPDX-License-Identifier: Apache-2.0 */
/* Paths by number, and a hash table of them.  Entries are never removed. */
#include "ckpt/tree/paths.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"

struct paths_entry {
	char *path; /* immutable once added */
	uint64_t parent;
};

struct paths {
	struct uckpt *u; /* its lock protects the following members */
	struct paths_entry *v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path */
};

struct paths *paths_new(struct uckpt *u)
{
	struct paths *const t = calloc(1, sizeof(*t));

	if (t)
		t->u = u;
	return t;
}

void paths_free(struct paths *t)
{
	if (!t)
		return;
	for (size_t i = 0; i < t->n; i++)
		free(t->v[i].path);
	free(t->v);
	hashtab_done(&t->index);
	free(t);
}

/* Find or append a path.  The caller holds the lock. */
static int find_or_append(struct paths *t, const char *path, uint64_t parent, uint64_t *index)
{
	const uint64_t hash = hash_text(path);
	uint32_t i;
	char *copy;

	for (size_t pos = 0; hashtab_next(&t->index, hash, &pos, &i);)
		if (strcmp(t->v[i].path, path) == 0) {
			*index = i;
			return 0;
		}
	if (t->n == UINT32_MAX || !array_reserve(&t->v, &t->cap, t->n + 1, sizeof(*t->v)))
		return -ENOMEM;
	copy = strdup(path);
	if (!copy || !hashtab_add(&t->index, hash, (uint32_t)t->n)) {
		free(copy);
		return -ENOMEM;
	}
	*index = t->n;
	t->v[t->n++] = (struct paths_entry){ copy, parent };
	return 0;
}

int paths_add(struct paths *t, const char *path, uint64_t parent, uint64_t *index)
{
	int rc;

	pthread_mutex_lock(&t->u->lock);
	rc = find_or_append(t, path, parent, index);
	pthread_mutex_unlock(&t->u->lock);
	return rc;
}

const char *paths_path(struct paths *t, uint64_t index, uint64_t *parent)
{
	const char *path = NULL;

	pthread_mutex_lock(&t->u->lock);
	if (index < t->n) {
		path = t->v[index].path;
		if (parent)
			*parent = t->v[index].parent;
	}
	pthread_mutex_unlock(&t->u->lock);
	return path;
}
