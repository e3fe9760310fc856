/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Passthrough by the kernel's interface (include/uapi/linux/fuse.h, protocol
 * 7.40), which libfuse supports only from 3.17 on.  fuse_caps.c negotiates it.
 */
#include "fs/ops/passthrough.h"

#include <assert.h>
#include <errno.h>
#include <fuse_lowlevel.h>
#include <linux/fuse.h>
#include <sys/ioctl.h>

struct backing_map {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
};

#define BACKING_OPEN _IOW(229, 1, struct backing_map)
#define BACKING_CLOSE _IOW(229, 2, uint32_t)

/* struct fuse_open_out, whose last field was padding before 7.40. */
struct open_out {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
};

_Static_assert(sizeof(struct open_out) == sizeof(struct fuse_open_out),
	       "must have the kernel's layout");

#define OPEN_PASSTHROUGH (1u << 7)
#define OPEN_NOFLUSH (1u << 5)

int passthrough_begin(struct passthrough *p, int fd)
{
	const struct backing_map map = { .fd = fd };
	int id;

	if (!atomic_load(&p->on))
		return 0;
	id = ioctl(p->fuse_fd, BACKING_OPEN, &map);
	/* EPERM is permanent.  Other errors concern the file: ELOOP means that
	 * it is on a stacked file system. */
	if (id < 0 && errno == EPERM)
		atomic_store(&p->on, false);
	return id > 0 ? id : 0;
}

void passthrough_end(struct passthrough *p, int id)
{
	const uint32_t number = (uint32_t)id;

	assert(id > 0);
	ioctl(p->fuse_fd, BACKING_CLOSE, &number);
}

int passthrough_reply(fuse_req_t req, uint64_t fh, int id)
{
	const struct open_out out = {
		.fh = fh,
		.open_flags = OPEN_PASSTHROUGH | OPEN_NOFLUSH,
		.backing_id = id,
	};

	return fuse_reply_buf(req, (const char *)&out, sizeof(out));
}
