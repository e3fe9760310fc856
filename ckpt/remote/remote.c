/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attributes and names.  A path below a site is looked up in the list of its directory, so that a
 * missing name costs no request; the site itself is requested by name, because the directory above
 * it may not be listed.
 *
 * Bytes: parsers read a few at a time, and from few places: small reads are served from cached
 * windows.  Larger ones go to the reader's buffer, in requests of at most HTTP_READ_MAX; callers
 * that read ahead make several at once.
 */
#include "ckpt/remote/remote.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/site.h"

/* Smaller reads fetch an aligned window of this size. */
#define WINDOW (UINT64_C(128) << 10)

/* A device number that no device has. */
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
	/* Most servers redirect to the directory's path with a slash, but not all. */
	return rc == -ENOENT && !s->s3 ? http_head(s, path, true, end, out, err)
				       : rc;
}

/* Find a file or directory, and the site that it is in. */
static int find(struct uckpt *u, const char *path, int64_t end, struct site **site,
		struct http_meta *out, struct errmsg *err)
{
	const char *slash = strrchr(path, '/');
	struct site *s = site_of(u, path);
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

/* Return an inode number that identifies the file's generation. */
static uint64_t generation(const struct http_meta *m)
{
	const char *text = *m->etag ? m->etag : m->modified;

	return XXH3_64bits(text, strlen(text));
}

static int set_attrs(const char *path, const struct http_meta *m,
		     struct attrs *out, struct errmsg *err)
{
	struct stat *st = &out->st;

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
	out->readable_by = permissions_of(st, false);
	out->has_acl = false;
	return 0;
}

int remote_stat(struct uckpt *u, const char *path, struct attrs *out,
		struct errmsg *err)
{
	struct site *s;
	struct http_meta m;
	const int rc = find(u, path, http_deadline(u), &s, &m, err);

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
	int rc = find(u, path, end, &s, &m, err);

	if (!rc && !m.is_dir)
		rc = errmsg_set(err, -ENOTDIR, "%s: cannot open: %s", path,
				strerror(ENOTDIR));
	rc = rc ?: set_attrs(path, &m, &a, err);
	rc = rc ?: remote_list_get(s, path, end, &list, err);
	if (rc)
		return rc;
	rc = dirlist_add_dir(out, path, &a);
	for (size_t i = 0; !rc && i < list->names.n; i++) {
		const struct dirlist_entry *e = &list->names.v[i];

		rc = dirlist_add(out, e->name, e->type, e->type);
	}
	remote_list_put(list);
	return rc ? errmsg_nomem(err, path) : 0;
}

struct remote_file {
	struct site *site;
	char *path;
	struct http_meta meta;
	struct cache *cache; /* cache of windows */
};

static int read_direct(const struct remote_file *f, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	uint8_t *to = buf;
	int rc = 0;

	while (!rc && len) {
		const size_t n = len < HTTP_READ_MAX ? len : HTTP_READ_MAX;

		rc = http_read(f->site, f->path, &f->meta, to, n, off, err);
		to += n;
		off += n;
		len -= n;
	}
	return rc;
}

/* As cache_fill. */
static int fill_window(void *ctx, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	(void)file;
	return read_direct(ctx, buf, len, off, err);
}

static int remote_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	struct remote_file *f = s->ctx;
	const uint64_t from = off - off % WINDOW;
	const uint64_t to = off + len + -(off + len) % WINDOW;

	if (len >= WINDOW)
		return read_direct(f, buf, len, off, err);
	cache_prefetch(f->cache, 0, from, (to < s->size ? to : s->size) - from, WANT_NOW);
	return cache_read(f->cache, 0, buf, len, off, err);
}

static int remote_read_exact(const struct source *s, void *buf, size_t len,
			     uint64_t off, struct errmsg *err)
{
	return read_direct(s->ctx, buf, len, off, err);
}

static void free_file(struct remote_file *f)
{
	if (!f)
		return;
	cache_free(f->cache);
	free(f->path);
	free(f);
}

static void remote_close(struct source *s)
{
	free_file(s->ctx);
}

static int open_file(struct uckpt *u, struct remote_file *f, const char *path,
		     struct attrs *a, struct errmsg *err)
{
	int rc = find(u, path, http_deadline(u), &f->site, &f->meta, err);

	if (!rc && f->meta.is_dir)
		rc = errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	rc = rc ?: set_attrs(path, &f->meta, a, err);
	if (rc)
		return rc;
	f->path = strdup(path);
	f->cache = cache_new(
		u, &(struct cache_config){ .fill = fill_window, .ctx = f });
	return f->path && f->cache ? 0 : errmsg_nomem(err, path);
}

int remote_open(struct uckpt *u, struct source *s, const char *path,
		struct errmsg *err)
{
	static const struct source_ops ops = { .read = remote_read,
					       .read_exact = remote_read_exact,
					       .close = remote_close };
	struct remote_file *f = calloc(1, sizeof(*f));
	struct attrs a;
	const int rc =
		f ? open_file(u, f, path, &a, err) : errmsg_nomem(err, path);

	if (rc) {
		free_file(f);
		return rc;
	}
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	fileid_from_stat(&a.st, &s->id);
	s->size = f->meta.size;
	return 0;
}
