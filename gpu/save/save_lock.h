/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_SAVE_LOCK_H
#define UCTRAIN_SAVE_LOCK_H

#include <limits.h>
#include <stdbool.h>

struct errmsg;

/* A lock on a directory of checkpoints, so that two runs do not save, and remove
 * old checkpoints, in the same one.  It ends with the process. */
struct save_lock {
	int fd;       /* -1: not held */
	bool created; /* the directory */
	char path[PATH_MAX];
};

/* Lock the directory; with `create` it need not exist.  -EBUSY if another process
 * holds the lock.  If the directory cannot be written, or has no locks, the lock
 * is not held and the result is 0: saving reports the former. */
int save_lock(struct save_lock *l, const char *dir, bool create,
	      struct errmsg *err);

/* Release the lock and remove its file, and a created directory if nothing was
 * saved in it. */
void save_unlock(struct save_lock *l);

#endif
