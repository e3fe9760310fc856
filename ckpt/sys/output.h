/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_OUTPUT_H
#define UCKPT_OUTPUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;

/* Write all of `len` bytes where the file stands, or at `off`: the system calls
 * may write less, and be interrupted.  Returns 0 or a negative errno, which is
 * in errno, too. */
int write_all(int fd, const void *p, size_t len)
	__attribute__((warn_unused_result));
int pwrite_all(int fd, const void *p, size_t len, uint64_t off)
	__attribute__((warn_unused_result));

/*
 * A file that appears whole or not at all: it is written under a temporary name
 * beside its final one, and readable by its owner alone until the caller gives it
 * another mode.
 */
struct outfile {
	int fd;
	char *tmp;   /* its path now; NULL: nothing to remove */
	char *final; /* its path when it is complete */
};

/* Begin `path`, which must not exist: -EEXIST if it does, or the system's error. */
int outfile_open(struct outfile *o, const char *path, struct errmsg *err);

/* Make sure that the content is on the medium. */
int outfile_sync(struct outfile *o, struct errmsg *err);

/* Give the file, which has been synced, its name; both are on the medium when
 * this returns.  -EEXIST if another process took the name meanwhile. */
int outfile_commit(struct outfile *o, struct errmsg *err);

/* Remove the file unless it was committed. */
void outfile_close(struct outfile *o);

/* Replace the file `path`, or create it, with `text`. */
int outfile_write_text(const char *path, const char *text, struct errmsg *err);

/*
 * A directory that appears whole or not at all: it is filled under a
 * temporary name beside its final one and renamed when it is complete.
 */
struct outdir {
	int fd; /* of the directory to be filled */

	char *path;   /* requested, without slashes at its end */
	char *final;  /* the same, symbolic links followed */
	char *tmp;    /* its path now; NULL: nothing to remove */
	bool replace; /* an existing directory */
	size_t made;  /* length of the first directory of `final` that we made */
};

/*
 * Begin `path`, which must not exist yet or be an empty directory.  Missing
 * parents are made.  -EEXIST if there is something already, -EINVAL for
 * names that cannot be renamed to, or the system's error.
 */
int outdir_open(struct outdir *o, const char *path, struct errmsg *err);

/* The same, but outdir_commit atomically replaces an existing directory. */
int outdir_open_over(struct outdir *o, const char *path, struct errmsg *err);

/*
 * Give the directory its name, and write that name into the file `pointer`
 * beside it ("latest_universal"; NULL: none).  Its content must be on the
 * medium already; the names are when this returns 0.  If only writing the names to
 * the medium fails, both are in place, and the error says that they "cannot sync".
 */
int outdir_commit(struct outdir *o, const char *pointer, struct errmsg *err);

/*
 * Remove temporaries in `parent` whose makers were killed, which are those
 * without a lock.  `ours` decides by the final name whether one is ours.
 */
void outdir_sweep(const char *parent, bool (*ours)(const char *name));

/* Remove the directory unless it was committed. */
void outdir_close(struct outdir *o);

#endif
