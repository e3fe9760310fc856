/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_FUSE_CAPS_H
#define UCFS_FUSE_CAPS_H

#include <stdbool.h>
#include <stddef.h>

struct fuse_conn_info;
struct fuse_req;
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

/* Does libfuse support requests through io_uring?  It falls back to read() if
 * the kernel does not. */
bool fuse_caps_has_io_uring(void);

/* The buffer for the reply to a request that came through io_uring, and its
 * size.  NULL for other requests. */
void *fuse_caps_ring_memory(struct fuse_req *req, size_t *size);

#endif
