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

/* A generation of a tag. */
struct tag {
	char *path;         /* immutable */
	struct view *views; /* list protected by the context's lock */
	bool retired;       /* saved again; written with both locks held */
	uint64_t retired_at; /* when it was retired */
	struct tag *former; /* tag retired before this one and not closed; list protected by the
			     * context's lock */
	bool closed; /* a thread has taken its plans to close them; protected by the context's
	              * lock */
	pthread_mutex_t lock; /* held while a plan is made or files are checked; protects: */
	struct plan *plan; /* universal plan; the others share its checkpoint */
	bool opened;       /* the last attempt to make the plan succeeded */
	bool planned;      /* a view of the tag has had a plan */
	bool whole;        /* its files were whole when it was about to be listed */
	atomic_bool said;  /* the reason why the tag is not listed was logged */
	atomic_bool recheck; /* a file could not be opened */
	atomic_bool there; /* the last comparison found the planned files */
	uint64_t looked; /* time of that comparison */
	uint32_t seen;   /* if it found other files, the sum of their identities */
};

struct views {
	struct uckpt *u;
	struct plan_options options;
	bool check; /* check all files of a tag */
	int64_t began; /* start of the mount, as a time stamp of files */
	enum dir_kind kind; /* as in views_listed */
	const struct dirlist *names;
	/* Protected by the context's lock: */
	struct view **v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path and type */
	size_t ranked;        /* number of views for a number of ranks */
	uint64_t clock;       /* source of last_use */
	struct tag *retired;  /* tags that are not closed yet, most recently retired first */
};

extern const struct view_type views_universal;

/* The caller of these two holds the context's lock. views_find returns NULL if there is no such
 * view or it is retired. */
uint64_t views_hash(const char *path, const struct view_type *type);
struct view *views_find(const struct views *v, const char *path, const struct view_type *type);

/* Close the plans of tags that were retired a while ago. */
void views_close_retired(struct views *v);

/* As view_plan, without the warnings of the view. */
int view_get_plan(struct view *x, struct plan **out, struct errmsg *err);

#endif
