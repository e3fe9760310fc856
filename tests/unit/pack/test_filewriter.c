/* SPDX-License-Identifier: Apache-2.0 */
/* What is appended in pieces of any length is in the file, on a disk and in memory;
 * an error of a thread reaches the caller. */
#include "tests/support/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/sys/filewriter.h"

#define ALL ((size_t)21 << 20)

static int temporary(const char *dir)
{
	char path[256];
	int fd;

	snprintf(path, sizeof(path), "%s/test_filewriter.XXXXXX", dir);
	fd = mkstemp(path);
	if (fd >= 0)
		unlink(path);
	return fd;
}

/* Bytes that differ from those a chunk or a page away. */
static uint8_t *pattern(void)
{
	uint32_t *const v = malloc(ALL);

	assert_non_null(v);
	for (size_t i = 0; i < ALL / sizeof(*v); i++)
		v[i] = (uint32_t)i * 2654435761u;
	return (uint8_t *)v;
}

/* `len` bytes, `step` at a time; 0, or the error that came first. */
static int write_steps(int fd, const uint8_t *bytes, size_t len, size_t step)
{
	struct filewriter *const w = filewriter_new(fd);
	int rc = 0;

	assert_non_null(w);
	for (size_t i = 0; !rc && i < len; i += step)
		rc = filewriter_append(w, bytes + i,
				       len - i < step ? len - i : step);
	if (!rc)
		rc = filewriter_finish(w);
	filewriter_free(w);
	return rc;
}

static void all_is_written(void **state)
{
	static const struct {
		size_t len, step;
	} cases[] = {
		{ 0, 1 },
		{ 1, 1 },
		{ 4096, 100 },
		{ (size_t)2 << 20, 4096 }, /* one chunk */
		{ ((size_t)2 << 20) + 1, (size_t)4 << 20 },
		{ ALL, 65537 },
		{ ALL - 5, ALL },
	};
	static const char *const dirs[] = { "/dev/shm", "/tmp", "." };
	uint8_t *const bytes = pattern(), *const back = malloc(ALL);

	(void)state;
	for (size_t d = 0; d < COUNT(dirs); d++)
		for (size_t i = 0; i < COUNT(cases); i++) {
			const int fd = temporary(dirs[d]);
			const size_t len = cases[i].len;

			if (fd < 0)
				continue;
			assert_int_equal(
				write_steps(fd, bytes, len, cases[i].step), 0);
			assert_int_equal(lseek(fd, 0, SEEK_END), len);
			assert_int_equal(pread(fd, back, ALL, 0), len);
			assert_memory_equal(back, bytes, len);
			/* Then it is a file like any other. */
			assert_int_equal(pwrite(fd, "x", 1, 3), 1);
			close(fd);
		}
	free(bytes);
	free(back);
}

static void errors_are_reported(void **state)
{
	uint8_t *const bytes = pattern();
	const int unwritable = open("/dev/null", O_RDONLY | O_CLOEXEC);
	const int limited = temporary(".");
	struct rlimit was, limit;

	(void)state;
	assert_int_equal(write_steps(unwritable, bytes, ALL, 1000000), -EBADF);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
	limit = was;
	limit.rlim_cur = 5000000;
	signal(SIGXFSZ, SIG_IGN);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
	assert_int_equal(write_steps(limited, bytes, ALL, ALL), -EFBIG);
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
	close(unwritable);
	close(limited);
	free(bytes);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(all_is_written),
		cmocka_unit_test(errors_are_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
