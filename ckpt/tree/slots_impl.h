/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SLOTS_IMPL_H
#define UCKPT_SLOTS_IMPL_H

#include <pthread.h>

#include "ckpt/base/array.h"
#include "ckpt/tree/slots.h"

struct dirlist;
struct errmsg;
struct uckpt;

/* Shared by slots.c and slots_saved.c. */

/* A generation of a tag. */
struct tag {
	char *path;         /* immutable */
	struct slot *slots; /* list protected by the context's lock */
	bool retired;       /* saved again; written with both locks held */
	uint64_t retired_at; /* when it was retired */
	struct tag *former; /* tag retired before this one and not closed; list protected by the
			     * context's lock */
	bool closed; /* a thread has taken its views to close them; protected by the context's
	              * lock */
	pthread_mutex_t lock; /* held while a view is made or files are checked; protects: */
	struct view *view; /* universal view; the others share its checkpoint */
	bool opened;       /* the last attempt to make the view succeeded */
	bool used;         /* a slot of the tag has had a view */
	bool whole;        /* its files were whole when it was about to be listed */
	atomic_bool said;  /* the reason why the tag is not listed was logged */
	atomic_bool recheck; /* a file could not be opened */
	atomic_bool there; /* the last comparison found the planned files */
	uint64_t looked; /* time of that comparison */
	uint32_t seen;   /* if it found other files, the sum of their identities */
};

struct slots {
	struct uckpt *u;
	struct view_options options;
	bool check; /* check all files of a tag */
	int64_t began; /* start of the mount, as a time stamp of files */
	enum dir_kind kind; /* as in slots_listed */
	const struct dirlist *names;
	/* Protected by the context's lock: */
	struct slot **v;
	size_t n, cap;
	struct hashtab index; /* into `v`, by path and type */
	size_t ranked;        /* number of slots for a number of ranks */
	uint64_t clock;       /* source of last_use */
	struct tag *retired;  /* tags that are not closed yet, most recently retired first */
};

extern const struct view_type slots_universal;

/* The caller of these two holds the context's lock. slots_find returns NULL if there is no such
 * slot or it is retired. */
uint64_t slots_hash(const char *path, const struct view_type *type);
struct slot *slots_find(const struct slots *v, const char *path, const struct view_type *type);

/* Close the views of tags that were retired a while ago. */
void slots_close_retired(struct slots *v);

/* As slot_view, without the warnings of the slot. */
int slot_get_view(struct slot *x, struct view **out, struct errmsg *err);

#endif
