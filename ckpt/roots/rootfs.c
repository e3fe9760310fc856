/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/roots/rootfs.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/packfs.h"
#include "ckpt/roots/roots.h"

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

/* Nothing found is -ENOENT. */
int rootfs_stat(struct uckpt *u, const char *path, bool plain, char **where,
		struct attrs *out, struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	struct found f = { 0 };
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		char *const in_root = roots_path(u, path, i);
		struct attrs a;

		rc = in_root ? packfs_stat(u, in_root, plain, &a, err)
			     : errmsg_nomem(err, path);
		if (!rc) {
			rc = found_add(&f, in_root, plain, &a, err);
			continue;
		}
		rc = beneath_is_missing(rc) ? 0 : rc;
		free(in_root);
	}
	if (!rc && !f.where) /* a message of one root names that one only */
		rc = beneath_fail(u, path, -ENOENT, err);
	*out = f.attrs;
	if (where && !rc)
		*where = f.where;
	else
		free(f.where);
	return rc;
}

int rootfs_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err)
{
	struct attrs a;
	char *where;
	int rc;

	if (roots_count(u, path) == 1)
		return packfs_open(u, s, path, err);
	rc = rootfs_stat(u, path, false, &where, &a, err);
	if (rc)
		return rc;
	rc = packfs_open(u, s, where, err);
	if (!rc)
		s->name = path;
	free(where);
	return rc;
}

int rootfs_list(struct uckpt *u, const char *path, bool packs, struct dirlist *out,
		struct errmsg *err)
{
	const size_t n = roots_count(u, path);
	int missing = -ENOENT, rc = 0;

	for (size_t i = 0; !rc && !out->found && i < n; i++) {
		char *const where = roots_path(u, path, i);

		rc = where ? packfs_list(u, where, packs, out, err)
			   : errmsg_nomem(err, path);
		if (beneath_is_missing(rc)) {
			missing = rc;
			rc = 0;
		}
		free(where);
	}
	return rc || out->ndirs ? rc : beneath_fail(u, path, missing, err);
}
