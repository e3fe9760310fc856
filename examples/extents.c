/* SPDX-License-Identifier: Apache-2.0 */
/* extents FILE: copy a file of a ucfs mount to standard output.  Bytes that shards
 * hold are read from them, without FUSE.  cc -o extents extents.c */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <ucfs/ucfs_ioctl.h>

static void need(int ok, const char *what)
{
	if (ok)
		return;
	perror(what);
	exit(1);
}

/* Open the shard, if it is still the one that the extents refer to. */
static int open_source(int fd, uint32_t source)
{
	static struct ucfs_source s;
	struct stat st;

	s = (struct ucfs_source){ .version = UCFS_EXTENTS_VERSION,
				  .source = source };
	need(ioctl(fd, UCFS_IOC_SOURCE, &s) == 0, "source");
	fd = open(s.path, O_RDONLY);
	need(fd >= 0 && fstat(fd, &st) == 0, s.path);
	need(st.st_ino == s.ino && st.st_dev == s.dev &&
		     (uint64_t)st.st_size == s.size &&
		     st.st_mtim.tv_sec * 1000000000 + st.st_mtim.tv_nsec ==
			     s.mtime_ns,
	     "the shard has changed");
	return fd;
}

static void copy(int fd, uint64_t offset, uint64_t length)
{
	static char buf[1 << 20];

	while (length) {
		const size_t n = length < sizeof(buf) ? length : sizeof(buf);
		const ssize_t got = pread(fd, buf, n, (off_t)offset);

		need(got > 0 && write(1, buf, got) == got, "copy");
		offset += got;
		length -= got;
	}
}

int main(int argc, char **argv)
{
	static struct ucfs_extents x = { .version = UCFS_EXTENTS_VERSION };
	int fd;

	if (argc != 2) {
		fprintf(stderr, "usage: extents FILE >COPY\n");
		return 2;
	}
	fd = open(argv[1], O_RDONLY | O_NONBLOCK);
	need(fd >= 0, argv[1]);
	do {
		need(ioctl(fd, UCFS_IOC_EXTENTS, &x) == 0, "extents");
		for (uint32_t i = 0; i < x.count; i++) {
			const struct ucfs_extent *const e = &x.extent[i];

			if (e->kind == UCFS_EXTENT_SOURCE) {
				const int shard = open_source(fd, e->source);

				copy(shard, e->source_offset, e->length);
				close(shard);
			} else { /* no shard has these bytes: read the mount */
				copy(fd, e->offset, e->length);
			}
		}
		x.start = x.next;
	} while (x.count);
	return 0;
}
