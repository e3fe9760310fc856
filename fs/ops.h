/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_H
#define UCFS_OPS_H

struct fuse_lowlevel_ops;

/* The file system's operations; their userdata is a struct tree. */
extern const struct fuse_lowlevel_ops ops;

#endif
