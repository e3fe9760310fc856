/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_TREE_INO_H
#define UCFS_TREE_INO_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/plan/plan.h"
#include "fs/tree/tree.h"

/*
 * What tree*.c share: the tree itself, and its inode numbers.
 * They are arithmetic; nothing is allocated for a node of a view.
 *
 *   1			 the root: of a run the real directory, else the
 *			 view
 *   2 + i		 real node i, below 2^44
 *   (v + 1) << 44 | n	 node n of view v's plan
 *   LATEST | i		 latest_universal in real directory i
 *   CONTROL | i	 .ucfs and below
 */
struct tree {
	const struct options *o;
	struct stat source; /* gives what is made up its owner and time */
	bool is_view; /* all of the source is one */
	struct reals *reals;
	struct views *views;
	const struct stats *stats;
};

#define INO_VIEW_SHIFT 44
#define INO_REAL_FIRST UINT64_C(2)
#define INO_LATEST (UINT64_C(1) << 61)
#define INO_CONTROL (UINT64_C(1) << 62)
#define INO_CONTROL_PLANS (INO_CONTROL | 1)
#define INO_CONTROL_STATS (INO_CONTROL | 2)
#define INO_CONTROL_STATS_JSON (INO_CONTROL | 3)
#define INO_CONTROL_PLAN0 (INO_CONTROL | 16) /* + view */

_Static_assert(PLAN_NODE_END <= UINT64_C(1) << INO_VIEW_SHIFT,
	       "a plan's nodes fit below its view's number");
_Static_assert(65535ull << INO_VIEW_SHIFT < INO_LATEST,
	       "all views fit below the other kinds");

/* What the views of a tag are called: its name, and this. */
static const char *const view_suffixes[PLAN_KINDS] = {
	[PLAN_UNIVERSAL] = "_universal",
	[PLAN_HF] = "_hf",
	[PLAN_FP32] = "_fp32",
};

#define VIEW_SUFFIX_MAX 16
#define LATEST_NAME "latest_universal"
#define CONTROL_NAME ".ucfs"
#define PLANS_NAME "plan"
#define STATS_NAME "stats"
#define STATS_JSON_NAME "stats.json"

#define FOREVER 1e9  /* for what cannot change */
#define A_MOMENT 1.0 /* for what may */

enum tree_kind {
	NODE_REAL,    /* index: its number in reals */
	NODE_VIEW,    /* view; index: the plan's node */
	NODE_LATEST,  /* index: the real directory's */
	NODE_CONTROL, /* index: which */
};

struct tree_node {
	enum tree_kind kind;
	size_t view;
	uint64_t index;
};

static inline struct tree_node ino_parse(const struct tree *t, uint64_t ino)
{
	if (ino == TREE_ROOT)
		return (struct tree_node){ t->is_view ? NODE_VIEW : NODE_REAL, 0,
					   0 };
	if (ino & INO_CONTROL)
		return (struct tree_node){ NODE_CONTROL, 0, ino & ~INO_CONTROL };
	if (ino & INO_LATEST)
		return (struct tree_node){ NODE_LATEST, 0, ino & ~INO_LATEST };
	if (ino >> INO_VIEW_SHIFT)
		return (struct tree_node){
			NODE_VIEW, (size_t)(ino >> INO_VIEW_SHIFT) - 1,
			ino & ((UINT64_C(1) << INO_VIEW_SHIFT) - 1)
		};
	return (struct tree_node){ NODE_REAL, 0, ino - INO_REAL_FIRST };
}

static inline uint64_t ino_of_real(const struct tree *t, uint64_t index)
{
	return index == 0 && !t->is_view ? TREE_ROOT : INO_REAL_FIRST + index;
}

static inline uint64_t ino_of_view(const struct tree *t, size_t view,
				   uint64_t node)
{
	if (t->is_view && node == PLAN_ROOT)
		return TREE_ROOT;
	return (uint64_t)(view + 1) << INO_VIEW_SHIFT | node;
}

/* Attributes of something that is on no disk. */
void tree_make_up(const struct tree *t, uint64_t ino, mode_t mode, uint64_t size,
		  unsigned nlink, int64_t mtime_s, struct stat *st);

/* .ucfs and what is below it (tree_control.c): as tree_lookup, tree_getattr,
 * the bytes of a file, and the name of a view's plan in .ucfs/plan. */
int tree_control_lookup(struct tree *t, uint64_t dir, const char *name,
			uint64_t *ino);
int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out,
		      struct errmsg *err);
int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out,
		       struct errmsg *err);
void tree_control_name(struct tree *t, size_t view, char name[NAME_MAX + 1]);

#endif
