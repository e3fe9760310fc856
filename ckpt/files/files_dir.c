/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing directories.  Those of a union are read to the end when they are opened:
 * names that several roots have are shown once, and each knows its first root.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/files/files.h"
#include "ckpt/files/files_impl.h"
#include "ckpt/files/roots.h"
#include "ckpt/pack/packfs.h"

struct entry {
	char *name;
	size_t root;
	mode_t type, own_type;
	bool twice; /* other roots have it, too */
};

struct files_dir {
	char *path;
	bool real;
	struct packfs_dir *one; /* NULL: a union */
	const char *name;       /* of `one`, read last */
	/* Of a union: */
	struct entry *v;
	size_t n, cap, next;
	size_t nroots; /* that have the directory */
	struct stat st;
	bool has_acl;
};

static int open_one(const char *path, bool real, struct packfs_dir **out,
		    struct errmsg *err)
{
	return real ? packfs_opendir_real(path, out, err)
		    : packfs_opendir(path, out, err);
}

/* --- unions ------------------------------------------------------------------ */

static int dir_add(struct files_dir *d, const char *name, size_t root,
		   const struct packfs_dir *from)
{
	char *copy;

	if (!array_reserve(&d->v, &d->cap, d->n + 1, sizeof(*d->v)) ||
	    !(copy = strdup(name)))
		return -ENOMEM;
	d->v[d->n++] = (struct entry){ .name = copy,
				       .root = root,
				       .type = packfs_read_type(from),
				       .own_type = packfs_read_own_type(from) };
	return 0;
}

/* Add the names of one root's directory, which closes it. */
static int add_root(struct files_dir *d, size_t root, const char *where,
		    struct packfs_dir *from, struct errmsg *err)
{
	const char *name;
	struct stat st;
	bool has_acl;
	int rc = packfs_dir_stat(from, &st, &has_acl);

	if (rc) {
		beneath_fail(where, rc, err);
	} else if (d->nroots++) {
		files_restrict_dir(&d->st, &d->has_acl, &st, has_acl);
	} else {
		d->st = st;
		d->has_acl = has_acl;
	}
	while (!rc && (name = packfs_readdir(from)))
		if (dir_add(d, name, root, from))
			rc = errmsg_nomem(err, where);
	if (!rc && errno)
		rc = errmsg_errno(err, where, "cannot list");
	packfs_closedir(from);
	return rc;
}

static int by_name(const void *a, const void *b)
{
	const struct entry *const x = a, *const y = b;
	const int order = strcmp(x->name, y->name);

	return order ? order : x->root < y->root ? -1 : 1;
}

/* Keep the first of entries with one name. */
static void merge(struct files_dir *d)
{
	size_t kept = 0;

	if (d->n)
		qsort(d->v, d->n, sizeof(*d->v), by_name);
	for (size_t i = 0; i < d->n; i++)
		if (kept && strcmp(d->v[kept - 1].name, d->v[i].name) == 0) {
			d->v[kept - 1].twice = true;
			free(d->v[i].name);
		} else {
			d->v[kept++] = d->v[i];
		}
	d->n = kept;
}

static int open_union(struct files_dir *d, struct errmsg *err)
{
	const size_t n = roots_count(d->path);
	int missing = -ENOENT, rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char *const where = roots_path(d->path, i);
		struct packfs_dir *from;

		rc = where ? open_one(where, d->real, &from, err)
			   : errmsg_nomem(err, d->path);
		if (!rc) {
			rc = add_root(d, i, where, from, err);
		} else if (beneath_is_missing(rc)) {
			missing = rc;
			rc = 0;
		}
		free(where);
	}
	if (!rc && !d->nroots)
		rc = beneath_fail(d->path, missing, err);
	merge(d);
	return rc;
}

/* --- any directory ------------------------------------------------------------- */

static int open_any(const char *path, bool real, struct files_dir **out,
		    struct errmsg *err)
{
	struct files_dir *const d = calloc(1, sizeof(*d));
	int rc;

	if (d)
		*d = (struct files_dir){ .path = strdup(path), .real = real };
	if (!d || !d->path)
		rc = errmsg_nomem(err, path);
	else if (roots_count(path) > 1)
		rc = open_union(d, err);
	else
		rc = open_one(path, real, &d->one, err);
	if (rc)
		files_closedir(d);
	else
		*out = d;
	return rc;
}

int files_opendir(const char *path, struct files_dir **out, struct errmsg *err)
{
	return open_any(path, false, out, err);
}

int files_opendir_real(const char *path, struct files_dir **out,
		       struct errmsg *err)
{
	return open_any(path, true, out, err);
}

const char *files_readdir(struct files_dir *d)
{
	if (d->one)
		return d->name = packfs_readdir(d->one);
	errno = 0;
	return d->next < d->n ? d->v[d->next++].name : NULL;
}

mode_t files_read_type(const struct files_dir *d)
{
	return d->one ? packfs_read_type(d->one) : d->v[d->next - 1].type;
}

mode_t files_read_own_type(const struct files_dir *d)
{
	return d->one ? packfs_read_own_type(d->one)
		      : d->v[d->next - 1].own_type;
}

int files_read_path(const struct files_dir *d, char **path, struct errmsg *err)
{
	const struct entry *const e = d->one ? NULL : &d->v[d->next - 1];
	char *const dir = e ? roots_path(d->path, e->root) : strdup(d->path);
	char *full = NULL;
	struct stat st;
	int rc = 0;

	if (!dir || asprintf(&full, "%s/%s", e && e->twice ? d->path : dir,
			     e ? e->name : d->name) < 0) {
		free(dir);
		return errmsg_nomem(err, d->path);
	}
	free(dir);
	if (!e || !e->twice) {
		*path = full;
		return 0;
	}
	rc = files_find(full, path, &st, NULL, err);
	free(full);
	return rc;
}

int files_dir_stat(const struct files_dir *d, struct stat *st, bool *has_acl)
{
	if (d->one)
		return packfs_dir_stat(d->one, st, has_acl);
	*st = d->st;
	*has_acl = d->has_acl;
	return 0;
}

void files_closedir(struct files_dir *d)
{
	if (!d)
		return;
	packfs_closedir(d->one);
	for (size_t i = 0; i < d->n; i++)
		free(d->v[i].name);
	free(d->v);
	free(d->path);
	free(d);
}

static int by_version(const void *a, const void *b)
{
	return strverscmp(*(char *const *)a, *(char *const *)b);
}

int files_names(const char *path, char ***names, size_t *n, struct errmsg *err)
{
	struct files_dir *d;
	const char *name;
	char **v = NULL;
	size_t cap = 0;
	int rc = files_opendir(path, &d, err);

	if (rc)
		return rc;
	*n = 0;
	while (!rc && (name = files_readdir(d)))
		if (array_reserve(&v, &cap, *n + 1, sizeof(*v)) &&
		    (v[*n] = strdup(name)))
			++*n;
		else
			rc = errmsg_nomem(err, path);
	if (!rc && errno)
		rc = errmsg_errno(err, path, "cannot list");
	files_closedir(d);
	if (rc) {
		files_names_free(v, *n);
		return rc;
	}
	if (*n)
		qsort(v, *n, sizeof(*v), by_version);
	*names = v;
	return 0;
}

void files_names_free(char **names, size_t n)
{
	while (n)
		free(names[--n]);
	free(names);
}
