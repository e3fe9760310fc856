/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_OUTFILE_H
#define UCKPT_OUTFILE_H

struct errmsg;

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

/* Begin `path`, which must not exist: -EEXIST if it does, or what the system
 * said. */
int outfile_open(struct outfile *o, const char *path, struct errmsg *err);

/* Make sure that the content is on the medium. */
int outfile_sync(struct outfile *o, struct errmsg *err);

/* Give the file, which has been synced, its name; both are on the medium when
 * this returns.  -EEXIST if somebody else took the name meanwhile. */
int outfile_commit(struct outfile *o, struct errmsg *err);

/* Remove what was not committed. */
void outfile_close(struct outfile *o);

#endif
