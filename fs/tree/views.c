/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The views of tags, and their plans.
 *
 * A plan does not change, so a tag that is saved again gets new views, with new
 * numbers and thus new inodes: whatever the kernel has cached of the old ones
 * stays true of them.  An old view is retired, which is to say that it is not
 * found any more, and its plan is closed after the last use.
 *
 * A save takes a while and leaves files of two generations meanwhile.  So a tag
 * is taken for saved when two looks at all its files, LOOK_SECONDS apart, see the same.
 * The same holds for a Hugging Face directory.
 */
#include "fs/tree/views.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"
#include "fs/log/log.h"
#include "fs/tree/saved_again.h"

#define RETRY_SECONDS 1
#define LOOK_SECONDS 1.0

struct view {
	char *path;            /* immutable */
	struct view_type type; /* immutable */
	uint64_t parent;       /* immutable */
	/* Protected by views.lock: */
	struct plan *plan; /* immutable once set */
	time_t failed;     /* time of the last attempt */
	int rc;            /* and its result */
	struct errmsg why;
	unsigned users; /* of the plan: callers, and plans that refer to it */
	struct view *base; /* whose plan this plan refers to, or NULL */
	bool retired;      /* its tag was saved again */
	bool suspect;      /* a file could not be opened */
	bool there;        /* its files were there when they were last compared */
	uint64_t looked;   /* the time of that */
	uint32_t seen;     /* sum of what was seen then, if it was other files */
};

struct views {
	struct plan_options options;
	bool check; /* all files of a tag */
	pthread_mutex_t lock; /* protects the rest; held while a plan is made */
	struct view **v;
	size_t n, cap;
};

struct views *views_new(const struct plan_options *options, bool check)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->options = *options;
	v->check = check;
	pthread_mutex_init(&v->lock, NULL);
	return v;
}

void views_free(struct views *v)
{
	if (!v)
		return;
	/* Other plans refer to universal ones, which are the first kind. */
	for (int kind = PLAN_KINDS; kind-- > 0;)
		for (size_t i = 0; i < v->n; i++)
			if ((int)v->v[i]->type.kind == kind)
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
static int views_append(struct views *v, const char *path,
			const struct view_type *type, uint64_t parent)
{
	struct view *view;

	if (v->n == VIEWS_MAX)
		return -ENFILE;
	if (!array_reserve(&v->v, &v->cap, v->n + 1, sizeof(struct view *)))
		return -ENOMEM;
	view = calloc(1, sizeof(*view));
	if (!view)
		return -ENOMEM;
	view->path = strdup(path);
	if (!view->path) {
		free(view);
		return -ENOMEM;
	}
	view->type = *type;
	view->parent = parent;
	v->v[v->n++] = view;
	return 0;
}

/* Return the number of a view, or v->n if it does not exist.  Called with the
 * lock held. */
static size_t views_find(const struct views *v, const char *path,
			 const struct view_type *type)
{
	size_t i = 0;

	while (i < v->n && (v->v[i]->retired ||
			    !view_type_equal(&v->v[i]->type, type) ||
			    strcmp(v->v[i]->path, path) != 0))
		i++;
	return i;
}

/* Give back a use of the view's plan.  Called with the lock held. */
static void release_plan(struct view *view)
{
	assert(view->users > 0);
	if (--view->users || !view->retired)
		return;
	plan_close(view->plan);
	view->plan = NULL;
	if (view->base)
		release_plan(view->base);
}

/* --- tags that are saved again ---------------------------------------------------- */

static void retire(struct view *view)
{
	log_note("%s: was saved again", view->path);
	view->retired = true;
	view->rc = 0;
	if (view->plan) {
		view->users++;
		release_plan(view);
	}
}

static bool is_look_due(const struct view *view, double moment)
{
	const bool changes = view->suspect || !view->there;
	const double least = changes ? LOOK_SECONDS : moment;

	return (double)(clock_ns() - view->looked) / 1e9 >= least;
}

/* Compare the files of a view that has a plan.  True if its tag was saved again. */
static bool compare_files(struct view *view)
{
	const uint32_t before = view->seen;

	view->looked = clock_ns();
	view->there = !saved_again_maybe(view->plan, view->path);
	/* What saved_again_maybe misses makes opens fail. */
	view->seen = view->suspect || !view->there
			     ? saved_again_sum(view->plan, view->path)
			     : 0;
	view->suspect = view->seen != 0;
	return view->seen && view->seen == before;
}

/* If the last look was more than `moment` seconds ago, look whether a tag was saved
 * again, and then retire its views.  True if it is there as it was planned.  Called with
 * the lock held. */
static bool look_again(struct views *v, const char *path, double moment)
{
	struct view *view = NULL;

	for (size_t i = 0; i < v->n && !view; i++)
		if (!v->v[i]->retired && v->v[i]->plan &&
		    strcmp(v->v[i]->path, path) == 0)
			view = v->v[i];
	if (!view)
		return false;
	if (!is_look_due(view, moment) || !compare_files(view))
		return view->there;
	for (size_t i = 0; i < v->n; i++)
		if (!v->v[i]->retired && strcmp(v->v[i]->path, path) == 0)
			retire(v->v[i]);
	return false;
}

bool views_is_there(struct views *v, const char *path, double moment)
{
	bool there;

	pthread_mutex_lock(&v->lock);
	there = look_again(v, path, moment);
	pthread_mutex_unlock(&v->lock);
	return there;
}

void views_suspect(struct views *v, size_t index)
{
	pthread_mutex_lock(&v->lock);
	assert(index < v->n);
	for (size_t i = 0; i < v->n; i++)
		if (strcmp(v->v[i]->path, v->v[index]->path) == 0)
			v->v[i]->suspect = true;
	pthread_mutex_unlock(&v->lock);
}

bool views_is_current(struct views *v, size_t index)
{
	bool current;

	pthread_mutex_lock(&v->lock);
	current = index < v->n && !v->v[index]->retired;
	pthread_mutex_unlock(&v->lock);
	return current;
}

/* --- views ---------------------------------------------------------------------------- */

int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, double moment, size_t *index)
{
	int rc = 0;
	size_t i;

	pthread_mutex_lock(&v->lock);
	look_again(v, path, moment);
	i = views_find(v, path, type);
	if (i == v->n)
		rc = views_append(v, path, type, parent);
	pthread_mutex_unlock(&v->lock);
	if (!rc)
		*index = i;
	return rc;
}

size_t views_count(struct views *v)
{
	size_t n;

	pthread_mutex_lock(&v->lock);
	n = v->n;
	pthread_mutex_unlock(&v->lock);
	return n;
}

/* NULL if no view has that number. */
static struct view *views_get(struct views *v, size_t index)
{
	struct view *view;

	pthread_mutex_lock(&v->lock);
	view = index < v->n ? v->v[index] : NULL;
	pthread_mutex_unlock(&v->lock);
	return view;
}

const char *views_path(struct views *v, size_t index)
{
	const struct view *const view = views_get(v, index);

	assert(view);
	return view->path;
}

struct view_type views_type(struct views *v, size_t index)
{
	const struct view *const view = views_get(v, index);

	assert(view);
	return view->type;
}

uint64_t views_parent(struct views *v, size_t index)
{
	const struct view *const view = views_get(v, index);

	assert(view);
	return view->parent;
}

static void log_warnings(struct plan *p, const char *path)
{
	struct errmsg text;
	size_t pos = 0;

	while (plan_warning(p, &pos, &text))
		log_warning("%s: %s", path, text.text);
}

/* Open the plan of a tag, on its own. */
static int open_plan(const struct views *v, struct view *view, struct plan **p)
{
	struct plan_options options = v->options;

	options.kind = view->type.kind;
	options.ranks = view->type.ranks;
	options.stage = view->type.stage;
	return plan_open(view->path, &options, p, &view->why);
}

static int make_plan(struct views *v, struct view *view);

/* Get the view with the universal plan of the same tag; NULL if it cannot be made.
 * Called with the lock held. */
static struct view *find_universal(struct views *v, const struct view *view)
{
	const struct view_type type = { .kind = PLAN_UNIVERSAL };
	size_t i = views_find(v, view->path, &type);

	if (i == v->n && views_append(v, view->path, &type, view->parent))
		return NULL;
	return make_plan(v, v->v[i]) ? NULL : v->v[i];
}

/* Derive the plan from the universal one.  If that cannot be made the view may
 * still be possible: then open it on its own. */
static int views_open_view(struct views *v, struct view *view, struct plan **p)
{
	const struct view_type *const type = &view->type;
	struct view *const universal =
		type->kind == PLAN_UNIVERSAL ? NULL : find_universal(v, view);
	int rc;

	if (!universal)
		return open_plan(v, view, p);
	rc = type->kind == PLAN_RESHARD ?
		     plan_open_resharded(universal->plan, type->ranks,
					 type->stage, p, &view->why) :
		     plan_open_derived(universal->plan, type->kind, p,
				       &view->why);
	if (!rc) {
		universal->users++;
		view->base = universal;
	}
	return rc;
}

/* Called with the lock held.  Recursive to a depth of one, for the universal
 * plan. */
static int make_plan(struct views *v, struct view *view)
{
	const time_t now = time(NULL);
	struct plan *p;

	if (view->plan || (view->rc && now - view->failed < RETRY_SECONDS))
		return view->rc;
	view->failed = now;
	view->rc = views_open_view(v, view, &p);
	if (view->rc)
		return view->rc;
	view->rc = v->check ? plan_check_files(p, &view->why) :
			      plan_check(p, &view->why);
	if (view->rc) {
		plan_close(p);
		if (view->base)
			release_plan(view->base);
		view->base = NULL;
		return view->rc;
	}
	log_warnings(p, view->path);
	assert(!view->plan);
	view->plan = p;
	view->there = true;
	view->looked = clock_ns();
	return 0;
}

int views_plan(struct views *v, size_t index, struct plan **out,
	       struct errmsg *err)
{
	struct view *const view = views_get(v, index);
	int rc;

	if (!view)
		return errmsg_set(err, -ENOENT, "no such view");
	pthread_mutex_lock(&v->lock);
	rc = view->retired ? -ESTALE : make_plan(v, view);
	if (rc && rc != -ESTALE && err)
		*err = view->why;
	*out = rc ? NULL : view->plan;
	view->users += !rc;
	pthread_mutex_unlock(&v->lock);
	return rc;
}

void views_put(struct views *v, size_t index)
{
	pthread_mutex_lock(&v->lock);
	assert(index < v->n);
	release_plan(v->v[index]);
	pthread_mutex_unlock(&v->lock);
}

struct plan *views_plan_if_made(struct views *v, size_t index)
{
	struct view *const view = views_get(v, index);
	struct plan *p;

	pthread_mutex_lock(&v->lock);
	p = view && !view->retired ? view->plan : NULL;
	if (p)
		view->users++;
	pthread_mutex_unlock(&v->lock);
	return p;
}

bool views_is_planned(struct views *v, size_t index)
{
	const bool planned = views_plan_if_made(v, index);

	if (planned)
		views_put(v, index);
	return planned;
}

bool views_failed(struct views *v, size_t index, struct errmsg *why)
{
	struct view *const view = views_get(v, index);

	pthread_mutex_lock(&v->lock);

	const bool failed = view && view->rc;

	if (failed)
		*why = view->why;
	pthread_mutex_unlock(&v->lock);
	return failed;
}
