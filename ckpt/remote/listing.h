/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LISTING_H
#define UCKPT_LISTING_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/remote/http.h"

/* The names in a directory of a server, as it or a manifest tells them. */
struct listing_entry {
	char *name;
	_Atomic(struct http_meta *) meta; /* NULL: not known; a directory has none */
	bool is_dir;
};

struct listing {
	struct listing_entry *v; /* sorted by name once listing_finish was called */
	size_t n, cap;
};

/* A longer list is refused.  Until attributes are known, an entry costs a few times the
 * bytes that the server sent for it. */
#define LISTING_ENTRIES_MAX 1000000u
#define LISTING_BYTES_MAX ((size_t)256 << 20)

/* Add a name, unless it cannot be one (empty, "..", with a slash); one slash at its
 * end makes it a directory.  -E2BIG or -ENOMEM. */
int listing_add(struct listing *l, const char *name,
		const struct http_meta *meta);

/* Give an entry its attributes, unless it has some.  Thread-safe.  -ENOMEM. */
int listing_set_meta(struct listing_entry *e, const struct http_meta *meta);

/* Sort the names, and keep each once. */
void listing_finish(struct listing *l);
struct listing_entry *listing_find(const struct listing *l, const char *name);
void listing_done(struct listing *l);

/*
 * The parsers add names.  Text ends with a NUL, and is changed unless it is const.
 *
 * An index page, as nginx, Apache and Python's http.server make them: links to names
 * in the directory.  `base` is the directory's encoded path on the server.
 */
int listing_parse_html(struct listing *l, char *text, const char *base);

/*
 * An answer to ListObjectsV2 with a delimiter: keys that begin with `prefix`.  `next`
 * becomes the token for the next page (malloc'ed), or NULL after the last one.
 * -EBADMSG if it is no such answer.
 */
int listing_parse_s3(struct listing *l, const char *text, const char *prefix,
		     char **next);

/* Lines with paths of files below a source; those in directory `dir` ("" or
 * "DIR/") are added.  Empty lines and those that begin with # are skipped. */
int listing_parse_manifest(struct listing *l, char *text, const char *dir);

#endif
