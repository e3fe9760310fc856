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
 * is taken for saved when two looks at all its files, LOOK_SECONDS apart, see the same, and
 * can be planned.  The same holds for a Hugging Face directory.  Until then its views are
 * not listed, but who has found one still gets its names and attributes, also for a while
 * after it was retired: a walk of the mount never meets an error.
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
#include "ckpt/io/io.h"
#include "ckpt/sys/clock.h"
#include "ckpt/tree/planned_files.h"

#define RETRY_SECONDS 1
#define LOOK_SECONDS 1.0

/* Who walks through a view that is retired has so long. */
#define RETIRED_SECONDS 30

/* The kernel believes for a second what it has looked up in a directory that is near. */
#define BELIEVED_NS UINT64_C(1100000000)

static const struct view_type universal = { .kind = PLAN_UNIVERSAL };

/* A tag, of one generation. */
struct tag {
	char *path;         /* immutable */
	struct view *views; /* list protected by the context's lock */
	bool retired;       /* saved again; written with both locks held */
	uint64_t retired_at; /* the time of that */
	struct tag *former; /* retired before, not closed; list protected by the context's */
	bool closed; /* its plans, by somebody; protected by the context's */
	pthread_mutex_t lock; /* held while a plan is made or files are looked at: */
	struct plan *plan; /* the universal one, over which the others are made */
	bool opened;       /* the last attempt to make one has */
	bool planned;      /* a view of it has had a plan */
	bool whole;        /* its files were, when it was to be listed */
	atomic_bool said;  /* why it is not listed */
	atomic_bool suspect; /* a file could not be opened */
	atomic_bool there; /* its files were, when they were last compared */
	uint64_t looked; /* the time of that */
	uint32_t seen;   /* sum of what was seen then, if it was other files */
};

struct views {
	struct uckpt *u;
	struct plan_options options;
	bool check; /* all files of a tag */
	int64_t began; /* the time, as files have it */
	enum dir_kind kind; /* as in views_listed */
	const struct dirlist *names;
	/* Protected by the context's lock: */
	struct view **v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path and type */
	size_t recut;         /* of them, re-cut views */
	uint64_t clock;       /* of last_use */
	struct tag *retired;  /* not closed yet, the last one first */
};

struct views *views_new(struct uckpt *u, const struct plan_options *options, bool check)
{
	struct views *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->u = u;
	v->options = *options;
	v->options.type = universal;
	v->check = check;
	v->began = planned_files_now();
	return v;
}

void views_listed(struct views *v, enum dir_kind kind, const struct dirlist *names)
{
	v->kind = kind;
	v->names = names;
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
	       (type->kind != PLAN_RECUT || v->recut < VIEWS_RECUT_MAX);
}

/* NULL if there is none. */
static struct view *find_view(const struct views *v, const char *path, const struct view_type *type)
{
	const uint64_t hash = hash_view(path, type);
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
	    !hashtab_add(&v->index, hash_view(tag->path, type), (uint32_t)v->n)) {
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
	v->recut += type->kind == PLAN_RECUT;
	*out = x;
	return 0;
}

/* Append the universal view of a tag, which has none. */
static int append_tag(struct views *v, const char *path, uint64_t parent, struct view **out)
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

static bool is_used(const struct tag *tag)
{
	for (const struct view *x = tag->views; x; x = x->next)
		if (x->users)
			return true;
	return false;
}

/* Take a tag whose plans the caller must close: retired a while ago, and used by nobody; or
 * NULL. */
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

/* If there are more plans of re-cut views that nobody uses than may stay, take the least
 * recently used one, which the caller closes; else NULL. */
static struct plan *take_excess(struct views *v)
{
	struct view *oldest = NULL;
	struct plan *plan;
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++) {
		struct view *const x = v->v[i];

		if (!x->plan || x->users || x->tag->retired || x->type.kind != PLAN_RECUT)
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

static void close_retired(struct views *v)
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

static bool is_look_due(const struct tag *tag, double moment)
{
	const bool changes = tag->suspect || !tag->there;
	const double least = changes ? LOOK_SECONDS : moment;

	return (double)(clock_ns() - tag->looked) / 1e9 >= least;
}

/* Compare the files of a tag that has a plan.  True if it was saved again.  Called with
 * its lock held. */
static bool compare_files(struct tag *tag, struct errmsg *why)
{
	const uint32_t before = tag->seen;

	tag->looked = clock_ns();
	tag->there = planned_files_are_there(tag->plan, why);
	/* Opens of files fail for what these two do not show. */
	tag->seen = tag->suspect || !tag->there ? planned_files_sum(tag->plan)
						: 0;
	tag->suspect = tag->seen != 0;
	return tag->seen && tag->seen == before;
}

/* Can what was saved be served? */
static bool can_replace(const struct views *v, const struct tag *tag, struct errmsg *why)
{
	struct plan *p;
	bool can;

	if (plan_open(v->u, tag->path, &v->options, &p, why))
		return false;
	can = planned_files_are_whole(p, why);
	plan_close(p);
	return can;
}

/* Called with the tag's lock held. */
static void retire(struct views *v, struct tag *tag)
{
	const struct errmsg_sink notes = context_notes(v->u);

	errmsg_put(&notes, "%s: was saved again", tag->path);
	tag->there = false;
	pthread_mutex_lock(&v->u->lock);
	tag->retired = true;
	tag->retired_at = clock_ns();
	tag->former = v->retired;
	v->retired = tag;
	pthread_mutex_unlock(&v->u->lock);
}

/* Say once why a tag is not listed: while it is being saved there is another reason at each
 * look. */
static void say_unlisted(struct views *v, struct tag *tag, const struct errmsg *why)
{
	const struct errmsg_sink warnings = context_warnings(v->u);

	if (*why->text && !atomic_exchange(&tag->said, true))
		errmsg_put(&warnings, "%s: not listed until it is whole: %s", tag->path, why->text);
}

bool views_is_there(struct views *v, const char *path, double moment)
{
	struct errmsg why = { "" };
	struct view *x;
	struct tag *tag;

	close_retired(v);
	pthread_mutex_lock(&v->u->lock);
	x = find_view(v, path, &universal);
	pthread_mutex_unlock(&v->u->lock);
	if (!x)
		return false;
	tag = x->tag;
	/* Somebody may be looking, or planning, who waits for a store. */
	if (pthread_mutex_trylock(&tag->lock) == 0) {
		if (!tag->retired && tag->plan && is_look_due(tag, moment) &&
		    compare_files(tag, &why) && can_replace(v, tag, &why))
			retire(v, tag);
		else if (!tag->there)
			say_unlisted(v, tag, &why);
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
		errmsg_put(&warnings, "a mount has at most %u views, of which %u"
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

	return x->type.kind == PLAN_RECUT ? state == VIEW_PLANNED
					  : state != VIEW_RETIRED && state != VIEW_REFUSED;
}

/* Was the former generation of a tag retired so lately that the kernel may still lead to it by
 * name? */
static bool is_succeeding(struct views *v, const struct tag *tag)
{
	const struct tag *old;
	bool is;

	pthread_mutex_lock(&v->u->lock);
	for (old = v->retired; old && strcmp(old->path, tag->path) != 0;)
		old = old->former;
	is = old && clock_ns() - old->retired_at < BELIEVED_NS;
	pthread_mutex_unlock(&v->u->lock);
	return is;
}

/* Is a tag, which could be planned, not being saved? */
static bool is_settled(struct views *v, struct tag *tag, struct errmsg *why)
{
	bool settled;

	pthread_mutex_lock(&tag->lock);
	if (!tag->whole && tag->plan)
		tag->whole = planned_files_are_whole(tag->plan, why);
	settled = tag->whole && tag->there && !tag->retired;
	pthread_mutex_unlock(&tag->lock);
	return settled && !is_succeeding(v, tag);
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
	if (!rc && x->type.kind == PLAN_RECUT)
		evict_plans(x->views);
}

/* As view_plan, without the warnings of the view. */
static int get_plan(struct view *x, struct plan **out, struct errmsg *err)
{
	struct views *const v = x->views;
	int rc;

	pthread_mutex_lock(&v->u->lock);
	x->last_use = ++v->clock;
	x->users++; /* it is not evicted meanwhile */
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
		*out = NULL; /* it may have been made, and retired, meanwhile */
		view_put(x);
	}
	return rc;
}

int view_plan(struct view *x, struct plan **out, struct errmsg *err)
{
	const struct errmsg_sink warnings = { warn_of_view, x };
	const int rc = get_plan(x, out, err);

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
	close_retired(x->views);
}

bool view_is_untouched(struct view *x)
{
	struct views *v = x->views;
	bool used = false;
	struct attrs a;
	uint32_t i;

	pthread_mutex_lock(&v->u->lock);
	for (size_t pos = 0; hashtab_next(&v->index, hash_view(x->path, &universal), &pos, &i);)
		used |= v->v[i]->rc || v->v[i]->made || v->v[i]->tag->retired;
	pthread_mutex_unlock(&v->u->lock);
	return !used && !io_stat(v->u, x->path, 0, &a, NULL, NULL) &&
	       fileid_time_ns(&a.st.st_mtim) < v->began;
}

/* A listing has no use of a view yet: what the view lacks is said to who opens it. */
bool view_may_list(struct view *x)
{
	struct errmsg why = { "" };
	struct plan *p;
	bool may;
	int rc = 0;

	pthread_mutex_lock(&x->views->u->lock);
	may = x->made;
	pthread_mutex_unlock(&x->views->u->lock);
	if (!may)
		rc = get_plan(x, &p, &why);
	if (!may && !rc)
		view_put(x);
	may = !rc && is_settled(x->views, x->tag, &why);
	if (may)
		x->tag->said = false;
	else if (rc != -ENOTSUP && x->type.kind == PLAN_UNIVERSAL)
		say_unlisted(x->views, x->tag, &why);
	return may;
}
