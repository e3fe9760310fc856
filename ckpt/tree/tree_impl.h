/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREE_IMPL_H
#define UCKPT_TREE_IMPL_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/base/attrs.h"
#include "ckpt/remote/latency.h"
#include "ckpt/tree/paths.h"
#include "ckpt/tree/tree.h"
#include "ckpt/tree/slots.h"
#include "ckpt/vfile/ucfs_ioctl.h"
#include "ckpt/views/view.h"

struct attrs;
struct bytebuf;

/*
 * Shared by tree*.c: the tree, and its inode numbers.  Numbers are computed, so
 * that nothing is allocated for a node of a view.
 *
 *   1			 the root: the run's directory, or a view
 *   2 + i		 path i of the run (paths.h), below 2^40
 *   (v + 1) << 40 | n	 node n of slot v's view
 *   LATEST | i		 pointer to the newest tag's view, which has path i
 *   CONTROL | i	 .ucfs and everything below it
 */
struct tree {
	const struct tree_options *o;
	struct permissions search; /* users that may search the root's ancestors */
	struct attrs source;  /* owner and time of synthesized files */
	bool is_view;         /* the root is a view: */
	struct slot *_Atomic root_slot; /* until its tag is saved again */
	struct paths *paths;
	struct slots *slots;
	struct latency latency;           /* of the run's directories */
	_Atomic uint64_t lookup_ns; /* duration of the last check of a path */
};

#define INO_VIEW_SHIFT UCFS_PLAN_SHIFT
#define INO_LOWER_FIRST UINT64_C(2)
#define INO_LATEST (UINT64_C(1) << 61)
#define INO_CONTROL (UINT64_C(1) << 62)

_Static_assert(VIEW_NODE_END <= UINT64_C(1) << INO_VIEW_SHIFT,
	       "a view's nodes must fit below its slot's number");
_Static_assert((UINT64_C(1) + SLOTS_MAX) << INO_VIEW_SHIFT <= INO_LATEST,
	       "all views must fit below the other kinds");

#define LATEST_NAME "latest_universal"
#define CONTROL_NAME ".ucfs"

/* Seconds for which the kernel may cache attributes. */
#define TTL_IMMUTABLE 1e9  /* immutable */
#define TTL_CHANGING 1.0 /* may change */

enum tree_kind { NODE_RUN, NODE_VIEW, NODE_LATEST, NODE_CONTROL };

struct tree_node {
	enum tree_kind kind;
	uint64_t index;    /* of a path, of a node of a view, or the low bits of
			 * INO_CONTROL */
	struct slot *slot; /* of NODE_VIEW */
};

/* Parse an inode number.  -ENOENT if there is no such view. */
int tree_parse(struct tree *t, uint64_t ino, struct tree_node *out);

static inline uint64_t ino_of_run_file(const struct tree *t, uint64_t index)
{
	return index == 0 && !t->is_view ? TREE_ROOT : INO_LOWER_FIRST + index;
}

static inline uint64_t ino_of_view(const struct tree *t, const struct slot *x, uint64_t node)
{
	if (t->is_view && node == VIEW_ROOT)
		return TREE_ROOT;
	return (uint64_t)(x->number + 1) << INO_VIEW_SHIFT | node;
}

/* As io_stat without packs; measures the latency of the run's directories. */
int tree_dir_stat(struct tree *t, const char *path, struct attrs *out);

/* Seconds for which directory attributes may be cached: one second, or longer if a lookup is
 * slow. */
double tree_attr_ttl(const struct tree *t);

/* Is there a tag at `path`? Checks its files at most once per tree_attr_ttl.  A tag that was saved
 * again gets new views. */
bool tree_is_tag(struct tree *t, const char *path);

/* Find or add a view of `tag`, a path in directory `index` of the run; returns the inode of its
 * root.  Errors as slots_add. */
int tree_add_view(struct tree *t, const char *tag, const struct view_type *type,
		  uint64_t index, uint64_t *ino);

/* As tree_add_view, with -ENOENT for a view that a directory should not list: it is impossible, or
 * its tag is being saved.  In a remote store, only views that were tried before are known to be
 * impossible. */
int tree_list_view(struct tree *t, const char *tag, const struct view_type *type,
		   uint64_t index, uint64_t *ino);

/* Add the universal tree of the tag at `path` in directory `index` of the run, and make its view;
 * if it is refused, make all other views, with a warning for each impossible one.  Errors as
 * slot_view, if no view is possible. */
int tree_open_tag(struct tree *t, uint64_t index, const char *path, struct errmsg *err);

/* Fill in the attributes of a file or directory that exists only in the
 * mount. */
void tree_synthesize(const struct tree *t, uint64_t ino, mode_t mode,
		     uint64_t size, unsigned nlink, int64_t mtime_s,
		     struct stat *st);

/* Set the owner that the options name. */
void tree_set_owner(const struct tree *t, struct stat *st);

/* Turn the attributes of a file or directory of the run into those of its inode
 * in the mount. */
void tree_show_run_file(const struct tree *t, uint64_t index, bool has_acl, struct stat *st);

/* Get the content of latest_universal in directory `index` of the run, whose path is `dir`: the
 * name of the newest universal tree that is listed or, if none is, of one whose tag is being
 * saved again.  -ENOENT if no tag has one. */
#define LATEST_TEXT_MAX (NAME_MAX + VIEW_SUFFIX_MAX)
int tree_latest_text(struct tree *t, uint64_t index, const char *dir, char text[LATEST_TEXT_MAX]);

/* .ucfs and everything below it (tree_control.c): as tree_dir_next, tree_getattr.  The last
 * function appends the bytes of a file to `out`. */
bool tree_control_is_dir(uint64_t ino);
int tree_control_next(uint64_t *pos, struct uckpt_entry *out);
int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out);
int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out);

/*
 * Find the file in `dir` that replaces the missing `name` in a run of `ranks` ranks
 * (rng_files.c).  Programs write such files beside a tag for each rank: the random states
 * of the Hugging Face Trainer and of Accelerate.  In a run that is re-cut from n to another number
 * of ranks, rank r has the file of old rank r mod n.  The caller frees `*path`.  Returns 0, -ENOENT
 * if there is none, or -ENOMEM.
 */
int rng_files_find(struct uckpt *u, const char *dir, const char *name, unsigned ranks, char **path);

/* Call `call` with each new rank's name for a file in `dir` (`dir` may have one already), and the
 * path of the file with its content.  Returns the result of `call` if it is not 0, or -ENOMEM. A
 * file that cannot be found ends the ranks of its kind. */
typedef int rng_files_fn(void *arg, const char *name, const char *path);
int rng_files_each(struct uckpt *u, const char *dir, unsigned ranks, rng_files_fn *call, void *arg);

/*
 * Warn of every tag of a run that will not be served, and of a `latest` that names no tag
 * (warn_unservable.c).  `tags` are the source's own tags; if there are none, looks for tags two
 * levels below.  Opens no file that making views has not opened.
 */
struct tag_list;
void warn_unservable(struct tree *t, const struct tag_list *tags);

#endif
