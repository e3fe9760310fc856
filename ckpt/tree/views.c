/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The views of tags, and their plans.
 *
 * A plan does not change, so a tag that is saved again gets new views, with new numbers and thus
 * new inodes: so the kernel's caches of the old ones stay correct.  An old view is retired: lookups
 * no longer find it, and its plan is closed after the last use of any of the tag's plans.
 *
 * Any user may look up a view for any number of ranks.  So a name costs a few hundred bytes, and
 * only the most recent unused plans of such views are kept.  A plan that is made again from the
 * same checkpoint is identical.
 */
#include "ckpt/tree/views_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/tree/planned_files.h"

#define RETRY_SECONDS 1

/* Time for a process to finish walking a retired view, in seconds. */
#define RETIRED_SECONDS 30

const struct view_type views_universal = { .kind = PLAN_UNIVERSAL };

struct views *views_new(struct uckpt *u, const struct plan_options *options, bool check)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->u = u;
	v->options = *options;
	v->options.type = views_universal;
	v->check = check;
	v->began = planned_files_now();
	return v;
}

void views_listed(struct views *v, enum dir_kind kind, const struct dirlist *names)
{
	v->kind = kind;
	v->names = names;
}

/* Close the plans of a tag that has no users.  The caller must not hold the context's lock: closing
 * waits for read-ahead. */
static void close_plans(struct tag *tag)
{
	for (struct view *x = tag->views; x; x = x->next) {
		if (x->plan != tag->plan)
			plan_close(x->plan);
		x->plan = NULL;
	}
	plan_close(tag->plan);
	tag->plan = NULL;
}

static void free_tag(struct tag *tag)
{
	pthread_mutex_destroy(&tag->lock);
	free(tag->path);
	free(tag);
}

void views_free(struct views *v)
{
	if (!v)
		return;
	for (size_t i = 0; i < v->n; i++)
		if (v->v[i]->type.kind == PLAN_UNIVERSAL)
			close_plans(v->v[i]->tag);
	for (size_t i = 0; i < v->n; i++) {
		if (v->v[i]->type.kind == PLAN_UNIVERSAL)
			free_tag(v->v[i]->tag);
		free(v->v[i]->why);
		free(v->v[i]);
	}
	hashtab_done(&v->index);
	free(v->v);
	free(v);
}

/* Callers of the functions from here to take_excess() hold the context's lock. */

uint64_t views_hash(const char *path, const struct view_type *type)
{
	return hash_bytes(hash_text(path), type, sizeof(*type));
}

/* Is there room for one more view? */
static bool has_room(const struct views *v, const struct view_type *type)
{
	return v->n < VIEWS_MAX && (!type->ranks || v->ranked < VIEWS_RANKED_MAX);
}

struct view *views_find(const struct views *v, const char *path, const struct view_type *type)
{
	const uint64_t hash = views_hash(path, type);
	uint32_t i;

	for (size_t pos = 0; hashtab_next(&v->index, hash, &pos, &i);)
		if (!v->v[i]->tag->retired && view_type_equal(&v->v[i]->type, type) &&
		    strcmp(v->v[i]->path, path) == 0)
			return v->v[i];
	return NULL;
}

static int append_view(struct views *v, struct tag *tag,
		       const struct view_type *type, uint64_t parent,
		       struct view **out)
{
	struct view *x;

	if (!has_room(v, type))
		return -ENFILE;
	x = calloc(1, sizeof(*x));
	if (!x || !array_reserve(&v->v, &v->cap, v->n + 1, sizeof(*v->v)) ||
	    !hashtab_add(&v->index, views_hash(tag->path, type), (uint32_t)v->n)) {
		free(x);
		return -ENOMEM;
	}
	x->views = v;
	x->path = tag->path;
	x->type = *type;
	x->parent = parent;
	x->number = v->n;
	x->tag = tag;
	x->next = tag->views;
	tag->views = x;
	v->v[v->n++] = x;
	v->ranked += type->ranks > 0;
	*out = x;
	return 0;
}

/* Append the universal view of a tag that has none. */
static int append_tag(struct views *v, const char *path, uint64_t parent, struct view **out)
{
	struct tag *const tag = calloc(1, sizeof(*tag));
	int rc = -ENOMEM;

	if (!tag)
		return rc;
	pthread_mutex_init(&tag->lock, NULL);
	tag->path = strdup(path);
	if (tag->path)
		rc = append_view(v, tag, &views_universal, parent, out);
	if (rc)
		free_tag(tag);
	return rc;
}

static bool is_used(const struct tag *tag)
{
	for (const struct view *x = tag->views; x; x = x->next)
		if (x->users)
			return true;
	return false;
}

/* Return a tag whose plans the caller must close: one that was retired a while ago and has no
 * users; or NULL. */
static struct tag *take_retired(struct views *v)
{
	for (struct tag **at = &v->retired; *at; at = &(*at)->former) {
		struct tag *const tag = *at;

		if (is_used(tag) || clock_ns() - tag->retired_at <
					    RETIRED_SECONDS * UINT64_C(1000000000))
			continue;
		*at = tag->former;
		tag->closed = true;
		return tag;
	}
	return NULL;
}

/* If there are too many unused plans of views for a number of ranks, return the least recently
 * used one, which the caller must close; else NULL. */
static struct plan *take_excess(struct views *v)
{
	struct view *oldest = NULL;
	struct plan *plan;
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++) {
		struct view *const x = v->v[i];

		if (!x->plan || x->users || x->tag->retired || !x->type.ranks)
			continue;
		n++;
		if (!oldest || x->last_use < oldest->last_use)
			oldest = x;
	}
	if (n <= VIEWS_RANKED_PLANS_MAX)
		return NULL;
	plan = oldest->plan;
	oldest->plan = NULL;
	return plan;
}

void views_close_retired(struct views *v)
{
	struct tag *tag;

	do {
		pthread_mutex_lock(&v->u->lock);
		tag = take_retired(v);
		pthread_mutex_unlock(&v->u->lock);
		if (tag)
			close_plans(tag);
	} while (tag);
}

static void evict_plans(struct views *v)
{
	struct plan *p;

	do {
		pthread_mutex_lock(&v->u->lock);
		p = take_excess(v);
		pthread_mutex_unlock(&v->u->lock);
		plan_close(p);
	} while (p);
}

int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct view **out)
{
	const struct errmsg_sink warnings = context_warnings(v->u);
	struct view *tag;
	int rc = 0;

	pthread_mutex_lock(&v->u->lock);
	*out = views_find(v, path, type);
	tag = views_find(v, path, &views_universal);
	if (!tag)
		rc = append_tag(v, path, parent, &tag);
	if (!rc && type->kind == PLAN_UNIVERSAL)
		*out = tag;
	else if (!rc && !*out)
		rc = append_view(v, tag->tag, type, parent, out);
	pthread_mutex_unlock(&v->u->lock);
	if (rc == -ENFILE)
		errmsg_put(&warnings, "this mount has reached its limit of %u views (%u TAG_dp<ranks> or"
			   " TAG_dcp<ranks>); mount again to look up others",
			   VIEWS_MAX, VIEWS_RANKED_MAX);
	return rc;
}

struct view *views_get(struct views *v, size_t number)
{
	struct view *x;

	pthread_mutex_lock(&v->u->lock);
	x = number < v->n ? v->v[number] : NULL;
	pthread_mutex_unlock(&v->u->lock);
	return x;
}

struct view *view_universal(struct view *x)
{
	while (x->type.kind != PLAN_UNIVERSAL)
		x = x->next;
	return x;
}

enum view_state view_state(struct view *x, struct errmsg *why)
{
	enum view_state state = VIEW_NEW;

	pthread_mutex_lock(&x->views->u->lock);
	if (x->tag->retired)
		state = VIEW_RETIRED;
	else if (x->plan)
		state = VIEW_PLANNED;
	else if (x->rc && x->why)
		state = x->rc == -ENOTSUP ? VIEW_REFUSED : VIEW_FAILED;
	if (state == VIEW_FAILED || state == VIEW_REFUSED)
		*why = *x->why;
	pthread_mutex_unlock(&x->views->u->lock);
	return state;
}

bool view_is_listed(struct view *x)
{
	struct errmsg why;
	const enum view_state state = view_state(x, &why);

	return x->type.ranks ? state == VIEW_PLANNED
					  : state != VIEW_RETIRED && state != VIEW_REFUSED;
}

bool view_has_others(struct view *x)
{
	bool opened;

	pthread_mutex_lock(&x->tag->lock);
	opened = x->tag->opened;
	pthread_mutex_unlock(&x->tag->lock);
	return opened;
}

static void warn_of_view(void *view, const char *text)
{
	const struct view *const x = view;
	const struct errmsg_sink warnings = context_warnings(x->views->u);

	errmsg_put(&warnings, "%s: %s", x->path, text);
}

/* Open the plan of a view over its tag's universal plan.  The caller holds the tag's lock. */
static int open_plan(struct view *x, struct plan **out, struct errmsg *why)
{
	const struct views *const v = x->views;
	struct tag *const tag = x->tag;
	struct plan *p;
	int rc = 0;

	if (!tag->plan)
		rc = v->names ? plan_open_listed(v->u, tag->path, v->kind, v->names, &v->options,
						 &tag->plan, why)
			      : plan_open(v->u, tag->path, &v->options, &tag->plan, why);
	if (!rc && !tag->planned && planned_files_are_early(tag->plan, v->began, why))
		rc = -EBADMSG;
	tag->opened = !rc;
	p = tag->plan;
	if (!rc && x->type.kind != PLAN_UNIVERSAL)
		rc = plan_open_derived(tag->plan, &x->type, &p, why);
	if (rc)
		return rc;
	rc = v->check ? plan_check_files(p, why) : plan_check(p, why);
	if (!rc)
		*out = p;
	else if (p != tag->plan)
		plan_close(p);
	return rc;
}

static bool has_just_failed(const struct view *x, time_t now)
{
	return x->rc && x->why && now - x->tried < RETRY_SECONDS;
}

/* Make a plan, unless an attempt has just failed.  The caller holds the tag's lock and uses the
 * view. */
static void make_plan(struct view *x)
{
	const time_t now = time(NULL);
	const struct errmsg_sink warnings = { warn_of_view, x };
	struct tag *const tag = x->tag;
	const struct view *whole = view_universal(x);
	struct errmsg why = { "" };
	struct plan *p = NULL;
	int rc;

	if (x->plan || tag->retired || has_just_failed(x, now))
		return;
	/* If the checkpoint cannot be opened, the other views cannot be made, either. */
	if (!tag->opened && has_just_failed(whole, now)) {
		rc = whole->rc;
		why = *whole->why;
	} else {
		rc = open_plan(x, &p, &why);
	}
	/* The tag is still being written: the next attempt needs a new plan. */
	if (rc && rc != -ENOTSUP && !tag->planned) {
		plan_close(tag->plan);
		tag->plan = NULL;
	}
	if (!rc && !tag->planned) {
		tag->planned = true;
		tag->there = true;
		tag->looked = clock_ns();
		plan_warn(tag->plan, &warnings);
	}
	pthread_mutex_lock(&x->views->u->lock);
	x->plan = p;
	x->made |= !rc;
	x->tried = now;
	x->rc = rc;
	if (rc && !x->why)
		x->why = malloc(sizeof(*x->why));
	if (rc && x->why)
		*x->why = why;
	pthread_mutex_unlock(&x->views->u->lock);
	if (!rc && x->type.ranks)
		evict_plans(x->views);
}

int view_get_plan(struct view *x, struct plan **out, struct errmsg *err)
{
	struct views *const v = x->views;
	int rc;

	pthread_mutex_lock(&v->u->lock);
	x->last_use = ++v->clock;
	x->users++; /* protects it from eviction */
	*out = x->tag->closed ? NULL : x->plan;
	rc = x->tag->retired && !*out ? -ESTALE : 0;
	pthread_mutex_unlock(&v->u->lock);
	if (!rc && !*out) {
		pthread_mutex_lock(&x->tag->lock);
		make_plan(x);
		*out = x->plan;
		rc = x->tag->retired ? -ESTALE : x->plan ? 0 : x->rc;
		if (rc && rc != -ESTALE && err && x->why)
			*err = *x->why;
		pthread_mutex_unlock(&x->tag->lock);
	}
	if (rc) {
		*out = NULL; /* it may have been made, and retired, in the meantime */
		view_put(x);
	}
	return rc;
}

int view_plan(struct view *x, struct plan **out, struct errmsg *err)
{
	const struct errmsg_sink warnings = { warn_of_view, x };
	const int rc = view_get_plan(x, out, err);

	if (rc || x->type.kind == PLAN_UNIVERSAL || atomic_exchange(&x->warned, true))
		return rc;
	pthread_mutex_lock(&x->tag->lock);
	plan_warn(*out, &warnings);
	pthread_mutex_unlock(&x->tag->lock);
	return 0;
}

void view_put(struct view *x)
{
	pthread_mutex_lock(&x->views->u->lock);
	assert(x->users > 0);
	x->users--;
	pthread_mutex_unlock(&x->views->u->lock);
	views_close_retired(x->views);
}
