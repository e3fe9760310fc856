/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SITE_H
#define UCKPT_SITE_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/remote/sigv4.h"

struct errmsg;

/*
 * Servers, as the URLs that the user gave:
 *
 *	http://[USER:PASSWORD@]HOST[:PORT]/PATH[?QUERY]
 *	https://...
 *	s3://BUCKET/PREFIX
 *
 * A site's path is its URL without user, password and query, which may be secret,
 * and with percent-encoding decoded: names of files are appended to it as to a
 * directory's.  Sites are known to the process from site_add() on.
 */
struct site;

/* Does a path begin with a scheme that is ours? */
bool site_is_url(const char *path);

/* Does it begin with any scheme? */
bool site_has_scheme(const char *path);

/* Add the site of a URL.  The caller frees `*path`, the site's path.  -EINVAL for a
 * bad URL or an unsupported scheme; -ENOMEM.  Not thread-safe: called before threads
 * are started.  Sites stay as long as the process lives. */
int site_add(const char *url, char **path, struct errmsg *err);

/* The site that a path is in, or NULL. */
const struct site *site_of(const char *path);

const char *site_path(const struct site *s);
bool site_is_s3(const struct site *s);

/* Has its server answered a request?  Thread-safe. */
bool site_has_answered(const struct site *s);
void site_set_answered(const struct site *s);

/* "name:password" for HTTP, or NULL. */
const char *site_user(const struct site *s);

/*
 * The URL for a path in the site, or for its bucket if `path` is NULL, with `query`
 * (encoded, sorted by name; may be "") and the site's own, and headers that sign it.
 * `slash`: a slash is appended to the path.  The caller frees `*url`.  -EOVERFLOW if a secret is too long to sign with;
 * -ENOMEM.
 */
int site_request(const struct site *s, const char *path, bool slash,
		 const char *query, bool head, char **url,
		 struct sigv4_headers *headers);

/* The part of a path that is the key of an S3 object: what follows the bucket. */
const char *site_key(const struct site *s, const char *path);

/* The path of a site's URL on its server, encoded, without the last slash. */
int site_encoded_path(const struct site *s, const char *path, char **out);

/* Append text percent-encoded; slashes stay if `slashes`. */
void site_encode(struct bytebuf *b, const char *text, bool slashes);

/* Decode percent-encoding in place.  False if it has a zero byte. */
bool site_decode(char *text);

/* Cover what may be a secret of a URL with asterisks, in place: in messages, which may
 * name an argument that is a mistyped URL, and in the command line, which other users
 * see. */
void site_hide_secrets(char *text);

#endif
