/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_KERNEL_H
#define UCFS_KERNEL_H

#include <stdbool.h>

struct fuse_conn_info;
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

#endif
