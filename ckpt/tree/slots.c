/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of tags, and their views.
 *
 * A view does not change, so a tag that is saved again gets new slots, with new numbers and thus
 * new inodes: so the kernel's caches of the old ones stay correct.  An old slot is retired: lookups
 * no longer find it, and its view is closed after the last use of any of the tag's views.
 *
 * Any user may look up a slot for any number of ranks.  So a name costs a few hundred bytes, and
 * only the most recent unused views of such slots are kept.  A view that is made again from the
 * same checkpoint is identical.
 */
#include "ckpt/tree/slots_impl.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/tree/source_files.h"

#define RETRY_SECONDS 1

/* Time for a process to finish walking a retired slot, in seconds. */
#define RETIRED_SECONDS 30

const struct view_type slots_universal = { .kind = VIEW_UNIVERSAL };

struct slots *slots_new(struct uckpt *u, const struct view_options *options, bool check)
{
	struct slots *const v = calloc(1, sizeof(*v));

	if (!v)
		return NULL;
	v->u = u;
	v->options = *options;
	v->options.type = slots_universal;
	v->check = check;
	v->began = source_files_now();
	return v;
}

void slots_listed(struct slots *v, enum dir_kind kind, const struct dirlist *names)
{
	v->kind = kind;
	v->names = names;
}

/* Close the views of a tag that has no users.  The caller must not hold the context's lock: closing
 * waits for read-ahead. */
static void close_views(struct tag *tag)
{
	for (struct slot *x = tag->slots; x; x = x->next) {
		if (x->view != tag->view)
			view_close(x->view);
		x->view = NULL;
	}
	view_close(tag->view);
	tag->view = NULL;
}

static void free_tag(struct tag *tag)
{
	pthread_mutex_destroy(&tag->lock);
	free(tag->path);
	free(tag);
}

void slots_free(struct slots *v)
{
	if (!v)
		return;
	for (size_t i = 0; i < v->n; i++)
		if (v->v[i]->type.kind == VIEW_UNIVERSAL)
			close_views(v->v[i]->tag);
	for (size_t i = 0; i < v->n; i++) {
		if (v->v[i]->type.kind == VIEW_UNIVERSAL)
			free_tag(v->v[i]->tag);
		free(v->v[i]->why);
		free(v->v[i]);
	}
	hashtab_done(&v->index);
	free(v->v);
	free(v);
}

/* Callers of the functions from here to take_excess() hold the context's lock. */

uint64_t slots_hash(const char *path, const struct view_type *type)
{
	return hash_bytes(hash_text(path), type, sizeof(*type));
}

/* Is there room for one more slot? */
static bool has_room(const struct slots *v, const struct view_type *type)
{
	return v->n < SLOTS_MAX && (!type->ranks || v->ranked < SLOTS_RANKED_MAX);
}

struct slot *slots_find(const struct slots *v, const char *path, const struct view_type *type)
{
	const uint64_t hash = slots_hash(path, type);
	uint32_t i;

	for (size_t pos = 0; hashtab_next(&v->index, hash, &pos, &i);)
		if (!v->v[i]->tag->retired && view_type_equal(&v->v[i]->type, type) &&
		    strcmp(v->v[i]->path, path) == 0)
			return v->v[i];
	return NULL;
}

static int append_view(struct slots *v, struct tag *tag,
		       const struct view_type *type, uint64_t parent,
		       struct slot **out)
{
	struct slot *x;

	if (!has_room(v, type))
		return -ENFILE;
	x = calloc(1, sizeof(*x));
	if (!x || !array_reserve(&v->v, &v->cap, v->n + 1, sizeof(*v->v)) ||
	    !hashtab_add(&v->index, slots_hash(tag->path, type), (uint32_t)v->n)) {
		free(x);
		return -ENOMEM;
	}
	x->slots = v;
	x->path = tag->path;
	x->type = *type;
	x->parent = parent;
	x->number = v->n;
	x->tag = tag;
	x->next = tag->slots;
	tag->slots = x;
	v->v[v->n++] = x;
	v->ranked += type->ranks > 0;
	*out = x;
	return 0;
}

/* Append the universal slot of a tag that has none. */
static int append_tag(struct slots *v, const char *path, uint64_t parent, struct slot **out)
{
	struct tag *const tag = calloc(1, sizeof(*tag));
	int rc = -ENOMEM;

	if (!tag)
		return rc;
	pthread_mutex_init(&tag->lock, NULL);
	tag->path = strdup(path);
	if (tag->path)
		rc = append_view(v, tag, &slots_universal, parent, out);
	if (rc)
		free_tag(tag);
	return rc;
}

static bool is_used(const struct tag *tag)
{
	for (const struct slot *x = tag->slots; x; x = x->next)
		if (x->users)
			return true;
	return false;
}

/* Return a tag whose views the caller must close: one that was retired a while ago and has no
 * users; or NULL. */
static struct tag *take_retired(struct slots *v)
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

/* If there are too many unused views of slots for a number of ranks, return the least recently
 * used one, which the caller must close; else NULL. */
static struct view *take_excess(struct slots *v)
{
	struct slot *oldest = NULL;
	struct view *view;
	size_t n = 0;

	for (size_t i = 0; i < v->n; i++) {
		struct slot *const x = v->v[i];

		if (!x->view || x->users || x->tag->retired || !x->type.ranks)
			continue;
		n++;
		if (!oldest || x->last_use < oldest->last_use)
			oldest = x;
	}
	if (n <= SLOTS_RANKED_VIEWS_MAX)
		return NULL;
	view = oldest->view;
	oldest->view = NULL;
	return view;
}

void slots_close_retired(struct slots *v)
{
	struct tag *tag;

	do {
		pthread_mutex_lock(&v->u->lock);
		tag = take_retired(v);
		pthread_mutex_unlock(&v->u->lock);
		if (tag)
			close_views(tag);
	} while (tag);
}

static void evict_views(struct slots *v)
{
	struct view *view;

	do {
		pthread_mutex_lock(&v->u->lock);
		view = take_excess(v);
		pthread_mutex_unlock(&v->u->lock);
		view_close(view);
	} while (view);
}

int slots_add(struct slots *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct slot **out)
{
	const struct errmsg_sink warnings = context_warnings(v->u);
	struct slot *tag;
	int rc = 0;

	pthread_mutex_lock(&v->u->lock);
	*out = slots_find(v, path, type);
	tag = slots_find(v, path, &slots_universal);
	if (!tag)
		rc = append_tag(v, path, parent, &tag);
	if (!rc && type->kind == VIEW_UNIVERSAL)
		*out = tag;
	else if (!rc && !*out)
		rc = append_view(v, tag->tag, type, parent, out);
	pthread_mutex_unlock(&v->u->lock);
	if (rc == -ENFILE)
		errmsg_put(&warnings, "this mount has reached its limit of %u views (%u TAG_dp<ranks> or"
			   " TAG_dcp<ranks>); mount again to look up others",
			   SLOTS_MAX, SLOTS_RANKED_MAX);
	return rc;
}

struct slot *slots_get(struct slots *v, size_t number)
{
	struct slot *x;

	pthread_mutex_lock(&v->u->lock);
	x = number < v->n ? v->v[number] : NULL;
	pthread_mutex_unlock(&v->u->lock);
	return x;
}

struct slot *slot_universal(struct slot *x)
{
	while (x->type.kind != VIEW_UNIVERSAL)
		x = x->next;
	return x;
}

enum slot_state slot_state(struct slot *x, struct errmsg *why)
{
	enum slot_state state = SLOT_NEW;

	pthread_mutex_lock(&x->slots->u->lock);
	if (x->tag->retired)
		state = SLOT_RETIRED;
	else if (x->view)
		state = SLOT_MADE;
	else if (x->rc && x->why)
		state = x->rc == -ENOTSUP ? SLOT_REFUSED : SLOT_FAILED;
	if (state == SLOT_FAILED || state == SLOT_REFUSED)
		*why = *x->why;
	pthread_mutex_unlock(&x->slots->u->lock);
	return state;
}

bool slot_is_listed(struct slot *x)
{
	struct errmsg why;
	const enum slot_state state = slot_state(x, &why);

	return x->type.ranks ? state == SLOT_MADE
					  : state != SLOT_RETIRED && state != SLOT_REFUSED;
}

bool slot_has_others(struct slot *x)
{
	bool opened;

	pthread_mutex_lock(&x->tag->lock);
	opened = x->tag->opened;
	pthread_mutex_unlock(&x->tag->lock);
	return opened;
}

static void warn_of_view(void *slot, const char *text)
{
	const struct slot *const x = slot;
	const struct errmsg_sink warnings = context_warnings(x->slots->u);

	errmsg_put(&warnings, "%s: %s", x->path, text);
}

/* Open the view of a slot over its tag's universal view.  The caller holds the tag's lock. */
static int open_view(struct slot *x, struct view **out, struct errmsg *why)
{
	const struct slots *const v = x->slots;
	struct tag *const tag = x->tag;
	struct view *view;
	int rc = 0;

	if (!tag->view)
		rc = v->names ? view_open_listed(v->u, tag->path, v->kind, v->names, &v->options,
						 &tag->view, why)
			      : view_open(v->u, tag->path, &v->options, &tag->view, why);
	if (!rc && !tag->used && source_files_are_early(tag->view, v->began, why))
		rc = -EBADMSG;
	tag->opened = !rc;
	view = tag->view;
	if (!rc && x->type.kind != VIEW_UNIVERSAL)
		rc = view_open_derived(tag->view, &x->type, &view, why);
	if (rc)
		return rc;
	rc = v->check ? view_check_files(view, why) : view_check(view, why);
	if (!rc)
		*out = view;
	else if (view != tag->view)
		view_close(view);
	return rc;
}

static bool has_just_failed(const struct slot *x, time_t now)
{
	return x->rc && x->why && now - x->tried < RETRY_SECONDS;
}

/* Make a view, unless an attempt has just failed.  The caller holds the tag's lock and uses the
 * slot. */
static void make_view(struct slot *x)
{
	const time_t now = time(NULL);
	const struct errmsg_sink warnings = { warn_of_view, x };
	struct tag *const tag = x->tag;
	const struct slot *whole = slot_universal(x);
	struct errmsg why = { "" };
	struct view *v = NULL;
	int rc;

	if (x->view || tag->retired || has_just_failed(x, now))
		return;
	/* If the checkpoint cannot be opened, the other slots cannot be made, either. */
	if (!tag->opened && has_just_failed(whole, now)) {
		rc = whole->rc;
		why = *whole->why;
	} else {
		rc = open_view(x, &v, &why);
	}
	/* The tag is still being written: the next attempt needs a new view. */
	if (rc && rc != -ENOTSUP && !tag->used) {
		view_close(tag->view);
		tag->view = NULL;
	}
	if (!rc && !tag->used) {
		tag->used = true;
		tag->there = true;
		tag->looked = clock_ns();
		view_warn(tag->view, &warnings);
	}
	pthread_mutex_lock(&x->slots->u->lock);
	x->view = v;
	x->made |= !rc;
	x->tried = now;
	x->rc = rc;
	if (rc && !x->why)
		x->why = malloc(sizeof(*x->why));
	if (rc && x->why)
		*x->why = why;
	pthread_mutex_unlock(&x->slots->u->lock);
	if (!rc && x->type.ranks)
		evict_views(x->slots);
}

int slot_get_view(struct slot *x, struct view **out, struct errmsg *err)
{
	struct slots *const v = x->slots;
	int rc;

	pthread_mutex_lock(&v->u->lock);
	x->last_use = ++v->clock;
	x->users++; /* protects it from eviction */
	*out = x->tag->closed ? NULL : x->view;
	rc = x->tag->retired && !*out ? -ESTALE : 0;
	pthread_mutex_unlock(&v->u->lock);
	if (!rc && !*out) {
		pthread_mutex_lock(&x->tag->lock);
		make_view(x);
		*out = x->view;
		rc = x->tag->retired ? -ESTALE : x->view ? 0 : x->rc;
		if (rc && rc != -ESTALE && err && x->why)
			*err = *x->why;
		pthread_mutex_unlock(&x->tag->lock);
	}
	if (rc) {
		*out = NULL; /* it may have been made, and retired, in the meantime */
		slot_put(x);
	}
	return rc;
}

int slot_view(struct slot *x, struct view **out, struct errmsg *err)
{
	const struct errmsg_sink warnings = { warn_of_view, x };
	const int rc = slot_get_view(x, out, err);

	if (rc || x->type.kind == VIEW_UNIVERSAL || atomic_exchange(&x->warned, true))
		return rc;
	pthread_mutex_lock(&x->tag->lock);
	view_warn(*out, &warnings);
	pthread_mutex_unlock(&x->tag->lock);
	return 0;
}

void slot_put(struct slot *x)
{
	pthread_mutex_lock(&x->slots->u->lock);
	assert(x->users > 0);
	x->users--;
	pthread_mutex_unlock(&x->slots->u->lock);
	slots_close_retired(x->slots);
}
