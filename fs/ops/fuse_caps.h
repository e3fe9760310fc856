/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_FUSE_CAPS_H
#define UCFS_FUSE_CAPS_H

#include <stdbool.h>

struct fuse_conn_info;
struct fuse_session;

/* Request capabilities from libfuse.  Called from the init operation.  Does the kernel
 * support passthrough (passthrough.h)? */
bool fuse_caps_init(struct fuse_conn_info *conn);

/*
 * Answer INIT, requesting capabilities that this libfuse does not support.  Called
 * in the serving process after the mount and before the session's loop.  Returns
 * 0 or a negative errno.
 */
int fuse_caps_patch_init(struct fuse_session *se);

#endif
