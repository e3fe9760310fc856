/* SPDX-License-Identifier: Apache-2.0 */
/* All bytes are written, even if a call accepts only some of them.  A file or directory appears,
 * complete, at the commit; a file replaces nothing; nothing is left behind. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "tests/make/mkckpt.h"
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

/* Replaces libc's umask: between two calls, other threads' files would be open to everybody. */
mode_t umask(mode_t mask)
{
	(void)mask;
	fail_msg("the umask of all threads was changed");
	return 0;
}

static mode_t mode_of(const char *path)
{
	struct stat st;

	assert_int_equal(stat(path, &st), 0);
	return st.st_mode & 0777;
}

static void modes_follow_the_umask(void **state)
{
	static const mode_t masks[] = { 022, 027, 077, 0 };
	for (size_t i = 0; i < COUNT(masks); i++) {
		struct errmsg err = { "" };
		struct output o;

		syscall(SYS_umask, masks[i]);
		if (output_open(&o, "all/tag", OUTPUT_DIR_OVER, &err) ||
		    write_text("all/text", "text", &err) ||
		    output_commit(&o, "latest", &err))
			fail_msg("%s", err.text);
		output_close(&o);
		assert_int_equal(mode_of("all/tag"), 0777 & ~masks[i]);
		assert_int_equal(mode_of("all/latest"), 0666 & ~masks[i]);
		assert_int_equal(mode_of("all/text"), 0666 & ~masks[i]);
		assert_int_equal(unlink("all/text"), 0);
	}
}

static char *tmp_of(struct output *o, enum output_kind kind)
{
	struct errmsg err = { "" };

	if (output_open(o, "kept", kind, &err))
		fail_msg("%s", err.text);
	return strdup(o->tmp);
}

/* Return whether a second begin of "kept" reuses the kept directory. */
static bool takes_over(enum output_kind kind, const char *kept)
{
	struct output o;
	char *const tmp = tmp_of(&o, kind);
	const bool same = strcmp(tmp, kept) == 0;

	assert_int_equal(faccessat(o.fd, "file", F_OK, 0) == 0, same);
	if (same)
		output_keep(&o);
	output_close(&o);
	free(tmp);
	return same;
}

static void a_kept_directory_is_taken_over(void **state)
{
	struct output o, other;
	char *const kept = tmp_of(&o, OUTPUT_DIR_RESUMED);
	char *name;

	close(openat(o.fd, "file", O_WRONLY | O_CREAT | O_EXCL, 0600));
	close(openat(o.fd, OUTPUT_JOURNAL, O_WRONLY | O_CREAT | O_EXCL, 0600));
	assert_false(takes_over(OUTPUT_DIR_RESUMED, kept)); /* still being filled */
	output_keep(&o);
	output_close(&o);
	assert_int_equal(access(kept, F_OK), 0);
	assert_false(takes_over(OUTPUT_DIR, kept));
	assert_int_equal(output_open(&other, "kep", OUTPUT_DIR_RESUMED, NULL), 0);
	assert_int_equal(faccessat(other.fd, "file", F_OK, 0), -1);
	output_close(&other);
	assert_true(takes_over(OUTPUT_DIR_RESUMED, kept));

	name = tmp_of(&o, OUTPUT_DIR_RESUMED);
	assert_string_equal(name, kept);
	assert_int_equal(output_commit(&o, NULL, NULL), 0);
	output_close(&o);
	assert_int_equal(access("kept/file", F_OK), 0);
	assert_int_equal(access(kept, F_OK), -1);
	free(name);
	free(kept);
}

static const char *finished; /* path of a temporary directory that the next flock finishes */

int flock(int fd, int operation)
{
	if (finished)
		rename(finished, "finished");
	finished = NULL;
	return (int)syscall(SYS_flock, fd, operation);
}

static void a_directory_that_just_got_its_name_is_not_taken_over(void **state)
{
	struct output o;

	assert_int_equal(mkdir(".finished.tmp-abcdef", 0700), 0);
	assert_int_equal(write_text(".finished.tmp-abcdef/" OUTPUT_JOURNAL, "", NULL), 0);
	finished = ".finished.tmp-abcdef";
	assert_int_equal(output_open(&o, "finished", OUTPUT_DIR_RESUMED, NULL), 0);
	assert_string_not_equal(o.tmp, ".finished.tmp-abcdef");
	assert_int_equal(unlink("finished/" OUTPUT_JOURNAL), 0);
	assert_int_equal(output_commit(&o, NULL, NULL), 0);
	output_close(&o);
}

/* A link could lead anywhere. */
static void a_link_is_not_taken_over(void **state)
{
	struct output o;

	assert_int_equal(mkdir("elsewhere", 0700), 0);
	assert_int_equal(write_text("elsewhere/" OUTPUT_JOURNAL, "", NULL), 0);
	assert_int_equal(symlink("elsewhere", ".linked.tmp-abcdef"), 0);
	assert_int_equal(output_open(&o, "linked", OUTPUT_DIR_RESUMED, NULL), 0);
	assert_string_not_equal(o.tmp, ".linked.tmp-abcdef");
	output_close(&o);
}

static void what_has_no_journal_is_not_taken_over(void **state)
{
	struct output o;

	assert_int_equal(mkdir(".mine.tmp-backup", 0700), 0);
	assert_int_equal(mkdir(".mine.tmp-abcdef", 0700), 0);
	assert_int_equal(write_text(".mine.tmp-abcdef/" OUTPUT_JOURNAL, "", NULL), 0);
	assert_int_equal(output_open(&o, "mine", OUTPUT_DIR_RESUMED, NULL), 0);
	assert_string_equal(o.tmp, ".mine.tmp-abcdef");
	output_close(&o);
	assert_int_equal(output_open(&o, "mine", OUTPUT_DIR_RESUMED, NULL), 0);
	assert_string_not_equal(o.tmp, ".mine.tmp-backup");
	output_close(&o);
	assert_int_equal(access(".mine.tmp-backup", F_OK), 0);
}

static bool linking; /* the next directory that is made becomes a link to "victim" */

int mkdir(const char *path, mode_t mode)
{
	const int rc = (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);

	if (linking && rc == 0 && strstr(path, ".tmp-") && rename(path, "moved") == 0)
		linking = symlink("victim", path) < 0;
	return rc;
}

/* Another user of the parent may replace it first. */
static void nothing_is_written_through_a_link(void **state)
{
	struct errmsg err = { "" };
	struct output o;

	assert_int_equal(mkdir("victim", 0700), 0);
	linking = true;
	assert_int_equal(output_open(&o, "swapped", OUTPUT_DIR, &err), -ENOTDIR);
	assert_non_null(strstr(err.text, "cannot open"));
	assert_false(linking);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pipe_gets_every_byte),
		cmocka_unit_test(bytes_lie_where_they_are_put),
		cmocka_unit_test(a_full_device_is_an_error),
		cmocka_unit_test(it_appears_with_the_commit),
		cmocka_unit_test(without_commit_nothing_is_left),
		cmocka_unit_test(nothing_is_replaced),
		cmocka_unit_test(a_directory_that_is_missing_is_an_error),
		cmocka_unit_test(modes_follow_the_umask),
		cmocka_unit_test(a_kept_directory_is_taken_over),
		cmocka_unit_test(a_directory_that_just_got_its_name_is_not_taken_over),
		cmocka_unit_test(a_link_is_not_taken_over),
		cmocka_unit_test(what_has_no_journal_is_not_taken_over),
		cmocka_unit_test(nothing_is_written_through_a_link),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
