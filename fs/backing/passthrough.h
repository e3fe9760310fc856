/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_PASSTHROUGH_H
#define UCFS_PASSTHROUGH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct fuse_req;
struct fuse_session;

/*
 * Files that the kernel reads from another file by itself ("passthrough",
 * Linux 6.9): a reader then gets what that file's system gives, and we are
 * not asked.  Takes CAP_SYS_ADMIN; where it cannot be had, it is off.
 */
struct passthrough {
	int fuse_fd;
	atomic_bool on;
};

/* Before the kernel's INIT has been answered: off. */
void passthrough_init(struct passthrough *p, const struct fuse_session *se);

/* Before the unmount, with which the kernel forgets all numbers. */
void passthrough_done(struct passthrough *p);

/* Let the kernel read the open file `fd`: a number for passthrough_reply that
 * holds the file until passthrough_end, or 0. */
int passthrough_begin(struct passthrough *p, int fd);
void passthrough_end(struct passthrough *p, int id);

/* Answer an OPEN: 0, or -ENOENT if the opener has gone away.  All handles of
 * an inode that are open at one time must have the same `id`. */
int passthrough_reply(struct fuse_req *req, uint64_t fh, int id);

#endif
