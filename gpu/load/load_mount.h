/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_MOUNT_H
#define UCTRAIN_LOAD_MOUNT_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytes.h"
#include "ckpt/vfile/ucfs_ioctl.h"

struct arena;
struct errmsg;
struct load_run;
struct mount_shard;
struct source;
struct value;

/*
 * Shards of mounts, opened for direct reads.  Thread-safe; several are opened at once, since
 * opening is slow on remote storage.  The caller initialises the lock.
 */
struct mount_shards {
	pthread_mutex_t lock;      /* protects the list */
	struct mount_shard *first; /* those seen so far */
};

void mount_shards_done(struct mount_shards *o);

/*
 * Maps the bytes of an open file of a mount to the shards they come from.  Bytes of files outside
 * mounts, and of shards that cannot be opened, map to the file itself. Set up by the caller, with
 * the rest zero.
 */
struct mount_extents {
	struct mount_shards *shards;
	const struct source *file;
	struct ucfs_extents some; /* extents of the last request */
};

/* Get the file's bytes before its only storage, and that storage's length.  False if the file is
 * not in a mount or has another layout. */
bool mount_extents_head(struct mount_extents *o, struct ucfs_literal *head, uint64_t *len);

/* Read the object of a torch.save file from the bytes before its first storage.  False if the bytes
 * do not start with one.  The arena owns the object; memory may be taken from it even on
 * failure. */
bool mount_head_object(struct span head, const char *name, struct arena *a, struct value **root);

/* As load_ops.locate, for a run of the file: -EIO if the shard was replaced since the mount planned
 * with it. */
int mount_extents_find(struct mount_extents *o, struct load_run *run, struct errmsg *err);

#endif
