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
 * The views of a mount: one of each type for each tag directory that has been looked
 * up or listed.  Adding a view is cheap; its plan is made on first use and kept, but
 * for those for a number of ranks, of which the last few are kept.  The views of a tag share
 * what they learn from its files.  Thread-safe.
 */
struct views;

/* Numbers of views (tree_impl.h has the bits).  Views for a number of ranks (TAG_dpN, for which
 * a stage may follow, and TAG_dcpN) are looked up before they are listed, 5 * RECUT_RANKS_MAX
 * of each tag: all of 96 tags leave the others' numbers. */
#define VIEWS_MAX ((1u << 21) - 1)
#define VIEWS_RANKED_MAX (96u * 5 * 4096)

/* Plans of views for a number of ranks that are kept while nobody uses them. */
#define VIEWS_RANKED_PLANS_MAX 8

/* A view is valid until views_free. */
struct view {
	/* Immutable: */
	struct views *views;
	const char *path; /* of its tag */
	struct view_type type;
	uint64_t parent; /* inode of the directory that lists the tag */
	size_t number;   /* below VIEWS_MAX */
	struct tag *tag;
	struct view *next; /* view of the tag; the last one is the universal one */
	/* Private to views.c.  Written with the locks of the tag and of the list held,
	 * read with either of them: */
	struct plan *plan; /* immutable while there are users */
	bool made;         /* it has had a plan */
	time_t tried;
	int rc; /* of the last attempt */
	struct errmsg *why;
	atomic_bool warned; /* of what the view lacks */
	/* Protected by the lock of the list: */
	unsigned users;
	uint64_t last_use;
};

/* A plan needs all files of its tag to be readable and to belong together if
 * `check`, else only those that it is made of.  Returns NULL when memory runs
 * out. */
struct views *views_new(struct uckpt *u, const struct plan_options *options, bool check);
void views_free(struct views *v);

/* Before another thread uses them: the only tag has been listed by detect(), until NULL. */
void views_listed(struct views *v, enum dir_kind kind, const struct dirlist *names);

/* Find or add a view of the tag at `path` (copied), listed in the directory
 * with inode `parent`.  0, -ENOMEM, or -ENFILE after VIEWS_MAX views, or
 * VIEWS_RANKED_MAX for a number of ranks. */
int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, struct view **out);

/* Are the files of the tag at `path` there as they were planned?  What was seen of them is
 * believed for `moment` seconds, or until another thread has looked.  If the tag was saved
 * again, its views are retired, so that views_add adds new ones.  False also for a tag
 * without a plan. */
bool views_is_there(struct views *v, const char *path, double moment);

/* Get the view of a number, or NULL. */
struct view *views_get(struct views *v, size_t number);

/* Get the universal view of the same tag. */
struct view *view_universal(struct view *x);

/*
 * Get the plan of a view, making it on first use, and use it until view_put.
 * Warnings of the plan are logged once.  A failure is retried after a second,
 * since the tag may still be being written; until then it is returned again.
 * -ESTALE, without a message, for a view that was retired a while ago, or before its plan
 * was made.
 */
int view_plan(struct view *x, struct plan **out, struct errmsg *err);
void view_put(struct view *x);

/* A file of the view could not be opened: was the tag saved again? */
void view_suspect(struct view *x);

/* What has become of a view; of one that failed, with the reason in *why.  One that is
 * refused will fail as long as the tag stays as it is; other views of it may not. */
enum view_state { VIEW_NEW, VIEW_PLANNED, VIEW_FAILED, VIEW_REFUSED, VIEW_RETIRED };
enum view_state view_state(struct view *x, struct errmsg *why);

/* False for a view that is retired or refused, and for a re-cut one without a plan. */
bool view_is_listed(struct view *x);

/* Has nobody used its tag yet, nor saved into the directory since the mount began?  The tag that
 * was saved last was tried then; a directory lists the others, which are read when they are
 * used. */
bool view_is_untouched(struct view *x);

/* Should a directory list it: has it a plan, which is made now, and is its tag not being
 * saved?  views_is_there has looked. */
bool view_may_list(struct view *x);

/* A view could not be planned: can its tag be read, so that others may be? */
bool view_has_others(struct view *x);

#endif
