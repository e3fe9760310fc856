/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_LISTING_H
#define UCKPT_LISTING_H

#include <stddef.h>

#include "ckpt/base/attrs.h"
#include "ckpt/remote/http.h"

/* A longer list is refused.  An entry without attributes takes a few times the bytes that the
 * server sent for it. */
#define LISTING_ENTRIES_MAX 1000000u
#define LISTING_BYTES_MAX ((size_t)256 << 20)

/* Give an entry attributes (struct http_meta, in its `more`), unless it has some.  Thread-safe.
 * -ENOMEM. */
int listing_set_meta(struct dirlist_entry *e, const struct http_meta *meta);

/*
 * Parsers of the names in a directory of a server, from its answers or a manifest.  An invalid name
 * (empty, "..", with a slash inside) is skipped; a slash at the end marks a directory.  Text ends
 * with a NUL, and is changed unless it is const.  -E2BIG or -ENOMEM.
 *
 * An index page, as nginx, Apache and Python's http.server make them: links to names in the
 * directory.  `base` is the directory's encoded path on the server.
 */
int listing_parse_html(struct dirlist *l, char *text, const char *base);

/*
 * Parse an answer to ListObjectsV2 with a delimiter: keys that begin with `prefix`.  `next` becomes
 * the token for the next page (malloc'ed), or NULL after the last one.  -EBADMSG for any other
 * text.
 */
int listing_parse_s3(struct dirlist *l, const char *text, const char *prefix,
		     char **next);

/* Parse lines with paths of files below a source, and add those in directory `dir` ("" or "DIR/").
 * Skips empty lines and lines that begin with #. */
int listing_parse_manifest(struct dirlist *l, char *text, const char *dir);

#endif
