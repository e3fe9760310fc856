/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_OUTDIR_H
#define UCKPT_OUTDIR_H

#include <stdbool.h>
#include <stddef.h>

struct errmsg;

/*
 * A directory that appears whole or not at all: it is filled under a
 * temporary name beside its final one and renamed when it is complete.
 */
struct outdir {
	int fd; /* of the directory to be filled */

	char *name;  /* last component of the path requested */
	char *final; /* its final path, symbolic links followed */
	char *tmp;   /* its path now; NULL: nothing to remove */
	char *parent; /* of the path requested */
	bool replace; /* an existing directory */
	size_t made; /* length of the first directory of `final` that we made */
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

/* Write `text` to a new file and sync it; `tmp` ends in XXXXXX and becomes its
 * name.  On failure no file is left. */
int outdir_write_text(char *tmp, const char *text, struct errmsg *err);

/* Remove the directory unless it was committed. */
void outdir_close(struct outdir *o);

#endif
