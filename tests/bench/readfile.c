/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read files from front to back and print the rate.
 *
 *   readfile [-b BYTES] [-t THREADS] FILE...       through read(2)
 *   readfile -x [-b BYTES] [-t THREADS] FILE...    the same bytes, from the
 *                                                  shards that hold them
 *   readfile -m [-b BYTES]                         memory: what memcpy reaches
 *
 * With -x the files lie in a ucfs mount; their extents are fetched before the
 * clock starts, and bytes that are in no shard (some kilobytes of each file) are
 * skipped.  Thread k of n reads the files k, k + n, ...; the clock runs from the
 * first read to the end of the last thread.  Prints GB/s, bytes and seconds.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/system.h"
#include "ckpt/vfile/ucfs_ioctl.h"

#define THREADS_MAX 64
#define SOURCES_MAX 65536
#define MEMCPY_BYTES (UINT64_C(4) << 30)

/* Bytes [off, off + len) of an open file; the whole file if `len' is 0. */
struct run {
	int fd;
	uint64_t off, len;
	size_t file; /* index of the file on the command line */
};

static struct run *runs;
static size_t nruns, nfiles;
static unsigned threads = 1;
static size_t block = 1 << 20;
static int sources[SOURCES_MAX]; /* descriptor + 1 of each source */

static void fail(const char *what)
{
	fprintf(stderr, "readfile: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int open_file(const char *path, int flags)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC | flags);

	if (fd < 0)
		fail(path);
	return fd;
}

static void add_run(int fd, uint64_t off, uint64_t len, size_t file)
{
	if (nruns % 1024 == 0) {
		runs = realloc(runs, (nruns + 1024) * sizeof(*runs));
		if (!runs)
			fail("memory");
	}
	runs[nruns++] = (struct run){ fd, off, len, file };
}

/* Return the descriptor of source `n' of the checkpoint of `fd'.  All files belong to one
 * checkpoint, so the number identifies the source. */
static int source_fd(int fd, uint32_t n)
{
	struct ucfs_source s = { .version = UCFS_EXTENTS_VERSION, .source = n };
	struct stat st;

	if (n >= SOURCES_MAX) {
		errno = E2BIG;
		fail("source");
	}
	if (sources[n])
		return sources[n] - 1;
	if (ioctl(fd, UCFS_IOC_SOURCE, &s) < 0)
		fail("source");
	sources[n] = open_file(s.path, 0) + 1;
	if (fstat(sources[n] - 1, &st) < 0 || st.st_dev != s.dev ||
	    st.st_ino != s.ino || (uint64_t)st.st_size != s.size) {
		errno = ESTALE;
		fail(s.path);
	}
	return sources[n] - 1;
}

static void add_extents(const char *path, size_t file)
{
	static struct ucfs_extents x;
	const int fd = open_file(path, O_NONBLOCK);

	x = (struct ucfs_extents){ .version = UCFS_EXTENTS_VERSION };
	do {
		if (ioctl(fd, UCFS_IOC_EXTENTS, &x) < 0)
			fail(path);
		for (uint32_t i = 0; i < x.count; i++) {
			const struct ucfs_extent *const e = &x.extent[i];

			if (e->kind == UCFS_EXTENT_SOURCE)
				add_run(source_fd(fd, e->source),
					e->source_offset, e->length, file);
		}
		x.start = x.next;
	} while (x.count);
	close(fd);
}

static uint64_t read_run(const struct run *r, uint8_t *buf)
{
	uint64_t done = 0;

	while (r->len == 0 || done < r->len) {
		const size_t want = r->len && r->len - done < block ?
					    (size_t)(r->len - done) : block;
		const ssize_t n = pread(r->fd, buf, want,
					(off_t)(r->off + done));

		if (n < 0)
			fail("read");
		if (n == 0)
			break;
		done += (uint64_t)n;
	}
	return done;
}

struct reader {
	pthread_t thread;
	unsigned k;
	uint64_t bytes;
	uint8_t *buf;
};

static void *read_share(void *arg)
{
	struct reader *const r = arg;

	for (size_t i = 0; i < nruns; i++)
		if (runs[i].file % threads == r->k)
			r->bytes += read_run(&runs[i], r->buf);
	return NULL;
}

/* A buffer with its pages populated. */
static uint8_t *new_buffer(size_t size)
{
	void *p;

	if (posix_memalign(&p, 4096, size))
		fail("memory");
	memset(p, 1, size);
	return p;
}

static void report(uint64_t bytes, double seconds)
{
	printf("%.3f %llu %.4f\n", (double)bytes / 1e9 / seconds,
	       (unsigned long long)bytes, seconds);
}

static void read_all(void)
{
	struct reader r[THREADS_MAX] = { 0 };
	uint64_t bytes = 0;
	double t;

	for (unsigned k = 0; k < threads; k++) {
		r[k].k = k;
		r[k].buf = new_buffer(block);
	}
	t = clock_seconds();
	for (unsigned k = 1; k < threads; k++)
		if (pthread_create(&r[k].thread, NULL, read_share, &r[k]))
			fail("thread");
	read_share(&r[0]);
	for (unsigned k = 1; k < threads; k++)
		pthread_join(r[k].thread, NULL);
	t = clock_seconds() - t;
	for (unsigned k = 0; k < threads; k++)
		bytes += r[k].bytes;
	report(bytes, t);
}

/* Copy in blocks between two regions larger than any cache. */
static void copy_memory(void)
{
	const size_t region = 256u << 20;
	uint8_t *const from = new_buffer(region), *const to = new_buffer(region);
	const double t = clock_seconds();
	uint64_t done = 0;

	for (; done < MEMCPY_BYTES; done += block) {
		const size_t at = (size_t)(done % (region / block * block));

		memcpy(to + at, from + at, block);
	}
	report(done, clock_seconds() - t);
}

static size_t number(const char *text, size_t max)
{
	const unsigned long v = strtoul(text, NULL, 10);

	if (v == 0 || v > max) {
		errno = ERANGE;
		fail(text);
	}
	return v;
}

int main(int argc, char **argv)
{
	bool extents = false, memory = false;
	int c;

	while ((c = getopt(argc, argv, "b:t:xm")) != -1) {
		switch (c) {
		case 'b': block = number(optarg, 64u << 20); break;
		case 't': threads = (unsigned)number(optarg, THREADS_MAX); break;
		case 'x': extents = true; break;
		case 'm': memory = true; break;
		default: return 2;
		}
	}
	if (memory) {
		copy_memory();
		return 0;
	}
	for (; optind < argc; optind++, nfiles++) {
		if (extents)
			add_extents(argv[optind], nfiles);
		else
			add_run(open_file(argv[optind], 0), 0, 0, nfiles);
	}
	if (nruns == 0) {
		fprintf(stderr, "readfile: nothing to read\n");
		return 1;
	}
	read_all();
	return 0;
}
