/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The views of tags, and their plans.
 *
 * A plan does not change, so a tag that is saved again gets new views, with new
 * numbers and thus new inodes: whatever the kernel has cached of the old ones
 * stays true of them.  An old view is retired: it is not found any more, and its plan
 * is closed after the last use of any of the tag's plans.
 *
 * Anyone may look up a re-cut view of any number of ranks.  So a name costs a few hundred
 * bytes, and of the plans of re-cut views only the latest stay when nobody uses them.  A
 * plan that is made again from the same universal one is the same.
 *
 * A save takes a while and leaves files of two generations meanwhile.  So a tag
 * is taken for saved when two looks at all its files, LOOK_SECONDS apart, see the same.
 * The same holds for a Hugging Face directory.
 */
#include "ckpt/tree/views.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/hashtab.h"
#include "ckpt/base/source.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/zero/checkpoint.h"

#define RETRY_SECONDS 1
#define LOOK_SECONDS 1.0

static const struct view_type universal = { .kind = PLAN_UNIVERSAL };

/* A tag, of one generation. */
struct tag {
	char *path;         /* immutable */
	struct view *views; /* list protected by the context's lock */
	bool retired;       /* saved again; written with both locks held */
	bool closed; /* its plans, by somebody; protected by the context's */
	pthread_mutex_t lock; /* held while a plan is made or files are looked at: */
	struct plan *plan; /* the universal one, over which the others are made */
	bool opened;       /* the last attempt to make one has */
	bool planned;      /* a view of it has had a plan */
	atomic_bool suspect; /* a file could not be opened */
	atomic_bool there; /* its files were, when they were last compared */
	uint64_t looked; /* the time of that */
	uint32_t seen;   /* sum of what was seen then, if it was other files */
};

struct views {
	struct uckpt *u;
	struct plan_options options;
	bool check; /* all files of a tag */
	/* Protected by the context's lock: */
	struct view **v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path and type */
	size_t recut;         /* of them, re-cut views */
	uint64_t clock;       /* of last_use */
};

struct views *views_new(struct uckpt *u, const struct plan_options *options,
			bool check)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->u = u;
	v->options = *options;
	v->options.type = universal;
	v->check = check;
	return v;
}

/* Close the plans of a tag, which nobody uses.  Called without the context's lock, since
 * it waits for what is being read ahead from a store. */
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

/* The functions from here to take_excess() are called with the context's lock held. */

static uint64_t hash_view(const char *path, const struct view_type *type)
{
	return hash_bytes(hash_text(path), type, sizeof(*type));
}

/* Is there room for one more? */
static bool has_room(const struct views *v, const struct view_type *type)
{
	return v->n < VIEWS_MAX &&
	       (type->kind != PLAN_RESHARD || v->recut < VIEWS_RECUT_MAX);
}

/* NULL if there is none. */
static struct view *find_view(const struct views *v, const char *path,
			      const struct view_type *type)
{
	const uint64_t hash = hash_view(path, type);
	uint32_t i;

	for (size_t pos = 0; hashtab_next(&v->index, hash, &pos, &i);)
		if (!v->v[i]->tag->retired &&
		    view_type_equal(&v->v[i]->type, type) &&
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
	if (!x || !array_reserve(&v->v, &v->cap, v->n + 1, sizeof(struct view *)) || !hashtab_add(&v->index, hash_view(tag->path, type),
			       (uint32_t)v->n)) {
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
	v->recut += type->kind == PLAN_RESHARD;
	*out = x;
	return 0;
}

/* Append the universal view of a tag, which has none. */
static int append_tag(struct views *v, const char *path, uint64_t parent,
		      struct view **out)
{
	struct tag *const tag = calloc(1, sizeof(*tag));
	int rc = -ENOMEM;

	if (!tag)
		return rc;
	pthread_mutex_init(&tag->lock, NULL);
	tag->path = strdup(path);
	if (tag->path)
		rc = append_view(v, tag, &universal, parent, out);
	if (rc)
		free_tag(tag);
	return rc;
}

/* Must the caller close the plans of a tag?  True once, if it is retired and nobody uses
 * them any more. */
static bool must_close(struct tag *tag)
{
	if (!tag->retired || tag->closed)
		return false;
	for (const struct view *x = tag->views; x; x = x->next)
		if (x->users)
			return false;
	tag->closed = true;
	return true;
}

/* If there are more plans of re-cut views that nobody uses than may stay, take the least
 * recently used one, which the caller closes; else NULL. */
static struct plan *take_excess(struct views *v)
{
	struct view *oldest = NULL;
	struct plan *plan;
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++) {
		struct view *const x = v->v[i];

		if (!x->plan || x->users || x->tag->retired ||
		    x->type.kind != PLAN_RESHARD)
			continue;
		n++;
		if (!oldest || x->last_use < oldest->last_use)
			oldest = x;
	}
	if (n <= VIEWS_RECUT_PLANS_MAX)
		return NULL;
	plan = oldest->plan;
	oldest->plan = NULL;
	return plan;
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

/* Could a Hugging Face directory have another layout than that of its plan?  Weights of
 * a format that is preferred may have been added to others. */
static bool is_other_layout(const struct shardcache *c, const char *path)
{
	const char *const slash = strrchr(shardcache_path(c, 0), '/');

	return !hfdir_is_found_by(shardcache_context(c), path,
				  slash ? slash + 1 : "");
}

/* Are the files of a plan there?  A save replaces all of them, so two are looked at,
 * which costs little where storage is far: a tag's first optimizer shard and first model
 * states.  A check that a reader made a moment ago is not repeated. */
static bool is_plan_there(struct plan *p, const char *path)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);
	struct shardcache *const c = plan_shards(p);
	const uint32_t shards[] = { 0, (uint32_t)(r ? r->dir.noptim
						    : shardcache_count(c) - 1) };

	return (r || !is_other_layout(c, path)) &&
	       shardcache_check_paths(c, shards, 2, NULL) == 0;
}

struct sum {
	const struct shardcache *planned;
	size_t n;
	uint32_t sum;
	bool same; /* so far */
};

/* Files that the plan leaves out, of a former save, may lie between its own. */
static void sum_add(struct sum *s, const char *path, const struct fileid *id)
{
	const uint32_t next = (uint32_t)s->n;

	s->sum = crc32_add(s->sum, id, sizeof(*id));
	if (next >= shardcache_count(s->planned) ||
	    strcmp(shardcache_path(s->planned, next), path) != 0)
		return;
	s->same = s->same && fileid_unchanged(shardcache_id(s->planned, next), id);
	s->n++;
}

/* Sum the identities of all files that are at `path` now; 0 if they are those of the
 * plan, or no complete checkpoint. */
static uint32_t sum_files(struct plan *p, const char *path)
{
	struct sum s = { .planned = plan_shards(p), .same = true };
	struct tagdir d;
	struct hfdir h;

	if (!plan_zckpt(p)) {
		if (hfdir_open(shardcache_context(s.planned), &h, path, NULL))
			return 0;
		for (size_t i = 0; i < h.nfiles; i++)
			sum_add(&s, h.files[i].path, &h.files[i].file);
		hfdir_done(&h);
	} else {
		if (tagdir_scan(shardcache_context(s.planned), &d, path, NULL))
			return 0;
		for (size_t i = 0; i < d.nfiles; i++)
			sum_add(&s, tagdir_file(&d, i)->path, &tagdir_file(&d, i)->file);
		tagdir_done(&d);
	}
	return s.same && s.n == shardcache_count(s.planned) ? 0 : s.sum;
}

static bool is_look_due(const struct tag *tag, double moment)
{
	const bool changes = tag->suspect || !tag->there;
	const double least = changes ? LOOK_SECONDS : moment;

	return (double)(clock_ns() - tag->looked) / 1e9 >= least;
}

/* Compare the files of a tag that has a plan.  True if it was saved again.  Called with
 * its lock held. */
static bool compare_files(struct tag *tag)
{
	const uint32_t before = tag->seen;

	tag->looked = clock_ns();
	tag->there = is_plan_there(tag->plan, tag->path);
	/* Opens of files fail for what these two do not show. */
	tag->seen = tag->suspect || !tag->there ? sum_files(tag->plan, tag->path)
						: 0;
	tag->suspect = tag->seen != 0;
	return tag->seen && tag->seen == before;
}

/* Called with the tag's lock held. */
static void retire(struct views *v, struct tag *tag)
{
	const struct errmsg_sink notes = context_notes(v->u);
	bool last;

	errmsg_put(&notes, "%s: was saved again", tag->path);
	tag->there = false;
	pthread_mutex_lock(&v->u->lock);
	tag->retired = true;
	last = must_close(tag);
	pthread_mutex_unlock(&v->u->lock);
	if (last)
		close_plans(tag);
}

bool views_is_there(struct views *v, const char *path, double moment)
{
	struct view *x;
	struct tag *tag;

	pthread_mutex_lock(&v->u->lock);
	x = find_view(v, path, &universal);
	pthread_mutex_unlock(&v->u->lock);
	if (!x)
		return false;
	tag = x->tag;
	/* Somebody may be looking, or planning, who waits for a store. */
	if (pthread_mutex_trylock(&tag->lock) == 0) {
		if (!tag->retired && tag->plan && is_look_due(tag, moment) &&
		    compare_files(tag))
			retire(v, tag);
		pthread_mutex_unlock(&tag->lock);
	}
	return tag->there;
}

void view_suspect(struct view *x)
{
	x->tag->suspect = true;
}

int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct view **out)
{
	const struct errmsg_sink warnings = context_warnings(v->u);
	struct view *tag;
	int rc = 0;

	pthread_mutex_lock(&v->u->lock);
	*out = find_view(v, path, type);
	tag = find_view(v, path, &universal);
	if (!tag)
		rc = append_tag(v, path, parent, &tag);
	if (!rc && type->kind == PLAN_UNIVERSAL)
		*out = tag;
	else if (!rc && !*out)
		rc = append_view(v, tag->tag, type, parent, out);
	pthread_mutex_unlock(&v->u->lock);
	if (rc == -ENFILE)
		errmsg_put(&warnings,
			   "a mount has at most %u views, of which %u"
			   " TAG_dp<ranks>; mount again to see others",
			   VIEWS_MAX, VIEWS_RECUT_MAX);
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

	return x->type.kind == PLAN_RESHARD
		       ? state == VIEW_PLANNED
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

/* Open the plan of a view, over the universal one of its tag.  Called with the tag's
 * lock held. */
static int open_plan(struct view *x, struct plan **out, struct errmsg *why)
{
	const struct views *const v = x->views;
	struct tag *const tag = x->tag;
	struct plan *p;
	int rc = 0;

	if (!tag->plan)
		rc = plan_open(v->u, tag->path, &v->options, &tag->plan, why);
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

/* Make a plan, unless that failed a moment ago.  Called with the tag's lock held, by a
 * user of the view. */
static void make_plan(struct view *x)
{
	const time_t now = time(NULL);
	const struct errmsg_sink warnings = { warn_of_view, x };
	struct tag *const tag = x->tag;
	struct errmsg why = { "" };
	struct plan *p = NULL;
	int rc;

	if (x->plan || tag->retired || (x->rc && now - x->tried < RETRY_SECONDS))
		return;
	rc = open_plan(x, &p, &why);
	/* A tag that is still being written: the next attempt needs a new plan. */
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
	if (!rc && p != tag->plan)
		plan_warn(p, &warnings);
	pthread_mutex_lock(&x->views->u->lock);
	x->plan = p;
	x->tried = now;
	x->rc = rc;
	if (rc && !x->why)
		x->why = malloc(sizeof(*x->why));
	if (rc && x->why)
		*x->why = why;
	pthread_mutex_unlock(&x->views->u->lock);
	if (!rc && x->type.kind == PLAN_RESHARD)
		evict_plans(x->views);
}

int view_plan(struct view *x, struct plan **out, struct errmsg *err)
{
	struct views *const v = x->views;
	int rc;

	pthread_mutex_lock(&v->u->lock);
	x->last_use = ++v->clock;
	x->users++; /* it is not evicted meanwhile */
	*out = x->tag->retired ? NULL : x->plan;
	rc = x->tag->retired ? -ESTALE : 0;
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
		*out = NULL; /* it may have been made, and retired, meanwhile */
		view_put(x);
	}
	return rc;
}

void view_put(struct view *x)
{
	bool last;

	pthread_mutex_lock(&x->views->u->lock);
	assert(x->users > 0);
	x->users--;
	last = must_close(x->tag);
	pthread_mutex_unlock(&x->views->u->lock);
	if (last)
		close_plans(x->tag);
}
