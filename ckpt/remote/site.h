/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SITE_H
#define UCKPT_SITE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytes.h"
#include "ckpt/remote/aws_profile.h"
#include "ckpt/remote/sigv4.h"

struct errmsg;
struct uckpt;

/*
 * Servers, as the URLs that the user gave:
 *
 *	http://[USER:PASSWORD@]HOST[:PORT]/PATH[?QUERY]
 *	https://...
 *	s3://BUCKET/PREFIX
 *
 * A site's path is its URL without user, password and query, which may be secret,
 * and with percent-encoding decoded: names of files are appended to it as to a
 * directory's.  Sites are known to the context from site_add() on.
 */
struct site {
	struct uckpt *u;
	struct site *next; /* next of the context's sites, most recently added first */
	char *path;   /* without a trailing slash */
	size_t root;  /* length of "scheme://host" or "s3://bucket" in it */
	char *origin; /* "scheme://host[:port]" to connect to */
	char *prefix; /* encoded, before the path on the server: "", "/bucket" */
	char *user;   /* "name:password" for HTTP, or NULL */
	char *query;  /* or NULL */
	bool s3, is_signed;
	struct aws_profile aws;
	atomic_bool has_answered; /* its server has answered a request */
};

/* Does a path begin with a supported scheme? */
bool site_is_url(const char *path);

/* Does it begin with any scheme? */
bool site_has_scheme(const char *path);

/* Add the site of a URL.  The caller frees `*path`, the site's path.  -EINVAL for a
 * bad URL or an unsupported scheme; -ENOMEM.  Not thread-safe: called before threads
 * are started. */
int site_add(struct uckpt *u, const char *url, char **path, struct errmsg *err);

/* Forget all sites. */
void sites_done(struct uckpt *u);

/* Return the site that contains a path, or NULL. */
struct site *site_of(const struct uckpt *u, const char *path);

/*
 * The URL for a path in the site, or for its bucket if `path` is NULL, with `query`
 * (encoded, sorted by name; may be "") and the site's own, and headers that sign it.
 * `slash`: a slash is appended to the path.  The caller frees both.  -ENOMEM.
 */
int site_request(const struct site *s, const char *path, bool slash,
		 const char *query, bool head, char **url,
		 struct sigv4_headers *headers);

/* Return the part of a path that is the S3 object's key: the part after the bucket. */
const char *site_key(const struct site *s, const char *path);

/* Append text percent-encoded; slashes stay if `slashes`. */
void site_encode(struct bytebuf *b, const char *text, bool slashes);

/* Decode percent-encoding in place.  False if it has a zero byte. */
bool site_decode(char *text);

/* Replace possible secrets of a URL by asterisks, in place: for messages, which may quote a
 * mistyped URL, and for the command line, which other users see. */
void site_hide_secrets(char *text);

#endif
