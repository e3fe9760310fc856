/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Make the second half of one file unreadable: pread and mmap fail with EIO, as on a disk with bad
 * sectors.  The environment variable HALFWAY_FILE names the file.  Linked into a test, or preloaded
 * into a program.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/faults/halfway.h"

/* Is a byte of [off, off + len) in the second half of the file? */
static int is_bad(int fd, uint64_t off, uint64_t len)
{
	const char *const path = getenv(HALFWAY_FILE);
	struct stat file, want;

	return path && !fstat(fd, &file) && !stat(path, &want) &&
	       file.st_dev == want.st_dev && file.st_ino == want.st_ino &&
	       off + len > (uint64_t)want.st_size / 2;
}

ssize_t pread(int fd, void *buf, size_t len, off_t off)
{
	if (is_bad(fd, (uint64_t)off, len)) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, buf, len, off);
}

ssize_t pread64(int, void *, size_t, off_t) __attribute__((alias("pread")));

void *mmap(void *at, size_t len, int prot, int flags, int fd, off_t off)
{
	if (fd >= 0 && is_bad(fd, (uint64_t)off, len)) {
		errno = EIO;
		return MAP_FAILED;
	}
	return (void *)syscall(SYS_mmap, at, len, prot, flags, fd, off);
}

void *mmap64(void *, size_t, int, int, int, off_t)
	__attribute__((alias("mmap")));
