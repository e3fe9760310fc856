/* SPDX-License-Identifier: Apache-2.0 */
/* A mapped file that is truncated is an error in the thread that touches it,
 * and in no other. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/sys/sigbus.h"
#include "tests/support/unit.h"

#define PAGES 8

static size_t page;

struct access {
	volatile uint8_t *at;
	unsigned done; /* pages touched */
};

static void touch(void *ctx)
{
	struct access *const a = ctx;

	for (a->done = 0; a->done < PAGES; a->done++)
		(void)a->at[a->done * page];
}

static struct access map_pages(int *fd)
{
	void *p;

	sigbus_install(); /* cmocka takes the signal for each test */
	page = (size_t)sysconf(_SC_PAGESIZE);
	*fd = memfd_create("pages", MFD_CLOEXEC);
	assert_int_equal(ftruncate(*fd, (off_t)(PAGES * page)), 0);
	p = mmap(NULL, PAGES * page, PROT_READ, MAP_SHARED, *fd, 0);
	assert_true(p != MAP_FAILED);
	return (struct access){ .at = p };
}

static void unmap_pages(struct access *a, int fd)
{
	munmap((void *)a->at, PAGES * page);
	close(fd);
}

static void what_is_cut_short_is_an_error(void **state)
{
	static const unsigned left[] = { 8, 3, 0, 8, 7 };
	int fd;
	struct access a = map_pages(&fd);

	for (size_t i = 0; i < sizeof(left) / sizeof(*left); i++) {
		assert_int_equal(ftruncate(fd, (off_t)(left[i] * page)), 0);
		assert_int_equal(sigbus_run(touch, &a),
				 left[i] == PAGES ? 0 : -EFAULT);
		assert_int_equal(a.done, left[i]);
	}
	unmap_pages(&a, fd);
}

static void *often(void *arg)
{
	intptr_t failed = 0;

	for (int i = 0; i < 1000; i++)
		failed += sigbus_run(touch, arg) != 0;
	return (void *)failed;
}

static void threads_are_guarded_each(void **state)
{
	pthread_t thread[4];
	struct access a[4];
	int fd[4];

	for (int i = 0; i < 4; i++) {
		a[i] = map_pages(&fd[i]);
		if (i % 2)
			assert_int_equal(ftruncate(fd[i], (off_t)page), 0);
		assert_int_equal(pthread_create(&thread[i], NULL, often, &a[i]),
				 0);
	}
	for (int i = 0; i < 4; i++) {
		void *failed;

		pthread_join(thread[i], &failed);
		assert_int_equal((intptr_t)failed, i % 2 ? 1000 : 0);
		unmap_pages(&a[i], fd[i]);
	}
}

/* A SIGBUS elsewhere is not swallowed: the previous handler still gets it. */
static void other_faults_are_not_ours(void **state)
{
	int fd, status;
	struct access a = map_pages(&fd);
	pid_t child;

	assert_int_equal(sigbus_run(touch, &a), 0);
	assert_int_equal(ftruncate(fd, 0), 0);
	child = fork();
	if (child == 0) {
		close(STDERR_FILENO); /* a sanitizer's report */
		touch(&a);
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	unmap_pages(&a, fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_cut_short_is_an_error),
		cmocka_unit_test(threads_are_guarded_each),
		cmocka_unit_test(other_faults_are_not_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
