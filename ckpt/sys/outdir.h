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

	char *name;  /* last component of what the caller asked for */
	char *final; /* where it goes; a symbolic link has been followed */
	char *tmp;   /* where it is now; NULL: nothing there to remove */
	char *parent; /* of what the caller asked for */
	bool replace; /* what is there already */
	size_t made; /* length of the first directory of `final` that we made */
};

/*
 * Begin `path`, which must not exist yet or be an empty directory.  Missing
 * parents are made.  -EEXIST if there is something already, -EINVAL for
 * names that cannot be renamed to, or what the system said.
 */
int outdir_open(struct outdir *o, const char *path, struct errmsg *err);

/* The same, but a directory that is there already gives way when the new one
 * takes its place, at once. */
int outdir_open_over(struct outdir *o, const char *path, struct errmsg *err);

/*
 * Give the directory its name, and write that name into the file `pointer`
 * beside it ("latest_universal"; NULL: none).  Its content must be on the
 * medium already; the names are when this returns.
 */
int outdir_commit(struct outdir *o, const char *pointer, struct errmsg *err);

/*
 * Remove temporaries in `parent` whose makers were killed: those that nobody
 * has locked.  `ours` is asked which final names they may have had.
 */
void outdir_sweep(const char *parent, bool (*ours)(const char *name));

/* Write `text` to a new file, on the medium; `tmp` ends in XXXXXX and becomes its
 * name.  After an error there is none. */
int outdir_write_text(char *tmp, const char *text, struct errmsg *err);

/* Remove all that was not committed. */
void outdir_close(struct outdir *o);

#endif
