/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_OPS_IMPL_H
#define UCFS_OPS_IMPL_H

#include <fuse_lowlevel.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/uckpt.h"
#include "fs/ops/ops.h"

struct passthrough_file;

/* Shared by ops*.c. */

static inline struct server *ops_server(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

/*
 * An open file.  A reader that has received its reply may close the file while
 * the request is still being finished, so each request holds a reference.
 */
struct handle {
	struct server *server;
	LIST_ENTRY(handle) at; /* in server.open */
	struct uckpt_file *f;
	struct passthrough_file *passthrough; /* NULL: always streamed */
	atomic_uint refs;
	/* A shard was written to while the kernel copied it: reads fail. */
	atomic_bool stale;
};

static inline struct handle *ops_handle(fuse_req_t req,
					const struct fuse_file_info *fi)
{
	/* The kernel hands the pointer from one thread to another; this load orders their
	 * accesses. */
	atomic_load(&ops_server(req)->opened);
	return (struct handle *)(uintptr_t)fi->fh;
}

/*
 * Reply with an error.  An error with a message is a defect of the checkpoint:
 * log the message and reply EIO, or ENOMEM if that is `rc`.  Otherwise reply
 * `rc`, a negative errno.
 */
void ops_reply_failure(fuse_req_t req, int rc, const struct uckpt_error *err);

/* May the caller of a request read the opened file?  The kernel has checked cached attributes,
 * perhaps of another file. */
bool ops_may_read(fuse_req_t req, const struct uckpt_readers *readers);

/* Close a directory that is on the server's list. */
void ops_close_dir(struct server *s, struct open_dir *o);

/* End the thread that op_init has started. */
void background_stop(struct server *s);

void ops_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off,
	      struct fuse_file_info *fi);
void ops_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void ops_ioctl(fuse_req_t req, fuse_ino_t ino, unsigned cmd, void *arg,
	       struct fuse_file_info *fi, unsigned flags, const void *in,
	       size_t in_size, size_t out_size);

#endif
