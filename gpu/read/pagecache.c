/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/read/pagecache.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "ckpt/base/source.h"

/* Headers of Linux before 5.14 lack it. */
#ifndef FUSE_SUPER_MAGIC
#define FUSE_SUPER_MAGIC 0x65735546
#endif

bool pagecache_has(int fd, uint64_t off, size_t len)
{
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	const size_t before = (size_t)(off % page);
	const size_t pages = (before + len + page - 1) / page;
	unsigned char *here = malloc(pages);
	void *p = mmap(NULL, before + len, PROT_READ, MAP_SHARED, fd, (off_t)(off - before));
	bool cached = true;
	size_t n = 0;

	if (here && p != MAP_FAILED && mincore(p, before + len, here) == 0) {
		for (size_t i = 0; i < pages; i++)
			n += here[i] & 1;
		cached = n * 2 >= pages;
	}
	if (p != MAP_FAILED)
		munmap(p, before + len);
	free(here);
	return cached;
}

/* Open another descriptor of the file, for direct reads, via the first: its name may refer to
 * another file by now.  -1 if that is not possible. */
static int open_direct(int fd)
{
	struct statfs st;
	char path[32];

	if (fstatfs(fd, &st) != 0 || st.f_type == FUSE_SUPER_MAGIC)
		return -1;
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	return open(path, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

bool pagecache_read_past(const struct source *file, void *buf, size_t len, uint64_t off)
{
	struct source direct = *file;
	int rc;

	if ((uintptr_t)buf % PAGECACHE_ALIGN || len % PAGECACHE_ALIGN || off % PAGECACHE_ALIGN)
		return false;
	direct.fd = open_direct(file->fd);
	if (direct.fd < 0)
		return false;
	rc = source_read(&direct, buf, len, off, NULL);
	close(direct.fd);
	return !rc;
}
