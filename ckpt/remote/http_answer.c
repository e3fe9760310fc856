/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of answers (RFC 9110).  A line that is too long or cannot be parsed says
 * nothing. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "ckpt/remote/http.h"

#define LINE_MAX_BYTES 1024

static bool parse_number(const char **text, uint64_t *out)
{
	char *end;

	if (**text < '0' || **text > '9')
		return false;
	errno = 0;
	*out = strtoull(*text, &end, 10);
	*text = end;
	return !errno;
}

/* "bytes FIRST-LAST/TOTAL" */
static void parse_range(struct http_answer *a, const char *value)
{
	if (strncasecmp(value, "bytes ", 6) != 0)
		return;
	value += 6;
	a->has_range = parse_number(&value, &a->first) && *value++ == '-' &&
		       parse_number(&value, &a->last) && *value++ == '/' &&
		       parse_number(&value, &a->total) && !*value &&
		       a->first <= a->last && a->last < a->total;
}

/* The time of an HTTP date in seconds; 0 if it is none. */
static int64_t parse_date(const char *text)
{
	struct tm tm = { 0 };
	const char *const end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);

	return end && !*end ? (int64_t)timegm(&tm) : 0;
}

static void take(struct http_answer *a, const char *name, const char *value)
{
	struct http_meta *const m = &a->meta;
	uint64_t n;

	if (strcasecmp(name, "content-length") == 0) {
		a->has_length = parse_number(&value, &m->size) && !*value;
	} else if (strcasecmp(name, "content-range") == 0) {
		parse_range(a, value);
	} else if (strcasecmp(name, "content-encoding") == 0) {
		a->is_encoded = strcasecmp(value, "identity") != 0;
	} else if (strcasecmp(name, "etag") == 0) {
		if (strlen(value) < sizeof(m->etag))
			strcpy(m->etag, value);
	} else if (strcasecmp(name, "last-modified") == 0) {
		if (strlen(value) < sizeof(m->modified))
			strcpy(m->modified, value);
		m->mtime_s = parse_date(m->modified);
	} else if (strcasecmp(name, "retry-after") == 0) {
		if (parse_number(&value, &n) && !*value && n < UINT_MAX)
			a->retry_after_s = (unsigned)n;
	}
}

void http_answer_line(struct http_answer *a, const char *line, size_t len)
{
	char text[LINE_MAX_BYTES], *value;

	while (len && (line[len - 1] == '\r' || line[len - 1] == '\n' ||
		       line[len - 1] == ' '))
		len--;
	if (len >= sizeof(text) || memchr(line, '\0', len))
		return;
	memcpy(text, line, len);
	text[len] = '\0';
	if (strncmp(text, "HTTP/", 5) == 0) {
		const char *const status = strchr(text, ' ');

		*a = (struct http_answer){
			.status = status ? strtol(status, NULL, 10) : 0,
		};
		return;
	}
	value = strchr(text, ':');
	if (!value)
		return;
	*value++ = '\0';
	take(a, text, value + strspn(value, " \t"));
}

/* Without the mark of a weak one: the size is compared as well. */
static const char *tag_of(const struct http_meta *m)
{
	return m->etag + (strncmp(m->etag, "W/", 2) == 0 ? 2 : 0);
}

bool http_is_same(const struct http_meta *a, const struct http_meta *b)
{
	if (*a->etag && *b->etag)
		return strcmp(tag_of(a), tag_of(b)) == 0;
	return a->mtime_s && a->mtime_s == b->mtime_s;
}
