/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_VIEWS_H
#define UCFS_VIEWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/plan/plan.h"
#include "fs/tree/view_type.h"

struct errmsg;

/*
 * The views of a mount, by number: one of each type for each tag directory that
 * has been looked up or listed.  Adding a view is cheap; its plan is made on
 * first use and kept, but for those of re-cut views, of which the last few are
 * kept.  The views of a tag share what they learn from its files.
 * Thread-safe.
 */
struct views;

#define VIEWS_MAX 65535u

/* Of these, re-cut views, which are looked up before they are listed: users cannot use up
 * the numbers of the others. */
#define VIEWS_RECUT_MAX 32768u

/* Plans of re-cut views that are kept while nobody uses them. */
#define VIEWS_RECUT_PLANS_MAX 8

/* A plan needs all files of its tag to be readable and to belong together if
 * `check`, else only those that it is made of.  Returns NULL when memory runs
 * out. */
struct views *views_new(const struct plan_options *options, bool check);
void views_free(struct views *v);

/* Find or add a view of the tag at `path` (copied), listed in the directory
 * with inode `parent`.  If the tag was saved again since its plans were made, its
 * views are retired, and a new one is added; what was seen of its files is believed
 * for `moment` seconds.  0, -ENOMEM, or -ENFILE after VIEWS_MAX views, or
 * VIEWS_RECUT_MAX re-cut ones. */
int views_add(struct views *v, const char *path, const struct view_type *type,
	      uint64_t parent, double moment, size_t *index);

/* Are the files of the tag at `path` there as they were planned, or were a moment ago?
 * False also for a tag without a plan. */
bool views_is_there(struct views *v, const char *path, double moment);

size_t views_count(struct views *v);

/* `index` is below views_count.  The path is valid until views_free. */
const char *views_path(struct views *v, size_t index);
struct view_type views_type(struct views *v, size_t index);
uint64_t views_parent(struct views *v, size_t index);

/* Get the universal view of the same tag. */
size_t views_universal(struct views *v, size_t index);

/* Get the next re-cut view that is listed, beginning at `*pos`, which is 0 before the
 * first call.  False if there is none left.  The path is valid until views_free. */
struct view_name {
	const char *path;
	struct view_type type;
	uint64_t parent;
};

bool views_next_recut(struct views *v, size_t *pos, struct view_name *out);

/*
 * Get the plan of a view, making it on first use, and use it until views_put.
 * Warnings of the plan are logged once.  A failure is retried after a second,
 * since the tag may still be being written; until then it is returned again.
 * -ESTALE, without a message, for a view that is retired.
 */
int views_plan(struct views *v, size_t index, struct plan **out,
	       struct errmsg *err);
void views_put(struct views *v, size_t index);

/* A file of the view could not be opened: was the tag saved again? */
void views_suspect(struct views *v, size_t index);

/* False for a view that is retired, and for a re-cut one without a plan. */
bool views_is_listed(struct views *v, size_t index);

/* Get whether the plan could not be made, and then the reason in *why. */
bool views_failed(struct views *v, size_t index, struct errmsg *why);

/* Get the plan if it has been made, and use it until views_put, else NULL. */
struct plan *views_plan_if_made(struct views *v, size_t index);
bool views_is_planned(struct views *v, size_t index);

#endif
