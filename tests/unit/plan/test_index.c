/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from an index: it needs no file, knows when it is of other files, and
 * goes on without where it is of use no more.  (That the tree is the same, byte for
 * byte, is shown for all real checkpoints by test_good.)
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/vfile/vfile.h"
#include "tests/support/indexed.h"
#include "tests/support/walk.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Overwrite bytes of a file so that nobody can tell by its identity. */
static void scribble(const char *path, off_t off)
{
	struct stat st;
	const int fd = open(path, O_WRONLY);

	assert_true(fd >= 0 && fstat(fd, &st) == 0);
	assert_int_equal(pwrite(fd, "no pickle at all", 16, off), 16);
	assert_int_equal(
		futimens(fd, (struct timespec[]){ st.st_atim, st.st_mtim }), 0);
	close(fd);
}

static void scribble_all(const struct indexed *x)
{
	char path[PATH_MAX];

	for (unsigned rank = 0; rank < x->c.ranks; rank++) {
		mkckpt_path(&x->c, x->dir, MKCKPT_OPTIM, rank, path);
		scribble(path, 0);
		if (rank && x->c.stage < 3)
			continue;
		mkckpt_path(&x->c, x->dir, MKCKPT_MODEL, rank, path);
		scribble(path, 0);
	}
}

/* Parameters' files are right although no file's pickle could be read. */
static void no_file_is_parsed(void **state)
{
	(void)state;
	for (int stage = 1; stage <= 3; stage++) {
		struct indexed x = indexed_make(stage);
		struct errmsg refused, err = { "" };
		struct plan *p;
		uint64_t zero, node;
		struct vfile *f;
		uint8_t buf[4096];

		scribble_all(&x);
		assert_true(indexed_is_used(&x, &p, &refused));
		assert_int_equal(plan_check(p, &err), 0);
		assert_int_equal(
			plan_lookup(p, PLAN_ZERO, "emb.weight", &zero, &err), 0);
		assert_int_equal(
			plan_lookup(p, zero, "exp_avg.pt", &node, &err), 0);
		assert_int_equal(plan_file_open(p, node, &f, &err), 0);
		assert_true(vfile_read(f, buf, sizeof(buf), 0, &err) >
			    11 * 7 * 4);
		vfile_free(f);
		plan_close(p);
		indexed_done(&x);
	}
}

/* Nothing has been learned: there is nothing to write. */
static void what_is_known_is_not_written_again(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg refused, err = { "" };
	struct bytebuf b = { 0 };
	struct plan *p;

	(void)state;
	assert_true(indexed_is_used(&x, &p, &refused));
	indexed_check(&x, p);
	assert_int_equal(plan_index(p, &b, &err), 0);
	assert_int_equal(b.len, 0);
	plan_close(p);
	indexed_done(&x);
}

/* By a mount that goes on: once, and again when more is known. */
static void what_was_written_is_not_written_again(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg err = { "" };
	struct bytebuf b = { 0 };
	struct plan *p = NULL;

	(void)state;
	assert_int_equal(
		plan_open(x.dir, &(struct plan_options){ 0 }, &p, &err), 0);
	assert_int_equal(plan_check(p, &err), 0);
	assert_int_equal(plan_index(p, &b, &err), 1);
	bytebuf_done(&b);
	assert_int_equal(plan_index(p, &b, &err), 0);
	assert_int_equal(b.len, 0);
	indexed_check(&x, p);
	bytebuf_done(&x.index);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	assert_int_equal(plan_index(p, &b, &err), 0);
	plan_close(p);
	indexed_done(&x);
}

/* Shards that the index does not know are read when they are needed. */
static void a_part_is_enough(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg refused, err = { "" };
	struct plan *p = NULL;

	(void)state;
	bytebuf_done(&x.index);
	assert_int_equal(
		plan_open(x.dir, &(struct plan_options){ 0 }, &p, &err), 0);
	assert_int_equal(plan_check(p, &err), 0);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	plan_close(p);
	assert_true(indexed_is_used(&x, &p, &refused));
	assert_null(resolve_shard(plan_resolve(p), 0, 1));
	indexed_check(&x, p);
	bytebuf_done(&x.index);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	plan_close(p);
	assert_true(indexed_is_used(&x, &p, &refused));
	assert_non_null(resolve_shard(plan_resolve(p), 0, 1));
	plan_close(p);
	indexed_done(&x);
}

/* --- other files ------------------------------------------------------------- */

static void touch_shard(const struct indexed *x)
{
	char path[PATH_MAX];

	mkckpt_path(&x->c, x->dir, MKCKPT_OPTIM, 1, path);
	assert_int_equal(utimensat(AT_FDCWD, path,
				   (struct timespec[]){ { 1, 0 }, { 1, 1 } }, 0),
			 0);
}

static void touch_model(const struct indexed *x)
{
	char path[PATH_MAX];

	mkckpt_path(&x->c, x->dir, MKCKPT_MODEL, 0, path);
	assert_int_equal(utimensat(AT_FDCWD, path,
				   (struct timespec[]){ { 1, 0 }, { 1, 1 } }, 0),
			 0);
}

static void save_again(const struct indexed *x)
{
	struct mkckpt other = x->c;

	other.seed++;
	mkckpt_write(&other, x->dir);
}

static void resume_on_more_ranks(const struct indexed *x)
{
	struct mkckpt other = x->c;

	other.ranks = 3;
	mkckpt_write(&other, x->dir);
}

static void an_index_of_other_files_is_refused(void **state)
{
	static const struct {
		const char *what;
		void (*change)(const struct indexed *x);
	} cases[] = {
		{ "a shard is newer", touch_shard },
		{ "the model states are newer", touch_model },
		{ "the tag was saved again", save_again },
		{ "the tag was saved by more ranks", resume_on_more_ranks },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct indexed x = indexed_make(2);
		struct errmsg refused, err = { "" };
		struct plan *p;

		cases[i].change(&x);
		if (indexed_is_used(&x, &p, &refused))
			fail_msg("%s: not noticed", cases[i].what);
		assert_non_null(strstr(refused.text, "other files"));
		assert_int_equal(walk_plan(p, &err), 0);
		plan_close(p);
		indexed_done(&x);
	}
}

static void an_index_of_another_version_is_refused(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg refused;
	struct plan *p;

	(void)state;
	x.index.data[4]++;
	assert_false(indexed_is_used(&x, &p, &refused));
	assert_non_null(strstr(refused.text, "another version"));
	indexed_check(&x, p);
	plan_close(p);
	indexed_done(&x);
}

/* The bytes of parameter bias's fp32.pt, its tensor's elements changed or not. */
static int64_t read_bias(const struct indexed *x, uint8_t *to, size_t len)
{
	struct errmsg refused, err = { "" };
	uint64_t dir, node;
	struct vfile *f;
	struct plan *p;
	int64_t n;

	assert_true(indexed_is_used(x, &p, &refused));
	assert_int_equal(plan_lookup(p, PLAN_ZERO, "bias", &dir, &err), 0);
	assert_int_equal(plan_lookup(p, dir, "fp32.pt", &node, &err), 0);
	assert_int_equal(plan_file_open(p, node, &f, &err), 0);
	n = vfile_read(f, to, len, 0, &err);
	vfile_free(f);
	plan_close(p);
	return n;
}

/* A sum that is known is not computed again: it is served although the elements
 * are others, behind everybody's back. */
static void checksums_are_kept(void **state)
{
	struct indexed x = indexed_make(2);
	uint8_t before[4096], after[4096];
	struct errmsg refused, err;
	const struct shard *s;
	struct plan *p;
	int64_t n;
	size_t differ = 0;
	char path[PATH_MAX];
	uint64_t at;

	(void)state;
	n = read_bias(&x, before, sizeof(before));
	assert_true(indexed_is_used(&x, &p, &refused));
	assert_int_equal(resolve_shards(plan_resolve(p), 0, 0, 2, 1, &err), 0);
	s = resolve_shard(plan_resolve(p), 0, 1);
	/* bias is the last of its group: 77 elements come before it. */
	at = s->groups[0].fp32.offset +
	     (77 - partition_filled(&plan_resolve(p)->layouts[0].groups[0], 0)) *
		     4;
	plan_close(p);
	mkckpt_path(&x.c, x.dir, MKCKPT_OPTIM, 1, path);
	scribble(path, (off_t)at);
	assert_int_equal(read_bias(&x, after, sizeof(after)), n);
	for (int64_t i = 0; i < n; i++)
		differ += before[i] != after[i];
	assert_in_range(differ, 1, 16);
	indexed_done(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_file_is_parsed),
		cmocka_unit_test(what_is_known_is_not_written_again),
		cmocka_unit_test(what_was_written_is_not_written_again),
		cmocka_unit_test(a_part_is_enough),
		cmocka_unit_test(an_index_of_other_files_is_refused),
		cmocka_unit_test(an_index_of_another_version_is_refused),
		cmocka_unit_test(checksums_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
