/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESUME_H
#define UCKPT_RESUME_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/array.h"
#include "ckpt/base/bytes.h"

struct errmsg;

/*
 * Lets an interrupted conversion resume.  A journal in the output directory has the identity of the
 * tree (view_identity), and then the path of each file that is complete and has been synced to the
 * disk.
 */
struct resume {
	int dir;              /* borrowed */
	int fd;               /* of the journal */
	char *text;           /* content of the journal when it was opened */
	struct hashtab names; /* offsets of paths in it */
	pthread_mutex_t lock; /* protects the rest: */
	struct bytebuf whole; /* paths of complete files that the journal lacks */
	size_t nwhole, nkept; /* number of such files, and of files in the journal */
	uint64_t synced_ns;   /* when a thread last wrote the journal, or began to (ns) */
	bool syncing;         /* a thread is about to sync */
	int failed;           /* a negative errno of a sync; or 0 */
};

/* Open the journal `name` of directory `dir`, or create one.  `taken`: an interrupted process has
 * filled part of the directory.  -ESTALE if its files belong to a tree of another identity, or it
 * has no journal; -EWOULDBLOCK if another machine fills it, which the lock of a directory may not
 * show; or the system's error. */
int resume_open(struct resume *r, int dir, const char *name, bool taken, uint64_t identity,
		struct errmsg *err);
void resume_close(struct resume *r);

/* Return whether the file is in the journal and has this size.  Thread-safe. */
bool resume_has(const struct resume *r, const char *path, uint64_t size);

/* Record a complete file.  Every few seconds, sync the recorded files and add them to the
 * journal; an error is that of resume_sync.  Thread-safe. */
int resume_add(struct resume *r, const char *path);

/* Sync the file system, and add the recorded files to the journal.  Returns the error of this or
 * any previous sync: data of a file may be lost. */
int resume_sync(struct resume *r);

/* Sync and add recorded files, if there are any; return the number of files in the
 * journal. */
size_t resume_flush(struct resume *r);

/* Record that all files of this journal are complete.  As resume_sync. */
int resume_complete(struct resume *r);

/* Does the directory have the complete journal `name`? */
bool resume_is_complete(int dir, const char *name);

#endif
