/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parsers that look only for what is needed: the links of a page, and the few elements of a list
 * that name objects.  Unknown elements are ignored, and names that are not plain are dropped, so
 * that no list leads out of its directory.
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

int listing_set_meta(struct dirlist_entry *e, const struct http_meta *meta)
{
	struct http_meta *own = malloc(sizeof(*own));
	void *none = NULL;

	if (!own)
		return -ENOMEM;
	*own = *meta;
	if (!atomic_compare_exchange_strong(&e->more, &none, own))
		free(own);
	return 0;
}

/* Add a name, which is cut at the slash at its end. */
static int add_name(struct dirlist *l, char *name, const struct http_meta *meta)
{
	size_t n = strlen(name);
	const bool is_dir = n && name[n - 1] == '/';
	const mode_t type = is_dir ? S_IFDIR : S_IFREG;
	const size_t before = l->n;

	n -= is_dir;
	name[n] = '\0';
	if (!n || n > NAME_LEN_MAX || strchr(name, '/'))
		return 0;
	if (l->n == LISTING_ENTRIES_MAX)
		return -E2BIG;
	if (dirlist_add(l, name, type, type))
		return -ENOMEM;
	return meta && l->n > before ? listing_set_meta(&l->v[before], meta) : 0;
}

/* Append a character as UTF-8. */
static char *put_char(char *to, unsigned long c)
{
	static const unsigned char lead[] = { 0, 0xc0, 0xe0, 0xf0 };
	const int more = (c >= 0x80) + (c >= 0x800) + (c >= 0x10000);

	*to++ = (char)(lead[more] | c >> 6 * more);
	for (int i = more; i-- > 0;)
		*to++ = (char)(0x80 | (c >> 6 * i & 63));
	return to;
}

/* Return the character of the entity that begins at `text`, and its length; 0 if there is none.
 * Each entity is longer than its character. */
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

/* The value of an attribute at `p`, in quotes or not, terminated in place.  `*next` is where
 * parsing continues. */
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

/* Return the name in the directory that a link leads to, or NULL. */
static char *link_name(char *link, const char *base)
{
	const size_t n = strlen(base);

	decode_entities(link);
	link[strcspn(link, "?#")] = '\0';
	if (strncmp(link, "./", 2) == 0)
		link += 2;
	if (strncmp(link, base, n) == 0 && link[n] == '/')
		link += n + 1;
	/* For an entry of the directory only a name and perhaps a slash remain; a scheme is not
	 * an entry. */
	if (strcspn(link, "/") + 1 < strlen(link) || !site_decode(link))
		return NULL;
	return link;
}

int listing_parse_html(struct dirlist *l, char *text, const char *base)
{
	int rc = 0;

	while (!rc && (text = strcasestr(text, "href"))) {
		char *link = attribute(text + 4, &text);
		char *name = link ? link_name(link, base) : NULL;

		if (name)
			rc = add_name(l, name, NULL);
	}
	return rc;
}

/* Find the next element `name` in [p, end): the beginning of its text, and its end at
 * `*stop`; NULL if there is none. */
static const char *element(const char *p, const char *end, const char *name,
			   const char **stop)
{
	char open[40], close[40];
	const int n = snprintf(open, sizeof(open), "<%s>", name);
	const int m = snprintf(close, sizeof(close), "</%s>", name);

	p = memmem(p, (size_t)(end - p), open, (size_t)n);
	if (!p)
		return NULL;
	p += n;
	*stop = memmem(p, (size_t)(end - p), close, (size_t)m);
	return *stop ? p : NULL;
}

/* Decode the text of an element in [p, end) into `max` bytes at `out`. */
static bool field(const char *p, const char *end, const char *name, char *out,
		  size_t max)
{
	const char *stop;

	p = element(p, end, name, &stop);
	if (!p || (size_t)(stop - p) >= max)
		return false;
	memcpy(out, p, (size_t)(stop - p));
	out[stop - p] = '\0';
	decode_entities(out);
	return true;
}

/* Parse "2026-11-22T20:14:00.000Z" to seconds; 0 if invalid. */
static int64_t parse_iso_date(const char *text)
{
	struct tm tm = { 0 };

	return strptime(text, "%Y-%m-%dT%H:%M:%S", &tm) ? (int64_t)timegm(&tm)
							: 0;
}

/* A key may have 1,024 bytes, each written as an entity. */
#define KEY_MAX 8192

static int add_object(struct dirlist *l, const char *p, const char *end,
		      const char *prefix)
{
	char key[KEY_MAX], size[32], date[64] = "";
	const size_t n = strlen(prefix);
	struct http_meta m = { 0 };
	char *rest;

	if (!field(p, end, "Key", key, sizeof(key)) ||
	    !field(p, end, "Size", size, sizeof(size)) ||
	    strncmp(key, prefix, n) != 0)
		return 0;
	m.size = strtoull(size, &rest, 10);
	if (*rest || rest == size)
		return 0;
	field(p, end, "ETag", m.etag, sizeof(m.etag));
	if (field(p, end, "LastModified", date, sizeof(date)))
		m.mtime_s = parse_iso_date(date);
	/* A key that ends in a slash stands for an empty directory. */
	return key[n] && key[strlen(key) - 1] != '/'
		       ? add_name(l, key + n, *m.etag ? &m : NULL)
		       : 0;
}

static int add_prefix(struct dirlist *l, const char *p, const char *end,
		      const char *prefix)
{
	char key[KEY_MAX];
	const size_t n = strlen(prefix);

	return field(p, end, "Prefix", key, sizeof(key)) &&
			       strncmp(key, prefix, n) == 0
		       ? add_name(l, key + n, NULL)
		       : 0;
}

int listing_parse_s3(struct dirlist *l, const char *text, const char *prefix,
		     char **next)
{
	const char *end = text + strlen(text);
	char token[KEY_MAX] = "", cut[8] = "";
	const char *p, *stop = text;
	int rc = 0;

	*next = NULL;
	if (!strstr(text, "<ListBucketResult"))
		return -EBADMSG;
	if (field(text, end, "IsTruncated", cut, sizeof(cut)) &&
	    strcmp(cut, "true") == 0 &&
	    (!field(text, end, "NextContinuationToken", token, sizeof(token)) ||
	     !*token))
		return -EBADMSG;
	while (!rc && (p = element(stop, end, "Contents", &stop)))
		rc = add_object(l, p, stop, prefix);
	stop = text;
	while (!rc && (p = element(stop, end, "CommonPrefixes", &stop)))
		rc = add_prefix(l, p, stop, prefix);
	if (!rc && *token && !(*next = strdup(token)))
		rc = -ENOMEM;
	return rc;
}

int listing_parse_manifest(struct dirlist *l, char *text, const char *dir)
{
	const size_t n = strlen(dir);
	int rc = 0;

	for (char *line = text; !rc && line; line = text) {
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
		line[len] = '\0';
		rc = add_name(l, line, NULL);
	}
	return rc;
}
