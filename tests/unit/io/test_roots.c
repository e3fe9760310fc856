/* SPDX-License-Identifier: Apache-2.0 */
/* Names of unions, and the paths that begin with them.  All of several roots must exist. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/io/roots.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define DIRS_MAX 3
#define LONG "a-long-name-of-a-node"

enum { N = 100 };

static char top[] = "/tmp/roots.XXXXXX";

static int set_up(void **state)
{
	static const char *const dirs[] = { "a", "b", "x", "y", "n0", "n0/run", "n1", "n1/run" };
	char dir[64];

	if (!mkdtemp(top) || chdir(top))
		return -1;
	for (size_t i = 0; i < COUNT(dirs); i++)
		assert_int_equal(mkdir(dirs[i], 0755), 0);
	for (int i = 0; i <= N; i++) {
		snprintf(dir, sizeof(dir), LONG "%d", i);
		assert_int_equal(mkdir(dir, 0755), 0);
	}
	return 0;
}

static int tear_down(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", top);
	return chdir("/") || system(command);
}

static const struct {
	const char *dirs[DIRS_MAX];
	const char *name, *base; /* expected name; NULL: refused */
	size_t n;
	int rc;
} cases[] = {
	{ { "/a" }, "/a", "a", 1, 0 },
	{ { "/a/b//" }, "/a/b", "b", 1, 0 },
	{ { "/" }, "/", "/", 1, 0 },
	{ { "a", "b" }, "{a,b}", "a", 2, 0 },
	{ { "n0/run/", "n1/run" }, "{n0/run,n1/run}", "run", 2, 0 },
	{ { "{x,y/}" }, "{x,y}", "x", 2, 0 },
	{ { "{/x}" }, "/x", "x", 1, 0 },
	{ { "{}" }, "{}", "{}", 1, 0 },
	{ { "{x,}" }, NULL, NULL, 0, -EINVAL },
	{ { "x", "" }, NULL, NULL, 0, -EINVAL },
	{ { "x", "none" }, NULL, NULL, 0, -ENOENT },
	{ { "x/none", "y" }, NULL, NULL, 0, -ENOENT },
};

static void test_names(void **state)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		size_t n = 0;
		char *path = NULL;
		int rc;

		while (n < DIRS_MAX && cases[i].dirs[n])
			n++;
		rc = roots_unite(test_context(), cases[i].dirs, n, false, &path, NULL);
		assert_int_equal(rc, cases[i].rc);
		if (rc)
			continue;
		assert_string_equal(path, cases[i].name);
		assert_string_equal(roots_base(test_context(), path), cases[i].base);
		assert_int_equal(roots_count(test_context(), path), cases[i].n);
		free(path);
	}
}

static void test_paths(void **state)
{
	const char *dirs[] = { "a", "n1/run" };
	char *whole, *in;

	assert_int_equal(roots_unite(test_context(), dirs, 2, false, &whole, NULL), 0);
	in = roots_path(test_context(), "{a,n1/run}/tag/file", 1);
	assert_string_equal(in, "n1/run/tag/file");
	free(in);
	assert_string_equal(roots_below(test_context(), "{a,n1/run}/tag"), "/tag");
	assert_string_equal(roots_below(test_context(), whole), "");
	assert_string_equal(roots_base(test_context(), "{a,n1/run}/tag"), "tag");
	/* These names denote no union. */
	assert_int_equal(roots_count(test_context(), "{a,n1/run}x/tag"), 1);
	assert_int_equal(roots_count(test_context(), "/{a,n1/run}"), 1);
	free(whole);
}

/* Long unions have short, distinct names; equal roots give equal names. */
static void test_long(void **state)
{
	static char text[N + 1][64];
	const char *dirs[N];
	char *a, *b, *again;

	for (int i = 0; i <= N; i++)
		snprintf(text[i], sizeof(text[i]), LONG "%d", i);
	for (int i = 0; i < N; i++)
		dirs[i] = text[i];
	assert_int_equal(roots_unite(test_context(), dirs, N, false, &a, NULL), 0);
	assert_int_equal(roots_unite(test_context(), dirs, N, false, &again, NULL), 0);
	dirs[N - 1] = text[N];
	assert_int_equal(roots_unite(test_context(), dirs, N, false, &b, NULL), 0);
	assert_true(strlen(a) < 250 && strlen(b) < 250);
	assert_string_equal(a, again);
	assert_string_not_equal(a, b);
	assert_int_equal(roots_count(test_context(), a), N);
	free(again);
	again = roots_path(test_context(), b, N - 1);
	assert_string_equal(again, text[N]);
	free(again);
	free(a);
	free(b);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_paths),
		cmocka_unit_test(test_long),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
