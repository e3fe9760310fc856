/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One way down to files: the roots of a union, and of each root what is really there
 * before what is packed, and that before what is made of a distributed checkpoint.  A
 * path in no union is its own only root.
 */
#include "ckpt/files/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/context.h"
#include "ckpt/cache/cache.h"
#include "ckpt/dcp/dcp.h"
#include "ckpt/dcp/dcpfs.h"
#include "ckpt/files/roots.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pack/pack.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"

struct uckpt *context_new(void)
{
	struct uckpt *const u = calloc(1, sizeof(*u));

	if (!u)
		return NULL;
	pthread_mutex_init(&u->lock, NULL);
	u->remote.deadline_s = REMOTE_DEADLINE_S;
	u->cache = cache_pool_new(u);
	if (u->cache)
		return u;
	context_free(u);
	return NULL;
}

void context_free(struct uckpt *u)
{
	if (!u)
		return;
	dcp_close_kept(u);
	pack_close_kept(u);
	remote_lists_done(u);
	sites_done(u);
	remote_options_done(u);
	roots_done(u);
	beneath_done(u);
	cache_pool_free(u->cache);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

/* What a search has found so far. */
struct found {
	char *where; /* NULL: nothing */
	struct attrs attrs;
};

/* Add what one more root has; `where` becomes the search's. */
static int found_add(struct found *f, char *where, bool plain,
		     const struct attrs *a, struct errmsg *err)
{
	const struct stat *const st = &a->st, *const first = &f->attrs.st;
	int rc = 0;

	if (!f->where) {
		*f = (struct found){ where, *a };
		return 0;
	}
	if (!S_ISDIR(st->st_mode) || !S_ISDIR(first->st_mode)) {
		if (st->st_size != first->st_size ||
		    (st->st_mode & S_IFMT) != (first->st_mode & S_IFMT))
			rc = errmsg_set(err, -EBADMSG,
					"%s (%lld bytes) and %s (%lld bytes) are"
					" not the same file",
					f->where, (long long)first->st_size,
					where, (long long)st->st_size);
	} else if (plain) {
		access_restrict_dir(&f->attrs, a);
	} else {
		access_restrict(&f->attrs.access, &a->access);
	}
	free(where);
	return rc;
}

/* Look into every root, and find the path in the first that has the file.  Nothing
 * found is -ENOENT. */
static int search(struct uckpt *u, const char *path, bool plain,
		  struct found *f, struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	int rc = 0;

	*f = (struct found){ 0 };
	for (size_t i = 0; !rc && i < n; i++) {
		char *const where = roots_path(u, path, i);
		struct attrs a;

		rc = where ? dcpfs_stat(u, where, plain, &a, err)
			   : errmsg_nomem(err, path);
		if (!rc) {
			rc = found_add(f, where, plain, &a, err);
			continue;
		}
		rc = beneath_is_missing(rc) ? 0 : rc;
		free(where);
	}
	if (!rc && !f->where) /* a message of one root names that one only */
		rc = beneath_fail(u, path, -ENOENT, err);
	if (rc)
		free(f->where);
	return rc;
}

int files_find(struct uckpt *u, const char *path, char **where, struct stat *st,
	       struct access *access, struct errmsg *err)
{
	struct found f;
	const int rc = search(u, path, false, &f, err);

	if (rc)
		return rc;
	*st = f.attrs.st;
	if (access)
		*access = f.attrs.access;
	if (where)
		*where = f.where;
	else
		free(f.where);
	return 0;
}

int files_stat(struct uckpt *u, const char *path, struct stat *st,
	       struct access *access)
{
	return files_find(u, path, NULL, st, access, NULL);
}

int files_lstat(struct uckpt *u, const char *path, struct attrs *out)
{
	struct found f;
	const int rc = search(u, path, true, &f, NULL);

	if (rc)
		return rc;
	*out = f.attrs;
	free(f.where);
	return 0;
}

int files_open_plain(struct uckpt *u, const char *path, int flags)
{
	const size_t n = roots_count(u, path);
	int rc = -ENOENT;

	for (size_t i = 0; beneath_is_missing(rc) && i < n; i++) {
		char *const where = roots_path(u, path, i);

		rc = !where ? -ENOMEM
		     : site_is_url(where)
			     ? -EREMOTE
			     : beneath_open(u, where, flags | O_NOFOLLOW);
		free(where);
	}
	return rc;
}

int files_open(struct uckpt *u, struct source *s, const char *path,
	       struct errmsg *err)
{
	struct stat st;
	char *where;
	int rc;

	if (roots_count(u, path) == 1)
		return dcpfs_open(u, s, path, err);
	rc = files_find(u, path, &where, &st, NULL, err);
	if (rc)
		return rc;
	rc = dcpfs_open(u, s, where, err);
	if (!rc)
		s->name = path;
	free(where);
	return rc;
}

int files_open_known(struct uckpt *u, struct source *s, const char *path,
		     const struct fileid *id, struct errmsg *err)
{
	const int rc = files_open(u, s, path, err);

	return rc ? rc : source_check_known(s, id, err);
}

int files_open_pt(struct uckpt *u, struct ptfile *pt, const char *path,
		  struct errmsg *err)
{
	struct source src;
	const int rc = files_open(u, &src, path, err);

	return rc ? rc : ptfile_open_source(pt, &src, err);
}

/* Add the entries of every root that has the directory. */
static int list_roots(struct uckpt *u, const char *path, bool packs,
		      struct dirlist *out, struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	int missing = -ENOENT, rc = 0;

	for (size_t i = 0; !rc && !out->found && i < n; i++) {
		char *const where = roots_path(u, path, i);

		rc = where ? dcpfs_list(u, where, packs, out, err)
			   : errmsg_nomem(err, path);
		if (beneath_is_missing(rc)) {
			missing = rc;
			rc = 0;
		}
		free(where);
	}
	return rc || out->ndirs ? rc : beneath_fail(u, path, missing, err);
}

int files_list(struct uckpt *u, const char *path, bool packs,
	       struct dirlist *out, struct errmsg *err)
{
	int rc;

	*out = (struct dirlist){ 0 };
	rc = list_roots(u, path, packs, out, err);
	if (!rc && dirlist_finish(out, path))
		rc = errmsg_nomem(err, path);
	if (rc)
		dirlist_done(out);
	return rc;
}

bool files_has(struct uckpt *u, const char *path,
	       bool (*wanted)(const char *name))
{
	struct dirlist l = { .wanted = wanted };
	const int rc = list_roots(u, path, true, &l, NULL);
	const bool found = l.found;

	dirlist_done(&l);
	return !rc && found;
}

int files_unite(struct uckpt *u, const char *const *dirs, size_t n, char **path,
		struct errmsg *err)
{
	int rc = roots_unite(u, dirs, n, false, path, err);

	if (rc)
		return rc;
	for (size_t i = 0;
	     !rc && roots_count(u, *path) > 1 && i < roots_count(u, *path); i++) {
		struct stat st;

		rc = files_find(u, roots_root(u, *path, i), NULL, &st, NULL,
				err);
	}
	if (rc) {
		free(*path);
		*path = NULL;
	}
	return rc;
}
