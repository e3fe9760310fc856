/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a server's file.
 *
 * Parsers read a few bytes at a time, and from few places: small reads are served from
 * cached windows.  Larger ones go to the reader's buffer, in requests of at most
 * HTTP_READ_MAX; callers that read ahead make several at once.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cache/cache.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

/* Smaller reads have a window of this size fetched, aligned to it. */
#define WINDOW (UINT64_C(128) << 10)

struct remote_file {
	struct site *site;
	char *path;
	struct http_meta meta;
	struct cache *cache; /* of windows */
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
	struct remote_file *const f = s->ctx;
	const uint64_t from = off - off % WINDOW;
	const uint64_t to = off + len + -(off + len) % WINDOW;

	if (len >= WINDOW)
		return read_direct(f, buf, len, off, err);
	cache_want(f->cache, 0, from, (to < s->size ? to : s->size) - from,
		   CACHE_KEEP);
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
		     struct stat *st, struct errmsg *err)
{
	int rc = remote_find(u, path, http_deadline(u), &f->site, &f->meta, err);

	if (!rc && f->meta.is_dir)
		rc = errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	if (!rc)
		rc = remote_set_stat(path, &f->meta, st, err);
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
	struct remote_file *const f = calloc(1, sizeof(*f));
	struct stat st;
	const int rc =
		f ? open_file(u, f, path, &st, err) : errmsg_nomem(err, path);

	if (rc) {
		free_file(f);
		return rc;
	}
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	fileid_from_stat(&st, &s->id);
	s->size = f->meta.size;
	return 0;
}
