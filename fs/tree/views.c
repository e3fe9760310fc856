/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The views of tags, and their plans.
 *
 * A plan does not change, so a tag that is saved again gets new views, with new
 * numbers and thus new inodes: whatever the kernel has cached of the old ones
 * stays true of them.  An old view is retired, which is to say that it is not
 * found any more, and its plan is closed after the last use.
 *
 * Anyone may look up a re-cut view of any number of ranks.  So a name costs a few hundred
 * bytes, and of the plans that are derived for re-cut views only the latest stay
 * when nobody uses them.  A plan that is made again from the same universal one is the
 * same.
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
#include "ckpt/base/hashtab.h"
#include "ckpt/sys/clock.h"
#include "fs/log/log.h"
#include "fs/tree/saved_again.h"

#define RETRY_SECONDS 1
#define LOOK_SECONDS 1.0

struct view {
	char *path;            /* immutable */
	struct view_type type; /* immutable */
	uint64_t parent;       /* immutable */
	struct view *tag;      /* immutable: the universal view of its tag, or itself */
	size_t number;         /* immutable */
	/* Protected by views.lock: */
	struct plan *plan; /* immutable while there are users */
	time_t failed;     /* time of the last attempt */
	int rc;            /* and its result */
	struct errmsg *why; /* NULL if none failed */
	unsigned users; /* of the plan: callers, and plans that refer to it */
	uint64_t last_use;
	struct view *base; /* whose plan this plan refers to, or NULL */
	bool retired;      /* its tag was saved again */
	/* Of a universal view, which stands for its tag: */
	struct view *planned; /* a view whose plan refers to no other's, or NULL */
	bool suspect;         /* a file could not be opened */
	bool there;      /* its files were there when they were last compared */
	uint64_t looked; /* the time of that */
	uint32_t seen;   /* sum of what was seen then, if it was other files */
};

struct views {
	struct plan_options options;
	bool check; /* all files of a tag */
	pthread_mutex_t lock; /* protects the rest; held while a plan is made */
	struct view **v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path and type */
	size_t recut;         /* of them, re-cut views */
	uint64_t clock;       /* of last_use */
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
		free(v->v[i]->why);
		free(v->v[i]);
	}
	free(v->v);
	hashtab_done(&v->index);
	pthread_mutex_destroy(&v->lock);
	free(v);
}

static uint64_t hash_view(const char *path, const struct view_type *type)
{
	const unsigned fields[] = { (unsigned)type->kind, type->ranks,
				    type->stage };

	return hash_bytes(hash_bytes(0, path, strlen(path)), fields,
			  sizeof(fields));
}

/* Is there room for one more?  Called with the lock held. */
static bool has_room(const struct views *v, const struct view_type *type)
{
	if (v->n < VIEWS_MAX &&
	    (type->kind != PLAN_RESHARD || v->recut < VIEWS_RECUT_MAX))
		return true;
	log_warning("a mount has at most %u views, of which %u TAG_dp<ranks>;"
		    " mount again to see others",
		    VIEWS_MAX, VIEWS_RECUT_MAX);
	return false;
}

/* Add a view of the tag of a universal one, or a universal one.  Called with the lock
 * held. */
static int views_append(struct views *v, const char *path,
			const struct view_type *type, uint64_t parent,
			struct view *tag, struct view **out)
{
	struct view *view;

	if (!has_room(v, type))
		return -ENFILE;
	if (!array_reserve(&v->v, &v->cap, v->n + 1, sizeof(struct view *)))
		return -ENOMEM;
	view = calloc(1, sizeof(*view));
	if (!view)
		return -ENOMEM;
	view->path = strdup(path);
	if (!view->path ||
	    !hashtab_add(&v->index, hash_view(path, type), (uint32_t)v->n)) {
		free(view->path);
		free(view);
		return -ENOMEM;
	}
	view->type = *type;
	view->parent = parent;
	view->tag = tag ? tag : view;
	view->number = v->n;
	v->v[v->n++] = view;
	v->recut += type->kind == PLAN_RESHARD;
	*out = view;
	return 0;
}

/* NULL if there is none.  Called with the lock held. */
static struct view *views_find(const struct views *v, const char *path,
			       const struct view_type *type)
{
	const uint64_t hash = hash_view(path, type);
	uint32_t i;

	for (size_t pos = 0; hashtab_next(&v->index, hash, &pos, &i);)
		if (!v->v[i]->retired &&
		    view_type_equal(&v->v[i]->type, type) &&
		    strcmp(v->v[i]->path, path) == 0)
			return v->v[i];
	return NULL;
}

static struct view *find_tag(const struct views *v, const char *path)
{
	return views_find(v, path,
			  &(struct view_type){ .kind = PLAN_UNIVERSAL });
}

/* Called with the lock held. */
static int find_or_append(struct views *v, const char *path,
			  const struct view_type *type, uint64_t parent,
			  struct view **out)
{
	const struct view_type universal = { .kind = PLAN_UNIVERSAL };
	struct view *tag = find_tag(v, path);
	int rc = 0;

	if (!tag)
		rc = views_append(v, path, &universal, parent, NULL, &tag);
	if (rc)
		return rc;
	*out = type->kind == PLAN_UNIVERSAL ? tag : views_find(v, path, type);
	return *out ? 0 : views_append(v, path, type, parent, tag, out);
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

/* Called with the lock held. */
static void retire(struct views *v, const struct view *tag)
{
	log_note("%s: was saved again", tag->path);
	for (size_t i = 0; i < v->n; i++) {
		struct view *const view = v->v[i];

		if (view->tag != tag)
			continue;
		view->retired = true;
		view->rc = 0;
		if (view->plan) {
			view->users++;
			release_plan(view);
		}
	}
}

static bool is_look_due(const struct view *tag, double moment)
{
	const bool changes = tag->suspect || !tag->there;
	const double least = changes ? LOOK_SECONDS : moment;

	return (double)(clock_ns() - tag->looked) / 1e9 >= least;
}

/* Compare the files of a tag that has a plan.  True if it was saved again. */
static bool compare_files(struct view *tag)
{
	struct plan *const plan = tag->planned->plan;
	const uint32_t before = tag->seen;

	tag->looked = clock_ns();
	tag->there = !saved_again_maybe(plan, tag->path);
	/* What saved_again_maybe misses makes opens fail. */
	tag->seen = tag->suspect || !tag->there
			    ? saved_again_sum(plan, tag->path)
			    : 0;
	tag->suspect = tag->seen != 0;
	return tag->seen && tag->seen == before;
}

/* If the last look was more than `moment` seconds ago, look whether a tag was saved
 * again, and then retire its views.  True if it is there as it was planned.  Called with
 * the lock held. */
static bool look_again(struct views *v, const char *path, double moment)
{
	struct view *const tag = find_tag(v, path);

	if (!tag || !tag->planned)
		return false;
	if (!is_look_due(tag, moment) || !compare_files(tag))
		return tag->there;
	retire(v, tag);
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
	v->v[index]->tag->suspect = true;
	pthread_mutex_unlock(&v->lock);
}

/* Called with the lock held. */
static bool is_listed(const struct view *view)
{
	return !view->retired &&
	       (view->type.kind != PLAN_RESHARD || view->plan);
}

bool views_is_listed(struct views *v, size_t index)
{
	bool listed;

	pthread_mutex_lock(&v->lock);
	listed = index < v->n && is_listed(v->v[index]);
	pthread_mutex_unlock(&v->lock);
	return listed;
}

bool views_next_recut(struct views *v, size_t *pos, struct view_name *out)
{
	bool found = false;

	pthread_mutex_lock(&v->lock);
	while (!found && *pos < v->n) {
		const struct view *const view = v->v[(*pos)++];

		found = view->type.kind == PLAN_RESHARD && is_listed(view);
		if (found)
			*out = (struct view_name){ view->path, view->type,
						   view->parent };
	}
	pthread_mutex_unlock(&v->lock);
	return found;
}

/* --- views ---------------------------------------------------------------------------- */

int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, double moment, size_t *index)
{
	struct view *view;
	int rc;

	pthread_mutex_lock(&v->lock);
	look_again(v, path, moment);
	rc = find_or_append(v, path, type, parent, &view);
	pthread_mutex_unlock(&v->lock);
	if (!rc)
		*index = view->number;
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

size_t views_universal(struct views *v, size_t index)
{
	const struct view *const view = views_get(v, index);

	assert(view);
	return view->tag->number;
}

static void log_warnings(struct plan *p, const char *path)
{
	struct errmsg text;
	size_t pos = 0;

	while (plan_warning(p, &pos, &text))
		log_warning("%s: %s", path, text.text);
}

/* Open the plan of a tag, on its own. */
static int open_plan(const struct views *v, const struct view *view,
		     struct plan **p, struct errmsg *why)
{
	struct plan_options options = v->options;

	options.kind = view->type.kind;
	options.ranks = view->type.ranks;
	options.stage = view->type.stage;
	return plan_open(view->path, &options, p, why);
}

static int make_plan(struct views *v, struct view *view);

/* Derive the plan from the universal one.  If that cannot be made the view may
 * still be possible: then open it on its own.  Called with the lock held. */
static int views_open_view(struct views *v, struct view *view, struct plan **p,
			   struct errmsg *why)
{
	const struct view_type *const type = &view->type;
	struct view *const universal = view->tag;
	int rc;

	if (view == universal || make_plan(v, universal))
		return open_plan(v, view, p, why);
	rc = plan_open_derived(universal->plan, type->kind, type->ranks,
			       type->stage, p, why);
	if (!rc) {
		universal->users++;
		view->base = universal;
	}
	return rc;
}

static int open_checked(struct views *v, struct view *view, struct plan **p,
			struct errmsg *why)
{
	int rc = views_open_view(v, view, p, why);

	if (rc)
		return rc;
	rc = v->check ? plan_check_files(*p, why) : plan_check(*p, why);
	if (!rc)
		return 0;
	plan_close(*p);
	if (view->base)
		release_plan(view->base);
	view->base = NULL;
	return rc;
}

/* Close derived plans of re-cut views that nobody uses, the least recently used ones
 * first, until as many as may stay are left.  Called with the lock held. */
static void evict_plans(struct views *v)
{
	for (;;) {
		struct view *oldest = NULL;
		size_t n = 0;

		for (size_t i = 0; i < v->n; i++) {
			struct view *const x = v->v[i];

			if (!x->plan || !x->base || x->users ||
			    x->type.kind != PLAN_RESHARD)
				continue;
			n++;
			if (!oldest || x->last_use < oldest->last_use)
				oldest = x;
		}
		if (n <= VIEWS_RECUT_PLANS_MAX)
			return;
		plan_close(oldest->plan);
		oldest->plan = NULL;
		release_plan(oldest->base);
		oldest->base = NULL;
	}
}

static void remember_why(struct view *view, const struct errmsg *why)
{
	if (!view->why)
		view->why = malloc(sizeof(*view->why));
	if (view->why)
		*view->why = *why;
}

/* Called with the lock held.  Recursive to a depth of one, for the universal
 * plan. */
static int make_plan(struct views *v, struct view *view)
{
	const time_t now = time(NULL);
	struct errmsg why = { "" };
	struct plan *p;

	if (view->plan || (view->rc && now - view->failed < RETRY_SECONDS))
		return view->rc;
	view->failed = now;
	view->rc = open_checked(v, view, &p, &why);
	if (view->rc) {
		remember_why(view, &why);
		return view->rc;
	}
	log_warnings(p, view->path);
	assert(!view->plan);
	view->plan = p;
	if (!view->base && !view->tag->planned) {
		view->tag->planned = view;
		view->tag->there = true;
		view->tag->looked = clock_ns();
	}
	if (view->type.kind == PLAN_RESHARD)
		evict_plans(v);
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
	view->last_use = ++v->clock;
	view->users++; /* it is not evicted meanwhile */
	rc = view->retired ? -ESTALE : make_plan(v, view);
	if (rc && rc != -ESTALE && err && view->why)
		*err = *view->why;
	*out = rc ? NULL : view->plan;
	view->users -= rc != 0;
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

	const bool failed = view && view->rc && view->why;

	if (failed)
		*why = *view->why;
	pthread_mutex_unlock(&v->lock);
	return failed;
}
