/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes and names.  A path below a site is looked up in the list of its
 * directory, so that what is not there costs no request; the site itself, above
 * which nothing may be listed, is asked for by name.
 */
#include "ckpt/remote/remote.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/context.h"
#include "ckpt/remote/site.h"

/* No device has such a number. */
#define DEV UINT64_C(0x75636673666172)

/* The source itself is a directory if it can be listed, or else a file. */
static int find_top(struct site *s, const char *path, int64_t end,
		    struct http_meta *out, struct errmsg *err)
{
	const bool has_manifest = s->u->remote.manifest;
	struct remote_list *list;
	int rc;

	if (has_manifest || s->s3) {
		rc = remote_list_get(s, path, end, &list, err);
		if (!rc) {
			remote_list_put(list);
			*out = (struct http_meta){ .is_dir = true };
		}
		if (rc != -ENOENT || has_manifest || !*site_key(s, path))
			return rc;
	}
	rc = http_head(s, path, false, end, out, err);
	/* Most servers redirect to a directory's slash, but not all. */
	return rc == -ENOENT && !s->s3 ? http_head(s, path, true, end, out, err)
				       : rc;
}

int remote_find(struct uckpt *u, const char *path, int64_t end,
		struct site **site, struct http_meta *out, struct errmsg *err)
{
	const char *const slash = strrchr(path, '/');
	struct site *const s = site_of(u, path);
	struct remote_list *list;
	char *dir;
	int rc;

	*site = s;
	if (!s)
		return errmsg_set(err, -ENOENT, "%s: cannot open: %s", path,
				  strerror(ENOENT));
	if (strcmp(path, s->path) == 0)
		return find_top(s, path, end, out, err);
	dir = strndup(path, (size_t)(slash - path));
	if (!dir)
		return errmsg_nomem(err, path);
	rc = remote_list_get(s, dir, end, &list, err);
	free(dir);
	if (rc)
		return rc;
	rc = remote_list_meta(s, list, slash + 1, end, out, err);
	remote_list_put(list);
	return rc;
}

/* The file's generation is its inode number. */
static uint64_t generation(const struct http_meta *m)
{
	const char *const text = *m->etag ? m->etag : m->modified;

	return XXH3_64bits(text, strlen(text));
}

int remote_set_stat(const char *path, const struct http_meta *m,
		    struct stat *st, struct errmsg *err)
{
	if (m->size > INT64_MAX)
		return errmsg_set(err, -EFBIG, "%s: is too large", path);
	*st = (struct stat){
		.st_dev = DEV,
		.st_ino = generation(m),
		.st_mode = m->is_dir ? S_IFDIR | 0755 : S_IFREG | 0644,
		.st_nlink = m->is_dir ? 2 : 1,
		.st_uid = geteuid(),
		.st_gid = getegid(),
		.st_size = (off_t)m->size,
		.st_blksize = 1 << 20,
		.st_blocks = (blkcnt_t)((m->size + 511) / 512),
	};
	st->st_mtim.tv_sec = st->st_ctim.tv_sec = st->st_atim.tv_sec =
		m->mtime_s;
	return 0;
}

static int set_attrs(const char *path, const struct http_meta *m,
		     struct attrs *out, struct errmsg *err)
{
	const int rc = remote_set_stat(path, m, &out->st, err);

	if (rc)
		return rc;
	out->access = access_of(&out->st, false);
	out->has_acl = false;
	return 0;
}

int remote_stat(struct uckpt *u, const char *path, struct attrs *out,
		struct errmsg *err)
{
	struct site *s;
	struct http_meta m;
	const int rc = remote_find(u, path, http_deadline(u), &s, &m, err);

	return rc ? rc : set_attrs(path, &m, out, err);
}

int remote_list(struct uckpt *u, const char *path, struct dirlist *out,
		struct errmsg *err)
{
	const int64_t end = http_deadline(u);
	struct site *s;
	struct remote_list *list;
	struct http_meta m;
	struct attrs a;
	int rc = remote_find(u, path, end, &s, &m, err);

	if (!rc && !m.is_dir)
		rc = errmsg_set(err, -ENOTDIR, "%s: cannot open: %s", path,
				strerror(ENOTDIR));
	rc = rc ?: set_attrs(path, &m, &a, err);
	rc = rc ?: remote_list_get(s, path, end, &list, err);
	if (rc)
		return rc;
	rc = dirlist_add_dir(out, path, &a);
	for (size_t i = 0; !rc && i < list->names.n; i++) {
		const struct dirlist_entry *const e = &list->names.v[i];

		rc = dirlist_add(out, e->name, e->type, e->type);
	}
	remote_list_put(list);
	return rc ? errmsg_nomem(err, path) : 0;
}
