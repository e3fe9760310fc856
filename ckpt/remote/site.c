/* SPDX-License-Identifier: Apache-2.0 */
/*
 * URLs taken apart and put together.  Messages, the mount table and control files show only a
 * site's path, which has no secrets.
 */
#include "ckpt/remote/site.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"

#define SITES_MAX 4096u
#define DEFAULT_REGION "us-east-1"
#define AWS_SETTING_MAX 4000 /* servers refuse longer headers */

bool site_is_url(const char *path)
{
	return strncasecmp(path, "http://", 7) == 0 ||
	       strncasecmp(path, "https://", 8) == 0 ||
	       strncasecmp(path, "s3://", 5) == 0;
}

void site_encode(struct bytebuf *b, const char *text, bool slashes)
{
	for (; *text; text++) {
		const unsigned char c = (unsigned char)*text;
		char code[4];

		if ((c < 128 && isalnum(c)) || strchr("-._~", c) ||
		    (slashes && c == '/')) {
			bytebuf_add_u8(b, c);
			continue;
		}
		snprintf(code, sizeof(code), "%%%02X", c);
		bytebuf_add_str(b, code);
	}
}

static int hex_digit(char c)
{
	return c >= '0' && c <= '9'   ? c - '0'
	       : c >= 'a' && c <= 'f' ? c - 'a' + 10
	       : c >= 'A' && c <= 'F' ? c - 'A' + 10
				      : -1;
}

bool site_decode(char *text)
{
	char *to = text;

	for (; *text; text++) {
		const int high = *text == '%' ? hex_digit(text[1]) : -1;
		const int low = high >= 0 ? hex_digit(text[2]) : -1;

		if (low < 0) {
			*to++ = *text;
			continue;
		}
		if (!high && !low)
			return false;
		*to++ = (char)(high * 16 + low);
		text += 2;
	}
	*to = '\0';
	return true;
}

#define LABEL_CHARS "abcdefghijklmnopqrstuvwxyz0123456789-"
#define SCHEME_CHARS \
	"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-"

bool site_has_scheme(const char *path)
{
	return isalpha((unsigned char)*path) &&
	       strncmp(path + strspn(path, SCHEME_CHARS), "://", 3) == 0;
}

/* Characters that end a word of a message or an argument. */
#define WORD_ENDS " \t\n'\"{}"

static void cover(char *from, const char *to)
{
	while (from < to)
		*from++ = '*';
}

/* Cover the user and password of an authority at `p`, in a word up to `end`.  Without a scheme
 * only USER:PASSWORD@ counts as one.  Returns the @, or `p`. */
static char *cover_user(char *p, char *end, bool has_scheme)
{
	char *slash = p + strcspn(p, "/?#");
	char *stop = slash < end ? slash : end;
	const char *colon = memchr(p, ':', (size_t)(stop - p));
	char *at;

	/* A password may have a slash, but a port has only digits. */
	if (has_scheme && colon &&
	    colon + 1 + strspn(colon + 1, "0123456789") < stop)
		stop = end;
	at = memrchr(p, '@', (size_t)(stop - p));
	if (!at || (!has_scheme && (!colon || colon > at)))
		return p;
	cover(p, at);
	return at;
}

/* Mistyped URLs have secrets, too: htp://, https:/, http//, or no scheme.  A word that
 * begins with a slash or a dot is a local path. */
static void cover_word(char *word, char *end)
{
	const bool is_local = *word == '/' || *word == '.';
	bool has_scheme = false, begins = true;

	for (char *p = word; p < end; p++) {
		if (begins && *p != '/') {
			p = cover_user(p, end, has_scheme);
			begins = false;
		}
		if (*p == ':' && p[1] == '/') {
			has_scheme = begins = true;
		} else if (*p == ',' || *p == '=') {
			has_scheme = false;
			begins = true;
		} else if (*p == '/') {
			begins = begins || (!is_local && !has_scheme);
		} else if (*p == '?' &&
			   (has_scheme || memchr(p, '=', (size_t)(end - p)))) {
			char *comma = memchr(p, ',', (size_t)(end - p));
			char *stop = comma ? comma : end;

			cover(p, stop);
			p = stop - 1;
		}
	}
}

void site_hide_secrets(char *text)
{
	while (*text) {
		char *word = text + strspn(text, WORD_ENDS);

		text = word + strcspn(word, WORD_ENDS);
		cover_word(word, text);
	}
}

/* Set the path: the scheme of `n` bytes in lower case, the host, and the decoded rest. */
static int set_path(struct site *s, const char *url, size_t n, const char *host,
		    const char *end, struct errmsg *err)
{
	char *last;

	if (asprintf(&s->path, "%.*s%.*s", (int)n, url, (int)(end - host),
		     host) < 0) {
		s->path = NULL;
		return errmsg_nomem(err, NULL);
	}
	for (size_t i = 0; i < n; i++)
		s->path[i] = (char)tolower((unsigned char)s->path[i]);
	s->root = n + strcspn(s->path + n, "/");
	if (s->root == n || !site_decode(s->path + s->root))
		return errmsg_set(err, -EINVAL, "%s: not a URL", s->path);
	for (last = strchr(s->path, '\0'); last[-1] == '/'; last--)
		last[-1] = '\0';
	if (strstr(s->path + s->root, "//") || strstr(s->path + s->root, "/../"))
		return errmsg_set(err, -EINVAL,
				  "%s: has empty or relative components",
				  s->path);
	return 0;
}

/* Set the secrets for an HTTP server: the user from `user` to `at` (NULL: none), and the query,
 * which begins at its question mark. */
static int set_http(struct site *s, const char *user, const char *at,
		    const char *query, struct errmsg *err)
{
	s->origin = strndup(s->path, s->root);
	s->prefix = strdup("");
	if (at)
		s->user = strndup(user, (size_t)(at - user));
	if (*query == '?' && query[1])
		s->query = strndup(query + 1, strcspn(query + 1, "#"));
	if (!s->origin || !s->prefix || (at && !s->user) ||
	    (*query == '?' && query[1] && !s->query))
		return errmsg_nomem(err, NULL);
	return !at || site_decode(s->user)
		       ? 0
		       : errmsg_set(err, -EINVAL, "%s: bad user or password",
				    s->path);
}

/* The length of ":PORT" at the end of a URL if that is the scheme's default port, or 0. */
static size_t default_port(const char *url, size_t len)
{
	const char *port = strncmp(url, "https", 5) == 0 ? ":443" : ":80";
	const size_t n = strlen(port);

	return len > n && strncmp(url + len - n, port, n) == 0 ? n : 0;
}

/* AWS has a host for each bucket; other servers have one for all buckets. */
static int set_s3_origin(struct site *s, const char *endpoint,
			 struct errmsg *err)
{
	char *bucket = strndup(s->path + 5, s->root - 5);
	/* Certificates cover one level of names, and hosts are in lower case. */
	const bool in_host =
		bucket && !endpoint && !bucket[strspn(bucket, LABEL_CHARS)];
	struct bytebuf origin = { 0 }, prefix = { 0 };

	if (endpoint) {
		size_t len = strlen(endpoint);

		while (len && endpoint[len - 1] == '/')
			len--;
		/* libcurl omits the default port from the Host header, which is signed. */
		bytebuf_add(&origin, endpoint,
			    len - default_port(endpoint, len));
	} else {
		bytebuf_add_str(&origin, "https://");
		bytebuf_add_str(&origin, in_host ? bucket : "");
		bytebuf_add_str(&origin, in_host ? ".s3." : "s3.");
		bytebuf_add_str(&origin, s->aws.v[AWS_REGION]);
		bytebuf_add_str(&origin, ".amazonaws.com");
	}
	if (!in_host) {
		bytebuf_add_str(&prefix, "/");
		site_encode(&prefix, bucket ? bucket : "", false);
	}
	s->origin = bytebuf_take_text(&origin);
	s->prefix = bytebuf_take_text(&prefix);
	free(bucket);
	return bucket && s->origin && s->prefix ? 0 : errmsg_nomem(err, NULL);
}

static int set_s3(struct site *s, struct errmsg *err)
{
	const struct uckpt *u = s->u;
	char **region = &s->aws.v[AWS_REGION];

	s->s3 = true;
	if (aws_profile_read(&s->aws))
		return errmsg_nomem(err, NULL);
	if (u->remote.s3_region || !*region) {
		free(*region);
		*region = strdup(u->remote.s3_region ? u->remote.s3_region
						     : DEFAULT_REGION);
		if (!*region)
			return errmsg_nomem(err, NULL);
	}
	s->is_signed = !u->remote.s3_anonymous;
	if (s->is_signed && !s->aws.v[AWS_KEY_ID])
		return errmsg_set(err, -EINVAL,
				  "%s: no key in the environment or ~/.aws/credentials; s3_anonymous does without",
				  s->path);
	for (int i = 0; s->is_signed && i < AWS_SETTINGS; i++)
		if (s->aws.v[i] && strlen(s->aws.v[i]) > AWS_SETTING_MAX)
			return errmsg_set(err, -EINVAL,
					  "%s: a key or a session's token is too long to sign with",
					  s->path);
	return set_s3_origin(s,
			     u->remote.s3_endpoint ? u->remote.s3_endpoint
						   : s->aws.v[AWS_ENDPOINT],
			     err);
}

static void site_free(struct site *s)
{
	free(s->path);
	free(s->origin);
	free(s->prefix);
	if (s->user)
		explicit_bzero(s->user, strlen(s->user));
	free(s->user);
	free(s->query);
	aws_profile_done(&s->aws);
	free(s);
}

static int parse(struct site *s, const char *url, struct errmsg *err)
{
	const char *user, *at, *query;
	int rc;

	if (!site_is_url(url))
		return errmsg_set(
			err, -EINVAL,
			"%.*s: unsupported scheme; sources are directories, or http://, https:// or s3://",
			(int)(strcspn(url, ":") + 3), url);
	user = strstr(url, "://") + 3;
	at = memrchr(user, '@', strcspn(user, "/?#"));
	query = user + strcspn(user, "?#");
	rc = set_path(s, url, (size_t)(user - url), at ? at + 1 : user, query,
		      err);
	if (rc)
		return rc;
	if (strncmp(s->path, "s3:", 3) != 0)
		return set_http(s, user, at, query, err);
	if (at || *query)
		return errmsg_set(err, -EINVAL,
				  "%s: s3:// has no user and no query", s->path);
	return set_s3(s, err);
}

static bool has_room(const struct uckpt *u)
{
	size_t n = 0;

	for (const struct site *s = u->sites; s; s = s->next)
		n++;
	return n < SITES_MAX;
}

int site_add(struct uckpt *u, const char *url, char **path, struct errmsg *err)
{
	struct site *s = calloc(1, sizeof(*s));
	int rc;

	if (!s)
		return errmsg_nomem(err, NULL);
	s->u = u;
	rc = parse(s, url, err);
	if (!rc && !has_room(u))
		rc = errmsg_set(err, -E2BIG, "more than %u URLs", SITES_MAX);
	if (!rc && !(*path = strdup(s->path)))
		rc = errmsg_nomem(err, NULL);
	if (rc) {
		site_free(s);
		return rc;
	}
	s->next = u->sites;
	u->sites = s;
	return 0;
}

void sites_done(struct uckpt *u)
{
	for (struct site *s; (s = u->sites);) {
		u->sites = s->next;
		site_free(s);
	}
}

/* If a URL was given twice with different secrets, the last one counts. */
struct site *site_of(const struct uckpt *u, const char *path)
{
	struct site *best = NULL;
	size_t len = 0;

	for (struct site *s = site_is_url(path) ? u->sites : NULL; s;
	     s = s->next) {
		const size_t n = strlen(s->path);

		if ((!best || n > len) && strncmp(path, s->path, n) == 0 &&
		    (path[n] == '/' || !path[n])) {
			best = s;
			len = n;
		}
	}
	return best;
}

const char *site_key(const struct site *s, const char *path)
{
	path += s->root;
	return path + (*path == '/');
}

/* Return the encoded path on the server; malloc'ed. */
static char *server_path(const struct site *s, const char *path, bool slash)
{
	struct bytebuf b = { 0 };

	bytebuf_add_str(&b, s->prefix);
	if (path)
		site_encode(&b, path + s->root, true);
	if (path ? slash || !path[s->root] : !*s->prefix)
		bytebuf_add_u8(&b, '/');
	return bytebuf_take_text(&b);
}

int site_request(const struct site *s, const char *path, bool slash,
		 const char *query, bool head, char **url,
		 struct sigv4_headers *headers)
{
	const char *own = s->query ? s->query : "";
	char *encoded = server_path(s, path, slash);
	const struct sigv4_request r = { .method = head ? "HEAD" : "GET",
					 .host = strstr(s->origin, "://") + 3,
					 .path = encoded,
					 .query = query,
					 .now = time(NULL) };
	int rc = encoded ? 0 : -ENOMEM;

	*headers = (struct sigv4_headers){ .n = 0 };
	if (!rc && s->is_signed)
		rc = sigv4_sign(&s->aws, &r, headers);
	if (!rc && asprintf(url, "%s%s%s%s%s%s", s->origin, encoded,
			    *query || *own ? "?" : "", query,
			    *query && *own ? "&" : "", own) < 0)
		rc = -ENOMEM;
	if (rc)
		sigv4_headers_done(headers);
	free(encoded);
	return rc;
}
