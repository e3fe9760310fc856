/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_HTTP_IMPL_H
#define UCKPT_HTTP_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/remote/http.h"

/* The header of an answer. */
struct http_answer {
	long status;
	bool has_length, has_range;
	uint64_t length;
	uint64_t first, last, total; /* of Content-Range */
	bool is_encoded; /* Content-Encoding: not the file's bytes */
	unsigned retry_after_s;
	char etag[HTTP_ETAG_MAX];
	char modified[HTTP_DATE_MAX];
};

/* Take a line of a header into the answer; a status line begins another one. */
void http_answer_line(struct http_answer *a, const char *line, size_t len);

/* The time of an HTTP date in seconds; 0 if it is none. */
int64_t http_parse_date(const char *text);

/* Is it the same file by ETag, or by Last-Modified if one of them has none?  What
 * says neither is another one. */
bool http_is_same(const struct http_meta *m, const struct http_answer *a);

#endif
