/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_TREE_IMPL_H
#define UCFS_TREE_IMPL_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/base/access.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/far.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "fs/tree/tree.h"
#include "fs/tree/view_type.h"

/*
 * Shared by tree*.c: the tree, and its inode numbers.  Numbers are computed, so
 * that nothing is allocated for a node of a view.
 *
 *   1			 the root: the run's directory, or a view
 *   2 + i		 file or directory i of the run (pathtab.h), below 2^44
 *   (v + 1) << 44 | n	 node n of view v's plan
 *   LATEST | v << 44 | i	 pointer to views of type v in directory i of the run
 *   CONTROL | i	 .ucfs and everything below it
 */
struct tree {
	const struct tree_options *o;
	struct access search; /* users that may search the root's ancestors */
	struct stat source;   /* owner and time of synthesized files */
	bool is_view;         /* the root is a view: */
	atomic_size_t root_view; /* its number, until its tag is saved again */
	struct pathtab *pathtab;
	struct views *views;
	const struct stats *stats;
	struct far far;           /* where the run's directories are */
	_Atomic uint64_t look_ns; /* how long the last look at a path took */
};

#define INO_VIEW_SHIFT UCFS_PLAN_SHIFT
#define INO_LOWER_FIRST UINT64_C(2)
#define INO_LATEST (UINT64_C(1) << 61)
#define INO_CONTROL (UINT64_C(1) << 62)
#define INO_CONTROL_PLANS (INO_CONTROL | 1)
#define INO_CONTROL_STATS (INO_CONTROL | 2)
#define INO_CONTROL_ERRORS (INO_CONTROL | 3)
#define INO_CONTROL_PLAN0 (INO_CONTROL | 16) /* + view */

_Static_assert(PLAN_NODE_END <= UINT64_C(1) << INO_VIEW_SHIFT,
	       "a plan's nodes must fit below its view's number");
_Static_assert(1ull << (VIEW_TYPE_BITS + INO_VIEW_SHIFT) <= INO_LATEST,
	       "types of views must fit below their pointers' bit");
_Static_assert(65535ull << INO_VIEW_SHIFT < INO_LATEST,
	       "all views must fit below the other kinds");

#define LATEST_PREFIX "latest"
#define CONTROL_NAME ".ucfs"

/* Seconds for which the kernel may cache attributes. */
#define FOREVER 1e9  /* immutable */
#define A_MOMENT 1.0 /* may change */

/* As files_lstat; measures how far away the directories are. */
int tree_lstat(struct tree *t, const char *path, struct attrs *out);

/* How long to believe what was seen in a directory: a moment, or longer where to look
 * again takes long. */
double tree_moment(const struct tree *t);

/* Find or add a view of `tag`, a path in directory `index` of the run; its root's
 * inode.  Errors as views_add. */
int tree_add_view(struct tree *t, const char *tag, const struct view_type *type,
		  uint64_t index, uint64_t *ino);

/* Add a view of a tag or a Hugging Face directory, and make its plan, which also tells
 * how far away the directories are.  Errors as views_plan. */
int tree_plan(struct tree *t, const char *path, const struct view_type *type,
	      uint64_t parent, size_t *view, struct errmsg *err);

enum tree_kind {
	NODE_LOWER,   /* index: number in the path table */
	NODE_VIEW,    /* view: its number; index: node of its plan */
	NODE_LATEST,  /* view: number of its type; index: the directory's number
			 in the path table */
	NODE_CONTROL, /* index: the low bits of INO_CONTROL_... */
};

struct tree_node {
	enum tree_kind kind;
	size_t view;
	uint64_t index;
};

static inline struct tree_node ino_parse(const struct tree *t, uint64_t ino)
{
	if (ino == TREE_ROOT)
		return (struct tree_node){ t->is_view ? NODE_VIEW : NODE_LOWER,
					   atomic_load(&t->root_view), 0 };
	if (ino & INO_CONTROL)
		return (struct tree_node){ NODE_CONTROL, 0, ino & ~INO_CONTROL };
	if (ino & INO_LATEST)
		return (struct tree_node){
			NODE_LATEST,
			(size_t)((ino & ~INO_LATEST) >> INO_VIEW_SHIFT),
			ino & ((UINT64_C(1) << INO_VIEW_SHIFT) - 1)
		};
	if (ino >> INO_VIEW_SHIFT)
		return (struct tree_node){
			NODE_VIEW, (size_t)(ino >> INO_VIEW_SHIFT) - 1,
			ino & ((UINT64_C(1) << INO_VIEW_SHIFT) - 1)
		};
	return (struct tree_node){ NODE_LOWER, 0, ino - INO_LOWER_FIRST };
}

static inline uint64_t ino_of_lower(const struct tree *t, uint64_t index)
{
	return index == 0 && !t->is_view ? TREE_ROOT : INO_LOWER_FIRST + index;
}

/* The pointer in lower directory `index` to the newest tag's view of a type. */
static inline uint64_t ino_of_latest(const struct view_type *type,
				     uint64_t index)
{
	return INO_LATEST | (uint64_t)view_type_number(type) << INO_VIEW_SHIFT |
	       index;
}

static inline uint64_t ino_of_view(const struct tree *t, size_t view,
				   uint64_t node)
{
	if (t->is_view && node == PLAN_ROOT)
		return TREE_ROOT;
	return (uint64_t)(view + 1) << INO_VIEW_SHIFT | node;
}

/* The type of the view that is the root, if one is. */
static inline struct view_type tree_root_type(const struct tree *t)
{
	return (struct view_type){ .kind = t->o->plan.kind,
				   .ranks = t->o->plan.ranks,
				   .stage = t->o->plan.stage };
}

/* Fill in the attributes of a file or directory that exists only in the
 * mount. */
void tree_synthesize(const struct tree *t, uint64_t ino, mode_t mode,
		     uint64_t size, unsigned nlink, int64_t mtime_s,
		     struct stat *st);

/* Turn the attributes of a file or directory of the run into those of its inode
 * in the mount. */
void tree_show_lower(const struct tree *t, uint64_t index, bool has_acl,
		     struct stat *st);

/* Get the content of latest_universal, or of the pointer to another type of views,
 * in directory `index` of the run: the name of the newest tag's view.  -ENOENT if
 * the directory has no tag. */
#define LATEST_TEXT_MAX (NAME_MAX + VIEW_SUFFIX_MAX)
int tree_latest_text(struct tree *t, const struct view_type *type,
		     uint64_t index, char text[LATEST_TEXT_MAX]);

/* .ucfs and everything below it (tree_control.c): as tree_lookup and
 * tree_getattr; the bytes of a file, appended to `out`; and the name of a view's
 * plan in .ucfs/plan. */
int tree_control_lookup(struct tree *t, uint64_t dir, const char *name,
			uint64_t *ino);
int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out,
		      struct errmsg *err);
int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out,
		       struct errmsg *err);
void tree_control_name(struct tree *t, size_t view, char name[NAME_MAX + 1]);

/* The entries of .ucfs. */
struct tree_control_entry {
	const char *name;
	uint64_t ino;
};

#define TREE_CONTROL_ENTRIES 3
extern const struct tree_control_entry tree_control_entries[TREE_CONTROL_ENTRIES];

#endif
