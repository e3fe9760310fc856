/* SPDX-License-Identifier: Apache-2.0 */
/* save_lock on directories that cannot be made, opened or locked. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "gpu/save/save_lock.h"
#include "tests/support/unit.h"

/* Replaces the system's flock(). */
static int flock_errno;

int flock(int fd, int operation)
{
	(void)fd;
	(void)operation;
	errno = flock_errno;
	return flock_errno ? -1 : 0;
}

static char root[] = "/tmp/ucfs-lock.XXXXXX";

static int make_root(void **state)
{
	return mkdtemp(root) && chdir(root) == 0 ? 0 : -1;
}

static int remove_root(void **state)
{
	unlink("file");
	rmdir("taken/.uctrain.lock");
	rmdir("taken");
	return rmdir(root);
}

static void failures_are_reported(void **state)
{
	static const struct {
		const char *dir;
		bool create;
		int rc;
		const char *text;
	} cases[] = {
		{ "file", true, -ENOTDIR, "file/.uctrain.lock: cannot open: " },
		{ "file/a/b", true, -ENOTDIR, "file/a: cannot create: " },
		{ "file/a", false, -ENOTDIR, "file/a/.uctrain.lock: cannot open: " },
		{ "taken", false, -EISDIR, "taken/.uctrain.lock: cannot open: " },
	};

	close(open("file", O_CREAT | O_WRONLY, 0600));
	assert_int_equal(mkdir("taken", 0700), 0);
	assert_int_equal(mkdir("taken/.uctrain.lock", 0700), 0);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct save_lock l;

		assert_int_equal(save_lock(&l, cases[i].dir, cases[i].create, &err), cases[i].rc);
		assert_memory_equal(err.text, cases[i].text, strlen(cases[i].text));
		assert_int_equal(l.fd, -1);
	}
}

static void directories_that_were_made_go_again(void **state)
{
	struct errmsg err = { "" };
	struct save_lock l;

	assert_int_equal(save_lock(&l, "a/b/c", true, &err), 0);
	assert_true(l.fd >= 0);
	assert_int_equal(access("a/b/c/.uctrain.lock", F_OK), 0);
	assert_int_equal(mkdir("a/kept", 0700), 0);
	save_unlock(&l);
	assert_int_equal(access("a/b", F_OK), -1);
	assert_int_equal(rmdir("a/kept"), 0);
	assert_int_equal(rmdir("a"), 0);
	assert_int_equal(save_lock(&l, "a", false, &err), 0);
	assert_int_equal(l.fd, -1);
	save_unlock(&l);
}

/* On a file system without locks a run logs a warning and continues. */
static void no_locks_are_a_warning(void **state)
{
	struct errmsg err = { "" };
	struct save_lock l;
	char said[256] = "";
	int told[2], own = dup(STDERR_FILENO);

	assert_int_equal(pipe(told), 0);
	dup2(told[1], STDERR_FILENO);
	flock_errno = ENOLCK;
	const int rc = save_lock(&l, root, true, &err);
	flock_errno = 0;
	dup2(own, STDERR_FILENO);
	close(own);
	close(told[1]);
	assert_true(read(told[0], said, sizeof(said) - 1) > 0);
	close(told[0]);
	assert_int_equal(rc, 0);
	assert_int_equal(l.fd, -1);
	assert_non_null(strstr(said, ".uctrain.lock: cannot lock: "));
	unlink(".uctrain.lock");
}

static void another_run_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct save_lock l;

	flock_errno = EWOULDBLOCK;
	assert_int_equal(save_lock(&l, root, true, &err), -EBUSY);
	flock_errno = 0;
	assert_non_null(strstr(err.text, "another run saves checkpoints here"));
	unlink(".uctrain.lock");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(failures_are_reported),
		cmocka_unit_test(directories_that_were_made_go_again),
		cmocka_unit_test(no_locks_are_a_warning),
		cmocka_unit_test(another_run_is_an_error),
	};

	return cmocka_run_group_tests(tests, make_root, remove_root);
}
