/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An exchange is a request with its retries.  The header of each answer is checked before a byte of
 * its body is taken, so that bytes of another generation, or of another place in the file, never
 * reach the reader's buffer.  Bytes that arrived before a connection broke are kept, and only the
 * rest is requested again.
 */
#include "ckpt/remote/http.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/remote/site.h"
#include "ckpt/remote/transport.h"

#define MS INT64_C(1000000)
#define PAUSE_MIN_MS 100
#define PAUSE_MAX_MS 5000
#define TRIES_UNKNOWN 3  /* of a server that has never answered */
#define SNIPPET_MAX 1024 /* of an error's body */
#define HEADERS_MAX (SIGV4_HEADERS + 2)
#define LINE_MAX_BYTES 1024 /* of a header line (RFC 9110); longer ones are ignored */
#define CONDITION_MAX (HTTP_ETAG_MAX + 32)

struct exchange {
	struct site *site;
	const char *path;
	int64_t end; /* deadline of the operation */
	bool head;
	bool slash;        /* the path is a directory's */
	const char *query; /* GET of the bucket's list; or NULL */
	/* Of http_read: */
	const struct http_meta *meta; /* NULL: not a range */
	uint8_t *buf;
	size_t len, got;
	uint64_t off;
	/* Of http_get: */
	struct bytebuf *out;
	size_t max;
	/* The last answer: */
	struct transport_result result;
	struct http_answer answer;
	bool checked;
	int refused; /* a negative errno: the reason why the answer must not be used */
	char why[TRANSPORT_TEXT_MAX];
	char snippet[SNIPPET_MAX];
	size_t nsnippet;
};

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

/* Return the time of an HTTP date in seconds; 0 if invalid. */
static int64_t parse_date(const char *text)
{
	struct tm tm = { 0 };
	const char *end = strptime(text, "%a, %d %b %Y %H:%M:%S GMT", &tm);

	return end && !*end ? (int64_t)timegm(&tm) : 0;
}

static void take(struct http_answer *a, const char *name, const char *value)
{
	struct http_meta *m = &a->meta;
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
		const char *status = strchr(text, ' ');

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

/* The entity tag, without the mark of a weak one: the size is compared as well. */
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

void http_stop(struct uckpt *u)
{
	atomic_store(&u->stopped, true);
}

static bool is_good(long status)
{
	return status == 200 || status == 206;
}

static bool is_temporary(long status)
{
	return status == 408 || status == 425 || status == 429 ||
	       status == 500 || status == 502 || status == 503 || status == 504;
}

static bool refuse(struct exchange *x, int rc, const char *why)
{
	x->refused = rc;
	snprintf(x->why, sizeof(x->why), "%s", why);
	return false;
}

/* May the body of a good answer to a range be taken?  It may be shorter than the range, but must
 * begin with it. */
static bool check_range(struct exchange *x)
{
	const struct http_answer *a = &x->answer;
	const uint64_t at = x->off + x->got;

	if (!http_is_same(x->meta, &a->meta))
		return refuse(x, -EIO, "was replaced since it was planned");
	if (a->status == 200) {
		if (a->has_length && a->meta.size == x->meta->size && at == 0 &&
		    x->len == x->meta->size)
			return true;
		return refuse(x, -EIO, "the server does not answer ranges");
	}
	if (!a->has_range || a->first != at || a->total != x->meta->size ||
	    a->last - a->first >= x->len - x->got)
		return refuse(x, -EIO,
			      "the server answered another range than asked");
	return true;
}

static bool check_answer(struct exchange *x)
{
	x->checked = true;
	if (!is_good(x->answer.status))
		return true;
	if (x->answer.is_encoded)
		return refuse(x, -EIO, "the server encoded what was not to be");
	return !x->meta || check_range(x);
}

static size_t on_header(char *line, size_t size, size_t n, void *ctx)
{
	struct exchange *x = ctx;

	(void)size;
	http_answer_line(&x->answer, line, n);
	return n;
}

static bool take_body(struct exchange *x, const char *p, size_t len)
{
	if (!x->checked && !check_answer(x))
		return false;
	if (!is_good(x->answer.status)) {
		const size_t room = sizeof(x->snippet) - 1 - x->nsnippet;
		const size_t n = len < room ? len : room;

		memcpy(x->snippet + x->nsnippet, p, n);
		x->nsnippet += n;
		return true;
	}
	if (x->meta) {
		if (len > x->len - x->got)
			return refuse(x, -EIO,
				      "the server sent more than was asked");
		memcpy(x->buf + x->got, p, len);
		x->got += len;
	} else if (x->out) {
		if (len > x->max - x->out->len)
			return refuse(x, -E2BIG, "its list is too large");
		bytebuf_add(x->out, p, len);
		if (x->out->failed)
			return refuse(x, -ENOMEM, "out of memory");
	}
	return true;
}

static size_t on_body(char *p, size_t size, size_t n, void *ctx)
{
	(void)size;
	return take_body(ctx, p, n) ? n : 0;
}

/* The headers that make the file's generation a condition. */
static size_t add_condition(const struct exchange *x,
			    char condition[CONDITION_MAX], char *range,
			    size_t range_len, const char **headers)
{
	const struct http_meta *m = x->meta;
	size_t n = 0;

	if (!m)
		return 0;
	snprintf(range, range_len, "Range: bytes=%" PRIu64 "-%" PRIu64,
		 x->off + x->got, x->off + x->len - 1);
	headers[n++] = range;
	/* A weak tag never matches (RFC 9110, 13.1.1). */
	if (*m->etag && strncmp(m->etag, "W/", 2) != 0)
		snprintf(condition, CONDITION_MAX, "If-Match: %s", m->etag);
	else if (*m->modified)
		snprintf(condition, CONDITION_MAX, "If-Unmodified-Since: %s",
			 m->modified);
	else
		return n;
	headers[n++] = condition;
	return n;
}

static int try_once(struct exchange *x, int64_t left_ms)
{
	const struct uckpt *u = x->site->u;
	const int64_t third_ms = (int64_t)u->remote.deadline_s * 1000 / 3;
	char condition[CONDITION_MAX], range[64];
	const char *headers[HEADERS_MAX];
	struct sigv4_headers signature;
	struct transport_request r = {
		.headers = headers,
		.user = x->site->user,
		.ca_file = u->remote.ca_file,
		.head = x->head,
		.follow = !x->site->s3,
		.timeout_ms = (long)left_ms,
		.stall_ms = third_ms < 1000 ? 1000 : (long)third_ms,
		.header = on_header,
		.body = on_body,
		.ctx = x,
		.stop = &u->stopped,
	};
	char *url;
	int rc = site_request(x->site, x->query ? NULL : x->path, x->slash,
			      x->query ? x->query : "", x->head, &url,
			      &signature);

	if (rc) {
		refuse(x, rc, strerror(-rc));
		return rc;
	}
	r.url = url;
	r.nheaders = add_condition(x, condition, range, sizeof(range), headers);
	for (size_t i = 0; i < signature.n; i++)
		headers[r.nheaders++] = signature.v[i];
	x->answer = (struct http_answer){ 0 };
	x->checked = false;
	x->refused = 0;
	x->nsnippet = 0;
	if (x->out)
		x->out->len = 0;
	rc = transport_perform(&r, &x->result);
	sigv4_headers_done(&signature);
	free(url);
	if (x->result.status)
		atomic_store(&x->site->has_answered, true);
	if (!rc && !x->checked && !check_answer(x))
		rc = -ECANCELED;
	return rc;
}

/* Return the text between <Code> and </Code> in an error of S3, or "". */
static const char *error_code(struct exchange *x)
{
	char *code, *end;

	x->snippet[x->nsnippet] = '\0';
	code = strstr(x->snippet, "<Code>");
	end = code ? strstr(code, "</Code>") : NULL;
	if (!end)
		return "";
	*end = '\0';
	return code + 6;
}

static int fail_status(struct exchange *x, struct errmsg *err)
{
	const long status = x->answer.status;
	const char *code = error_code(x);
	int rc = -EIO;

	if (status == 404 || status == 410)
		rc = -ENOENT;
	else if (status == 401 || status == 403)
		rc = -EACCES;
	if (x->meta && (status == 412 || status == 416))
		return errmsg_set(err, -EIO,
				  "%s: was replaced since it was planned (HTTP status %ld)",
				  x->path, status);
	return errmsg_set(err, rc, "%s: HTTP status %ld%s%s", x->path, status,
			  *code ? " " : "", code);
}

/* Judge an answer: 1 to try again, with the reason in x->why; else the result. */
static int judge(struct exchange *x, int rc, struct errmsg *err)
{
	if (x->refused)
		return errmsg_set(err, x->refused, "%s: %s", x->path, x->why);
	if (rc == -ECONNRESET || rc == -ETIMEDOUT) {
		snprintf(x->why, sizeof(x->why), "%s", x->result.text);
		return 1;
	}
	if (rc == -ECANCELED)
		return errmsg_set(err, rc, "%s: given up at the unmount",
				  x->path);
	if (rc)
		return errmsg_set(err, rc == -ENOMEM ? rc : -EIO, "%s: %s",
				  x->path, x->result.text);
	if (is_temporary(x->answer.status)) {
		const char *code = error_code(x);

		snprintf(x->why, sizeof(x->why), "HTTP status %ld%s%.64s",
			 x->answer.status, *code ? " " : "", code);
		return 1;
	}
	if (!is_good(x->answer.status))
		return fail_status(x, err);
	if (x->meta && x->got < x->len) {
		snprintf(x->why, sizeof(x->why), "the answer ended early");
		return 1;
	}
	return 0;
}

/* Wait before try `tries` + 1, for a random time, so that many readers do not return at once.
 * False if the deadline comes first. */
static bool pause_for(const struct exchange *x, unsigned tries)
{
	int64_t ms = (int64_t)PAUSE_MIN_MS << (tries < 8 ? tries : 8);
	const int64_t until_ms = (x->end - (int64_t)clock_ns()) / MS;

	if (ms > PAUSE_MAX_MS)
		ms = PAUSE_MAX_MS;
	ms = ms / 2 + (int64_t)(clock_ns() / 1000) % (ms / 2 + 1);
	if (ms < (int64_t)x->answer.retry_after_s * 1000)
		ms = (int64_t)x->answer.retry_after_s * 1000;
	if (ms >= until_ms)
		return false;
	for (; ms > 0 && !atomic_load(&x->site->u->stopped); ms -= PAUSE_MIN_MS) {
		const int64_t some = ms < PAUSE_MIN_MS ? ms : PAUSE_MIN_MS;
		const struct timespec ts = { .tv_nsec = (long)(some * MS) };

		nanosleep(&ts, NULL);
	}
	return true;
}

static int exchange(struct exchange *x, struct errmsg *err)
{
	size_t before = 0;
	unsigned tries = 0;
	int rc;

	for (;;) {
		const int64_t left_ms = (x->end - (int64_t)clock_ns()) / MS;

		if (left_ms <= 0)
			break;
		rc = try_once(x, left_ms);
		rc = judge(x, rc, err);
		if (rc <= 0)
			return rc;
		/* At least half of the rest has arrived: retry at once. */
		if (x->got - before >= (x->len - before) / 2 && x->got > before) {
			before = x->got;
			tries = 0;
			continue;
		}
		before = x->got;
		if (++tries == TRIES_UNKNOWN &&
		    !atomic_load(&x->site->has_answered))
			return errmsg_set(err, -EIO, "%s: %s", x->path, x->why);
		if (!pause_for(x, tries - 1))
			break;
	}
	return errmsg_set(err, -EIO, "%s: not read within %u s%s%s", x->path,
			  x->site->u->remote.deadline_s, *x->why ? ": " : "",
			  x->why);
}

int64_t http_deadline(const struct uckpt *u)
{
	const int64_t shared = atomic_load(&u->deadline);

	return shared ? shared
		      : (int64_t)clock_ns() +
				(int64_t)u->remote.deadline_s * 1000 * MS;
}

void http_begin_together(struct uckpt *u)
{
	atomic_store(&u->deadline, http_deadline(u));
}

void http_end_together(struct uckpt *u)
{
	atomic_store(&u->deadline, 0);
}

int http_head(struct site *s, const char *path, bool slash, int64_t end,
	      struct http_meta *out, struct errmsg *err)
{
	struct exchange x = {
		.site = s, .path = path, .end = end, .head = true, .slash = slash
	};
	const int rc = exchange(&x, err);

	if (rc)
		return rc;
	*out = x.answer.meta;
	out->is_dir = x.result.is_slash;
	if (out->is_dir)
		return 0;
	if (!x.answer.has_length)
		return errmsg_set(err, -EIO,
				  "%s: the server does not tell its size", path);
	if (!*out->etag && !out->mtime_s)
		return errmsg_set(err, -EIO,
				  "%s: the server sends neither ETag nor Last-Modified, by which a change would show",
				  path);
	return 0;
}

int http_get(struct site *s, const char *path, const char *query, int64_t end,
	     size_t max, char **text, struct errmsg *err)
{
	struct bytebuf out = { 0 };
	struct exchange x = { .site = s,
			      .path = path,
			      .end = end,
			      .slash = !query,
			      .query = query,
			      .out = &out,
			      .max = max };
	const int rc = exchange(&x, err);

	if (rc) {
		bytebuf_done(&out);
		return rc;
	}
	*text = bytebuf_take_text(&out);
	return *text ? 0 : errmsg_nomem(err, path);
}

int http_read(struct site *s, const char *path, const struct http_meta *m,
	      void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct exchange x = { .site = s,
			      .path = path,
			      .end = http_deadline(s->u),
			      .meta = m,
			      .buf = buf,
			      .len = len,
			      .off = off };
	assert(len && len <= HTTP_READ_MAX && off <= m->size &&
	       len <= m->size - off);
	return exchange(&x, err);
}
