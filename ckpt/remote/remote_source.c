/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of a server's file.
 *
 * Parsers read a few bytes at a time, and from few places: what is smaller than a
 * window is served from the last windows that were fetched.  Larger reads go to the
 * reader's buffer, in requests of at most HTTP_READ_MAX; several at once are the
 * business of those who read ahead.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/remote_impl.h"
#include "ckpt/remote/site.h"

#define WINDOW ((size_t)128 << 10)
#define WINDOWS 4

struct window {
	uint8_t *p; /* NULL: empty */
	uint64_t off;
	size_t len;
	uint64_t last_use;
};

struct remote_file {
	struct site *site;
	char *path;
	struct http_meta meta;
	pthread_mutex_t lock; /* of the windows */
	struct window windows[WINDOWS];
	uint64_t clock;
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

static struct window *find_window(struct remote_file *f, uint64_t off)
{
	for (size_t i = 0; i < WINDOWS; i++)
		if (f->windows[i].p && f->windows[i].off == off)
			return &f->windows[i];
	return NULL;
}

/* The window at `off`, a multiple of WINDOW.  Called with the lock held: those who
 * want the same bytes wait for one request. */
static int get_window(struct remote_file *f, uint64_t off, struct window **out,
		      struct errmsg *err)
{
	const uint64_t left = f->meta.size - off;
	struct window *w = find_window(f, off);
	int rc;

	if (!w) {
		w = &f->windows[0];
		for (size_t i = 1; i < WINDOWS; i++)
			if (f->windows[i].last_use < w->last_use)
				w = &f->windows[i];
		free(w->p);
		*w = (struct window){ .p = malloc(WINDOW), .off = off };
		if (!w->p)
			return errmsg_nomem(err, f->path);
		w->len = left < WINDOW ? (size_t)left : WINDOW;
		rc = read_direct(f, w->p, w->len, off, err);
		if (rc) {
			free(w->p);
			w->p = NULL;
			return rc;
		}
	}
	w->last_use = ++f->clock;
	*out = w;
	return 0;
}

static int read_windows(struct remote_file *f, void *buf, size_t len,
			uint64_t off, struct errmsg *err)
{
	uint8_t *to = buf;
	int rc = 0;

	pthread_mutex_lock(&f->lock);
	while (!rc && len) {
		const size_t at = off % WINDOW;
		const size_t n = len < WINDOW - at ? len : WINDOW - at;
		struct window *w = NULL;

		rc = get_window(f, off - at, &w, err);
		if (!rc)
			memcpy(to, w->p + at, n);
		to += n;
		off += n;
		len -= n;
	}
	pthread_mutex_unlock(&f->lock);
	return rc;
}

static int remote_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	struct remote_file *const f = s->ctx;

	return len < WINDOW ? read_windows(f, buf, len, off, err)
			    : read_direct(f, buf, len, off, err);
}

static int remote_read_exact(const struct source *s, void *buf, size_t len,
			     uint64_t off, struct errmsg *err)
{
	return read_direct(s->ctx, buf, len, off, err);
}

static void remote_close(struct source *s)
{
	struct remote_file *const f = s->ctx;

	for (size_t i = 0; i < WINDOWS; i++)
		free(f->windows[i].p);
	pthread_mutex_destroy(&f->lock);
	free(f->path);
	free(f);
}

static int open_file(struct remote_file *f, const char *path, struct stat *st,
		     struct errmsg *err)
{
	int rc;

	rc = remote_find(path, http_deadline(), &f->site, &f->meta, err);
	if (!rc && f->meta.is_dir)
		rc = errmsg_set(err, -EBADMSG, "%s: not a regular file", path);
	if (!rc)
		rc = remote_set_stat(path, &f->meta, st, err);
	if (rc)
		return rc;
	f->path = strdup(path);
	return f->path ? 0 : errmsg_nomem(err, path);
}

int remote_open(struct source *s, const char *path, struct errmsg *err)
{
	static const struct source_ops ops = { .read = remote_read,
					       .read_exact = remote_read_exact,
					       .close = remote_close };
	struct remote_file *const f = calloc(1, sizeof(*f));
	struct stat st;
	const int rc =
		f ? open_file(f, path, &st, err) : errmsg_nomem(err, path);

	if (rc) {
		free(f);
		return rc;
	}
	pthread_mutex_init(&f->lock, NULL);
	*s = (struct source){ .name = path, .fd = -1, .ops = &ops, .ctx = f };
	fileid_from_stat(&st, &s->id);
	s->size = f->meta.size;
	return 0;
}
