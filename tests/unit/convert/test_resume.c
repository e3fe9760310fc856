/* SPDX-License-Identifier: Apache-2.0 */
/* An interrupted conversion is resumed, but only with its own files that were synced. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/output.h"
#include "ckpt/commands/resume.h"
#include "ckpt/uckpt.h"
#include "tests/make/mkckpt.h"
#include "tests/support/unit.h"

#define LEFT ".out.tmp-abcdef" /* name of a temporary directory of out */

static int failing; /* number of syncfs calls that fail */
static bool full; /* whether the next fsync finds the disk full */

/* Like the system, report a failed write-back only once. */
int syncfs(int fd)
{
	if (failing == 0)
		return (int)syscall(SYS_syncfs, fd);
	failing--;
	errno = EIO;
	return -1;
}

/* A conversion itself first syncs the file beside the tree. */
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
	bool stop; /* stop when everything is written */
	bool overtaken; /* then let another conversion take over the output */
	bool going_on, was_there; /* it reported so */
};

static int convert(struct fixture *f);

static void take_note(void *arg, const char *text)
{
	struct fixture *const f = arg;

	f->going_on |= !!strstr(text, "going on");
	f->was_there |= !!strstr(text, "out: was there, with the same files");
}

static int take_progress(void *arg, uint64_t done, uint64_t total)
{
	struct fixture *const f = arg;

	if (f->overtaken && done == total) {
		struct fixture other = { .u = uckpt_new() };

		f->overtaken = false;
		assert_int_equal(convert(&other), 0);
		uckpt_free(other.u);
	}
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

	assert_int_equal(resume_open(&r, fd, OUTPUT_JOURNAL, false, 1, &err), 0);
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
	assert_int_equal(access("out/" OUTPUT_JOURNAL, F_OK), -1);
	tear_down(&f);
}

/* Write all files but stop before the final rename; move them to LEFT. */
static void leave(struct fixture *f)
{
	f->stop = true;
	assert_int_equal(convert(f), -EINTR);
	assert_true(f->done.files > 0);
	f->stop = false;
	assert_int_equal(system("mv .out.tmp-?????? " LEFT), 0);
}

static void what_has_no_journal_is_not_ours(void **state)
{
	/* A power cut may leave the journal empty. */
	for (int ours = 0; ours < 2; ours++) {
		struct fixture f;

		set_up(&f);
		assert_int_equal(mkdir(LEFT, 0755), 0);
		assert_int_equal(write_text(LEFT "/stray", "", NULL), 0);
		if (ours)
			assert_int_equal(write_text(LEFT "/" OUTPUT_JOURNAL, "", NULL), 0);
		if (convert(&f))
			fail_msg("%s", f.err.text);
		assert_int_equal(access("out/stray", F_OK), -1);
		assert_int_equal(access(LEFT "/stray", F_OK), ours ? -1 : 0);
		tear_down(&f);
	}
}

/* A shard's ctime reveals a write although its mtime was set back. */
static void a_tree_of_changed_shards_is_begun_anew(void **state)
{
	struct fixture f;
	struct stat before, now;
	char path[4096];
	struct mkckpt c = mkckpt_small(1);

	set_up(&f);
	leave(&f);
	mkckpt_path(&c, "tag", MKCKPT_OPTIM, 0, path);
	assert_int_equal(stat(path, &before), 0);
	do {
		const struct timespec times[] = { before.st_atim, before.st_mtim };

		assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
		assert_int_equal(stat(path, &now), 0);
	} while (now.st_ctim.tv_sec == before.st_ctim.tv_sec &&
		 now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
	if (convert(&f))
		fail_msg("%s", f.err.text);
	assert_false(f.going_on);
	assert_int_equal(access(LEFT, F_OK), -1);
	tear_down(&f);
}

/* Change the output by one entry or byte, so that it is another tree. */
static void change_output(int how)
{
	FILE *f;

	switch (how) {
	case 0:
		assert_int_equal(write_text("out/zero/more", "", NULL), 0);
		return;
	case 1:
		assert_int_equal(unlink("out/zero/optimizer_state.pt"), 0);
		return;
	case 2:
		assert_int_equal(rename("out/zero/optimizer_state.pt", "opt"), 0);
		assert_int_equal(symlink("../../opt", "out/zero/optimizer_state.pt"), 0);
		return;
	default:
		f = fopen("out/zero/optimizer_state.pt", "r+");
		assert_int_equal(fseek(f, -1, SEEK_END), 0);
		putc(1, f);
		fclose(f);
	}
}

static void what_another_conversion_wrote_is_compared(void **state)
{
	for (int how = 0; how < 4; how++) {
		struct fixture f;

		set_up(&f);
		f.overtaken = true;
		for (int i = 0; i < 2; i++) {
			if (convert(&f))
				fail_msg("%s", f.err.text);
			assert_true(f.was_there);
			f.was_there = false;
		}
		assert_int_equal(system("test \"$(ls -A | tr '\\n' ' ')\" ="
					" 'latest_universal out tag '"),
				 0);
		change_output(how);
		assert_int_equal(convert(&f), -EEXIST);
		assert_string_equal(f.err.text, "out: exists and is not empty");
		tear_down(&f);
	}
}

static void what_another_machine_writes_is_left_alone(void **state)
{
	struct fixture f;
	int fd;

	set_up(&f);
	leave(&f);
	fd = open(LEFT "/" OUTPUT_JOURNAL, O_RDWR | O_CLOEXEC);
	assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
	if (convert(&f))
		fail_msg("%s", f.err.text);
	assert_int_equal(access(LEFT "/" OUTPUT_JOURNAL, F_OK), 0);
	close(fd);
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(lost_data_is_not_kept),
		cmocka_unit_test(a_failed_sync_is_not_forgotten),
		cmocka_unit_test(a_tree_is_kept_until_it_has_its_name),
		cmocka_unit_test(what_has_no_journal_is_not_ours),
		cmocka_unit_test(a_tree_of_changed_shards_is_begun_anew),
		cmocka_unit_test(what_another_conversion_wrote_is_compared),
		cmocka_unit_test(what_another_machine_writes_is_left_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
