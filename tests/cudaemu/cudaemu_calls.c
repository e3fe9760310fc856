/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Count the system calls of loading a checkpoint.  At exit the numbers are written to
 * $CUDAEMU_CALLS.RANK: opens of .pt files, opens past the page cache, and a mount's ioctls for
 * extents and for sources.  No file is in the page cache.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/vfile/ucfs_ioctl.h"
#include "cudaemu.h"

static atomic_uint opens, direct, extents, sources;

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __real_ioctl(int fd, unsigned long cmd, ...);
int __wrap_ioctl(int fd, unsigned long cmd, ...);
int __wrap_mincore(void *p, size_t len, unsigned char *here);

static bool is_tensors(const char *path)
{
	const size_t len = strlen(path);

	return len > 3 && strcmp(path + len - 3, ".pt") == 0;
}

int __wrap_open(const char *path, int flags, ...)
{
	mode_t mode = 0;

	if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) {
		va_list rest;

		va_start(rest, flags);
		mode = va_arg(rest, mode_t);
		va_end(rest);
	} else if (flags & O_DIRECT) {
		direct++;
	} else {
		opens += is_tensors(path);
	}
	return __real_open(path, flags, mode);
}

int __wrap_ioctl(int fd, unsigned long cmd, ...)
{
	va_list rest;
	void *arg;

	va_start(rest, cmd);
	arg = va_arg(rest, void *);
	va_end(rest);
	extents += cmd == UCFS_IOC_EXTENTS;
	sources += cmd == UCFS_IOC_SOURCE;
	return __real_ioctl(fd, cmd, arg);
}

int __wrap_mincore(void *p, size_t len, unsigned char *here)
{
	(void)p;
	memset(here, 0, (len + 4095) / 4096);
	return 0;
}

static void __attribute__((destructor)) report_calls(void)
{
	FILE *const f = cudaemu_report("CUDAEMU_CALLS", "w");

	if (!f)
		return;
	fprintf(f, "%u %u %u %u\n", opens, direct, extents, sources);
	fclose(f);
}
