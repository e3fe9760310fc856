/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_H
#define UCFS_OPS_H

#include <pthread.h>
#include <stdbool.h>

struct backing;
struct fuse_lowlevel_ops;
struct handle;
struct passthrough;
struct small;
struct stats;
struct tree;

/* What requests are answered with. */
struct server {
	struct tree *tree;
	struct stats *stats;
	struct passthrough *passthrough;
	struct backing *backing;
	struct small *small;
	bool no_opendir; /* known once the kernel has said what it can */
	pthread_mutex_t lock; /* protects `open` */
	struct handle *open;  /* files, of which each knows the next */
};

/* The file system's operations; their userdata is a struct server. */
extern const struct fuse_lowlevel_ops ops;

/* When nothing is answered any more: close what is open.  An unmount does not
 * wait for the kernel to say that files were closed. */
void ops_close_all(struct server *s);

#endif
