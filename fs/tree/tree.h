/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_TREE_H
#define UCFS_TREE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>

struct errmsg;
struct options;
struct plan;
struct stats;
struct vfile;

/*
 * Everything that a mount shows, as inodes:
 *
 *   real	a file or directory of a run, as it is on disk
 *   view	a node of a tag's universal tree
 *   latest	latest_universal in a directory that has views
 *   control	.ucfs and what is below it
 *
 * The source decides what the root is: of a run, the real directory; of a
 * tag the view that options name, of a Hugging Face directory its only one.
 * Inode numbers stay the same while mounted.  Thread-safe after tree_open.
 */
struct tree;

#define TREE_ROOT UINT64_C(1)

/*
 * Recognise the source and make sure that it can be served: a tag's plan is
 * made, of a run that of the newest tag for which it can be; the others' are
 * made when somebody looks.  Fails with the message of what is wrong.  `stats`
 * is what .ucfs tells.
 */
int tree_open(const struct options *o, const struct stats *stats,
	      struct tree **out, struct errmsg *err);
void tree_close(struct tree *t);

/* Write what has been learned to the index, as tree_close does; by one thread
 * at a time. */
void tree_save(struct tree *t);

/*
 * What was looked up: attributes, and for how many seconds the kernel may
 * believe them.  Views do not change; the run's own files may.
 */
struct tree_attr {
	struct stat st;
	double timeout;
};

/* -ENOENT if there is no such name; `*timeout` then says for how long. */
int tree_lookup(struct tree *t, uint64_t dir, const char *name,
		struct tree_attr *out, double *timeout, struct errmsg *err);
int tree_getattr(struct tree *t, uint64_t ino, struct tree_attr *out,
		 struct errmsg *err);

/* Target of a symbolic link of the run: its length, or an error. */
int tree_readlink(struct tree *t, uint64_t ino, char *buf, size_t size);

/* --- files ------------------------------------------------------------------- */

/* An open file: one of the two is set. */
struct tree_file {
	struct vfile *v;   /* made of shards or of literal bytes */
	int fd;            /* -1, or a real file */
	struct plan *plan; /* whose shards `v` is made of, or NULL */
};

int tree_file_open(struct tree *t, uint64_t ino, struct tree_file *out,
		   struct errmsg *err);
void tree_file_close(struct tree_file *f);

/* The next file of at least `min` bytes that a loader opens that goes `way`
 * (enum plan_way) through a view: -ENOENT if there is none soon. */
int tree_following(struct tree *t, uint64_t ino, unsigned way, uint64_t min,
		   uint64_t *next, uint64_t *size);

/* --- directories ------------------------------------------------------------- */

struct tree_entry {
	uint64_t ino;
	mode_t type; /* S_IFDIR, S_IFREG, ... */
	/* Attributes can be had at no great cost (a view's need its plan). */
	bool cheap;
	char name[NAME_MAX + 1];
};

/*
 * A directory being listed.  Of a view, entries are numbered and need no
 * state; of a real directory it is a snapshot, so that a listing neither
 * repeats nor loses names while files come and go.
 */
struct tree_dir;

int tree_dir_open(struct tree *t, uint64_t ino, struct tree_dir **out,
		  struct errmsg *err);
void tree_dir_close(struct tree_dir *d);

/* Will every listing always be the same, as that of a tag's view is? */
bool tree_is_immutable(const struct tree *t);

/* Will the listing be the same the next time? */
bool tree_dir_is_immutable(const struct tree_dir *d);

/* The parent's inode, for "..". */
uint64_t tree_dir_parent(const struct tree_dir *d);

/* The entry at `*pos` (0 is the first), which moves on.  1 and an entry, 0 at
 * the end, or an error. */
int tree_dir_next(struct tree_dir *d, uint64_t *pos, struct tree_entry *out,
		  struct errmsg *err);

/* --- the whole ---------------------------------------------------------------- */

/* For statfs: bytes and files of what is served, as far as it is known. */
void tree_totals(struct tree *t, uint64_t *bytes, uint64_t *files);

#endif
