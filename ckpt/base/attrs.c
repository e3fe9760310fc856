/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/attrs.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"

/*
 * Intersections of permissions.  A virtual file is made of several files, each with its own owner,
 * group and mode; its attributes must give access only to users that may read all of them.
 */

#define OWNER 0400u
#define GROUP 0040u
#define OTHER 0004u

struct permissions permissions_of(const struct stat *st, bool has_acl)
{
	unsigned mode = st->st_mode & 0444;

	if (S_ISDIR(st->st_mode))
		mode = (st->st_mode & 0111) << 2;
	if (has_acl)
		mode &= OWNER;
	return (struct permissions){ st->st_uid, st->st_gid, mode };
}

static bool is_open(const struct permissions *a)
{
	return a->mode == (OWNER | GROUP | OTHER);
}

/* Return the bits for `a`'s group and for others if `b` has another group: a user may be in one
 * group, in both or in none. */
static unsigned bits_with_group_of(const struct permissions *a,
				   const struct permissions *b)
{
	const bool outside = b->mode & GROUP && b->mode & OTHER;

	return outside ? a->mode & (GROUP | OTHER) : 0;
}

void permissions_restrict(struct permissions *a, const struct permissions *b)
{
	const struct permissions x = *a;
	unsigned of_a, of_b;

	assert(!(a->mode & ~0444u) && !(b->mode & ~0444u));
	if (is_open(b))
		return;
	if (is_open(a)) {
		*a = *b;
		return;
	}
	if (x.uid != b->uid) {
		*a = (struct permissions){ geteuid(), getegid(), OWNER };
		return;
	}
	if (x.gid == b->gid) {
		a->mode &= b->mode;
		return;
	}
	of_a = bits_with_group_of(&x, b);
	of_b = bits_with_group_of(b, &x);
	if (of_b && !of_a)
		a->gid = b->gid;
	a->mode = (x.mode & b->mode & OWNER) | (of_a ? of_a : of_b);
	assert(!(a->mode & ~(x.mode | b->mode)));
}

/* Return the users that may list a directory and search it. */
static struct permissions list_access(const struct attrs *dir)
{
	struct permissions a = permissions_of(&dir->st, dir->has_acl);

	a.mode &= dir->st.st_mode;
	return a;
}

void permissions_restrict_dir(struct attrs *a, const struct attrs *b)
{
	struct permissions both = list_access(a);
	const struct permissions other = list_access(b);

	permissions_restrict(&both, &other);
	permissions_restrict(&a->readable_by, &b->readable_by);
	a->st.st_uid = both.uid;
	a->st.st_gid = both.gid;
	a->st.st_mode = (a->st.st_mode & ~(mode_t)0777) | both.mode |
			both.mode >> 2 | permissions_writers(&both, a->st.st_mode);
	a->has_acl = false;
}

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

	return strverscmp(x->name, y->name) ?: ORDER(x->dir, y->dir) ?:
	       S_ISDIR(y->type) - S_ISDIR(x->type);
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
