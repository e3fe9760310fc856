/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TREE_H
#define UCKPT_TREE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

#include "ckpt/base/attrs.h"
#include "ckpt/uckpt.h"
#include "ckpt/views/view.h"

struct errmsg;
struct vfile;
struct slot;

/*
 * The namespace of a mount, as inodes:
 *
 *   run	a file or directory of a run, as it is on disk
 *   view	a node of one of a tag's views
 *   latest	latest_universal in a directory that has views
 *   control	.ucfs and everything below it
 *
 * The root depends on the source.  For a run it is the directory itself, for a
 * tag the view that the options name, for a Hugging Face directory its
 * universal view.  Inode numbers are stable for the life of the mount.
 * Thread-safe after tree_open.
 */
struct tree;

#define TREE_ROOT UINT64_C(1)

#define TREE_RECUT_MAX 64

struct tree_options {
	struct uckpt *u;
	char *source; /* absolute */
	bool has_uid, has_gid;
	uid_t uid; /* owner of all files, valid if has_uid */
	gid_t gid;
	bool shared; /* other users may use the mount */
	/* In a shared mount, symbolic links may lead out of the source. */
	bool follow_links;
	struct view_options view; /* view.kind: the view of a single tag */
	/* Types of VIEW_RECUT that directories list for each tag. */
	struct view_type recut[TREE_RECUT_MAX];
	size_t nrecut;
	bool replace; /* show the tags themselves as the first of these */
	bool check;   /* open all files of a tag before it is served */
};

/*
 * Recognise the source and check that it can be served: opens the tag, or for a run the newest
 * usable tag; the others are opened on first access.  Warns of tags that will not be served,
 * judging by their files' names and sizes; with `check` the views of all tags are made.  `o` must outlive the
 * tree.  On failure returns a negative errno, with a message in `err`.
 */
int tree_open(const struct tree_options *o, struct tree **out, struct errmsg *err);
void tree_close(struct tree *t);

/* Prefetch for the view that was made first (view_prefetch), unless the mount shows another view of
 * its tag. */
void tree_warm(struct tree *t);

/* Attributes, and the number of seconds for which the kernel may cache them.  Views do not change;
 * the run's own files may. */
struct tree_attr {
	struct stat st;
	double timeout;
};

/* Find a name.  -ENOENT if it does not exist.  The kernel may cache that, or the inode found, for
 * `*timeout` seconds. */
int tree_lookup(struct tree *t, uint64_t dir, const char *name,
		struct tree_attr *out, double *timeout, struct errmsg *err);
int tree_getattr(struct tree *t, uint64_t ino, struct tree_attr *out, struct errmsg *err);

/* Return for how many seconds the kernel may cache the inode of an entry of `dir` with these
 * attributes.  A tag that is saved again gets other inodes. */
double tree_entry_timeout(const struct tree *t, uint64_t dir, const struct tree_attr *attr);

/* If the root is a view, check whether its tag was saved again.  True if it was: the kernel's
 * cached listing of the root is then stale. */
bool tree_renew(struct tree *t);

/* Read the target of a symbolic link of the run, without a terminating null
 * byte.  Returns its length or a negative errno. */
int tree_readlink(struct tree *t, uint64_t ino, char *buf, size_t size);

/* An open file: either `v` or `fd` is set. */
struct tree_file {
	struct vfile *v;   /* virtual: shards, or literal bytes; else NULL */
	int fd;            /* a local file of the run; else -1 */
	struct slot *slot; /* view of the file, or NULL */
	struct shards *own; /* for a server's file, which `v` reads; or NULL */
	/* In a shared mount, the users that may read `fd`.  The file may not be
	 * the one whose permissions the kernel has checked. */
	struct permissions readable_by;
};

int tree_file_open(struct tree *t, uint64_t ino, struct tree_file *out, struct errmsg *err);
void tree_file_close(struct tree_file *f);

/*
 * A directory being listed.  A view's entries are numbered and need no state.
 * A directory of the run is a snapshot, so that a listing neither repeats nor
 * loses names while files are created and removed.
 */
struct uckpt_dir {
	uint64_t parent; /* inode, for ".." */
	bool immutable;  /* part of a view, which does not change */
	/* In a shared mount, the users that may list a directory of the run.  It may
	 * not be the one whose permissions the kernel has checked. */
	struct permissions readable_by;
	/* Private to tree_dir.c: */
	struct tree *t;
	uint64_t ino;
	struct slot *slot; /* in use if `view` is not NULL */
	struct view *view;
	uint64_t node;
	struct uckpt_entry *v; /* entries of a run's directory */
	size_t n, cap;
	bool remote; /* on a server */
};

int tree_dir_open(struct tree *t, uint64_t ino, struct uckpt_dir **out, struct errmsg *err);
void tree_dir_close(struct uckpt_dir *d);

/* Is getting the attributes of an entry cheap: without making a view or a request to a remote
 * store? */
bool tree_dir_has_attrs(const struct uckpt_dir *d, const struct uckpt_entry *e);

/* Is the whole tree a view, so that no directory ever changes? */
bool tree_is_immutable(const struct tree *t);

/* Read the entry at `*pos` (the first is at 0) and advance `*pos`.  Returns 1
 * with an entry, 0 at the end, or a negative errno. */
int tree_dir_next(struct uckpt_dir *d, uint64_t *pos, struct uckpt_entry *out, struct errmsg *err);

#endif
