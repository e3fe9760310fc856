/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A plan from an index: it needs no file, knows when it is of other files, and
 * takes from the index nothing that it would not take from a shard.  (That the
 * tree is the same, byte for byte, is shown for all real checkpoints by
 * test_good.)
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/errmsg.h"
#include "ckpt/plan.h"
#include "ckpt/resolve.h"
#include "ckpt/vfile.h"
#include "tests/mkckpt.h"
#include "tests/walk.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static const struct mkckpt_param params[] = {
	{ "emb.weight", 2, { 11, 7 }, 0 },
	{ "bias", 1, { 5 }, 0 },
	{ "scalar", 0, { 0 }, 1 },
};

static const struct mkckpt_extra extras[] = {
	{ .name = "buffer", .dtype = DTYPE_I64, .ndim = 1, .shape = { 3 } },
};

static struct mkckpt small(int stage)
{
	return (struct mkckpt){
		.stage = stage,
		.ranks = 2,
		.params = params,
		.nparams = COUNT(params),
		.ngroups = 2,
		.extras = extras,
		.nextras = stage < 3 ? COUNT(extras) : 0,
		.seed = 7,
		.align = 1,
	};
}

static const struct plan_options options = { .crc_zero = false };

/* A checkpoint in a new directory, and the index of all that it tells. */
struct indexed {
	struct mkckpt c;
	char *dir;
	struct bytebuf index;
};

/* The index of a plan of the directory, after `edit`. */
static void write_index(struct indexed *x, void (*edit)(struct resolve *r))
{
	struct errmsg err = { "" };
	struct plan *p = NULL;

	bytebuf_done(&x->index);
	if (plan_open(x->dir, &options, &p, &err) || walk_plan(p, &err))
		fail_msg("%s", err.text);
	if (edit)
		edit(plan_resolve(p));
	assert_int_equal(plan_index(p, &x->index, &err), 1);
	plan_close(p);
}

static struct indexed make(int stage)
{
	struct indexed x = { .c = small(stage), .dir = mkckpt_new_dir() };

	mkckpt_write(&x.c, x.dir);
	write_index(&x, NULL);
	return x;
}

static void done(struct indexed *x)
{
	bytebuf_done(&x->index);
	mkckpt_free_dir(x->dir);
}

/* Open with the index.  Whether it was of use; why not. */
static bool is_used(const struct indexed *x, struct plan **p,
		    struct errmsg *refused)
{
	struct errmsg err = { "" };

	*refused = (struct errmsg){ "" };
	if (plan_open_indexed(x->dir, &options,
			      (struct span){ x->index.data, x->index.len }, p,
			      refused, &err))
		fail_msg("%s", err.text);
	return !*refused->text;
}

static void check_elements(const struct indexed *x, struct plan *p)
{
	char why[400] = "";

	if (!mkckpt_check(&x->c, p, why, sizeof(why)))
		fail_msg("%s", why);
}

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
		struct indexed x = make(stage);
		struct errmsg refused, err = { "" };
		struct plan *p;
		uint64_t zero, node;
		struct vfile *f;
		uint8_t buf[4096];

		scribble_all(&x);
		assert_true(is_used(&x, &p, &refused));
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
		done(&x);
	}
}

/* Nothing has been learned: there is nothing to write. */
static void what_is_known_is_not_written_again(void **state)
{
	struct indexed x = make(2);
	struct errmsg refused, err = { "" };
	struct bytebuf b = { 0 };
	struct plan *p;

	(void)state;
	assert_true(is_used(&x, &p, &refused));
	check_elements(&x, p);
	assert_int_equal(plan_index(p, &b, &err), 0);
	assert_int_equal(b.len, 0);
	plan_close(p);
	done(&x);
}

/* Shards that the index does not know are read when they are needed. */
static void a_part_is_enough(void **state)
{
	struct indexed x = make(2);
	struct errmsg refused, err = { "" };
	struct plan *p = NULL;

	(void)state;
	bytebuf_done(&x.index);
	assert_int_equal(plan_open(x.dir, &options, &p, &err), 0);
	assert_int_equal(plan_check(p, &err), 0);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	plan_close(p);
	assert_true(is_used(&x, &p, &refused));
	assert_null(resolve_shard(plan_resolve(p), 0, 1));
	check_elements(&x, p);
	bytebuf_done(&x.index);
	assert_int_equal(plan_index(p, &x.index, &err), 1);
	plan_close(p);
	assert_true(is_used(&x, &p, &refused));
	assert_non_null(resolve_shard(plan_resolve(p), 0, 1));
	plan_close(p);
	done(&x);
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
		struct indexed x = make(2);
		struct errmsg refused, err = { "" };
		struct plan *p;

		cases[i].change(&x);
		if (is_used(&x, &p, &refused))
			fail_msg("%s: not noticed", cases[i].what);
		assert_non_null(strstr(refused.text, "other files"));
		assert_int_equal(walk_plan(p, &err), 0);
		plan_close(p);
		done(&x);
	}
}

static void an_index_of_another_version_is_refused(void **state)
{
	struct indexed x = make(2);
	struct errmsg refused;
	struct plan *p;

	(void)state;
	x.index.data[4]++;
	assert_false(is_used(&x, &p, &refused));
	assert_non_null(strstr(refused.text, "another version"));
	check_elements(&x, p);
	plan_close(p);
	done(&x);
}

/* --- what it says -------------------------------------------------------------- */

static struct slice *slice(struct resolve *r, const char *name)
{
	return (struct slice *)catalogue_find(r->model.cats, name);
}

static struct module_tensor *buffer(struct resolve *r)
{
	return (struct module_tensor *)slice(r, "buffer")->module;
}

static struct shard_state *moment(struct resolve *r)
{
	return &r->shards[1].groups[0].states[1];
}

/* Lies about where things are and how large. */
static void offset_behind_the_file(struct resolve *r)
{
	r->shards[1].groups[0].fp32.offset = r->dir.optim[1].file.size - 3;
}
static void offset_that_wraps(struct resolve *r)
{
	r->shards[1].groups[0].fp32.offset = UINT64_MAX - 7;
}
static void moment_in_no_file(struct resolve *r)
{
	moment(r)->flat.swapped = 1;
}
static void moment_behind_the_file(struct resolve *r)
{
	moment(r)->flat.offset = r->dir.optim[1].file.size;
}
static void partition_too_short(struct resolve *r)
{
	r->shards[0].groups[0].fp32.numel--;
}
static void partition_too_long(struct resolve *r)
{
	r->shards[0].groups[0].fp32.numel += 1000;
}
static void moment_too_short(struct resolve *r)
{
	moment(r)->flat.numel = 1;
}
static void moment_of_unknown_type(struct resolve *r)
{
	moment(r)->flat.dtype = (enum dtype)200;
}
static void moment_of_another_type(struct resolve *r)
{
	moment(r)->flat.dtype = DTYPE_BF16;
}
static void moment_with_a_path(struct resolve *r)
{
	moment(r)->name = "../../etc";
}
static void moment_twice(struct resolve *r)
{
	moment(r)->name = r->shards[1].groups[0].states[0].name;
}
static void state_of_unknown_kind(struct resolve *r)
{
	moment(r)->kind = (enum state_kind)9;
}
static void shards_of_different_steps(struct resolve *r)
{
	r->shards[1].groups[0].states[0].bytes[0] ^= 1;
}
static void whole_moments(struct resolve *r)
{
	r->shards[0].groups[0].whole = true;
}
static void first_shard_missing(struct resolve *r)
{
	shard_done(&r->shards[0]);
	atomic_store(&r->loaded[0], false);
}
static void layout_missing(struct resolve *r)
{
	layout_done(&r->layouts[0]);
}
static void larger_parameter(struct resolve *r)
{
	((uint64_t *)slice(r, "bias")->shape)[0] = 500;
}
static void endless_parameter(struct resolve *r)
{
	((uint64_t *)slice(r, "emb.weight")->shape)[0] = UINT64_MAX / 2;
}
static void parameter_without_a_group(struct resolve *r)
{
	slice(r, "bias")->group = 77;
}
static void two_parameters_at_one_place(struct resolve *r)
{
	slice(r, "bias")->index = slice(r, "emb.weight")->index;
}
static void parameter_at_no_place(struct resolve *r)
{
	slice(r, "bias")->index = 40000;
}
static void parameters_in_another_order(struct resolve *r)
{
	struct slice *const a = slice(r, "bias");
	struct slice *const b = slice(r, "emb.weight");
	const uint32_t listed = a->listed;

	a->listed = b->listed;
	b->listed = listed;
}
static void name_with_a_slash(struct resolve *r)
{
	slice(r, "bias")->name = "a/b";
}
static void name_twice(struct resolve *r)
{
	slice(r, "bias")->name = "buffer";
}
static void name_empty(struct resolve *r)
{
	slice(r, "bias")->name = "";
}
static void buffer_behind_the_file(struct resolve *r)
{
	buffer(r)->storage = r->dir.model[0].file.size - 1;
}
static void buffer_behind_its_storage(struct resolve *r)
{
	buffer(r)->storage_offset = 1;
}
static void buffer_of_no_file(struct resolve *r)
{
	buffer(r)->file = 12345;
}
static void buffer_with_gaps(struct resolve *r)
{
	((uint64_t *)buffer(r)->stride)[0] = 2;
	buffer(r)->storage_numel = 5;
}
static void buffer_complex(struct resolve *r)
{
	buffer(r)->dtype = DTYPE_C64;
}
static void paddings_that_overflow(struct resolve *r)
{
	r->layouts[0].groups[0].used = UINT64_MAX;
}
static void paddings_that_move_parameters(struct resolve *r)
{
	r->layouts[0].groups[0].start[1] += 4000;
	r->layouts[0].groups[0].used += 4000;
}
static void fewer_ranks_than_there_were(struct resolve *r)
{
	r->model.cats[0].dp_world_size = 9;
}
static void two_ranks_where_there_is_one(struct resolve *r)
{
	r->model.cats[0].mp_world_size = 2;
}
static void another_type_of_model(struct resolve *r)
{
	r->model.cats[0].module_dtype = (enum dtype)99;
}

static void lies_are_noticed(void **state)
{
#define LIE(name)           \
	{                   \
#name, name \
	}
	static const struct {
		const char *what;
		void (*tell)(struct resolve *r);
	} lies[] = {
		LIE(offset_behind_the_file),
		LIE(offset_that_wraps),
		LIE(moment_in_no_file),
		LIE(moment_behind_the_file),
		LIE(partition_too_short),
		LIE(partition_too_long),
		LIE(moment_too_short),
		LIE(moment_of_unknown_type),
		LIE(moment_of_another_type),
		LIE(moment_with_a_path),
		LIE(moment_twice),
		LIE(state_of_unknown_kind),
		LIE(shards_of_different_steps),
		LIE(whole_moments),
		LIE(first_shard_missing),
		LIE(layout_missing),
		LIE(larger_parameter),
		LIE(endless_parameter),
		LIE(parameter_without_a_group),
		LIE(two_parameters_at_one_place),
		LIE(parameter_at_no_place),
		LIE(parameters_in_another_order),
		LIE(name_with_a_slash),
		LIE(name_twice),
		LIE(name_empty),
		LIE(buffer_behind_the_file),
		LIE(buffer_behind_its_storage),
		LIE(buffer_of_no_file),
		LIE(buffer_with_gaps),
		LIE(buffer_complex),
		LIE(paddings_that_overflow),
		LIE(paddings_that_move_parameters),
		LIE(fewer_ranks_than_there_were),
		LIE(two_ranks_where_there_is_one),
		LIE(another_type_of_model),
	};
#undef LIE

	(void)state;
	for (size_t i = 0; i < COUNT(lies); i++) {
		struct indexed x = make(2);
		struct errmsg refused;
		struct plan *p;

		write_index(&x, lies[i].tell);
		if (is_used(&x, &p, &refused))
			fail_msg("%s: not noticed", lies[i].what);
		check_elements(&x, p);
		plan_close(p);
		done(&x);
	}
}

/* An index that ends anywhere is refused; one with any byte changed is, or it
 * gives a tree that is sound, though not the right one. */
static void damage_breaks_nothing(void **state)
{
	(void)state;
	for (int stage = 2; stage <= 3; stage++) {
		struct indexed x = make(stage);
		const size_t len = x.index.len;
		struct errmsg refused, err;
		struct plan *p;

		for (size_t i = 1; i < len; i++) {
			x.index.len = i;
			assert_false(is_used(&x, &p, &refused));
			plan_close(p);
		}
		x.index.len = len;
		for (size_t i = 0; i < len; i++) {
			x.index.data[i] ^= 0x81;
			is_used(&x, &p, &refused);
			if (walk_plan(p, &err) == WALK_BROKEN)
				fail_msg("byte %zu: %s", i, err.text);
			plan_close(p);
			x.index.data[i] ^= 0x81;
		}
		done(&x);
	}
}

/* The bytes of parameter bias's fp32.pt, its tensor's elements changed or not. */
static int64_t read_bias(const struct indexed *x, uint8_t *to, size_t len)
{
	struct errmsg refused, err = { "" };
	uint64_t dir, node;
	struct vfile *f;
	struct plan *p;
	int64_t n;

	assert_true(is_used(x, &p, &refused));
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
	struct indexed x = make(2);
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
	assert_true(is_used(&x, &p, &refused));
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
	done(&x);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(no_file_is_parsed),
		cmocka_unit_test(what_is_known_is_not_written_again),
		cmocka_unit_test(a_part_is_enough),
		cmocka_unit_test(an_index_of_other_files_is_refused),
		cmocka_unit_test(an_index_of_another_version_is_refused),
		cmocka_unit_test(lies_are_noticed),
		cmocka_unit_test(damage_breaks_nothing),
		cmocka_unit_test(checksums_are_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
