/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEWS_H
#define UCKPT_VIEWS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "ckpt/views/plan.h"

struct errmsg;
struct tag;

/*
 * The views of a mount: one of each type for each tag directory that has been looked up or listed.
 * Adding a view is cheap; its plan is made on first use and kept, but only the last few plans for a
 * number of ranks are.  The views of a tag share the checkpoint that was read from its files.
 * Thread-safe.
 */
struct views;

/* Numbers of views (tree_impl.h has the bits).  Views for a number of ranks (TAG_dpN, for which
 * a stage may follow, and TAG_dcpN) exist once they are looked up, up to 5 * RECUT_RANKS_MAX for
 * each tag; VIEWS_RANKED_MAX leaves numbers for the others. */
#define VIEWS_MAX ((1u << 21) - 1)
#define VIEWS_RANKED_MAX (96u * 5 * 4096)

/* Limit of unused plans of views for a number of ranks that are kept. */
#define VIEWS_RANKED_PLANS_MAX 8

/* A view is valid until views_free. */
struct view {
	/* Immutable: */
	struct views *views;
	const char *path; /* path of its tag */
	struct view_type type;
	uint64_t parent; /* inode of the directory that lists the tag */
	size_t number;   /* below VIEWS_MAX */
	struct tag *tag;
	struct view *next; /* view of the tag; the last one is the universal one */
	/* Private to views.c.  Written with the locks of the tag and of the list held,
	 * read with either of them: */
	struct plan *plan; /* immutable while the view has users */
	bool made;         /* a plan was made */
	time_t tried;
	int rc; /* result of the last attempt */
	struct errmsg *why;
	atomic_bool warned; /* the view's warnings were printed */
	/* Protected by the lock of the list: */
	unsigned users;
	uint64_t last_use;
};

/* With `check`, a plan requires that all files of its tag are readable and belong together, else
 * only the files that it uses.  Returns NULL when memory runs out. */
struct views *views_new(struct uckpt *u, const struct plan_options *options, bool check);
void views_free(struct views *v);

/* Pass detect()'s listing of the only tag, before other threads exist; NULL discards it. */
void views_listed(struct views *v, enum dir_kind kind, const struct dirlist *names);

/* Find or add a view of the tag at `path` (copied), listed in the directory
 * with inode `parent`.  0, -ENOMEM, or -ENFILE after VIEWS_MAX views, or
 * VIEWS_RANKED_MAX for a number of ranks. */
int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct view **out);

/* Are the files of the tag at `path` still the planned ones?  The result is cached for `moment`
 * seconds, or until another thread has checked.  If the tag was saved again, its views are
 * retired, so that views_add adds new ones.  False also for a tag without a plan. */
bool views_is_there(struct views *v, const char *path, double moment);

/* Get the view of a number, or NULL. */
struct view *views_get(struct views *v, size_t number);

/* Return the universal view of the same tag. */
struct view *view_universal(struct view *x);

/*
 * Get the plan of a view, making it on first use, and use it until view_put.
 * Warnings of the plan are logged once.  A failure is retried after a second, since the tag may
 * still be being written; until then the same error is returned.  -ESTALE, without a message, for a
 * view that was retired a while ago, or before its plan was made.
 */
int view_plan(struct view *x, struct plan **out, struct errmsg *err);
void view_put(struct view *x);

/* Schedule a check whether the tag was saved again; for use after a failed open. */
void view_recheck(struct view *x);

/* The state of a view, with the reason of a failure in *why.  A refused view fails until the tag
 * is saved again; other views of the tag may not. */
enum view_state { VIEW_NEW, VIEW_PLANNED, VIEW_FAILED, VIEW_REFUSED, VIEW_RETIRED };
enum view_state view_state(struct view *x, struct errmsg *why);

/* Is the view listed?  False if it is retired or refused, or re-cut without a plan. */
bool view_is_listed(struct view *x);

/* Has the tag never been used, and its directory not been written to since the mount began? The
 * newest tag is tried when mounting; the others are listed untested, and read when they are
 * used. */
bool view_is_untouched(struct view *x);

/* Should a directory list the view? Plans the view; false if that fails or its tag is being saved.
 * Call views_is_there before. */
bool view_may_list(struct view *x);

/* After a failed plan: is the tag readable, so that other views may be possible? */
bool view_has_others(struct view *x);

#endif
