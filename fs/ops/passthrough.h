/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PASSTHROUGH_H
#define UCFS_PASSTHROUGH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fuse_req;

/*
 * FUSE passthrough (Linux 6.9): the kernel serves reads and mappings of a file
 * from a backing file, without requests to this process.  Needs CAP_SYS_ADMIN;
 * `on` is false where it is not available.  Thread-safe.
 */
struct passthrough {
	int fuse_fd; /* descriptor of the session */
	atomic_bool on;
};

/* Register the open file `fd` as a backing file.  Returns its backing id, or 0 if
 * the kernel refuses.  The kernel holds the file until passthrough_end. */
int passthrough_begin(struct passthrough *p, int fd);
void passthrough_end(struct passthrough *p, int id);

/* Reply to an OPEN.  Returns 0, or -ENOENT if the opener was interrupted.  All
 * handles of an inode that are open at one time must have the same `id`. */
int passthrough_reply(struct fuse_req *req, uint64_t fh, int id);

#endif
