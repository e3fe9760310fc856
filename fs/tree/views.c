/* SPDX-License-Identifier: Apache-2.0 */
/* The tags that have a view, and their plans once made. */
#include "fs/tree/views.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/zero/indexfile.h"
#include "fs/log/log.h"

#define RETRY_SECONDS 1

struct view {
	char *path;          /* immutable */
	enum plan_kind kind; /* immutable */
	uint64_t parent;     /* immutable */
	/* Protected by views.lock: */
	struct plan *plan; /* does not change once it is there */
	time_t failed;
	int rc;
	struct errmsg why;
};

struct views {
	struct plan_options options;
	const struct indexfile *index; /* or NULL */
	bool unkept; /* views_save's own: it failed, and has told so */
	pthread_mutex_t lock; /* protects v and n; held while a plan is made */
	struct view **v;
	size_t n;
};

struct views *views_new(const struct plan_options *options,
			const struct indexfile *index)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->options = *options;
	v->index = index;
	pthread_mutex_init(&v->lock, NULL);
	return v;
}

void views_free(struct views *v)
{
	if (!v)
		return;
	/* The universal plans, which come first, are what the others use. */
	for (int kind = PLAN_KINDS; kind-- > 0;)
		for (size_t i = 0; i < v->n; i++)
			if ((int)v->v[i]->kind == kind)
				plan_close(v->v[i]->plan);
	for (size_t i = 0; i < v->n; i++) {
		free(v->v[i]->path);
		free(v->v[i]);
	}
	free(v->v);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

/* Called with the lock held. */
static int append(struct views *v, const char *path, enum plan_kind kind,
		  uint64_t parent)
{
	struct view *view;
	void *grown;

	if (v->n == VIEWS_MAX)
		return -ENFILE;
	grown = realloc(v->v, (v->n + 1) * sizeof(struct view *));
	if (!grown)
		return -ENOMEM;
	v->v = grown;
	view = calloc(1, sizeof(*view));
	if (!view)
		return -ENOMEM;
	view->path = strdup(path);
	if (!view->path) {
		free(view);
		return -ENOMEM;
	}
	view->kind = kind;
	view->parent = parent;
	v->v[v->n++] = view;
	return 0;
}

/* The number of a view; the one behind the last, if it is not there.  Called with
 * the lock held. */
static size_t find(const struct views *v, const char *path, enum plan_kind kind)
{
	size_t i = 0;

	while (i < v->n &&
	       (v->v[i]->kind != kind || strcmp(v->v[i]->path, path) != 0))
		i++;
	return i;
}

int views_add(struct views *v, const char *path, enum plan_kind kind,
	      uint64_t parent, size_t *index)
{
	int rc = 0;
	size_t i;

	pthread_mutex_lock(&v->lock);
	i = find(v, path, kind);
	if (i == v->n)
		rc = append(v, path, kind, parent);
	pthread_mutex_unlock(&v->lock);
	if (!rc)
		*index = i;
	return rc;
}

size_t views_count(struct views *v)
{
	pthread_mutex_lock(&v->lock);

	const size_t n = v->n;

	pthread_mutex_unlock(&v->lock);
	return n;
}

static struct view *get(struct views *v, size_t index)
{
	pthread_mutex_lock(&v->lock);

	struct view *const view = index < v->n ? v->v[index] : NULL;

	pthread_mutex_unlock(&v->lock);
	return view;
}

const char *views_path(struct views *v, size_t index)
{
	return get(v, index)->path;
}

enum plan_kind views_kind(struct views *v, size_t index)
{
	return get(v, index)->kind;
}

uint64_t views_parent(struct views *v, size_t index)
{
	return get(v, index)->parent;
}

static void log_warnings(struct plan *p, const char *path)
{
	struct errmsg text;
	size_t pos = 0;

	while (plan_warning(p, &pos, &text))
		log_warning("%s: %s", path, text.text);
}

/* Open the plan of a tag, with what is kept of it. */
static int open_plan(const struct views *v, struct view *view, struct plan **p)
{
	struct plan_options options = v->options;
	struct errmsg refused = { "" };
	struct bytebuf index = { 0 };
	int rc = 0;

	options.kind = view->kind;
	if (v->index)
		rc = indexfile_find(v->index, view->path, &index, &refused);
	if (*refused.text)
		log_warning("%s; reading the files", refused.text);
	refused = (struct errmsg){ "" };
	rc = plan_open_indexed(view->path, &options,
			       (struct span){ index.data, rc ? 0 : index.len },
			       p, &refused, &view->why);
	if (*refused.text)
		log_warning("%s: %s; reading the files", v->index->path,
			    refused.text);
	bytebuf_done(&index);
	return rc;
}

static int make_plan(struct views *v, struct view *view);

/* The universal plan of the same tag, made if need be: NULL if it cannot be.
 * Called with the lock held. */
static struct plan *find_universal(struct views *v, const struct view *view)
{
	size_t i = find(v, view->path, PLAN_UNIVERSAL);

	if (i == v->n && append(v, view->path, PLAN_UNIVERSAL, view->parent))
		return NULL;
	return make_plan(v, v->v[i]) ? NULL : v->v[i]->plan;
}

/* What is not universal may be possible where that is not: by itself then. */
static int open_view(struct views *v, struct view *view, struct plan **p)
{
	struct plan *const universal =
		view->kind == PLAN_UNIVERSAL ? NULL : find_universal(v, view);

	return universal ? plan_open_beside(universal, view->kind, p, &view->why)
			 : open_plan(v, view, p);
}

/* Called with the lock held.  Recursive, once: a view may need the universal
 * one. */
static int make_plan(struct views *v, struct view *view)
{
	const time_t now = time(NULL);
	struct plan *p;

	if (view->plan || (view->rc && now - view->failed < RETRY_SECONDS))
		return view->rc;
	view->failed = now;
	view->rc = open_view(v, view, &p);
	if (view->rc)
		return view->rc;
	view->rc = plan_check(p, &view->why);
	if (view->rc) {
		plan_close(p);
		return view->rc;
	}
	log_warnings(p, view->path);
	view->plan = p;
	return 0;
}

int views_plan(struct views *v, size_t index, struct plan **out,
	       struct errmsg *err)
{
	struct view *const view = get(v, index);
	int rc;

	if (!view)
		return errmsg_set(err, -ENOENT, "no such view");
	pthread_mutex_lock(&v->lock);
	rc = make_plan(v, view);
	if (rc && err)
		*err = view->why;
	*out = view->plan;
	pthread_mutex_unlock(&v->lock);
	return rc;
}

/* The plans that are made, with their paths; how many. */
static size_t list_plans(struct views *v, struct indexfile_record **records,
			 struct plan ***plans)
{
	size_t n = 0;

	pthread_mutex_lock(&v->lock);
	*records = calloc(v->n + 1, sizeof(**records));
	*plans = calloc(v->n + 1, sizeof(**plans));
	for (size_t i = 0; *records && *plans && i < v->n; i++)
		if (v->v[i]->plan) {
			(*records)[n].tag = v->v[i]->path;
			(*plans)[n++] = v->v[i]->plan;
		}
	pthread_mutex_unlock(&v->lock);
	return n;
}

void views_save(struct views *v)
{
	struct indexfile_record *records;
	struct plan **plans;
	struct errmsg err = { "" };
	size_t n, kept = 0;

	if (!v->index || v->unkept)
		return;
	n = list_plans(v, &records, &plans);
	for (size_t i = 0; i < n; i++) {
		struct indexfile_record r = { .tag = records[i].tag };
		const int rc = plan_index(plans[i], &r.bytes, &err);

		if (rc < 0)
			log_warning("%s: no index: %s", r.tag, err.text);
		if (rc == 1)
			records[kept++] = r;
		else
			bytebuf_done(&r.bytes);
	}
	if (kept && indexfile_put(v->index, records, kept, &err)) {
		log_warning("no index: %s", err.text);
		v->unkept = true;
	}
	for (size_t i = 0; i < kept; i++)
		bytebuf_done(&records[i].bytes);
	free(records);
	free(plans);
}

struct plan *views_plan_if_made(struct views *v, size_t index)
{
	struct view *const view = get(v, index);

	pthread_mutex_lock(&v->lock);

	struct plan *const p = view ? view->plan : NULL;

	pthread_mutex_unlock(&v->lock);
	return p;
}
