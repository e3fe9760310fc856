/* SPDX-License-Identifier: Apache-2.0 */
/* The tags that have a view, and their plans once made. */
#include "fs/views.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/errmsg.h"
#include "ckpt/resolve.h"
#include "fs/log.h"

#define RETRY_SECONDS 1

struct view {
	char *path;	 /* immutable */
	uint64_t parent; /* immutable */
	/* Protected by views.lock: */
	struct plan *plan; /* does not change once it is there */
	time_t failed;
	int rc;
	struct errmsg why;
};

struct views {
	struct plan_options options;
	pthread_mutex_t lock; /* protects v and n; held while a plan is made */
	struct view **v;
	size_t n;
};

struct views *views_new(const struct plan_options *options)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->options = *options;
	pthread_mutex_init(&v->lock, NULL);
	return v;
}

void views_free(struct views *v)
{
	if (!v)
		return;
	for (size_t i = 0; i < v->n; i++) {
		plan_close(v->v[i]->plan);
		free(v->v[i]->path);
		free(v->v[i]);
	}
	free(v->v);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

/* Called with the lock held. */
static int append(struct views *v, const char *path, uint64_t parent)
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
	view->parent = parent;
	v->v[v->n++] = view;
	return 0;
}

int views_add(struct views *v, const char *path, uint64_t parent,
	      size_t *index)
{
	int rc = 0;
	size_t i;

	pthread_mutex_lock(&v->lock);
	for (i = 0; i < v->n; i++)
		if (strcmp(v->v[i]->path, path) == 0)
			break;
	if (i == v->n)
		rc = append(v, path, parent);
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

uint64_t views_parent(struct views *v, size_t index)
{
	return get(v, index)->parent;
}

static void log_warnings(struct plan *p, const char *path)
{
	const struct resolve *const r = plan_resolve(p);
	const struct catalogue *const c = r->model.cats;

	if (c->round_robin)
		log_warning("%s: round_robin_gradients was on: tensors are"
			    " taken in the order of param_shapes", path);
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		for (size_t i = 0; i < c[mp].nwarnings; i++)
			log_warning("%s: %s", path, c[mp].warnings[i]);
	for (size_t i = 0; i < r->model.nunused; i++)
		log_warning("%s: pattern '%s' matches no parameter", path,
			    r->model.unused[i]);
	if (r->model.scaled)
		log_warning("%s: pieces of %s are scaled: its moments are"
			    " served, but lr and eps would have to be scaled,"
			    " too", path, r->model.scaled->name);
}

/* Called with the lock held. */
static int make_plan(struct views *v, struct view *view)
{
	const time_t now = time(NULL);
	struct plan *p;

	if (view->plan || (view->rc && now - view->failed < RETRY_SECONDS))
		return view->rc;
	view->failed = now;
	view->rc = plan_open(view->path, &v->options, &p, &view->why);
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

struct plan *views_plan_if_made(struct views *v, size_t index)
{
	struct view *const view = get(v, index);

	pthread_mutex_lock(&v->lock);

	struct plan *const p = view ? view->plan : NULL;

	pthread_mutex_unlock(&v->lock);
	return p;
}
