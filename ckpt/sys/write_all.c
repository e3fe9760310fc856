/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/sys/write_all.h"

#include <errno.h>
#include <stdbool.h>
#include <unistd.h>

static int put_all(int fd, const void *p, size_t len, bool placed, uint64_t off)
{
	const char *at = p;

	while (len) {
		const ssize_t n = placed ? pwrite(fd, at, len, (off_t)off)
					 : write(fd, at, len);

		if (n < 0 && errno == EINTR)
			continue;
		if (n == 0)
			errno = EIO; /* write() must not return 0; do not loop */
		if (n <= 0)
			return -errno;
		at += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return 0;
}

int write_all(int fd, const void *p, size_t len)
{
	return put_all(fd, p, len, false, 0);
}

int pwrite_all(int fd, const void *p, size_t len, uint64_t off)
{
	return put_all(fd, p, len, true, off);
}
