/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_IMPL_H
#define UCFS_OPS_IMPL_H

#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fs/backing/backing.h"
#include "fs/ops/ops.h"
#include "fs/tree/tree.h"

struct errmsg;

/* What ops*.c share. */

static inline struct server *ops_server(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/*
 * An open file.  A reader that has its reply may close the file while we are
 * still busy with what comes after, so requests hold a reference.
 */
struct handle {
	struct server *server;
	struct handle *next, **link; /* of the open ones */
	struct tree_file f;
	struct backing_use use;
	atomic_uint refs;
	fuse_req_t req; /* its open, until that is answered */
	uint64_t clock; /* when that came */
	fuse_ino_t ino;
	bool patient; /* who opened it wants its bytes */
};

static inline struct handle *ops_handle(const struct fuse_file_info *fi)
{
	return (struct handle *)(uintptr_t)fi->fh;
}

/*
 * What a failure is called outside: errors of the system as they are, and
 * EIO, with one line in the log, for everything that is wrong with a
 * checkpoint.
 */
void ops_reply_failure(fuse_req_t req, int rc, const struct errmsg *err);

void ops_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	      struct fuse_file_info *fi);
void ops_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	       struct fuse_file_info *fi, unsigned flags, const void *in,
	       size_t in_size, size_t out_size);

#endif
