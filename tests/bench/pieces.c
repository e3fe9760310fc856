/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the rate of a store with many requests at once: readers share the files, and each reads
 * one piece of 1 MiB after another.
 *
 *   pieces [-t READERS] [-k] FILE...
 *
 *	-k	keep all bytes in memory, which is new, as whoever has a use for them
 *		must; otherwise each reader reads all of its pieces into one buffer
 *
 * Prints MB/s, bytes and seconds; the files are opened before.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PIECE (1u << 20)
#define READERS_MAX 256

struct file {
	int fd;
	uint64_t begin; /* offset in all files, joined end to end; a multiple of PIECE */
};

static struct file *files; /* a file without a name ends the list */
static size_t nfiles;
static atomic_ullong next, bytes;
static char *kept; /* content of all files; NULL: not kept */

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static double now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void *read_pieces(void *arg)
{
	/* Align the buffer: FUSE splits a request whose memory touches one page more. */
	char *const buf = aligned_alloc(4096, PIECE);
	size_t i = 0;

	(void)arg;
	for (;;) {
		const uint64_t at = atomic_fetch_add(&next, PIECE);
		ssize_t n;

		while (i < nfiles && at >= files[i + 1].begin)
			i++;
		if (i == nfiles)
			break;
		n = pread(files[i].fd, kept ? kept + at : buf, PIECE,
			  (off_t)(at - files[i].begin));
		if (n < 0)
			die("read");
		atomic_fetch_add(&bytes, (uint64_t)n);
	}
	free(buf);
	return NULL;
}

static void open_files(char **names)
{
	files = calloc(nfiles + 1, sizeof(*files));
	for (size_t i = 0; i < nfiles; i++) {
		struct stat st;

		files[i].fd = open(names[i], O_RDONLY);
		if (files[i].fd < 0 || fstat(files[i].fd, &st) < 0)
			die(names[i]);
		files[i + 1].begin =
			files[i].begin +
			((uint64_t)st.st_size + PIECE - 1) / PIECE * PIECE;
	}
}

int main(int argc, char **argv)
{
	pthread_t threads[READERS_MAX];
	bool keep = false;
	int c, n = 64;
	double t;

	while ((c = getopt(argc, argv, "t:k")) != -1)
		if (c == 'k')
			keep = true;
		else
			n = c == 't' ? atoi(optarg) : 0;
	nfiles = (size_t)(argc - optind);
	if (!nfiles || n < 1 || n > READERS_MAX) {
		fprintf(stderr, "usage: pieces [-t READERS] [-k] FILE...\n");
		return 2;
	}
	open_files(argv + optind);
	if (keep)
		kept = mmap(NULL, files[nfiles].begin, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (kept == MAP_FAILED)
		die("memory");
	t = now();
	for (int i = 0; i < n; i++)
		if (pthread_create(&threads[i], NULL, read_pieces, NULL))
			die("thread");
	for (int i = 0; i < n; i++)
		pthread_join(threads[i], NULL);
	t = now() - t;
	printf("%.0f %llu %.3f\n", (double)bytes / t / 1e6,
	       (unsigned long long)bytes, t);
	return 0;
}
