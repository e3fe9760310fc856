/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESUME_H
#define UCKPT_RESUME_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/hashtab.h"

struct errmsg;

/*
 * Which files of a tree are whole, so that an interrupted conversion can go on.  A journal
 * in the directory that is filled names them: first the identity of what is written
 * (plan_identity), then the path of each file that has been synced to the disk.
 */
struct resume {
	int dir; /* borrowed */
	int fd;  /* of the journal */
	char *text; /* the journal, as it was found */
	struct hashtab names; /* offsets of paths in it */
	pthread_mutex_t lock; /* protects the rest: */
	struct bytebuf whole; /* paths of files that are not in the journal yet */
	size_t nwhole, nkept; /* files: those, and those in the journal */
	uint64_t synced_ns;   /* when a thread last wrote the journal, or began to */
};

/* Open the journal of directory `dir`, or begin one.  -ESTALE if the files there are others
 * than `identity` has, so that another directory is needed; or the system's error. */
int resume_open(struct resume *r, int dir, uint64_t identity, struct errmsg *err);
void resume_close(struct resume *r);

/* Is the file whole?  Thread-safe. */
bool resume_has(const struct resume *r, const char *path, uint64_t size);

/* The file is whole.  Now and then syncs all that are, and adds them to the journal.
 * Thread-safe. */
void resume_add(struct resume *r, const char *path);

/* Do so now, and return the number of files that the journal has. */
size_t resume_flush(struct resume *r);

/* Remove the journal: the tree is complete. */
int resume_end(struct resume *r, struct errmsg *err);

#endif
