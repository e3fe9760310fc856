/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_H
#define UCFS_OPS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

#include "fs/ops/passthrough.h"
#include "fs/ops/passthrough_files.h"

struct fuse_lowlevel_ops;
struct fuse_session;
struct stats;
struct uckpt;

/* Small files that are in the kernel's page cache, at their inode's hash. */
#define SMALL_FILES_BITS 12

struct small_file_store {
	_Atomic uint64_t stored[1 << SMALL_FILES_BITS]; /* inodes */
	atomic_flag busy;
};

/* The state behind all requests. */
struct server {
	struct uckpt *u;
	struct fuse_session *session;
	struct stats *stats;
	int source; /* the source's first directory, opened before a mount could hide it; or -1 */
	struct passthrough passthrough;
	struct passthrough_files passthrough_files;
	struct small_file_store small_files;
	pthread_t background; /* ops.c's thread; writing to this eventfd ends it: */
	int end_background;   /* -1: it does not run */
	bool no_opendir;      /* set at INIT: directories need no open */
	pthread_mutex_t lock; /* protects these, and those of `passthrough_files`: */
	LIST_HEAD(, handle) open; /* all open files */
	LIST_HEAD(, open_dir) open_dirs;
	atomic_uint opened;   /* number of opens so far; orders the uses of handles */
};

/* The file system's operations; their userdata is a struct server. */
extern const struct fuse_lowlevel_ops ops;

/* After the last request: end the background thread, and close all files and directories
 * that are still open.  At an unmount the kernel sends no RELEASE for them, or drops one
 * that it has not sent yet. */
void ops_close_all(struct server *s);

#endif
