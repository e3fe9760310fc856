/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Neither pages nor lists are parsed for more than they are asked for: links of a
 * page, and the few elements of a list that name objects.  What is not understood is
 * no name; what is not a plain name is dropped, so that no list leads elsewhere.
 */
#include "ckpt/remote/listing.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "ckpt/base/array.h"
#include "ckpt/remote/site.h"

#define NAME_LEN_MAX 255

static void entry_done(struct listing_entry *e)
{
	free(e->name);
	free(e->meta);
}

int listing_set_meta(struct listing_entry *e, const struct http_meta *meta)
{
	e->meta = malloc(sizeof(*e->meta));
	if (!e->meta)
		return -ENOMEM;
	*e->meta = *meta;
	return 0;
}

int listing_add(struct listing *l, const char *name,
		const struct http_meta *meta)
{
	size_t n = strlen(name);
	const bool is_dir = n && name[n - 1] == '/';
	struct listing_entry e = { .is_dir = is_dir };

	n -= is_dir;
	if (!n || n > NAME_LEN_MAX || memchr(name, '/', n) ||
	    strncmp(name, ".", n) == 0 || strncmp(name, "..", n) == 0)
		return 0;
	if (l->n == LISTING_ENTRIES_MAX)
		return -E2BIG;
	e.name = strndup(name, n);
	if (!e.name || (meta && listing_set_meta(&e, meta)) ||
	    !array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v))) {
		entry_done(&e);
		return -ENOMEM;
	}
	l->v[l->n++] = e;
	return 0;
}

/* Of one name, a directory comes first: S3 may have both. */
static int by_name(const void *a, const void *b)
{
	const struct listing_entry *const x = a, *const y = b;
	const int order = strcmp(x->name, y->name);

	return order ? order : y->is_dir - x->is_dir;
}

void listing_finish(struct listing *l)
{
	size_t kept = 0;

	if (l->n)
		qsort(l->v, l->n, sizeof(*l->v), by_name);
	for (size_t i = 0; i < l->n; i++)
		if (kept && strcmp(l->v[kept - 1].name, l->v[i].name) == 0)
			entry_done(&l->v[i]);
		else
			l->v[kept++] = l->v[i];
	l->n = kept;
}

static int compare_name(const void *key, const void *entry)
{
	return strcmp(key, ((const struct listing_entry *)entry)->name);
}

struct listing_entry *listing_find(const struct listing *l, const char *name)
{
	return l->n ? bsearch(name, l->v, l->n, sizeof(*l->v), compare_name)
		    : NULL;
}

void listing_done(struct listing *l)
{
	for (size_t i = 0; i < l->n; i++)
		entry_done(&l->v[i]);
	free(l->v);
	*l = (struct listing){ 0 };
}

/* Append a character as UTF-8. */
static char *put_char(char *to, unsigned long c)
{
	if (c < 0x80) {
		*to++ = (char)c;
	} else if (c < 0x800) {
		*to++ = (char)(0xc0 | c >> 6);
		*to++ = (char)(0x80 | (c & 63));
	} else if (c < 0x10000) {
		*to++ = (char)(0xe0 | c >> 12);
		*to++ = (char)(0x80 | (c >> 6 & 63));
		*to++ = (char)(0x80 | (c & 63));
	} else {
		*to++ = (char)(0xf0 | (c >> 18 & 7));
		*to++ = (char)(0x80 | (c >> 12 & 63));
		*to++ = (char)(0x80 | (c >> 6 & 63));
		*to++ = (char)(0x80 | (c & 63));
	}
	return to;
}

/* The character of the entity that begins at `text`, and its length; 0 if it is
 * none.  Each is longer than its character. */
static unsigned long entity(const char *text, size_t *len)
{
	static const struct {
		const char *text;
		char c;
	} named[] = { { "&amp;", '&' },
		      { "&lt;", '<' },
		      { "&gt;", '>' },
		      { "&quot;", '"' },
		      { "&apos;", '\'' } };
	unsigned long c;
	char *end;

	for (size_t i = 0; i < COUNT(named); i++) {
		*len = strlen(named[i].text);
		if (strncmp(text, named[i].text, *len) == 0)
			return (unsigned char)named[i].c;
	}
	if (text[1] != '#')
		return 0;
	c = text[2] == 'x' ? strtoul(text + 3, &end, 16)
			   : strtoul(text + 2, &end, 10);
	*len = (size_t)(end - text) + 1;
	return *end == ';' && c < 0x110000 ? c : 0;
}

/* Replace entities of HTML and XML, in place. */
static void decode_entities(char *text)
{
	char *to = text;

	while (*text) {
		size_t len;
		const unsigned long c = *text == '&' ? entity(text, &len) : 0;

		if (c) {
			to = put_char(to, c);
			text += len;
		} else {
			*to++ = *text++;
		}
	}
	*to = '\0';
}

/* The value of an attribute at `p`, in quotes or not; ended with a NUL.  `*next` is
 * where to go on. */
static char *attribute(char *p, char **next)
{
	const char *ends = " \t\r\n>";
	char *value;
	char quote[2] = "";

	p += strspn(p, " \t\r\n");
	if (*p++ != '=') {
		*next = p - 1;
		return NULL;
	}
	p += strspn(p, " \t\r\n");
	if (*p == '"' || *p == '\'') {
		*quote = *p++;
		ends = quote;
	}
	value = p;
	p += strcspn(p, ends);
	*next = p + (*p != '\0');
	*p = '\0';
	return value;
}

/* The name in the directory that a link leads to, or NULL. */
static char *link_name(char *link, const char *base)
{
	const size_t n = strlen(base);

	decode_entities(link);
	link[strcspn(link, "?#")] = '\0';
	if (strncmp(link, "./", 2) == 0)
		link += 2;
	if (strncmp(link, base, n) == 0 && link[n] == '/')
		link += n + 1;
	/* Only a name and perhaps a slash are left of one in the directory; a
	 * scheme is none. */
	if (strcspn(link, "/") + 1 < strlen(link) || !site_decode(link))
		return NULL;
	return link;
}

int listing_parse_html(struct listing *l, char *text, const char *base)
{
	int rc = 0;

	while (!rc && (text = strcasestr(text, "href"))) {
		char *const link = attribute(text + 4, &text);
		char *const name = link ? link_name(link, base) : NULL;

		if (name)
			rc = listing_add(l, name, NULL);
	}
	return rc;
}

/* The text of the next element `name` in `*p`, malloc'ed; `*p` moves past it.  NULL at
 * the end, with `*p` NULL, or when memory runs out. */
static char *element(const char **p, const char *name)
{
	char open[40], close[40];
	const char *begin, *end;

	snprintf(open, sizeof(open), "<%s>", name);
	snprintf(close, sizeof(close), "</%s>", name);
	begin = strstr(*p, open);
	end = begin ? strstr(begin, close) : NULL;
	*p = end ? end + strlen(close) : NULL;
	begin += end ? strlen(open) : 0;
	return end ? strndup(begin, (size_t)(end - begin)) : NULL;
}

/* The decoded text of an element within another's text, which stays whole. */
static bool field(const char *within, const char *name, char *out, size_t max)
{
	char open[40];
	const char *begin, *end;

	snprintf(open, sizeof(open), "<%s>", name);
	begin = strstr(within, open);
	if (!begin)
		return false;
	begin += strlen(open);
	end = strchr(begin, '<');
	if (!end || (size_t)(end - begin) >= max)
		return false;
	memcpy(out, begin, (size_t)(end - begin));
	out[end - begin] = '\0';
	decode_entities(out);
	return true;
}

/* "2026-11-22T20:14:00.000Z" in seconds; 0 if it is none. */
static int64_t parse_iso_date(const char *text)
{
	struct tm tm = { 0 };

	return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm)
							: 0;
}

/* Keys may be 1,024 bytes, and each byte an entity. */
#define KEY_MAX 8192

static int add_object(struct listing *l, const char *text, const char *prefix)
{
	char key[KEY_MAX], size[32], date[64] = "";
	const size_t n = strlen(prefix);
	struct http_meta m = { 0 };
	char *end;

	if (!field(text, "Key", key, sizeof(key)) ||
	    !field(text, "Size", size, sizeof(size)) ||
	    strncmp(key, prefix, n) != 0)
		return 0;
	m.size = strtoull(size, &end, 10);
	if (*end || end == size)
		return 0;
	field(text, "ETag", m.etag, sizeof(m.etag));
	if (field(text, "LastModified", date, sizeof(date)))
		m.mtime_s = parse_iso_date(date);
	/* A key that ends in a slash stands for an empty directory. */
	return key[n] && key[strlen(key) - 1] != '/'
		       ? listing_add(l, key + n, *m.etag ? &m : NULL)
		       : 0;
}

static int add_prefix(struct listing *l, const char *text, const char *prefix)
{
	char key[KEY_MAX];
	const size_t n = strlen(prefix);

	return field(text, "Prefix", key, sizeof(key)) &&
			       strncmp(key, prefix, n) == 0
		       ? listing_add(l, key + n, NULL)
		       : 0;
}

static int add_elements(struct listing *l, const char *text, const char *name,
			const char *prefix,
			int (*add)(struct listing *l, const char *text,
				   const char *prefix))
{
	int rc = 0;

	while (!rc && text) {
		char *const part = element(&text, name);

		if (part)
			rc = add(l, part, prefix);
		else if (text)
			rc = -ENOMEM;
		free(part);
	}
	return rc;
}

int listing_parse_s3(struct listing *l, const char *text, const char *prefix,
		     char **next)
{
	char token[KEY_MAX] = "", cut[8] = "";
	int rc;

	*next = NULL;
	if (!strstr(text, "<ListBucketResult"))
		return -EBADMSG;
	if (field(text, "IsTruncated", cut, sizeof(cut)) &&
	    strcmp(cut, "true") == 0 &&
	    (!field(text, "NextContinuationToken", token, sizeof(token)) ||
	     !*token))
		return -EBADMSG;
	rc = add_elements(l, text, "Contents", prefix, add_object)
		     ?: add_elements(l, text, "CommonPrefixes", prefix,
				     add_prefix);
	if (!rc && *token && !(*next = strdup(token)))
		rc = -ENOMEM;
	return rc;
}

int listing_parse_manifest(struct listing *l, char *text, const char *dir)
{
	const size_t n = strlen(dir);
	int rc = 0;

	for (char *line = text; !rc && line; line = text) {
		char name[NAME_LEN_MAX + 2];
		size_t len;

		text = strchr(line, '\n');
		if (text)
			*text++ = '\0';
		line[strcspn(line, "\r")] = '\0';
		if (strncmp(line, "./", 2) == 0)
			line += 2;
		if (*line == '#' || strncmp(line, dir, n) != 0)
			continue;
		line += n;
		len = strcspn(line, "/");
		len += line[len] == '/';
		if (len >= sizeof(name))
			continue;
		memcpy(name, line, len);
		name[len] = '\0';
		rc = listing_add(l, name, NULL);
	}
	return rc;
}
