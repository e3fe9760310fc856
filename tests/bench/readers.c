/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several readers read the same files in the same order, as the ranks of a job do,
 * each by open, reads of 1 MiB, close.
 *
 *   readers [-t READERS] [-n BYTES] [-m] FILE...
 *
 * -n stops each reader after BYTES (to read as much of a shard as of some files).
 * With -m, files are mapped and one byte of each page is read.  The time includes
 * the opens.  Prints the GB/s of all readers together, bytes, seconds, and processor
 * seconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/system.h"

#define BLOCK (1u << 20)
#define READERS_MAX 64

static char **files;
static size_t nfiles;
static uint64_t limit = UINT64_MAX;
static bool map;

struct reader {
	pthread_t thread;
	uint8_t *buf;
	uint64_t bytes;
};

static void fail(const char *what)
{
	fprintf(stderr, "readers: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* Return the processor time of all threads. */
static double used(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static uint64_t read_file(int fd, uint8_t *buf, uint64_t most)
{
	uint64_t done = 0;

	while (done < most) {
		const uint64_t left = most - done;
		const ssize_t n = read(fd, buf, left < BLOCK ? left : BLOCK);

		if (n < 0)
			fail("read");
		if (n == 0)
			break;
		done += (uint64_t)n;
	}
	return done;
}

static uint64_t touch_file(int fd, uint8_t *buf)
{
	struct stat st;
	uint8_t *p;

	if (fstat(fd, &st) < 0)
		fail("stat");
	p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	if (p == MAP_FAILED)
		fail("mmap");
	for (off_t at = 0; at < st.st_size; at += 4096)
		buf[0] ^= p[at];
	munmap(p, (size_t)st.st_size);
	return (uint64_t)st.st_size;
}

static void *go_through(void *arg)
{
	struct reader *const r = arg;

	for (size_t i = 0; i < nfiles && r->bytes < limit; i++) {
		const int fd = open(files[i], O_RDONLY | O_CLOEXEC);

		if (fd < 0)
			fail(files[i]);
		r->bytes += map ? touch_file(fd, r->buf)
				: read_file(fd, r->buf, limit - r->bytes);
		close(fd);
	}
	return NULL;
}

static void run(unsigned n)
{
	static struct reader readers[READERS_MAX];
	uint64_t bytes = 0;
	double t, u;

	for (unsigned i = 0; i < n; i++) {
		readers[i].buf = malloc(BLOCK);
		if (!readers[i].buf)
			fail("memory");
		memset(readers[i].buf, 1, BLOCK);
	}
	u = used();
	t = clock_seconds();
	for (unsigned i = 0; i < n; i++)
		if (pthread_create(&readers[i].thread, NULL, go_through,
				   &readers[i]))
			fail("thread");
	for (unsigned i = 0; i < n; i++) {
		pthread_join(readers[i].thread, NULL);
		bytes += readers[i].bytes;
	}
	t = clock_seconds() - t;
	printf("%.3f %llu %.4f %.4f\n", (double)bytes / 1e9 / t,
	       (unsigned long long)bytes, t, used() - u);
}

int main(int argc, char **argv)
{
	unsigned n = 1;
	int c;

	while ((c = getopt(argc, argv, "t:n:m")) != -1) {
		switch (c) {
		case 't':
			n = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'n':
			limit = strtoull(optarg, NULL, 10);
			break;
		case 'm':
			map = true;
			break;
		default:
			return 2;
		}
	}
	files = argv + optind;
	nfiles = (size_t)(argc - optind);
	if (nfiles == 0 || n == 0 || n > READERS_MAX) {
		fprintf(stderr, "usage: readers [-t READERS] [-n BYTES] [-m]"
				" FILE...\n");
		return 2;
	}
	run(n);
	return 0;
}
