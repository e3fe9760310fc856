/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/dirlist.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"

static int add_path(struct dirlist *l, const char *path)
{
	char **dirs = realloc(l->dirs, (l->ndirs + 1) * sizeof(*dirs));

	if (!dirs)
		return -ENOMEM;
	l->dirs = dirs;
	dirs[l->ndirs] = strdup(path);
	return dirs[l->ndirs] ? (l->ndirs++, 0) : -ENOMEM;
}

int dirlist_add_dir(struct dirlist *l, const char *path, const struct attrs *a)
{
	if (l->ndirs)
		permissions_restrict_dir(&l->attrs, a);
	else
		l->attrs = *a;
	return add_path(l, path);
}

int dirlist_add(struct dirlist *l, const char *name, mode_t type,
		mode_t own_type)
{
	struct dirlist_entry e = { .dir = l->ndirs - 1,
				   .type = type,
				   .own_type = own_type };

	if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
		return 0;
	e.name = strdup(name);
	if (!e.name || !array_reserve(&l->v, &l->cap, l->n + 1, sizeof(e))) {
		free(e.name);
		return -ENOMEM;
	}
	l->v[l->n++] = e;
	l->found |= l->wanted && l->wanted(name);
	return 0;
}

static int by_name(const void *a, const void *b)
{
	const struct dirlist_entry *x = a, *y = b;
	const int order = strverscmp(x->name, y->name);

	if (order)
		return order;
	return x->dir != y->dir ? (x->dir < y->dir ? -1 : 1)
				: S_ISDIR(y->type) - S_ISDIR(x->type);
}

static void entry_done(struct dirlist_entry *e)
{
	free(e->name);
	free(e->more);
}

void dirlist_sort(struct dirlist *l, size_t whole)
{
	size_t kept = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
	for (size_t i = 0; i < l->n; i++)
		if (kept && strcmp(l->v[kept - 1].name, l->v[i].name) == 0) {
			l->v[kept - 1].dir = whole;
			entry_done(&l->v[i]);
		} else {
			l->v[kept++] = l->v[i];
		}
	l->n = kept;
}

int dirlist_finish(struct dirlist *l, const char *whole)
{
	if (add_path(l, whole))
		return -ENOMEM;
	dirlist_sort(l, l->ndirs - 1);
	return 0;
}

static int compare_name(const void *name, const void *entry)
{
	return strverscmp(name, ((const struct dirlist_entry *)entry)->name);
}

struct dirlist_entry *dirlist_find(const struct dirlist *l, const char *name)
{
	return l->n ? bsearch(name, l->v, l->n, sizeof(*l->v), compare_name)
		    : NULL;
}

void dirlist_done(struct dirlist *l)
{
	while (l->n)
		entry_done(&l->v[--l->n]);
	while (l->ndirs)
		free(l->dirs[--l->ndirs]);
	free(l->v);
	free(l->dirs);
	*l = (struct dirlist){ 0 };
}
