/* SPDX-License-Identifier: Apache-2.0 */
/* mapcmp FILE...: compare the bytes of a file, mapped shared and privately, with
 * those that read(2) returns. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int compare(const char *path, int fd, size_t size, int flags)
{
	char *const read_bytes = malloc(size);
	char *const map = mmap(NULL, size, PROT_READ, flags, fd, 0);
	int rc = 1;

	if (map == MAP_FAILED)
		perror(path);
	else if (!read_bytes || pread(fd, read_bytes, size, 0) != (ssize_t)size)
		fprintf(stderr, "%s: cannot read\n", path);
	else if (memcmp(map, read_bytes, size) != 0)
		fprintf(stderr, "%s: mapped bytes differ\n", path);
	else
		rc = 0;
	if (map != MAP_FAILED)
		munmap(map, size);
	free(read_bytes);
	return rc;
}

int main(int argc, char **argv)
{
	int rc = 0;

	for (int i = 1; i < argc; i++) {
		const int fd = open(argv[i], O_RDONLY);
		struct stat st;

		if (fd < 0 || fstat(fd, &st) < 0) {
			perror(argv[i]);
			return 1;
		}
		rc |= compare(argv[i], fd, (size_t)st.st_size, MAP_PRIVATE);
		rc |= compare(argv[i], fd, (size_t)st.st_size, MAP_SHARED);
		close(fd);
	}
	return rc;
}
