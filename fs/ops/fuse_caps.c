/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What we want of the kernel's FUSE, and how to get it through an older
 * libfuse.
 *
 * Files are opened with direct I/O: requests are as large as the reader's, and
 * bytes go from the mapped shards into the reader's buffer without passing
 * through FUSE's page cache, which costs several times the copy.  Private
 * mappings of such files work anyway; shared ones (Python's mmap, numpy,
 * safetensors) only with FUSE_DIRECT_IO_ALLOW_MMAP.  libfuse 3.14 (Debian 12)
 * cannot ask for it, nor for passthrough, so its INIT reply is completed on
 * its way out.
 */
#include "fs/ops/fuse_caps.h"

#include <errno.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#ifndef FUSE_INIT_EXT
#define FUSE_INIT_EXT (1u << 30)
#endif

/* include/uapi/linux/fuse.h: bits 36 and 37 of the flags, here of their second
 * word. */
#define FLAGS2_DIRECT_IO_ALLOW_MMAP (1u << 4)
#define FLAGS2_PASSTHROUGH (1u << 5)

static bool passes_through;

bool kernel_passes_through(void)
{
	return passes_through;
}

void kernel_init(struct fuse_conn_info *conn)
{
	/* Attributes of views never change; those of the run's own files are
	 * asked for again every second. */
	conn->want &= ~(unsigned)FUSE_CAP_AUTO_INVAL_DATA;
	/* Always with attributes: listings of views cost nothing, and a bare
	 * READDIR makes ls -l ask for each name. */
	conn->want &= ~(unsigned)FUSE_CAP_READDIRPLUS_AUTO;
	conn->want |= conn->capable &
		      (FUSE_CAP_READDIRPLUS | FUSE_CAP_ASYNC_READ |
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
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 18)

bool kernel_knows_rings(void)
{
	return true;
}

void *kernel_ring_memory(struct fuse_req *req, size_t *size)
{
	char *memory;

	if (!fuse_req_is_uring(req) ||
	    fuse_req_get_payload(req, &memory, size, NULL))
		return NULL;
	return memory;
}

#else

bool kernel_knows_rings(void)
{
	return false;
}

void *kernel_ring_memory(struct fuse_req *req, size_t *size)
{
	(void)req;
	(void)size;
	return NULL;
}

#endif

#ifdef FUSE_CAP_PASSTHROUGH

int kernel_extend(struct fuse_session *se)
{
	(void)se;
	return 0;
}

#else

/* INIT comes first, and is answered before other threads start. */
static uint32_t offered;

/* struct fuse_init_out of 7.40 has behind flags2 how many file systems may lie
 * upon each other, this one among them: we may lie under an overlay and read
 * through from files that are on none. */
static void pass_through(struct fuse_init_out *out)
{
	const uint32_t max_stack_depth = 1;

	memcpy((uint8_t *)out + offsetof(struct fuse_init_out, flags2) +
		       sizeof(out->flags2),
	       &max_stack_depth, sizeof(max_stack_depth));
}

/* The INIT reply is the first message of its length. */
static ssize_t send_completed(int fd, struct iovec *iov, int count,
			      void *userdata)
{
	static bool done;

	(void)userdata;
	if (!done && count == 2 &&
	    iov[1].iov_len == sizeof(struct fuse_init_out)) {
		struct fuse_init_out *const out = iov[1].iov_base;

		out->flags |= FUSE_INIT_EXT;
		out->flags2 |= offered & (FLAGS2_DIRECT_IO_ALLOW_MMAP |
					  FLAGS2_PASSTHROUGH);
		if (passes_through)
			pass_through(out);
		done = true;
	}
	const ssize_t n = writev(fd, iov, count);

	/* A shard that shrank under its mapping; op_read says so.  libfuse
	 * would print a line of its own for anything but ENOENT. */
	if (n < 0 && errno == EFAULT)
		errno = ENOENT;
	return n;
}

static ssize_t receive(int fd, void *buf, size_t len, void *userdata)
{
	static bool seen;
	const struct fuse_in_header *const header = buf;
	const struct fuse_init_in *const init = (const void *)(header + 1);
	const ssize_t n = read(fd, buf, len);

	(void)userdata;
	if (!seen && n >= (ssize_t)(sizeof(*header) + sizeof(*init)) &&
	    header->opcode == FUSE_INIT) {
		offered = init->flags & FUSE_INIT_EXT ? init->flags2 : 0;
		passes_through = offered & FLAGS2_PASSTHROUGH;
		seen = true;
	}
	return n;
}

int kernel_extend(struct fuse_session *se)
{
	static const struct fuse_custom_io io = { .writev = send_completed,
						  .read = receive };

	return fuse_session_custom_io(se, &io, fuse_session_fd(se)) == 0 ? 0 :
									   -1;
}

#endif
