/* SPDX-License-Identifier: Apache-2.0 */
/* A file is there, complete, after the commit, and not before; it replaces
 * nothing, and leaves nothing behind. */
#include "tests/support/unit.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/output.h"
#include "tests/make/mkckpt.h"

static int entries(void)
{
	struct dirent **v;
	const int n = scandir(".", &v, NULL, NULL);

	for (int i = 0; i < n; i++)
		free(v[i]);
	free(v);
	return n - 2;
}

static int set_up(void **state)
{
	*state = mkckpt_new_dir();
	return chdir(*state);
}

static int tear_down(void **state)
{
	mkckpt_free_dir(*state);
	return 0;
}

static void it_appears_with_the_commit(void **state)
{
	struct errmsg err = { "" };
	struct output o;
	struct stat st;

	assert_int_equal(output_open(&o, "out", OUTPUT_FILE, &err), 0);
	assert_int_equal(write(o.fd, "text", 4), 4);
	assert_int_equal(access("out", F_OK), -1);
	assert_int_equal(output_commit(&o, NULL, &err), 0);
	output_close(&o);
	assert_int_equal(stat("out", &st), 0);
	assert_int_equal(st.st_size, 4);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_int_equal(entries(), 1);
}

static void without_commit_nothing_is_left(void **state)
{
	struct output o;

	assert_int_equal(output_open(&o, "other", OUTPUT_FILE, NULL), 0);
	assert_int_equal(entries(), 2);
	output_close(&o);
	assert_int_equal(entries(), 1);
}

static void nothing_is_replaced(void **state)
{
	struct errmsg err = { "" };
	struct output o;
	int fd;

	assert_int_equal(output_open(&o, "out", OUTPUT_FILE, &err), -EEXIST);
	assert_string_equal(err.text, "out: exists");

	assert_int_equal(output_open(&o, "late", OUTPUT_FILE, &err), 0);
	fd = open("late", O_WRONLY | O_CREAT | O_EXCL, 0600);
	assert_true(fd >= 0);
	close(fd);
	assert_int_equal(output_commit(&o, NULL, &err), -EEXIST);
	output_close(&o);
	assert_int_equal(entries(), 2);
}

static void a_directory_that_is_missing_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct output o;

	assert_int_equal(output_open(&o, "no/out", OUTPUT_FILE, &err), -ENOENT);
	assert_non_null(strstr(err.text, "no/out"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_appears_with_the_commit),
		cmocka_unit_test(without_commit_nothing_is_left),
		cmocka_unit_test(nothing_is_replaced),
		cmocka_unit_test(a_directory_that_is_missing_is_an_error),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
