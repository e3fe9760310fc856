/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Capabilities of the kernel's FUSE, also those that an older libfuse lacks.
 *
 * Files are opened with direct I/O: requests are as large as the reader's, and
 * bytes are copied from the mapped shards into the reader's buffer without
 * FUSE's page cache, which costs several times as much as the copy.  Private
 * mappings of such files always work; shared ones (Python's mmap, numpy,
 * safetensors) need FUSE_DIRECT_IO_ALLOW_MMAP.  libfuse before 3.17 can request
 * neither that nor passthrough.  Therefore this module reads the kernel's first
 * request, INIT, passes it to libfuse, and adds the flags to libfuse's reply
 * before it sends the reply to the kernel.
 */
#include "fs/ops/fuse_caps.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#ifndef FUSE_INIT_EXT
#define FUSE_INIT_EXT (1u << 30)
#endif

/* include/uapi/linux/fuse.h: flags 36 and 37, as bits of the second word. */
#define FLAGS2_DIRECT_IO_ALLOW_MMAP (1u << 4)
#define FLAGS2_PASSTHROUGH (1u << 5)

static bool passes_through; /* INIT says that the kernel supports passthrough */

bool fuse_caps_init(struct fuse_conn_info *conn)
{
	/* Attributes of views never change; those of the run's own files expire
	 * after a second. */
	conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
	/* Always list with attributes: those of views are cheap, and after a
	 * plain READDIR ls -l sends one request per name. */
	conn->want &= ~(unsigned)FUSE_CAP_READDIRPLUS_AUTO;
	conn->want |=
		conn->capable & (FUSE_CAP_READDIRPLUS | FUSE_CAP_ASYNC_READ |
				 FUSE_CAP_ASYNC_DIO | FUSE_CAP_PARALLEL_DIROPS);
	/* Splicing copies more than it saves here. */
	conn->want &= ~(unsigned)(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE |
				  FUSE_CAP_SPLICE_MOVE);
#ifdef FUSE_CAP_DIRECT_IO_ALLOW_MMAP
	conn->want |= conn->capable & FUSE_CAP_DIRECT_IO_ALLOW_MMAP;
#endif
#ifdef FUSE_CAP_PASSTHROUGH
	conn->want |= conn->capable & FUSE_CAP_PASSTHROUGH;
	passes_through = conn->capable & FUSE_CAP_PASSTHROUGH;
#endif
	return passes_through;
}

#ifdef FUSE_CAP_PASSTHROUGH

int fuse_caps_patch_init(struct fuse_session *se)
{
	(void)se;
	return 0;
}

#else

/* The start of INIT and its reply as of protocol 7.40
 * (include/uapi/linux/fuse.h), since older headers lack some fields. */
struct init_in {
	uint32_t major, minor;
	uint32_t max_readahead;
	uint32_t flags;
	uint32_t flags2; /* valid if `flags` has FUSE_INIT_EXT */
};

struct init_out {
	uint32_t major, minor;
	uint32_t max_readahead;
	uint32_t flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write;
	uint32_t time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2;
	/* Limit of stacked file systems, including this one.  With 1 an overlay may use this
	 * one, and backing files must not be on a stacked file system. */
	uint32_t max_stack_depth;
	uint32_t unused[6];
};

_Static_assert(sizeof(struct init_out) == sizeof(struct fuse_init_out),
	       "must have the kernel's layout");

struct init_request {
	struct fuse_in_header header;
	struct init_in in;
	uint8_t rest[FUSE_MIN_READ_BUFFER]; /* read() rejects less */
};

struct init_reply {
	struct fuse_out_header header;
	struct init_out out;
};

/* Let libfuse answer `request` into `reply_fd`, by temporarily replacing its
 * descriptor of /dev/fuse.  Returns 0 or a negative errno. */
static int answer_into(struct fuse_session *se, struct init_request *request,
		       size_t n, int reply_fd)
{
	const struct fuse_buf buf = { .mem = request, .size = n };
	const int fd = fuse_session_fd(se);
	const int device = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	int rc = 0;

	if (device < 0)
		return -errno;
	if (dup3(reply_fd, fd, O_CLOEXEC) < 0)
		rc = -errno;
	else
		fuse_session_process_buf(se, &buf);
	if (dup3(device, fd, O_CLOEXEC) < 0)
		rc = -errno;
	close(device);
	return rc;
}

static int patch_init(struct fuse_session *se, int reply_in, int reply_out)
{
	struct init_request request = { .in = { 0 } };
	struct init_reply reply;
	const int fd = fuse_session_fd(se);
	uint32_t offered;
	ssize_t n;
	int rc;

	do {
		n = read(fd, &request, sizeof(request));
	} while (n < 0 && errno == EINTR && !fuse_session_exited(se));
	if (n < 0)
		return -errno;
	offered = request.in.flags & FUSE_INIT_EXT ? request.in.flags2 : 0;
	passes_through = offered & FLAGS2_PASSTHROUGH;
	rc = answer_into(se, &request, (size_t)n, reply_in);
	if (rc)
		return rc;
	n = read(reply_out, &reply, sizeof(reply));
	if (n == (ssize_t)sizeof(reply) && !reply.header.error) {
		/* libfuse 3.14 drops the second flag although it is requested; without it,
		 * lookups in a directory wait for each other. */
		reply.out.flags |= FUSE_INIT_EXT |
				   (request.in.flags & FUSE_PARALLEL_DIROPS);
		reply.out.flags2 |= offered & (FLAGS2_DIRECT_IO_ALLOW_MMAP |
					       FLAGS2_PASSTHROUGH);
		if (passes_through)
			reply.out.max_stack_depth = 1;
	}
	return n < 0 || write(fd, &reply, (size_t)n) < 0 ? -errno : 0;
}

int fuse_caps_patch_init(struct fuse_session *se)
{
	int pair[2], rc;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
		return -errno;
	rc = patch_init(se, pair[0], pair[1]);
	close(pair[0]);
	close(pair[1]);
	return rc;
}

#endif
