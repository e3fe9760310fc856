/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEWS_IMPL_H
#define UCKPT_VIEWS_IMPL_H

#include <pthread.h>

#include "ckpt/base/array.h"
#include "ckpt/tree/views.h"

struct dirlist;
struct errmsg;
struct uckpt;

/* Shared by views.c and views_saved.c. */

/* A tag, of one generation. */
struct tag {
	char *path;         /* immutable */
	struct view *views; /* list protected by the context's lock */
	bool retired;       /* saved again; written with both locks held */
	uint64_t retired_at; /* the time of that */
	struct tag *former; /* retired before, not closed; list protected by the context's */
	bool closed; /* its plans, by somebody; protected by the context's */
	pthread_mutex_t lock; /* held while a plan is made or files are looked at: */
	struct plan *plan; /* the universal one, whose checkpoint the others share */
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
	size_t ranked;        /* of them, those for a number of ranks */
	uint64_t clock;       /* of last_use */
	struct tag *retired;  /* not closed yet, the last one first */
};

extern const struct view_type views_universal;

/* These two with the context's lock held.  views_find: NULL if there is none; views that are
 * retired are not found, but by their hash. */
uint64_t views_hash(const char *path, const struct view_type *type);
struct view *views_find(const struct views *v, const char *path, const struct view_type *type);

/* Close the plans of tags that were retired a while ago. */
void views_close_retired(struct views *v);

/* As view_plan, without the warnings of the view. */
int view_get_plan(struct view *x, struct plan **out, struct errmsg *err);

#endif
