/* SPDX-License-Identifier: Apache-2.0 */
/* Files and directories of a union of two roots:
 *
 *	a/both  a/only_a  a/sizes  a/d/x  a/kinds
 *	b/both  b/only_b  b/sizes  b/d/y  b/kinds/
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static char *top, *whole;

static void make(const char *name, const char *text)
{
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static int set_up(void **state)
{
	static char template[] = "/tmp/files.XXXXXX";
	const char *dirs[] = { "a", "b" };

	top = mkdtemp(template);
	assert_non_null(top);
	assert_int_equal(chdir(top), 0);
	for (size_t i = 0; i < 2; i++) {
		char d[] = "a/d";

		d[0] = *dirs[i];
		assert_int_equal(mkdir(dirs[i], 0755), 0);
		assert_int_equal(mkdir(d, i ? 0750 : 0755), 0);
	}
	make("a/both", "first");
	make("b/both", "other");
	make("a/only_a", "a");
	make("b/only_b", "bb");
	make("a/sizes", "1");
	make("b/sizes", "22");
	make("a/d/x", "");
	make("b/d/y", "");
	make("a/kinds", "");
	assert_int_equal(mkdir("b/kinds", 0755), 0);
	return roots_unite(test_context(), dirs, 2, false, &whole, NULL);
}

static int tear_down(void **state)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -rf %s", top);
	free(whole);
	return chdir("/") || system(command);
}

static const struct {
	const char *path;
	int rc;
	const char *where;
} cases[] = {
	{ "{a,b}/both", 0, "a/both" },     { "{a,b}/only_a", 0, "a/only_a" },
	{ "{a,b}/only_b", 0, "b/only_b" }, { "{a,b}/d/y", 0, "b/d/y" },
	{ "{a,b}/d", 0, "a/d" },           { "{a,b}", 0, "a" },
	{ "{a,b}/sizes", -EBADMSG, NULL }, { "{a,b}/kinds", -EBADMSG, NULL },
	{ "{a,b}/none", -ENOENT, NULL },   { "a/both", 0, "a/both" },
};

static void test_find(void **state)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct attrs a;
		char *where;
		int rc = io_stat(test_context(), cases[i].path, 0, &a, &where, &err);

		if (rc != cases[i].rc)
			fail_msg("%s: %d, %s", cases[i].path, rc, err.text);
		assert_int_equal(io_stat(test_context(), cases[i].path, IO_PLAIN, &a, NULL, NULL) ==
					 0,
				 rc == 0);
		if (rc) {
			assert_non_null(strstr(err.text, rc == -EBADMSG ? "b/" : "{a,b}"));
			continue;
		}
		assert_string_equal(where, cases[i].where);
		free(where);
	}
}

static void test_open(void **state)
{
	struct errmsg err = { "" };
	struct source s;
	char text[6] = "";

	assert_int_equal(io_open(test_context(), "{a,b}/both", NULL, &s, &err), 0);
	assert_int_equal(source_read(&s, text, 5, 0, &err), 0);
	assert_string_equal(text, "first");
	source_close(&s);
	assert_int_equal(io_open(test_context(), "{a,b}/sizes", NULL, &s, &err), -EBADMSG);
	assert_int_equal(io_open(test_context(), "{a,b}/none", NULL, &s, &err), -ENOENT);
}

static void test_list(void **state)
{
	static const char *const names[] = { "both", "d", "kinds", "only_a", "only_b", "sizes" };
	struct errmsg err = { "" };
	struct dirlist d = { 0 };

	assert_int_equal(io_list(test_context(), whole, 0, &d, &err), 0);
	assert_int_equal(d.n, COUNT(names));
	for (size_t i = 0; i < d.n; i++) {
		const struct dirlist_entry *e = &d.v[i];
		const char *dir = strcmp(e->name, "only_a") == 0   ? "a"
				  : strcmp(e->name, "only_b") == 0 ? "b"
								   : "{a,b}";

		assert_string_equal(e->name, names[i]);
		assert_string_equal(d.dirs[e->dir], dir);
	}
	assert_int_equal(d.v[1].type, S_IFDIR);
	dirlist_done(&d);
	assert_int_equal(io_list(test_context(), "{a,b}/d", 0, &d, &err), 0);
	assert_int_equal(d.attrs.st.st_mode & 0777, 0750);
	dirlist_done(&d);
	assert_int_equal(io_list(test_context(), "{a,b}/none", 0, &d, &err), -ENOENT);
	assert_int_equal(io_list(test_context(), "/dev/null", 0, &d, &err), -ENOTDIR);
	assert_int_equal(io_list(test_context(), "a/both/x", 0, &d, &err), -ENOTDIR);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_find),
		cmocka_unit_test(test_open),
		cmocka_unit_test(test_list),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
