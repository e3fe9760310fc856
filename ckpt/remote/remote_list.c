/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists of directories, remembered for a moment: a search for a checkpoint looks up many names in
 * few directories, and most of them do not exist.
 *
 * A server that sends attributes with its lists (S3) needs no other request.  An index page has
 * names only.  A checkpoint has many files, so the attributes of the files after a requested one
 * are requested with it.  Their number grows with each request, since many files of a run may never
 * be read.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"
#include "ckpt/remote/remote.h"
#include "ckpt/remote/site.h"

#define LISTS_MAX 256
#define MEMORY_NS ((uint64_t)REMOTE_MEMORY_S * 1000000000)
#define HEADS_WIDTH 64     /* requests for attributes at once */
#define HEADS_MIN 16	   /* requested with the first file */
#define IDLE_PAGES_MAX 100 /* empty pages in a row */

void remote_list_put(struct remote_list *l)
{
	if (atomic_fetch_sub(&l->users, 1) > 1)
		return;
	pthread_mutex_destroy(&l->asking);
	dirlist_done(&l->names);
	free(l->path);
	free(l);
}

/* Forget lists that are too old, or the oldest ones of too many.  Called with the
 * context's lock held. */
static void forget(struct uckpt *u, size_t most)
{
	const uint64_t now = clock_ns();
	size_t n = 0;

	for (struct remote_list *l, **at = &u->lists; (l = *at);) {
		if (n < most && now - l->made_ns <= MEMORY_NS) {
			at = &l->next;
			n++;
			continue;
		}
		*at = l->next;
		remote_list_put(l);
	}
}

void remote_lists_done(struct uckpt *u)
{
	forget(u, 0);
}

static struct remote_list *find_remembered(struct uckpt *u, const char *path)
{
	struct remote_list *l;

	pthread_mutex_lock(&u->lock);
	forget(u, LISTS_MAX);
	for (l = u->lists; l && strcmp(l->path, path) != 0;)
		l = l->next;
	if (l)
		atomic_fetch_add(&l->users, 1);
	pthread_mutex_unlock(&u->lock);
	return l;
}

static void remember(struct uckpt *u, struct remote_list *l)
{
	atomic_fetch_add(&l->users, 1);
	pthread_mutex_lock(&u->lock);
	l->next = u->lists;
	u->lists = l;
	forget(u, LISTS_MAX);
	pthread_mutex_unlock(&u->lock);
}

/* A list that is being made.  All requests for it have one deadline. */
struct asking {
	struct site *site;
	const char *path;
	int64_t end;
	struct dirlist *out;
};

static int fail_list(const struct asking *a, int rc, const char *why,
		     struct errmsg *err)
{
	return errmsg_set(err, rc, "%s: cannot list: %s", a->path,
			  why ? why : strerror(-rc));
}

static char *page_query(const char *prefix, const char *token)
{
	struct bytebuf query = { 0 };

	/* Sorted by name, as the signature requires. */
	if (token) {
		bytebuf_add_str(&query, "continuation-token=");
		site_encode(&query, token, false);
		bytebuf_add_str(&query, "&");
	}
	bytebuf_add_str(&query, "delimiter=%2F&list-type=2&prefix=");
	site_encode(&query, prefix, false);
	return bytebuf_take_text(&query);
}

static int ask_s3_page(const struct asking *a, const char *prefix,
		       const char *token, char **next, struct errmsg *err)
{
	char *query = page_query(prefix, token);
	char *text = NULL;
	int rc = query ? http_get(a->site, a->path, query, a->end,
				  LISTING_BYTES_MAX, &text, err)
		       : errmsg_nomem(err, a->path);

	if (!rc) {
		rc = listing_parse_s3(a->out, text, prefix, next);
		if (rc)
			fail_list(a, rc,
				  rc == -EBADMSG ? "no answer of S3" : NULL,
				  err);
	}
	free(query);
	free(text);
	return rc;
}

/* A page may be empty although others follow, but a server that sends only empty pages would
 * never end. */
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
		dirlist_sort(a->out, 0);
		progress_step(a->site->u, "listing", a->out->n, 0);
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
	const char *key = site_key(a->site, a->path);
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
	struct bytebuf b = { 0 };
	char *text, *base;
	int rc = http_get(a->site, a->path, NULL, a->end, LISTING_BYTES_MAX,
			  &text, err);

	if (rc)
		return rc;
	site_encode(&b, a->path + a->site->root, true);
	base = bytebuf_take_text(&b);
	rc = base ? listing_parse_html(a->out, text, base) : -ENOMEM;
	free(base);
	free(text);
	return rc ? fail_list(a, rc, NULL, err) : 0;
}

static int ask_manifest(const struct asking *a, struct errmsg *err)
{
	const char *manifest = a->site->u->remote.manifest;
	const char *below = a->path + strlen(a->site->path);
	char *dir, *text;
	size_t len;
	int rc = source_text(manifest, LISTING_BYTES_MAX, &text, &len, err);

	if (rc)
		return rc;
	below += *below == '/';
	if (asprintf(&dir, "%s%s", below, *below ? "/" : "") < 0)
		dir = NULL;
	rc = dir ? listing_parse_manifest(a->out, text, dir) : -ENOMEM;
	if (rc)
		errmsg_set(err, rc, "%s: %s", manifest, strerror(-rc));
	else if (!a->out->n)
		rc = errmsg_set(err, -ENOENT, "%s: not in %s", a->path,
				manifest);
	free(text);
	free(dir);
	return rc;
}

int remote_list_get(struct site *s, const char *path, int64_t end,
		    struct remote_list **out, struct errmsg *err)
{
	struct remote_list *l = find_remembered(s->u, path);
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
	pthread_mutex_init(&l->asking, NULL);
	l->users = 1;
	a.out = &l->names;
	rc = s->u->remote.manifest ? ask_manifest(&a, err)
	     : s->s3               ? ask_s3(&a, err)
				   : ask_http(&a, err);
	if (rc) {
		remote_list_put(l);
		return rc;
	}
	dirlist_sort(&l->names, 0);
	l->made_ns = clock_ns();
	remember(s->u, l);
	*out = l;
	return 0;
}

struct heads {
	struct site *site;
	struct remote_list *list;
	size_t first; /* index of the requested file */
	int64_t end;
};

/* Get the attributes of a file unless they are known, and store them if memory allows. */
static int find_meta(const struct heads *h, struct dirlist_entry *e,
		     struct http_meta *out, struct errmsg *err)
{
	const struct http_meta *known = atomic_load(&e->more);
	char *path;
	int rc;

	if (known) {
		*out = *known;
		return 0;
	}
	if (asprintf(&path, "%s/%s", h->list->path, e->name) < 0)
		return errmsg_nomem(err, h->list->path);
	rc = http_head(h->site, path, false, h->end, out, err);
	free(path);
	if (!rc)
		listing_set_meta(e, out);
	return rc;
}

/* Ignore errors: a reader that needs that file requests it again. */
static int ask_meta(void *ctx, size_t i, struct errmsg *err)
{
	const struct heads *h = ctx;
	struct dirlist_entry *e = &h->list->names.v[h->first + i];
	struct http_meta unused;

	(void)err;
	if (S_ISREG(e->type))
		find_meta(h, e, &unused, NULL);
	return 0;
}

/* Get the attributes of a file, and of as many as were requested before, unless another thread
 * has. */
static void ask_ahead(struct heads *h)
{
	struct remote_list *l = h->list;
	const size_t left = l->names.n - h->first;
	size_t n;

	pthread_mutex_lock(&l->asking);
	n = l->asked < HEADS_MIN ? HEADS_MIN : l->asked;
	n = n < left ? n : left;
	if (!atomic_load(&l->names.v[h->first].more)) {
		parallel_for(n, HEADS_WIDTH, ask_meta, h, NULL);
		l->asked += n;
	}
	pthread_mutex_unlock(&l->asking);
}

int remote_list_meta(struct site *s, struct remote_list *l, const char *name,
		     int64_t end, struct http_meta *out, struct errmsg *err)
{
	struct dirlist_entry *e = dirlist_find(&l->names, name);
	struct heads h = { .site = s, .list = l, .end = end };

	if (!e)
		return errmsg_set(err, -ENOENT, "%s/%s: cannot open: %s",
				  l->path, name, strerror(ENOENT));
	if (S_ISDIR(e->type)) {
		*out = (struct http_meta){ .is_dir = true };
		return 0;
	}
	h.first = (size_t)(e - l->names.v);
	if (!atomic_load(&e->more))
		ask_ahead(&h);
	return find_meta(&h, e, out, err);
}
