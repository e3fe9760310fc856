/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of directories, remembered for a moment: whoever looks for a checkpoint asks
 * for many names of few directories, most of which are not there.
 *
 * A server that sends attributes with its lists (S3) needs no other request.  An
 * index page has names only: the attributes of all its files are asked for, in
 * parallel, when those of one are wanted, since a checkpoint is of all its files.
 */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/remote_impl.h"
#include "ckpt/remote/remote_options.h"
#include "ckpt/remote/site.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"

#define LISTS_MAX 256
#define HEADS_WIDTH 64 /* requests for attributes at once */
#define IDLE_PAGES_MAX 100 /* in a row, without a new name */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct remote_list *lists[LISTS_MAX]; /* protected by lock */
static size_t nlists;                        /* protected by lock */

static void list_free(struct remote_list *l)
{
	listing_done(&l->names);
	free(l->path);
	free(l);
}

/* Forget lists[i].  Called with the lock held. */
static void drop(size_t i)
{
	struct remote_list *const l = lists[i];

	lists[i] = lists[--nlists];
	l->dropped = true;
	if (!l->users)
		list_free(l);
}

void remote_list_put(struct remote_list *l)
{
	pthread_mutex_lock(&lock);
	assert(l->users > 0);
	if (!--l->users && l->dropped)
		list_free(l);
	pthread_mutex_unlock(&lock);
}

static struct remote_list *find_remembered(const char *path)
{
	const uint64_t now = clock_ns();
	struct remote_list *found = NULL;

	pthread_mutex_lock(&lock);
	for (size_t i = nlists; i-- > 0;)
		if (now - lists[i]->made_ns >
		    (uint64_t)REMOTE_MEMORY_S * 1000000000)
			drop(i);
		else if (strcmp(lists[i]->path, path) == 0)
			found = lists[i];
	if (found)
		found->users++;
	pthread_mutex_unlock(&lock);
	return found;
}

/* Remember a list, instead of the oldest if there are too many. */
static void remember(struct remote_list *l)
{
	size_t oldest = 0;

	pthread_mutex_lock(&lock);
	for (size_t i = 1; i < nlists; i++)
		if (lists[i]->made_ns < lists[oldest]->made_ns)
			oldest = i;
	if (nlists == LISTS_MAX)
		drop(oldest);
	l->users = 1;
	lists[nlists++] = l;
	pthread_mutex_unlock(&lock);
}

/* A list that is being made.  All requests for it have one deadline. */
struct asking {
	const struct site *site;
	const char *path;
	int64_t end;
	struct listing *out;
};

static int fail_list(const struct asking *a, int rc, const char *why,
		     struct errmsg *err)
{
	return errmsg_set(err, rc, "%s: cannot list: %s", a->path, why);
}

static int ask_s3_page(const struct asking *a, const char *prefix,
		       const char *token, char **next, struct errmsg *err)
{
	struct bytebuf query = { 0 }, text = { 0 };
	int rc;

	/* In the order of names, as signatures want them. */
	if (token) {
		bytebuf_add_str(&query, "continuation-token=");
		site_encode(&query, token, false);
		bytebuf_add_str(&query, "&");
	}
	bytebuf_add_str(&query, "delimiter=%2F&list-type=2&prefix=");
	site_encode(&query, prefix, false);
	bytebuf_add_u8(&query, '\0');
	rc = query.failed ? errmsg_nomem(err, a->path)
			  : http_get(a->site, a->path, (const char *)query.data,
				     a->end, LISTING_BYTES_MAX, &text, err);
	bytebuf_add_u8(&text, '\0');
	if (!rc && text.failed)
		rc = errmsg_nomem(err, a->path);
	if (!rc) {
		rc = listing_parse_s3(a->out, (const char *)text.data, prefix,
				      next);
		if (rc)
			fail_list(a, rc,
				  rc == -EBADMSG ? "no answer of S3"
						 : strerror(-rc),
				  err);
	}
	bytebuf_done(&query);
	bytebuf_done(&text);
	return rc;
}

/* A page may be empty although others follow, but a server that goes on so has no
 * last one. */
static int ask_s3_pages(const struct asking *a, const char *prefix,
			struct errmsg *err)
{
	char *token = NULL, *next;
	unsigned idle = 0;
	int rc;

	do {
		const size_t n = a->out->n;

		next = NULL;
		rc = ask_s3_page(a, prefix, token, &next, err);
		listing_finish(a->out);
		idle = a->out->n > n ? 0 : idle + 1;
		if (!rc && next &&
		    (idle == IDLE_PAGES_MAX || (token && !strcmp(token, next))))
			rc = fail_list(a, -EIO,
				       "the server sends pages without end",
				       err);
		free(token);
		token = next;
	} while (!rc && token);
	free(token);
	return rc;
}

static int ask_s3(const struct asking *a, struct errmsg *err)
{
	const char *const key = site_key(a->site, a->path);
	char *prefix;
	int rc;

	if (asprintf(&prefix, "%s%s", key, *key ? "/" : "") < 0)
		return errmsg_nomem(err, a->path);
	rc = ask_s3_pages(a, prefix, err);
	free(prefix);
	if (!rc && !a->out->n)
		rc = errmsg_set(err, -ENOENT, "%s: no objects there", a->path);
	return rc;
}

static int ask_http(const struct asking *a, struct errmsg *err)
{
	struct bytebuf text = { 0 };
	char *base = NULL;
	int rc = http_get(a->site, a->path, NULL, a->end, LISTING_BYTES_MAX,
			  &text, err);

	bytebuf_add_u8(&text, '\0');
	if (!rc && (text.failed || site_encoded_path(a->site, a->path, &base)))
		rc = errmsg_nomem(err, a->path);
	if (!rc) {
		rc = listing_parse_html(a->out, (char *)text.data, base);
		if (rc)
			fail_list(a, rc, strerror(-rc), err);
	}
	free(base);
	bytebuf_done(&text);
	return rc;
}

/* The whole of a file of the local disk, with a NUL. */
static int read_manifest(const char *path, struct bytebuf *out,
			 struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	if (src.size > LISTING_BYTES_MAX)
		rc = errmsg_set(err, -E2BIG, "%s: is too large", path);
	if (!rc) {
		bytebuf_reserve(out, (size_t)src.size + 1);
		rc = out->failed ? errmsg_nomem(err, path)
				 : source_read(&src, out->data,
					       (size_t)src.size, 0, err);
	}
	source_close(&src);
	if (!rc) {
		out->len = (size_t)src.size;
		bytebuf_add_u8(out, '\0');
	}
	return rc;
}

static int ask_manifest(const struct asking *a, struct errmsg *err)
{
	const char *below = a->path + strlen(site_path(a->site));
	struct bytebuf text = { 0 };
	char *dir;
	int rc;

	below += *below == '/';
	if (asprintf(&dir, "%s%s", below, *below ? "/" : "") < 0)
		return errmsg_nomem(err, a->path);
	rc = read_manifest(remote_options()->manifest, &text, err);
	if (!rc) {
		rc = listing_parse_manifest(a->out, (char *)text.data, dir);
		if (rc)
			errmsg_set(err, rc, "%s: %s",
				   remote_options()->manifest, strerror(-rc));
	}
	if (!rc && !a->out->n)
		rc = errmsg_set(err, -ENOENT, "%s: not in %s", a->path,
				remote_options()->manifest);
	bytebuf_done(&text);
	free(dir);
	return rc;
}

int remote_list_get(const struct site *s, const char *path, int64_t end,
		    struct remote_list **out, struct errmsg *err)
{
	struct remote_list *l = find_remembered(path);
	struct asking a = { .site = s, .path = path, .end = end };
	int rc;

	if (l) {
		*out = l;
		return 0;
	}
	l = calloc(1, sizeof(*l));
	if (!l || !(l->path = strdup(path))) {
		free(l);
		return errmsg_nomem(err, path);
	}
	a.out = &l->names;
	if (remote_options()->manifest)
		rc = ask_manifest(&a, err);
	else if (site_is_s3(s))
		rc = ask_s3(&a, err);
	else
		rc = ask_http(&a, err);
	if (rc) {
		list_free(l);
		return rc;
	}
	listing_finish(&l->names);
	l->made_ns = clock_ns();
	remember(l);
	*out = l;
	return 0;
}

struct heads {
	const struct site *site;
	struct remote_list *list;
	int64_t end;
};

static bool take_meta(const struct listing_entry *e, struct http_meta *out)
{
	bool known;

	pthread_mutex_lock(&lock);
	known = e->meta;
	if (known)
		*out = *e->meta;
	pthread_mutex_unlock(&lock);
	return known;
}

/* Ask for the attributes of one file; what fails is asked for again by whoever wants
 * that file. */
static int ask_meta(void *ctx, size_t i, struct errmsg *err)
{
	const struct heads *const h = ctx;
	struct listing_entry *const e = &h->list->names.v[i];
	struct http_meta m;
	char *path;

	(void)err;
	if (e->is_dir || take_meta(e, &m) ||
	    asprintf(&path, "%s/%s", h->list->path, e->name) < 0)
		return 0;
	if (http_head(h->site, path, false, h->end, &m, NULL) == 0) {
		pthread_mutex_lock(&lock);
		if (!e->meta) /* another thread may have asked, too */
			listing_set_meta(e, &m);
		pthread_mutex_unlock(&lock);
	}
	free(path);
	return 0;
}

int remote_list_meta(const struct site *s, struct remote_list *l,
		     const char *name, int64_t end, struct http_meta *out,
		     struct errmsg *err)
{
	struct listing_entry *const e = listing_find(&l->names, name);
	struct heads h = { .site = s, .list = l, .end = end };
	char *path;
	int rc;

	if (!e)
		return errmsg_set(err, -ENOENT, "%s/%s: cannot open: %s",
				  l->path, name, strerror(ENOENT));
	if (e->is_dir) {
		*out = (struct http_meta){ .is_dir = true };
		return 0;
	}
	if (take_meta(e, out))
		return 0;
	parallel_for(l->names.n, HEADS_WIDTH, ask_meta, &h, NULL);
	if (take_meta(e, out))
		return 0;
	if (asprintf(&path, "%s/%s", l->path, name) < 0)
		return errmsg_nomem(err, l->path);
	rc = http_head(s, path, false, end, out, err);
	free(path);
	return rc;
}
