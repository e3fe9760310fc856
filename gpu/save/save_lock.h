/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_LOCK_H
#define UCTRAIN_SAVE_LOCK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct errmsg;

/* A lock on a directory of checkpoints.  It keeps two runs from saving, and removing old
 * checkpoints, in the same directory.  It ends with the process. */
struct save_lock {
	int fd;      /* -1: not held */
	size_t made; /* length of the first directory in `path` that we created; 0: none */
	char path[PATH_MAX];
};

/* Lock the directory; with `create`, make it and its parents if they are missing.  -EBUSY if
 * another process holds the lock, or the error of making or opening.  Returns 0 without holding the
 * lock if the directory is missing and `create` is not set, or, with a warning, if its file system
 * has no locks. */
int save_lock(struct save_lock *l, const char *dir, bool create, struct errmsg *err);

/* Release the lock and remove its file.  Also remove the directories created by save_lock if
 * nothing was saved in them. */
void save_unlock(struct save_lock *l);

#endif
