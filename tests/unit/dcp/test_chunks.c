/* SPDX-License-Identifier: Apache-2.0 */
/* Chunks of random grids are placed as nested loops over the dimensions place them; their elements
 * are found in a file. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/foreign/dcp_extents.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define DIMS 4
#define SIDE 6

static uint64_t seed;

static uint64_t draw(uint64_t n)
{
	seed = seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (seed >> 33) % n;
}

/* The chunk's element at each place of the tensor, -1 where it has none. */
static void fill(const struct dcp_entry *t, const struct dcp_chunk *c, int64_t *out)
{
	int64_t next = 0;

	for (uint64_t e = 0; e < t->numel; e++) {
		uint64_t rest = e;
		bool within = true;

		for (unsigned d = t->ndim; d--; rest /= t->shape[d]) {
			const uint64_t i = rest % t->shape[d];

			within &= i >= c->offset[d] && i < c->offset[d] + c->size[d];
		}
		out[e] = within ? next++ : -1;
	}
}

static void check_chunk(const struct dcp_entry *t, const struct dcp_chunk *c)
{
	int64_t map[SIDE * SIDE * SIDE * SIDE];
	uint64_t before = 0, at, run;

	fill(t, c, map);
	for (uint64_t e = 0; e < t->numel; e++) {
		assert_int_equal(dcp_chunk_before(t, c, e), before);
		if (map[e] < 0)
			continue;
		run = dcp_chunk_place(t, c, before, &at);
		assert_int_equal(at, e);
		assert_true(run >= 1 && run <= c->numel - before);
		for (uint64_t k = 0; k < run; k++)
			assert_int_equal(map[e + k], before + k);
		before++;
	}
	assert_int_equal(dcp_chunk_before(t, c, t->numel), c->numel);
}

static void test_places(void **state)
{
	for (seed = 0; seed < 2000; seed++) {
		const uint64_t kept = seed;
		uint64_t shape[DIMS], offset[DIMS], size[DIMS];
		struct dcp_entry t = { .shape = shape, .numel = 1 };
		struct dcp_chunk c = { .offset = offset, .size = size, .numel = 1 };

		t.ndim = (unsigned)draw(DIMS + 1);
		for (unsigned d = 0; d < t.ndim; d++) {
			shape[d] = 1 + draw(SIDE);
			offset[d] = draw(2) ? draw(shape[d]) : 0;
			size[d] = draw(2) ? shape[d] - offset[d] : draw(shape[d] - offset[d] + 1);
			t.numel *= shape[d];
			c.numel *= size[d];
		}
		check_chunk(&t, &c);
		seed = kept;
	}
}

#define PIECES 40

/* A box that planes cut, one box at a time. */
struct cut {
	struct dcp_entry t;
	struct dcp_chunk c[PIECES];
	uint64_t shape[DIMS], offset[PIECES][DIMS], size[PIECES][DIMS];
};

static void count(struct cut *x, size_t i)
{
	x->c[i].offset = x->offset[i];
	x->c[i].size = x->size[i];
	x->c[i].numel = 1;
	for (unsigned d = 0; d < x->t.ndim; d++)
		x->c[i].numel *= x->size[i][d];
}

/* Cut piece `i` before `at` in dimension `d`; append the rest. */
static void cut_piece(struct cut *x, size_t i, unsigned d, uint64_t at)
{
	const size_t n = x->t.nchunks++;

	memcpy(x->offset[n], x->offset[i], sizeof(x->offset[i]));
	memcpy(x->size[n], x->size[i], sizeof(x->size[i]));
	x->offset[n][d] += at;
	x->size[n][d] -= at;
	x->size[i][d] = at;
	count(x, i);
	count(x, n);
}

/* Cut a grid, all of whose rows are alike, or irregular pieces. */
static void cut_up(struct cut *x, bool grid)
{
	const unsigned cuts = (unsigned)draw(4);

	*x = (struct cut){
		.t = { .key = "t", .ndim = 1 + (unsigned)draw(DIMS), .numel = 1, .nchunks = 1 }
	};
	x->t.shape = x->shape;
	x->t.chunks = x->c;
	for (unsigned d = 0; d < x->t.ndim; d++) {
		x->shape[d] = x->size[0][d] = 1 + draw(SIDE);
		x->t.numel *= x->shape[d];
	}
	count(x, 0);
	for (unsigned k = 0; k < cuts; k++) {
		const unsigned d = (unsigned)draw(x->t.ndim);
		const uint64_t at = draw(x->shape[d] + 1);
		const size_t n = x->t.nchunks;

		for (size_t i = 0; grid && i < n && 2 * n < PIECES; i++)
			if (x->offset[i][d] <= at && at <= x->offset[i][d] + x->size[i][d])
				cut_piece(x, i, d, at - x->offset[i][d]);
		if (!grid) {
			const size_t i = draw(n);

			cut_piece(x, i, d, draw(x->size[i][d] + 1));
		}
	}
}

/* Any partition covers the tensor; if a piece is moved, pieces overlap or leave it. */
static void test_covers(void **state)
{
	struct cut x;

	for (uint64_t i = 0; i < 4000; i++) {
		struct errmsg err = { "" };

		seed = i;
		cut_up(&x, i % 2);
		if (dcp_chunks_check(&x.t, "file", &err))
			fail_msg("seed %d: %s", (int)i, err.text);
		for (size_t k = 0; k < x.t.nchunks; k++)
			assert_ptr_equal(x.c[k].numel ? dcp_chunk_find(&x.t, x.c[k].offset)
						      : &x.c[k],
					 &x.c[k]);
		const size_t k = draw(x.t.nchunks);
		uint64_t *at = (uint64_t *)x.c[k].offset;
		const unsigned d = (unsigned)draw(x.t.ndim);

		if (!x.c[k].numel)
			continue;
		at[d] = at[d] && draw(2) ? at[d] - 1 : at[d] + 1;
		if (!dcp_chunks_check(&x.t, "file", &err))
			fail_msg("seed %d: accepted", (int)i);
	}
}

#define CASES 1000

/* Draw a tensor whose chunks lie end to end in the file from `*at` on. */
static void draw_case(struct cut *x, uint64_t i, uint64_t *at)
{
	struct errmsg err = { "" };

	seed = i;
	cut_up(x, i % 2);
	assert_int_equal(dcp_chunks_check(&x->t, "file", &err), 0);
	x->t.dtype = DTYPE_I16;
	for (size_t k = 0; k < x->t.nchunks; k++) {
		x->c[k].data = *at;
		*at += x->c[k].numel * sizeof(int16_t);
	}
}

/* Write a file in which each element is its number in its tensor. */
static char *write_cases(const char *dir)
{
	struct bytebuf out = { 0 };
	char *path;
	struct cut x;

	assert_true(asprintf(&path, "%s/elements", dir) > 0);
	bytebuf_add_fill(&out, 0, 64);
	for (uint64_t i = 0, at = 64; i < CASES; i++) {
		draw_case(&x, i, &at);
		for (size_t k = 0; k < x.t.nchunks; k++)
			for (uint64_t e = 0, place; e < x.c[k].numel; e++) {
				dcp_chunk_place(&x.t, &x.c[k], e, &place);
				bytebuf_add(&out, &(int16_t){ (int16_t)place }, sizeof(int16_t));
			}
	}
	mkpt_save(path, out.data, out.len);
	bytebuf_done(&out);
	return path;
}

/* Read the elements of a range in their own type, or as float32. */
static void check_range(const struct dcp_storage *b, const struct dcp_range *r, bool gather,
			bool wide)
{
	const enum dtype to = wide ? DTYPE_F32 : DTYPE_I16;
	struct gathers gathers = { 0 };
	struct extent_map map = { 0 };
	struct bytebuf head = { 0 };
	struct errmsg err = { "" };
	union {
		float wide[SIDE * SIDE * SIDE * SIDE];
		int16_t own[SIDE * SIDE * SIDE * SIDE];
	} v;
	const size_t len = r->numel * dtype_size(to);
	struct vfile *f;

	if (dcp_extents_add(b, r, to, &map, gather ? &gathers : NULL, &err))
		fail_msg("%s", err.text);
	assert_int_equal(extent_size(&map), len);
	f = vfile_new_tensors(b->shards, &head, &map, (size_t[]){ 0 }, 1, &gathers, &err);
	assert_non_null(f);
	assert_int_equal(vfile_read(f, &v, len, 0, &err), len);
	for (uint64_t i = 0; i < r->numel; i++)
		assert_true((wide ? v.wide[i] : (float)v.own[i]) == (float)(r->first + i));
	vfile_free(f);
	extent_done(&map);
}

static void test_extents(void **state)
{
	char *dir = mkckpt_new_dir(), *const path = write_cases(dir);
	const struct dcp_storage b = { .dir = dir, .shards = shards_new(test_context()) };
	struct fileid id;
	struct stat st;
	struct cut x;

	assert_int_equal(stat(path, &st), 0);
	fileid_from_stat(&st, &id);
	assert_int_equal(shards_add(b.shards, path, &id), 0);
	for (uint64_t i = 0, at = 64; i < CASES; i++) {
		struct dcp_range r = { .t = &x.t };

		draw_case(&x, i, &at);
		if (!x.t.numel)
			continue;
		r.numel = x.t.numel;
		check_range(&b, &r, i & 2, i & 4);
		r.first = draw(x.t.numel);
		r.numel = draw(x.t.numel - r.first) + 1;
		check_range(&b, &r, i & 2, i & 4);
	}
	shards_free(b.shards);
	free(path);
	mkckpt_free_dir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_extents),
		cmocka_unit_test(test_places),
		cmocka_unit_test(test_covers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
