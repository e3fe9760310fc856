/* SPDX-License-Identifier: Apache-2.0 */
/* Extent maps: adding, merging, finding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/vfile/extent.h"
#include "tests/support/unit.h"

static void add(struct extent_map *m, enum extent_kind kind, uint64_t len, uint32_t shard,
		uint64_t from, enum dtype dtype)
{
	assert_true(extent_add(m, kind, len, shard, from, dtype));
}

static void an_empty_map_is_valid(void **state)
{
	struct extent_map m = { 0 };

	assert_int_equal(extent_size(&m), 0);
	add(&m, EXTENT_SHARD, 0, 1, 2, DTYPE_F32);
	assert_int_equal(m.n, 0);
	assert_int_equal(extent_size(&m), 0);
	extent_done(&m);
	extent_done(&m);
}

/* Only an extent that continues the last run is merged into it. */
static void runs_are_merged_when_they_continue(void **state)
{
	static const struct {
		enum extent_kind kind;
		uint32_t shard;
		uint64_t from;
		enum dtype dtype;
		size_t n; /* extents after adding this to 8 bytes of shard 0 at 100 */
	} cases[] = {
		{ EXTENT_SHARD, 0, 108, DTYPE_U8, 1 }, { EXTENT_SHARD, 0, 107, DTYPE_U8, 2 },
		{ EXTENT_SHARD, 0, 109, DTYPE_U8, 2 }, { EXTENT_SHARD, 0, 100, DTYPE_U8, 2 },
		{ EXTENT_SHARD, 1, 108, DTYPE_U8, 2 }, { EXTENT_LITERAL, 0, 108, DTYPE_U8, 2 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct extent_map m = { 0 };

		add(&m, EXTENT_SHARD, 8, 0, 100, DTYPE_U8);
		add(&m, cases[i].kind, 12, cases[i].shard, cases[i].from, cases[i].dtype);
		assert_int_equal(m.n, cases[i].n);
		assert_int_equal(extent_size(&m), 20);
		extent_done(&m);
	}
}

/* Elements of a cast have another size in their source. */
static void casts_are_merged_by_elements(void **state)
{
	struct extent_map m = { 0 };

	assert_true(extent_add_cast(&m, 10, 3, 1000, DTYPE_BF16, DTYPE_F32));
	assert_true(extent_add_cast(&m, 1, 3, 1020, DTYPE_BF16, DTYPE_F32));
	assert_int_equal(m.n, 1);
	assert_int_equal(extent_size(&m), 44);
	assert_true(extent_add_cast(&m, 1, 3, 1022, DTYPE_F16, DTYPE_F32));
	assert_int_equal(m.n, 2);
	assert_true(extent_add_cast(&m, 1, 3, 1028, DTYPE_F16, DTYPE_F32));
	assert_int_equal(m.n, 3);
	assert_int_equal(extent_size(&m), 52);
	/* A different type is not merged, although the source continues. */
	assert_true(extent_add_cast(&m, 1, 3, 1030, DTYPE_F16, DTYPE_BF16));
	assert_int_equal(m.n, 4);
	assert_int_equal(extent_size(&m), 54);
	extent_done(&m);
}

/* Elements that already have the type are not cast. */
static void the_same_type_is_not_converted(void **state)
{
	struct extent_map m = { 0 };

	assert_true(extent_add_cast(&m, 10, 3, 1000, DTYPE_F32, DTYPE_F32));
	assert_false(extent_is_cast(&m.v[0]));
	add(&m, EXTENT_SHARD, 4, 3, 1040, DTYPE_F32);
	assert_int_equal(m.n, 1);
	extent_done(&m);
}

static void a_map_is_converted_run_by_run(void **state)
{
	struct extent_map from = { 0 }, m = { 0 };

	add(&from, EXTENT_SHARD, 40, 1, 100, DTYPE_F32);
	add(&from, EXTENT_SHARD, 8, 2, 500, DTYPE_F32);
	add(&from, EXTENT_GATHER, 16, 7, 0, DTYPE_F32);
	assert_true(extent_add_range(&m, &from, 0, 64, DTYPE_F32, DTYPE_BF16));
	assert_int_equal(m.n, 3);
	assert_int_equal(extent_size(&m), 32);
	assert_int_equal(m.v[0].kind, EXTENT_SHARD);
	assert_int_equal(m.v[1].kind, EXTENT_SHARD);
	assert_true(extent_is_cast(&m.v[1]));
	assert_int_equal(m.v[1].start, 20);
	assert_int_equal(m.v[1].from, 500);
	assert_int_equal(m.v[2].kind, EXTENT_GATHER);
	assert_int_equal(m.v[2].to, DTYPE_BF16);
	assert_int_equal(m.v[2].shard, 7);
	extent_done(&m);
	assert_true(extent_add_range(&m, &from, 0, 64, DTYPE_F32, DTYPE_F32));
	assert_false(extent_is_cast(&m.v[0]));
	assert_false(extent_is_cast(&m.v[2]));
	assert_int_equal(extent_size(&m), 64);
	extent_done(&m);
	/* A range that begins and ends inside extents. */
	assert_true(extent_add_range(&m, &from, 36, 8, DTYPE_F32, DTYPE_BF16));
	assert_int_equal(m.n, 2);
	assert_int_equal(m.v[0].from, 136);
	assert_int_equal(m.v[1].from, 500);
	assert_int_equal(extent_size(&m), 4);
	extent_done(&m);
	extent_done(&from);
}

/* Casting a cast to float32 converts once. */
static void a_cast_is_converted_once(void **state)
{
	struct extent_map from = { 0 }, m = { 0 };

	assert_true(extent_add_cast(&from, 10, 1, 100, DTYPE_F64, DTYPE_F32));
	assert_true(extent_add_range(&m, &from, 8, 24, DTYPE_F32, DTYPE_BF16));
	assert_int_equal(m.n, 1);
	assert_int_equal(m.v[0].dtype, DTYPE_F64);
	assert_int_equal(m.v[0].to, DTYPE_BF16);
	assert_int_equal(m.v[0].from, 116);
	assert_int_equal(extent_size(&m), 12);
	extent_done(&m);
	extent_done(&from);
}

static void each_byte_is_found_in_its_extent(void **state)
{
	struct extent_map m = { 0 };
	uint64_t at = 0;

	for (uint32_t i = 0; i < 300; i++)
		add(&m, EXTENT_SHARD, 1 + i % 7, i, 0, DTYPE_U8);
	assert_int_equal(m.n, 300);
	for (size_t i = 0; i < m.n; i++) {
		assert_int_equal(m.v[i].start, at);
		for (; at < m.v[i + 1].start; at++)
			assert_int_equal(extent_find(&m, at), i);
	}
	assert_int_equal(at, extent_size(&m));
	extent_done(&m);
}

static void one_extent_is_found_everywhere(void **state)
{
	struct extent_map m = { 0 };

	add(&m, EXTENT_LITERAL, UINT64_C(1) << 40, 0, 0, DTYPE_U8);
	assert_int_equal(extent_find(&m, 0), 0);
	assert_int_equal(extent_find(&m, (UINT64_C(1) << 40) - 1), 0);
	extent_done(&m);
}

/* The bytes 0..9 lie in extents of 1, 2, 3 and 4 bytes. */
static void a_walk_goes_through_a_range(void **state)
{
	static const struct {
		uint64_t off;
		size_t len;
		const char *expected; /* each as shard:from+length */
	} cases[] = {
		{ 0, 10, "0:0+1 1:100+2 2:200+3 3:300+4 " },
		{ 2, 3, "1:101+1 2:200+2 " },
		{ 7, 2, "3:301+2 " },
		{ 3, 3, "2:200+3 " },
		{ 4, 0, "" },
		{ 99, 0, "" },
	};
	struct extent_map m = { 0 };

	for (uint32_t i = 0; i < 4; i++)
		add(&m, EXTENT_SHARD, i + 1, i, 100 * i, DTYPE_U8);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct extent_walk w = extent_walk(&m, cases[i].off, cases[i].len);
		uint64_t off = cases[i].off;
		char got[80] = "";

		while (extent_next(&w)) {
			assert_int_equal(w.off, off);
			assert_int_equal(w.skip, off - w.e->start);
			off += w.len;
			sprintf(got + strlen(got), "%u:%d+%d ", w.e->shard, (int)w.from,
				(int)w.len);
		}
		assert_string_equal(got, cases[i].expected);
	}
	extent_done(&m);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(an_empty_map_is_valid),
		cmocka_unit_test(runs_are_merged_when_they_continue),
		cmocka_unit_test(casts_are_merged_by_elements),
		cmocka_unit_test(the_same_type_is_not_converted),
		cmocka_unit_test(a_map_is_converted_run_by_run),
		cmocka_unit_test(a_cast_is_converted_once),
		cmocka_unit_test(each_byte_is_found_in_its_extent),
		cmocka_unit_test(one_extent_is_found_everywhere),
		cmocka_unit_test(a_walk_goes_through_a_range),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
