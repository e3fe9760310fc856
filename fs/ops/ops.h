/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_H
#define UCFS_OPS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "fs/ops/passed.h"
#include "fs/ops/passthrough.h"

struct fuse_lowlevel_ops;
struct handle;
struct prefill;
struct fuse_session;
struct stats;
struct tree;

/* The state behind all requests. */
struct server {
	struct fuse_session *session;
	struct tree *tree;
	struct stats *stats;
	struct passthrough passthrough;
	struct passed_files passed;
	struct prefill *prefill;
	bool no_opendir;      /* set at INIT: directories need no open */
	pthread_mutex_t lock; /* protects `open` */
	struct handle *open;  /* list of all open files */
	atomic_uint opened;   /* number of opens so far; orders the uses of handles */
};

/* The file system's operations; their userdata is a struct server. */
extern const struct fuse_lowlevel_ops ops;

/* Close all files that are still open, after the last request: at an unmount the
 * kernel does not send RELEASE for them. */
void ops_close_all(struct server *s);

#endif
