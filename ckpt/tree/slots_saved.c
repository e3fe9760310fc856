/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tags that are being saved, or were saved again.
 *
 * During a save, files of two generations exist.  So a save counts as complete when two checks of
 * all files, LOOK_SECONDS apart, have the same result, and the tag can be planned.  The same holds
 * for a Hugging Face directory.  Until then its slots are not listed, but a process that has found
 * one still gets its names and attributes, also for a while after it was retired, so that a walk of
 * the mount never meets an error.
 */
#include <errno.h>
#include <string.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "ckpt/io/io.h"
#include "ckpt/tree/source_files.h"
#include "ckpt/tree/slots_impl.h"

#define LOOK_SECONDS 1.0

/* The kernel caches lookups in a local directory for a second. */
#define BELIEVED_NS UINT64_C(1100000000)

static bool is_look_due(const struct tag *tag, double moment)
{
	const bool changes = tag->recheck || !tag->there;
	const double least = changes ? LOOK_SECONDS : moment;

	return (double)(clock_ns() - tag->looked) / 1e9 >= least;
}

/* Compare the files of a tag that has a view.  True if it was saved again.  The caller holds its
 * lock. */
static bool compare_files(struct tag *tag, struct errmsg *why)
{
	const uint32_t before = tag->seen;

	tag->looked = clock_ns();
	tag->there = source_files_are_there(tag->view, why);
	/* A failed open may be due to a change that these two files do not show. */
	tag->seen = tag->recheck || !tag->there ? source_files_sum(tag->view)
						: 0;
	tag->recheck = tag->seen != 0;
	return tag->seen && tag->seen == before;
}

/* Can the new save be served? */
static bool can_replace(const struct slots *v, const struct tag *tag, struct errmsg *why)
{
	struct view *view;
	bool can;

	if (view_open(v->u, tag->path, &v->options, &view, why))
		return false;
	can = source_files_are_whole(view, why);
	view_close(view);
	return can;
}

/* The caller holds the tag's lock. */
static void retire(struct slots *v, struct tag *tag)
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

/* Log once why a tag is not listed; during a save the reason changes with each check. */
static void say_unlisted(struct slots *v, struct tag *tag, const struct errmsg *why)
{
	const struct errmsg_sink warnings = context_warnings(v->u);

	if (*why->text && !atomic_exchange(&tag->said, true))
		errmsg_put(&warnings, "%s: not listed until it is whole: %s", tag->path, why->text);
}

bool slots_is_there(struct slots *v, const char *path, double moment)
{
	struct errmsg why = { "" };
	struct slot *x;
	struct tag *tag;

	slots_close_retired(v);
	pthread_mutex_lock(&v->u->lock);
	x = slots_find(v, path, &slots_universal);
	pthread_mutex_unlock(&v->u->lock);
	if (!x)
		return false;
	tag = x->tag;
	/* The lock may be held by a thread that waits for a store. */
	if (pthread_mutex_trylock(&tag->lock) == 0) {
		if (!tag->retired && tag->view && is_look_due(tag, moment) &&
		    compare_files(tag, &why) && can_replace(v, tag, &why))
			retire(v, tag);
		else if (!tag->there)
			say_unlisted(v, tag, &why);
		pthread_mutex_unlock(&tag->lock);
	}
	return tag->there;
}

void slot_recheck(struct slot *x)
{
	x->tag->recheck = true;
}

/* Was the former generation of a tag retired so recently that the kernel's caches may still lead
 * to it? */
static bool is_succeeding(struct slots *v, const struct tag *tag)
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

/* Is a tag that can be planned settled, that is, not being saved? */
static bool is_settled(struct slots *v, struct tag *tag, struct errmsg *why)
{
	bool settled;

	pthread_mutex_lock(&tag->lock);
	if (!tag->whole && tag->view)
		tag->whole = source_files_are_whole(tag->view, why);
	settled = tag->whole && tag->there && !tag->retired;
	pthread_mutex_unlock(&tag->lock);
	return settled && !is_succeeding(v, tag);
}

bool slot_is_untouched(struct slot *x)
{
	struct slots *v = x->slots;
	bool used = false;
	struct attrs a;
	uint32_t i;

	pthread_mutex_lock(&v->u->lock);
	for (size_t pos = 0; hashtab_next(&v->index, slots_hash(x->path, &slots_universal), &pos, &i);)
		used |= v->v[i]->rc || v->v[i]->made || v->v[i]->tag->retired;
	pthread_mutex_unlock(&v->u->lock);
	return !used && !io_stat(v->u, x->path, 0, &a, NULL, NULL) &&
	       fileid_time_ns(&a.st.st_mtim) < v->began;
}

/* Listing a slot does not log its warnings: opening it does. */
bool slot_may_list(struct slot *x)
{
	struct errmsg why = { "" };
	struct view *v;
	bool may;
	int rc = 0;

	pthread_mutex_lock(&x->slots->u->lock);
	may = x->made;
	pthread_mutex_unlock(&x->slots->u->lock);
	if (!may)
		rc = slot_get_view(x, &v, &why);
	if (!may && !rc)
		slot_put(x);
	may = !rc && is_settled(x->slots, x->tag, &why);
	if (may)
		x->tag->said = false;
	else if (rc != -ENOTSUP && x->type.kind == VIEW_UNIVERSAL)
		say_unlisted(x->slots, x->tag, &why);
	return may;
}
