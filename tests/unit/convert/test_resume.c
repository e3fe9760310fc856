/* SPDX-License-Identifier: Apache-2.0 */
/* An interrupted conversion goes on, but only with files that it wrote, and that are on the
 * disk. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/convert/resume.h"
#include "ckpt/sys/output.h"
#include "ckpt/uckpt.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

#define JOURNAL ".ucfs-convert"
#define LEFT ".out.tmp-abcdef" /* a temporary directory of out */

static int failing; /* so many calls of syncfs */
static bool full; /* the disk, at the next fsync */

/* The system reports a failed write-back once. */
int syncfs(int fd)
{
	if (failing == 0)
		return (int)syscall(SYS_syncfs, fd);
	failing--;
	errno = EIO;
	return -1;
}

/* The file beside the tree is the first that a conversion syncs by itself. */
int fsync(int fd)
{
	if (!full)
		return (int)syscall(SYS_fsync, fd);
	full = false;
	errno = ENOSPC;
	return -1;
}

struct fixture {
	char *dir;
	struct uckpt *u;
	struct uckpt_done done;
	struct uckpt_error err;
	bool stop; /* when all is written */
	bool going_on; /* it said so */
};

static void take_note(void *arg, const char *text)
{
	struct fixture *const f = arg;

	f->going_on |= !!strstr(text, "going on");
}

static int take_progress(void *arg, uint64_t done, uint64_t total)
{
	const struct fixture *const f = arg;

	return f->stop && done == total;
}

static void set_up(struct fixture *f)
{
	const struct mkckpt c = mkckpt_small(1);

	*f = (struct fixture){ .dir = mkckpt_new_dir() };
	assert_int_equal(chdir(f->dir), 0);
	assert_int_equal(mkdir("tag", 0755), 0);
	mkckpt_write(&c, "tag");
	f->u = uckpt_new();
	assert_non_null(f->u);
	uckpt_set_calls(f->u,
			&(struct uckpt_calls){ .arg = f, .note = take_note,
					       .progress = take_progress });
}

static void tear_down(struct fixture *f)
{
	uckpt_free(f->u);
	assert_int_equal(chdir("/"), 0);
	mkckpt_free_dir(f->dir);
}

static int convert(struct fixture *f)
{
	const char *const source = "tag";

	return uckpt_convert(f->u, &source, 1, "out", &f->done, &f->err);
}

static void lost_data_is_not_kept(void **state)
{
	struct fixture f;

	set_up(&f);
	failing = 1;
	assert_int_equal(convert(&f), -EIO);
	assert_string_equal(f.err.text, "out: cannot sync: Input/output error");
	assert_int_equal(f.done.files, 0);
	if (convert(&f))
		fail_msg("%s", f.err.text);
	tear_down(&f);
}

static void a_failed_sync_is_not_forgotten(void **state)
{
	char *const dir = mkckpt_new_dir();
	const int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	struct errmsg err = { "" };
	struct resume r;

	assert_int_equal(resume_open(&r, fd, false, 1, &err), 0);
	r.synced_ns = 0;
	assert_int_equal(resume_add(&r, "synced"), 0);
	r.synced_ns = 0;
	failing = 1;
	assert_int_equal(resume_add(&r, "lost"), -EIO);
	assert_int_equal(resume_add(&r, "later"), 0);
	assert_int_equal(resume_flush(&r), 1);
	assert_int_equal(resume_sync(&r), -EIO);
	resume_close(&r);
	close(fd);
	mkckpt_free_dir(dir);
}

static void a_tree_is_kept_until_it_has_its_name(void **state)
{
	struct fixture f;

	set_up(&f);
	full = true;
	assert_int_equal(convert(&f), -ENOSPC);
	assert_true(f.done.files > 0);
	if (convert(&f))
		fail_msg("%s", f.err.text);
	assert_true(f.going_on);
	assert_int_equal(access("out/" JOURNAL, F_OK), -1);
	tear_down(&f);
}

static void what_has_no_journal_is_removed(void **state)
{
	/* A process of another kind has none; that of a power cut may be empty. */
	for (int empty = 0; empty < 2; empty++) {
		struct fixture f;

		set_up(&f);
		assert_int_equal(mkdir(LEFT, 0755), 0);
		assert_int_equal(write_text(LEFT "/stray", "", NULL), 0);
		if (empty)
			assert_int_equal(write_text(LEFT "/" JOURNAL, "", NULL), 0);
		if (convert(&f))
			fail_msg("%s", f.err.text);
		assert_int_equal(access("out/stray", F_OK), -1);
		assert_int_equal(access(LEFT, F_OK), -1);
		tear_down(&f);
	}
}

/* Write all files, but stop before they get their final name; move them to LEFT. */
static void leave(struct fixture *f)
{
	f->stop = true;
	assert_int_equal(convert(f), -EINTR);
	assert_true(f->done.files > 0);
	f->stop = false;
	assert_int_equal(system("mv .out.tmp-?????? " LEFT), 0);
}

static void what_another_machine_writes_is_left_alone(void **state)
{
	struct fixture f;
	int fd;

	set_up(&f);
	leave(&f);
	fd = open(LEFT "/" JOURNAL, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	if (convert(&f))
		fail_msg("%s", f.err.text);
	assert_int_equal(access(LEFT "/" JOURNAL, F_OK), 0);
	close(fd);
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_data_is_not_kept),
		cmocka_unit_test(a_failed_sync_is_not_forgotten),
		cmocka_unit_test(a_tree_is_kept_until_it_has_its_name),
		cmocka_unit_test(what_has_no_journal_is_removed),
		cmocka_unit_test(what_another_machine_writes_is_left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
