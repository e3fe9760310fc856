/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths stay below a directory: a path that leads out is -EXDEV, and a thread that
 * swaps a directory for a link never wins.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

static char top[PATH_MAX]; /* contains run/ and outside/ */
static const char *root = "run"; /* below top */
static struct permissions ancestors, far_ancestors;

static void make_file(const char *name, const char *text)
{
	FILE *const f = fopen(name, "w");

	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
}

static void link_to(const char *text, const char *name)
{
	assert_int_equal(symlink(text, name), 0);
}

/* Make a root whose links may lead out, below a directory that others cannot search. */
static void make_following(void)
{
	struct errmsg err = { "" };
	char path[PATH_MAX + 32];

	assert_int_equal(mkdir("above", 0750), 0);
	assert_int_equal(mkdir("above/run", 0755), 0);
	assert_int_equal(mkdir("above/run/tag", 0755), 0);
	make_file("above/run/file", "in");
	link_to("../../outside/file", "above/run/out");
	link_to("../../outside/shut/file", "above/run/shut");
	link_to("../../../outside/shut", "above/run/tag/dir");
	link_to("../../../outside/in", "above/run/tag/twice");
	link_to("../file", "above/run/tag/up");
	snprintf(path, sizeof(path), "%s/outside/shut/file", top);
	link_to(path, "above/run/absolute");
	snprintf(path, sizeof(path), "%s/outside/file", top);
	link_to(path, "above/run/absolute_open");
	snprintf(path, sizeof(path), "%s/above/run/tag", top);
	assert_int_equal(beneath_confine(test_context(), path,
					 strlen(path) - strlen("/tag"), true,
					 &far_ancestors, &err),
			 0);
}

static int set_up(void **state)
{
	struct errmsg err = { "" };
	char path[PATH_MAX + 8], real[PATH_MAX];
	const char *const tmp = getenv("TMPDIR");

	snprintf(top, sizeof(top), "%s/beneath.XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(top));
	assert_non_null(realpath(top, real));
	strcpy(top, real);
	assert_int_equal(chdir(top), 0);
	assert_int_equal(chmod(top, 0755), 0);
	assert_int_equal(mkdir("run", 0755), 0);
	assert_int_equal(mkdir("run/tag", 0755), 0);
	assert_int_equal(mkdir("run/shut", 0700), 0);
	assert_int_equal(mkdir("outside", 0755), 0);
	make_file("run/file", "in");
	make_file("run/tag/file", "in");
	make_file("run/shut/file", "in");
	make_file("outside/file", "out");
	link_to("../file", "run/tag/up");
	link_to("tag/../tag/./up", "run/twice");
	link_to("../../outside/file", "run/tag/out");
	link_to("/etc/passwd", "run/tag/absolute");
	link_to("tag", "run/dir");
	link_to("../outside", "run/outdir");
	link_to("loop", "run/loop");
	link_to("../shut/file", "run/tag/shut");
	assert_int_equal(mkdir("outside/shut", 0700), 0);
	make_file("outside/shut/file", "out");
	link_to("shut/file", "outside/in");
	snprintf(path, sizeof(path), "%s/run", top);
	assert_int_equal(beneath_confine(test_context(), path, strlen(path),
					 false, &ancestors, &err),
			 0);
	make_following();
	return 0;
}

static int tear_down(void **state)
{
	char command[PATH_MAX + 16];

	snprintf(command, sizeof(command), "rm -rf '%s'", top);
	return system(command);
}

/* Return the first byte of a file of the run, or a negative errno. */
static int first_byte(const char *name, bool plain)
{
	char path[2 * PATH_MAX], c;
	int fd;

	snprintf(path, sizeof(path), "%s/%s/%s", top, root, name);
	fd = beneath_open(test_context(), path,
			  O_RDONLY | (plain ? O_NOFOLLOW : 0));
	if (fd < 0)
		return fd;
	assert_int_equal(read(fd, &c, 1), 1);
	close(fd);
	return c;
}

static const struct {
	const char *name;
	int any, plain; /* expected first byte or error, with links followed and with IO_PLAIN */
} rows[] = {
	{ "file", 'i', 'i' },
	{ "tag/file", 'i', 'i' },
	{ "./tag//file", 'i', 'i' },
	{ "tag/../file", 'i', 'i' },
	{ "tag/up", 'i', -ELOOP },
	{ "twice", 'i', -ELOOP },
	{ "dir/file", 'i', -ELOOP },
	{ "dir/up", 'i', -ELOOP },
	{ "tag/out", -EXDEV, -ELOOP },
	{ "tag/absolute", -EXDEV, -ELOOP },
	{ "outdir/file", -EXDEV, -ELOOP },
	{ "../outside/file", -EXDEV, -EXDEV },
	{ "tag/../../outside/file", -EXDEV, -EXDEV },
	{ "loop", -ELOOP, -ELOOP },
	{ "missing", -ENOENT, -ENOENT },
	{ "file/below", -ENOTDIR, -ENOTDIR },
};

static void paths_stay_below(void **state)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		assert_int_equal(first_byte(rows[i].name, false), rows[i].any);
		assert_int_equal(first_byte(rows[i].name, true), rows[i].plain);
	}
	assert_int_equal(beneath_open(test_context(), "/etc/passwd", O_RDONLY),
			 -EXDEV);
}

static struct permissions readers_of(const char *name)
{
	char path[2 * PATH_MAX];
	struct attrs a;

	snprintf(path, sizeof(path), "%s/%s/%s", top, root, name);
	assert_int_equal(beneath_stat(test_context(), path, false, &a), 0);
	assert_true(S_ISREG(a.st.st_mode));
	return a.readable_by;
}

static void directories_on_the_way_count(void **state)
{
	assert_int_equal(readers_of("tag/file").mode, 0444);
	assert_int_equal(readers_of("tag/up").mode, 0444);
	assert_int_equal(readers_of("shut/file").mode, 0400);
	assert_int_equal(readers_of("tag/shut").mode, 0400);
	assert_int_equal(ancestors.mode, 0444);
}

/* Paths in the root whose links may lead out of it. */
static const struct {
	const char *name;
	int any, plain; /* as in `rows` */
	unsigned readers;
} following[] = {
	{ "file", 'i', 'i', 0444 },
	{ "tag/up", 'i', -ELOOP, 0444 },
	{ "absolute_open", 'o', -ELOOP, 0444 },
	/* Other users cannot search the directory above the root. */
	{ "out", 'o', -ELOOP, 0440 },
	{ "shut", 'o', -ELOOP, 0400 },
	{ "tag/dir/file", 'o', -ELOOP, 0400 },
	{ "tag/twice", 'o', -ELOOP, 0400 },
	{ "absolute", 'o', -ELOOP, 0400 },
};

static void links_that_lead_out_show_who_may_follow(void **state)
{
	root = "above/run";
	for (size_t i = 0; i < sizeof(following) / sizeof(*following); i++) {
		const char *const name = following[i].name;

		assert_int_equal(first_byte(name, false), following[i].any);
		assert_int_equal(first_byte(name, true), following[i].plain);
		assert_int_equal(readers_of(name).mode, following[i].readers);
	}
	root = "run";
	assert_int_equal(far_ancestors.mode, 0440);
}

static void a_link_is_described_not_followed(void **state)
{
	char path[PATH_MAX + 32];
	struct attrs a;

	snprintf(path, sizeof(path), "%s/run/tag/out", top);
	assert_int_equal(beneath_stat(test_context(), path, true, &a), 0);
	assert_true(S_ISLNK(a.st.st_mode));
	assert_int_equal(beneath_stat(test_context(), path, false, &a), -EXDEV);
}

static atomic_bool swapping;

static void *swap(void *unused)
{
	char a[PATH_MAX + 16], b[PATH_MAX + 16];

	(void)unused;
	snprintf(a, sizeof(a), "%s/run/tag", top);
	snprintf(b, sizeof(b), "%s/run/outdir", top);
	while (atomic_load(&swapping))
		syscall(SYS_renameat2, AT_FDCWD, a, AT_FDCWD, b,
			2 /* RENAME_EXCHANGE */);
	return NULL;
}

static void a_directory_swapped_for_a_link_never_wins(void **state)
{
	unsigned in = 0;
	pthread_t t;

	atomic_store(&swapping, true);
	assert_int_equal(pthread_create(&t, NULL, swap, NULL), 0);
	for (unsigned i = 0; i < 20000; i++) {
		const int got = first_byte("tag/file", i & 1);

		assert_int_not_equal(got, 'o');
		in += got == 'i';
	}
	atomic_store(&swapping, false);
	pthread_join(t, NULL);
	assert_int_not_equal(in, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(paths_stay_below),
		cmocka_unit_test(directories_on_the_way_count),
		cmocka_unit_test(links_that_lead_out_show_who_may_follow),
		cmocka_unit_test(a_link_is_described_not_followed),
		cmocka_unit_test(a_directory_swapped_for_a_link_never_wins),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
