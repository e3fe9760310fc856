/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HTTP_H
#define UCKPT_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytebuf.h"

struct errmsg;
struct site;

/* What a server says of a file. */
#define HTTP_ETAG_MAX 256
#define HTTP_DATE_MAX 64

struct http_meta {
	uint64_t size;
	int64_t mtime_s;
	char etag[HTTP_ETAG_MAX];     /* "": none */
	char modified[HTTP_DATE_MAX]; /* Last-Modified as it came; "": none */
	bool is_dir; /* the server redirected to a path with a slash */
};

/* One request is for at most this many bytes of a file. */
#define HTTP_READ_MAX ((size_t)8 << 20)

/*
 * Requests with retries.  What is temporary (timeouts, resets, 408, 425, 429 and
 * 5xx) is tried again, with growing pauses, until the operation's deadline; a
 * server that has never answered is given up after a few tries.  Messages have the
 * path, and the status or the reason.  Thread-safe.
 *
 * Errors: -ENOENT (404, 410), -EACCES (401, 403), -EIO, -ENOMEM, -ECANCELED after
 * transport_stop().
 */

/* The time (clock_ns) at which an operation that begins now is given up: one
 * operation may take several requests. */
int64_t http_deadline(void);

/* From http_begin_together() until http_end_together(), all operations are one. */
void http_begin_together(void);
void http_end_together(void);

/* Ask for a file's attributes; with `slash`, for a directory's. */
int http_head(const struct site *s, const char *path, bool slash, int64_t end,
	      struct http_meta *out, struct errmsg *err);

/* Append all of what the server has at `path` and a slash, or for an S3 site's
 * `query` of its bucket if that is not NULL; -E2BIG beyond `max` bytes. */
int http_get(const struct site *s, const char *path, const char *query,
	     int64_t end, size_t max, struct bytebuf *out, struct errmsg *err);

/*
 * Read bytes [off, off + len) of a file, which has them by `m`; at most
 * HTTP_READ_MAX.  The file must still be the one that `m` describes, which is a
 * condition of the request and checked in the answer: else -EIO.
 */
int http_read(const struct site *s, const char *path, const struct http_meta *m,
	      void *buf, size_t len, uint64_t off, struct errmsg *err);

#endif
