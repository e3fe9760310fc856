/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HTTP_H
#define UCKPT_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/remote/site.h"

struct errmsg;
struct uckpt;

/* The attributes of a file, as a server sends them. */
#define HTTP_ETAG_MAX 256
#define HTTP_DATE_MAX 64

struct http_meta {
	uint64_t size;
	int64_t mtime_s;
	char etag[HTTP_ETAG_MAX];     /* "": none */
	char modified[HTTP_DATE_MAX]; /* Last-Modified as sent; "": none */
	bool is_dir; /* the server redirected to a path with a slash */
};

/* One request is for at most this many bytes of a file. */
#define HTTP_READ_MAX ((size_t)8 << 20)

/*
 * Requests with retries.  Temporary failures (timeouts, resets, 408, 425, 429 and 5xx) are retried
 * with growing pauses until the operation's deadline; a server that has never answered gets only a
 * few tries.  Messages have the path, and the status or the reason.  Thread-safe.
 *
 * Errors: -ENOENT (404, 410), -EACCES (401, 403), -EIO, -ENOMEM, -ECANCELED after http_stop().
 */

/* Return the deadline (clock_ns) of an operation that begins now; one operation may take several
 * requests. */
int64_t http_deadline(const struct uckpt *u);

/* Between http_begin_together() and http_end_together() all operations share one deadline. */
void http_begin_together(struct uckpt *u);
void http_end_together(struct uckpt *u);

/* End all requests under way, and all later ones, with -ECANCELED. */
void http_stop(struct uckpt *u);

/* Request a file's attributes; with `slash`, a directory's. */
int http_head(struct site *s, const char *path, bool slash, int64_t end,
	      struct http_meta *out, struct errmsg *err);

/* Get the body at `path` and a slash or, for an S3 site, the answer of its bucket to `query` if
 * that is not NULL, as a text that the caller frees; -E2BIG beyond `max` bytes. */
int http_get(struct site *s, const char *path, const char *query, int64_t end,
	     size_t max, char **text, struct errmsg *err);

/*
 * Read bytes [off, off + len), at most HTTP_READ_MAX, which must lie within the size in `m`.  The
 * file must still be the one that `m` describes: this is a condition of the request, and checked in
 * the answer: else -EIO.
 */
int http_read(struct site *s, const char *path, const struct http_meta *m,
	      void *buf, size_t len, uint64_t off, struct errmsg *err);

/* The header of an answer. */
struct http_answer {
	long status;
	struct http_meta meta; /* the size is Content-Length, if it has one */
	bool has_length, has_range;
	uint64_t first, last, total; /* of Content-Range */
	bool is_encoded; /* Content-Encoding: not the file's bytes */
	unsigned retry_after_s;
};

/* Take a line of a header into the answer; a status line begins another one. */
void http_answer_line(struct http_answer *a, const char *line, size_t len);

/* Do both describe the same file by ETag, or by Last-Modified if one of them has no ETag?
 * False if they have neither. */
bool http_is_same(const struct http_meta *a, const struct http_meta *b);

#endif
