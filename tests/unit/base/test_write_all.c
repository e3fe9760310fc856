/* SPDX-License-Identifier: Apache-2.0 */
/* All bytes are written, even if a call accepts only some of them. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "ckpt/sys/output.h"
#include "tests/support/unit.h"

#define LEN ((size_t)1 << 20)

static void *drain(void *arg)
{
	const int fd = *(int *)arg;
	static uint8_t buf[4099];
	size_t sum = 0;

	for (ssize_t n; (n = read(fd, buf, sizeof(buf))) > 0;)
		for (ssize_t i = 0; i < n; i++)
			sum += buf[i];
	return (void *)sum;
}

/* A pipe holds 64 KiB at a time. */
static void a_pipe_gets_every_byte(void **state)
{
	uint8_t *const bytes = malloc(LEN);
	pthread_t reader;
	void *sum;
	int fd[2];

	memset(bytes, 3, LEN);
	assert_int_equal(pipe(fd), 0);
	assert_int_equal(pthread_create(&reader, NULL, drain, &fd[0]), 0);
	assert_int_equal(write_all(fd[1], bytes, LEN), 0);
	close(fd[1]);
	pthread_join(reader, &sum);
	assert_int_equal((size_t)sum, 3 * LEN);
	close(fd[0]);
	free(bytes);
}

static void bytes_lie_where_they_are_put(void **state)
{
	const int fd = memfd_create("bytes", MFD_CLOEXEC);
	char got[8] = "";

	assert_int_equal(pwrite_all(fd, "cd", 2, 2), 0);
	assert_int_equal(write_all(fd, "ab", 2), 0);
	assert_int_equal(pread(fd, got, sizeof(got), 0), 4);
	assert_string_equal(got, "abcd");
	close(fd);
}

static void a_full_device_is_an_error(void **state)
{
	const int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		skip();
	assert_int_equal(write_all(fd, "ab", 2), -ENOSPC);
	assert_int_equal(pwrite_all(fd, "ab", 2, 7), -ENOSPC);
	assert_int_equal(errno, ENOSPC);
	assert_int_equal(write_all(fd, NULL, 0), 0);
	close(fd);
	assert_int_equal(write_all(-1, "a", 1), -EBADF);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pipe_gets_every_byte),
		cmocka_unit_test(bytes_lie_where_they_are_put),
		cmocka_unit_test(a_full_device_is_an_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
