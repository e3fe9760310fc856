/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_KERNEL_H
#define UCFS_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

struct fuse_conn_info;
struct fuse_req;
struct fuse_session;

/* Choose what to ask of the kernel.  Called from the init operation. */
void kernel_init(struct fuse_conn_info *conn);

/*
 * Ask the kernel for what this libfuse has no name for yet.  Called once the
 * session is mounted, before its loop.  0, or -1 if it cannot be asked, which
 * only costs shared mappings.
 */
int kernel_extend(struct fuse_session *se);

/* May the kernel read files from others (passthrough.h)?  Known from the init
 * operation on. */
bool kernel_passes_through(void);

/* Does libfuse know how to have requests through io_uring?  It goes back to the
 * usual way by itself where the kernel cannot. */
bool kernel_knows_rings(void);

/* Where the reply to a request that came through io_uring goes, and how much
 * there is room for.  NULL if it came another way. */
void *kernel_ring_memory(struct fuse_req *req, size_t *size);

#endif
