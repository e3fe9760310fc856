/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_H
#define UCFS_OPS_H

#include <stdbool.h>

struct backing;
struct fuse_lowlevel_ops;
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
};

/* The file system's operations; their userdata is a struct server. */
extern const struct fuse_lowlevel_ops ops;

#endif
