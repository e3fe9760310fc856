/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking up files in unions.  What is in no union is passed on as it is, so that a
 * single directory costs no more than before.
 */
#include "ckpt/files/files.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/store.h"
#include "ckpt/files/files_impl.h"
#include "ckpt/files/roots.h"
#include "ckpt/pack/packfs.h"

/* What a search has found so far. */
struct found {
	char *where; /* NULL: nothing */
	struct stat st;
	struct access access;
};

/* Take what one more root has; `where` is owned by it. */
static int found_add(struct found *f, char *where, const struct stat *st,
		     const struct access *access, struct errmsg *err)
{
	int rc = 0;

	if (!f->where) {
		*f = (struct found){ where, *st, *access };
		return 0;
	}
	if (S_ISDIR(st->st_mode) && S_ISDIR(f->st.st_mode))
		access_restrict(&f->access, access);
	else if (st->st_size != f->st.st_size ||
		 (st->st_mode & S_IFMT) != (f->st.st_mode & S_IFMT))
		rc = errmsg_set(err, -EBADMSG,
				"%s (%lld bytes) and %s (%lld bytes) are not"
				" the same file",
				f->where, (long long)f->st.st_size, where,
				(long long)st->st_size);
	free(where);
	return rc;
}

/* Look into every root.  Nothing found is -ENOENT. */
static int search(const char *path, struct found *f, struct errmsg *err)
{
	const size_t n = roots_count(path);
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char *const where = roots_path(path, i);
		struct access access;
		struct stat st;

		if (!where)
			return errmsg_nomem(err, path);
		rc = packfs_stat(where, &st, &access, err);
		if (!rc) {
			rc = found_add(f, where, &st, &access, err);
			continue;
		}
		rc = beneath_is_missing(rc) ? 0 : rc;
		free(where);
	}
	if (!rc && !f->where) /* a message of one root names that one only */
		rc = beneath_fail(path, -ENOENT, err);
	return rc;
}

int files_find(const char *path, char **where, struct stat *st,
	       struct access *access, struct errmsg *err)
{
	struct found f = { 0 };
	const int rc = search(path, &f, err);

	if (rc) {
		free(f.where);
		return rc;
	}
	*st = f.st;
	if (access)
		*access = f.access;
	if (where)
		*where = f.where;
	else
		free(f.where);
	return 0;
}

int files_stat(const char *path, struct stat *st, struct access *access)
{
	return roots_count(path) == 1 ? packfs_stat(path, st, access, NULL)
				      : files_find(path, NULL, st, access, NULL);
}

/* Users that may list a directory and search it. */
static struct access list_access(const struct stat *st, bool has_acl)
{
	struct access a = access_of(st, has_acl);

	a.mode &= st->st_mode;
	return a;
}

void files_restrict_dir(struct stat *st, bool *has_acl,
			const struct stat *other, bool other_acl)
{
	struct access a = list_access(st, *has_acl);
	const struct access b = list_access(other, other_acl);

	access_restrict(&a, &b);
	st->st_uid = a.uid;
	st->st_gid = a.gid;
	st->st_mode = (st->st_mode & ~(mode_t)0777) | a.mode | a.mode >> 2;
	*has_acl = false;
}

/* Merge what one more root has into what was found. */
static int merge_lstat(struct stat *st, bool *has_acl, const struct stat *other,
		       bool other_acl)
{
	if (S_ISDIR(st->st_mode) && S_ISDIR(other->st_mode))
		files_restrict_dir(st, has_acl, other, other_acl);
	else if ((st->st_mode & S_IFMT) != (other->st_mode & S_IFMT) ||
		 st->st_size != other->st_size)
		return -EBADMSG;
	return 0;
}

int files_lstat(const char *path, struct stat *st, bool *has_acl)
{
	const size_t n = roots_count(path);
	bool acl = false, found = false;
	int rc = 0;

	if (n == 1)
		return store_lstat(path, st, has_acl);
	for (size_t i = 0; !rc && i < n; i++) {
		char *const where = roots_path(path, i);
		struct stat one;
		bool one_acl;

		rc = where ? store_lstat(where, &one, &one_acl) : -ENOMEM;
		free(where);
		if (beneath_is_missing(rc)) {
			rc = 0;
		} else if (!rc && found) {
			rc = merge_lstat(st, &acl, &one, one_acl);
		} else if (!rc) {
			*st = one;
			acl = one_acl;
			found = true;
		}
	}
	if (has_acl)
		*has_acl = acl;
	return rc ? rc : found ? 0 : -ENOENT;
}

int files_open_plain(const char *path, int flags)
{
	const size_t n = roots_count(path);
	int rc = -ENOENT;

	if (n == 1)
		return store_open_plain(path, flags);
	for (size_t i = 0; beneath_is_missing(rc) && i < n; i++) {
		char *const where = roots_path(path, i);

		rc = where ? store_open_plain(where, flags) : -ENOMEM;
		free(where);
	}
	return rc;
}

int files_open(struct source *s, const char *path, struct errmsg *err)
{
	struct stat st;
	char *where;
	int rc;

	if (roots_count(path) == 1)
		return packfs_open(s, path, err);
	rc = files_find(path, &where, &st, NULL, err);
	if (rc)
		return rc;
	rc = packfs_open(s, where, err);
	if (!rc)
		s->name = path;
	free(where);
	return rc;
}

int files_open_known(struct source *s, const char *path,
		     const struct fileid *id, struct errmsg *err)
{
	int rc = files_open(s, path, err);

	if (rc || fileid_unchanged(id, &s->id))
		return rc;
	rc = fileid_report_change(path, id, &s->id, err);
	source_close(s);
	return rc;
}

int files_unite(char *const *dirs, size_t n, char **path, struct errmsg *err)
{
	int rc = roots_unite(dirs, n, path, err);

	if (rc)
		return rc;
	for (size_t i = 0;
	     !rc && roots_count(*path) > 1 && i < roots_count(*path); i++) {
		char *const root = roots_path(*path, i);
		struct stat st;

		rc = root ? files_find(root, NULL, &st, NULL, err)
			  : errmsg_nomem(err, NULL);
		free(root);
	}
	if (rc) {
		free(*path);
		*path = NULL;
	}
	return rc;
}
