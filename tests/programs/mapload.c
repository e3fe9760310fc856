/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mapload FILE COPY: compare FILE, mapped privately and shared, with COPY.
 *
 * Sixty-four threads fault at once, all over both mappings; the file is closed by
 * then, as after torch.load(mmap=True).  After that a line goes to stdout, and at
 * the end of stdin everything is compared again from first to last byte.  A fault
 * without a page is reported and gives exit status 3.
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define THREADS 64
#define PAGE 4096
#define LOOKS 400

static size_t size;
static const uint8_t *copy, *privately, *shared;

static void on_sigbus(int signal)
{
	static const char text[] = "mapload: a page could not be read\n";

	(void)signal;
	if (write(2, text, sizeof(text) - 1) < 0)
		_exit(4);
	_exit(3);
}

static const uint8_t *map(const char *path, int flags)
{
	const int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *p;

	if (fd < 0 || fstat(fd, &st) < 0 ||
	    (size && (size_t)st.st_size != size)) {
		fprintf(stderr,
			"mapload: %s: not to be opened, or of another"
			" size\n",
			path);
		exit(1);
	}
	size = (size_t)st.st_size;
	p = mmap(NULL, size, PROT_READ, flags, fd, 0);
	if (p == MAP_FAILED) {
		perror(path);
		exit(1);
	}
	close(fd);
	return p;
}

static void *fault(void *arg)
{
	uint64_t x = (uintptr_t)arg * 2654435761u + 1;

	for (unsigned i = 0; i < LOOKS; i++) {
		size_t at, n;

		x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
		at = (size_t)(x >> 20) % size / PAGE * PAGE;
		n = size - at < PAGE ? size - at : PAGE;
		if (memcmp((i % 2 ? privately : shared) + at, copy + at, n))
			return "differs";
	}
	return NULL;
}

static int compare_at_random(void)
{
	pthread_t threads[THREADS];
	int differ = 0;

	for (uintptr_t i = 0; i < THREADS; i++)
		if (pthread_create(&threads[i], NULL, fault, (void *)i))
			return 1;
	for (unsigned i = 0; i < THREADS; i++) {
		void *result;

		pthread_join(threads[i], &result);
		differ |= result != NULL;
	}
	return differ;
}

int main(int argc, char **argv)
{
	char c;

	if (argc != 3) {
		fprintf(stderr, "usage: mapload FILE COPY\n");
		return 2;
	}
	signal(SIGBUS, on_sigbus);
	copy = map(argv[2], MAP_PRIVATE);
	privately = map(argv[1], MAP_PRIVATE);
	shared = map(argv[1], MAP_SHARED);
	if (compare_at_random()) {
		fprintf(stderr, "mapload: %s differs\n", argv[1]);
		return 1;
	}
	puts("mapped");
	fflush(stdout);
	while (read(0, &c, 1) > 0)
		;
	if (memcmp(privately, copy, size) || memcmp(shared, copy, size)) {
		fprintf(stderr, "mapload: %s came to differ\n", argv[1]);
		return 1;
	}
	return 0;
}
