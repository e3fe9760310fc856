/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from an index: the model is not parsed; an index of other files is
 * refused, and the files are read instead.  (test_good shows for all real
 * checkpoints that the tree is the same, byte for byte.)
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/source.h"
#include "ckpt/vfile/vfile.h"
#include "tests/support/indexed.h"
#include "tests/support/unit.h"
#include "tests/support/walk.h"

/* The end of a file's identity in an index. */
static void identity_tail(const struct stat *st, uint8_t to[32])
{
	struct fileid id;

	fileid_from_stat(st, &id);
	put_le64(to, id.ino);
	put_le64(to + 8, id.size);
	put_le64(to + 16, (uint64_t)id.mtime_ns);
	put_le64(to + 24, (uint64_t)id.ctime_ns);
}

/* Overwrite bytes of a file and put its mtime back. */
static void write_unseen(const char *path, const char *bytes, off_t off,
			 struct stat *before, struct stat *after)
{
	const int fd = open(path, O_WRONLY);

	assert_true(fd >= 0 && fstat(fd, before) == 0);
	usleep(20000); /* or the ctime might be in the same tick */
	assert_int_equal(pwrite(fd, bytes, strlen(bytes), off), strlen(bytes));
	assert_int_equal(futimens(fd, (struct timespec[]){ before->st_atim,
							   before->st_mtim }),
			 0);
	assert_int_equal(fstat(fd, after), 0);
	close(fd);
}

/* The same, and record the file's new identity in the index. */
static void scribble(const struct indexed *x, const char *path, off_t off)
{
	struct stat before, after;
	uint8_t was[32], is[32], *at;

	write_unseen(path, "no pickle at all", off, &before, &after);
	identity_tail(&before, was);
	identity_tail(&after, is);
	at = memmem(x->index.data, x->index.len, was, sizeof(was));
	assert_non_null(at);
	memcpy(at, is, sizeof(is));
}

static void scribble_models(const struct indexed *x)
{
	char path[PATH_MAX];

	for (unsigned rank = 0; rank < (x->c.stage < 3 ? 1 : x->c.ranks);
	     rank++) {
		mkckpt_path(&x->c, x->dir, MKCKPT_MODEL, rank, path);
		scribble(x, path, 0);
	}
}

/* Parameters' files are right although no model-states file can be parsed. */
static void the_model_is_not_parsed(void **state)
{
	for (int stage = 1; stage <= 3; stage++) {
		struct indexed x = indexed_make(stage);
		struct errmsg refused, err = { "" };
		struct plan *p;
		uint64_t zero, node;
		struct vfile *f;
		uint8_t buf[4096];

		scribble_models(&x);
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

/* List and stat everything below a directory. */
static void list_all(struct plan *p, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	struct plan_stat st;
	uint64_t pos = 0;

	while (plan_next(p, dir, &pos, &e, &err) == 1) {
		if (plan_stat(p, e.node, &st, &err))
			fail_msg("%s", err.text);
		if (st.is_dir)
			list_all(p, e.node);
	}
	assert_string_equal(err.text, "");
}

/* The tree is listed, with all sizes, although no shard can be parsed; a check of
 * the files notices that. */
static void no_shard_is_opened_for_a_listing(void **state)
{
	for (int stage = 1; stage <= 3; stage++) {
		struct indexed x = indexed_make(stage);
		struct errmsg refused, err = { "" };
		char path[PATH_MAX];
		struct plan *p;

		scribble_models(&x);
		mkckpt_path(&x.c, x.dir, MKCKPT_OPTIM, 0, path);
		scribble(&x, path, 0);
		assert_true(indexed_is_used(&x, &p, &refused));
		assert_int_equal(plan_check(p, &err), 0);
		list_all(p, PLAN_ROOT);
		assert_null(zckpt_shard(plan_zckpt(p), 0, 1));
		assert_true(plan_check_files(p, &err) < 0);
		assert_non_null(strstr(err.text, path));
		plan_close(p);
		indexed_done(&x);
	}
}

/* The index of a plan that has read no shard has no profile: it is read later. */
static void an_index_need_not_have_the_first_shards(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg refused, err = { "" };
	struct plan *p = NULL;

	bytebuf_done(&x.index);
	assert_int_equal(
		plan_open(x.dir, &(struct plan_options){ 0 }, &p, &err), 0);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	plan_close(p);
	assert_true(indexed_is_used(&x, &p, &refused));
	indexed_check(&x, p);
	plan_close(p);
	indexed_done(&x);
}

/* Nothing new is known: the index is not written. */
static void what_is_known_is_not_written_again(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg refused, err = { "" };
	struct bytebuf b = { 0 };
	struct plan *p;

	assert_true(indexed_is_used(&x, &p, &refused));
	indexed_check(&x, p);
	assert_int_equal(plan_index(p, &b, &err), 0);
	assert_int_equal(b.len, 0);
	plan_close(p);
	indexed_done(&x);
}

/* During a mount, the index is written again only if more is known. */
static void what_was_written_is_not_written_again(void **state)
{
	struct indexed x = indexed_make(2);
	struct errmsg err = { "" };
	struct bytebuf b = { 0 };
	struct plan *p = NULL;

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

static void write_and_put_time_back(const struct indexed *x)
{
	struct stat before, after;
	char path[PATH_MAX];

	mkckpt_path(&x->c, x->dir, MKCKPT_OPTIM, 1, path);
	write_unseen(path, "PK", 0, &before, &after); /* as it begins */
	assert_int_equal(before.st_mtim.tv_nsec, after.st_mtim.tv_nsec);
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
		{ "the time was put back", write_and_put_time_back },
		{ "the tag was saved again", save_again },
		{ "the tag was saved by more ranks", resume_on_more_ranks },
	};

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

	x.index.data[4]++;
	assert_false(indexed_is_used(&x, &p, &refused));
	assert_non_null(strstr(refused.text, "another version"));
	indexed_check(&x, p);
	plan_close(p);
	indexed_done(&x);
}

/* The bytes of parameter bias's fp32.pt. */
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

/* A known checksum is not computed again: it is served although the elements
 * have changed without a trace in the file's identity. */
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

	n = read_bias(&x, before, sizeof(before));
	assert_true(indexed_is_used(&x, &p, &refused));
	assert_int_equal(zckpt_load_shards(plan_zckpt(p), 0, 0, 2, 1, &err), 0);
	s = zckpt_shard(plan_zckpt(p), 0, 1);
	/* bias is the last of its group: 77 elements come before it. */
	at = s->groups[0].fp32.offset +
	     (77 - partition_filled(&plan_zckpt(p)->layouts[0].groups[0], 0)) *
		     4;
	plan_close(p);
	mkckpt_path(&x.c, x.dir, MKCKPT_OPTIM, 1, path);
	scribble(&x, path, (off_t)at);
	assert_int_equal(read_bias(&x, after, sizeof(after)), n);
	for (int64_t i = 0; i < n; i++)
		differ += before[i] != after[i];
	assert_in_range(differ, 1, 16);
	indexed_done(&x);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_model_is_not_parsed),
		cmocka_unit_test(no_shard_is_opened_for_a_listing),
		cmocka_unit_test(an_index_need_not_have_the_first_shards),
		cmocka_unit_test(what_is_known_is_not_written_again),
		cmocka_unit_test(what_was_written_is_not_written_again),
		cmocka_unit_test(an_index_of_other_files_is_refused),
		cmocka_unit_test(an_index_of_another_version_is_refused),
		cmocka_unit_test(checksums_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
