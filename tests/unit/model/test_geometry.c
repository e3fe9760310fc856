/* SPDX-License-Identifier: Apache-2.0 */
/* Merging slices: worked examples of each rule. test_geometry_bad.c has slices
 * that do not fit, test_geometry_random.c random ones. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/merge_rules.h"
#include "tests/make/literal.h"
#include "tests/make/mkpt.h"
#include "tests/support/slices.h"
#include "tests/support/unit.h"

static void check_shape(const struct geometry *g, const struct value *shape,
			const char *what)
{
	const struct value_seq *const s = value_items(shape);

	if (g->ndim != s->n)
		fail_msg("%s: %u dimensions", what, g->ndim);
	for (unsigned i = 0; i < g->ndim; i++)
		if (g->shape[i] != (uint64_t)s->v[i]->i)
			fail_msg("%s: dimension %u is %llu", what, i,
				 (unsigned long long)g->shape[i]);
}

struct example {
	const char *what;
	enum merge_rule rule;
	unsigned dim;
	const char *slices;
	const char *spec, *widths;
	const char *shape;    /* expected shape of the output */
	const char *elements; /* expected elements of the output */
	uint64_t rows;
};

#define AFFINE_UNEVEN \
	"{'logical_shape': [4,6], 'ranks': {" \
	" 0: {'pieces': [{'shape': [4,4], 'source': [0,[6,1]]," \
	"     'dest': [0,[4,1]], 'locations': [0], 'scale': 1.0}]}," \
	" 1: {'pieces': [{'shape': [4,2], 'source': [4,[6,1]]," \
	"     'dest': [0,[2,1]], 'locations': [1]}]}}}"

#define BOTH \
	"{'shape': [2], 'source': [0,[1]], 'dest': [0,[1]]," \
	" 'locations': [2,0,1]}"

/* Two ranks, both with the whole. */
#define HOLDERS(first, second)                                              \
	"{'logical_shape': [2], 'ranks': {"                                  \
	" 0: {'pieces': [{'shape': [2], 'source': [0,[1]],"                  \
	"     'dest': [0,[1]], 'locations': " first "}]},"                   \
	" 1: {'pieces': [{'shape': [2], 'source': [0,[1]],"                  \
	"     'dest': [0,[1]], 'locations': " second "}]}}}"

static const struct example examples[] = {
	{ .what = "row-parallel", .rule = MERGE_CAT, .dim = 1,
	  .slices = "[[4,3],[4,5]]", .shape = "[4,8]", .rows = 4,
	  .elements = "0:0-2 1:0-4 0:3-5 1:5-9 0:6-8 1:10-14 0:9-11 1:15-19" },
	{ .what = "row-parallel, three dimensions", .rule = MERGE_CAT, .dim = 1,
	  .slices = "[[2,1,3],[2,2,3]]", .shape = "[2,3,3]", .rows = 2,
	  .elements = "0:0-2 1:0-5 0:3-5 1:6-11" },
	{ .what = "row-parallel, one slice", .rule = MERGE_CAT, .dim = 1,
	  .slices = "[[4,3]]", .shape = "[4,3]", .rows = 1,
	  .elements = "0:0-11" },
	{ .what = "row-parallel, no width", .rule = MERGE_CAT, .dim = 1,
	  .slices = "[[2,3],[2,0],[2,1]]", .shape = "[2,4]", .rows = 2,
	  .elements = "0:0-2 2:0 0:3-5 2:1" },
	{ .what = "row-parallel, a rank without", .rule = MERGE_CAT, .dim = 1,
	  .slices = "[[2,3],None,[2,1]]", .shape = "[2,4]", .rows = 2,
	  .elements = "0:0-2 2:0 0:3-5 2:1" },
	{ .what = "column-parallel", .rule = MERGE_CAT,
	  .slices = "[[3,4],[2,4]]", .shape = "[5,4]", .rows = 1,
	  .elements = "0:0-11 1:0-7" },
	{ .what = "column-parallel bias", .rule = MERGE_CAT,
	  .slices = "[[3],[2],[3]]", .shape = "[8]", .rows = 1,
	  .elements = "0:0-2 1:0-1 2:0-2" },
	{ .what = "column-parallel, a rank without", .rule = MERGE_CAT,
	  .slices = "[None,[3,2],[1,2],None]", .shape = "[4,2]", .rows = 1,
	  .elements = "1:0-5 2:0-1" },
	{ .what = "nothing at all", .rule = MERGE_CAT,
	  .slices = "[[0,2],[0,2]]", .shape = "[0,2]", .rows = 1,
	  .elements = "" },
	{ .what = "a scalar of one rank", .rule = MERGE_CAT, .slices = "[[]]",
	  .shape = "[]", .rows = 1, .elements = "0:0" },
	{ .what = "vocabulary: cut later", .rule = MERGE_CAT,
	  .slices = "[[64,2],[64,2]]", .shape = "[128,2]", .rows = 1,
	  .elements = "0:0-127 1:0-127" },

	{ .what = "replicated", .rule = MERGE_REPLICATED,
	  .slices = "[[2,3],[2,3]]", .shape = "[2,3]", .rows = 1,
	  .elements = "0:0-5" },
	{ .what = "replicated scalar", .rule = MERGE_REPLICATED,
	  .slices = "[[],[],[]]", .shape = "[]", .rows = 1,
	  .elements = "0:0" },

	{ .what = "two sub-parameters", .rule = MERGE_TWO_SUB_PARAMS,
	  .slices = "[[4,3],[4,3]]", .shape = "[8,3]", .rows = 1,
	  .elements = "0:0-5 1:0-5 0:6-11 1:6-11" },
	{ .what = "two sub-parameters, odd", .rule = MERGE_TWO_SUB_PARAMS,
	  .slices = "[[3,2],[5,2]]", .shape = "[8,2]", .rows = 1,
	  .elements = "0:0-3 1:0-5 0:4-5 1:6-9" },
	{ .what = "two sub-parameters of one row", .rule = MERGE_TWO_SUB_PARAMS,
	  .slices = "[[1],[1]]", .shape = "[2]", .rows = 1,
	  .elements = "0:0 1:0" },
	{ .what = "two sub-parameters, one slice", .rule = MERGE_TWO_SUB_PARAMS,
	  .slices = "[[5]]", .shape = "[5]", .rows = 1, .elements = "0:0-4" },

	{ .what = "three sub-parameters", .rule = MERGE_THREE_SUB_PARAMS,
	  .slices = "[[3,2],[6,2]]", .shape = "[9,2]", .rows = 1,
	  .elements = "0:0-1 1:0-3 0:2-3 1:4-7 0:4-5 1:8-11" },
	{ .what = "three sub-parameters, odd", .rule = MERGE_THREE_SUB_PARAMS,
	  .slices = "[[4],[5]]", .shape = "[9]", .rows = 1,
	  .elements = "0:0-1 1:0-1 0:2-3 1:2-3 1:4" },
	{ .what = "three sub-parameters, one slice",
	  .rule = MERGE_THREE_SUB_PARAMS, .slices = "[[6,2]]",
	  .shape = "[6,2]", .rows = 1, .elements = "0:0-11" },

	{ .what = "GQA, even, recorded", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[6,1],[6,1]]",
	  .spec = "{'shape': ((8,2,2),1), 'partition_dim': 0}",
	  .widths = "[[4,4],[1,1],[1,1]]", .shape = "[12,1]", .rows = 1,
	  .elements = "0:0-3 1:0-3 0:4 1:4 0:5 1:5" },
	{ .what = "GQA, even, by division", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[6,2],[6,2]]",
	  .spec = "{'shape': [(8,2,2),-1], 'partition_dim': 0}",
	  .shape = "[12,2]", .rows = 1,
	  .elements = "0:0-7 1:0-7 0:8-9 1:8-9 0:10-11 1:10-11" },
	{ .what = "GQA, uneven", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[7,1],[5,1]]",
	  .spec = "{'shape': ((8,2,2),1), 'partition_dim': 0}",
	  .widths = "[[5,3],[1,1],[1,1]]", .shape = "[12,1]", .rows = 1,
	  .elements = "0:0-4 1:0-2 0:5 1:3 0:6 1:4" },
	{ .what = "GQA along the second dimension", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[2,4],[2,4]]",
	  .spec = "{'shape': (2,(4,2,2)), 'partition_dim': 1}",
	  .widths = "[[2,2],[1,1],[1,1]]", .shape = "[2,8]", .rows = 2,
	  .elements = "0:0-1 1:0-1 0:2 1:2 0:3 1:3"
		      " 0:4-5 1:4-5 0:6 1:6 0:7 1:7" },
	{ .what = "GQA along the second dimension, uneven",
	  .rule = MERGE_SUB_PARAMS, .slices = "[[2,5],[2,3]]",
	  .spec = "{'shape': (-1,(4,2,2)), 'partition_dim': 1}",
	  .widths = "((3,1),(1,1),(1,1))", .shape = "[2,8]", .rows = 2,
	  .elements = "0:0-2 1:0 0:3 1:1 0:4 1:2 0:5-7 1:3 0:8 1:4 0:9 1:5" },
	{ .what = "a bias seen as three parts", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[6],[6]]",
	  .spec = "{'shape': ((4,4,4),), 'partition_dim': 0}",
	  .shape = "[12]", .rows = 1,
	  .elements = "0:0-1 1:0-1 0:2-3 1:2-3 0:4-5 1:4-5" },
	{ .what = "a number of parts", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[6],[6]]", .spec = "{'shape': (3,), 'partition_dim': 0}",
	  .shape = "[12]", .rows = 1,
	  .elements = "0:0-1 1:0-1 0:2-3 1:2-3 0:4-5 1:4-5" },
	{ .what = "a view of its own", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[6,2],[6,2]]",
	  .spec = "{'shape': (3,(4,),2), 'partition_dim': 1}",
	  .widths = "[[2,2]]", .shape = "[3,4,2]", .rows = 3,
	  .elements = "0:0-3 1:0-3 0:4-7 1:4-7 0:8-11 1:8-11" },
	{ .what = "a tuple beside the partitioned dimension",
	  .rule = MERGE_SUB_PARAMS, .slices = "[[3,1],[3,1]]",
	  .spec = "{'shape': ((1,2),(2,)), 'partition_dim': 1}",
	  .widths = "[[1,1]]", .shape = "[3,2]", .rows = 3,
	  .elements = "0:0 1:0 0:1 1:1 0:2 1:2" },
	{ .what = "fewer key heads than ranks", .rule = MERGE_SUB_PARAMS,
	  .slices = "[[3],[1],None]",
	  .spec = "{'shape': ((3,1),), 'partition_dim': 0}",
	  .widths = "[[2,1,0],[1,0,0]]", .shape = "[4]", .rows = 1,
	  .elements = "0:0-1 1:0 0:2" },

	{ .what = "affine, uneven columns", .rule = MERGE_AFFINE,
	  .slices = "[[4,4],[4,2]]", .spec = AFFINE_UNEVEN, .shape = "[4,6]",
	  .rows = 4,
	  .elements = "0:0-3 1:0-1 0:4-7 1:2-3 0:8-11 1:4-5 0:12-15 1:6-7" },
	{ .what = "affine, rows", .rule = MERGE_AFFINE,
	  .slices = "[[1,3],[2,3]]",
	  .spec = "{'logical_shape': (3,3), 'ranks': {"
		  " 1: {'pieces': [{'shape': [2,3], 'source': [3,[3,1]],"
		  "     'dest': [0,[3,1]], 'locations': [1]}]},"
		  " 0: {'pieces': [{'shape': [1,3], 'source': [0,[3,1]],"
		  "     'dest': [0,[3,1]], 'locations': [0]}]}}}",
	  .shape = "[3,3]", .rows = 1, .elements = "0:0-2 1:0-5" },
	{ .what = "affine, one box and another behind it", .rule = MERGE_AFFINE,
	  .slices = "[[8],[4]]",
	  .spec = "{'logical_shape': [2,6], 'ranks': {"
		  " 0: {'pieces': ["
		  "  {'shape': [2,2], 'source': [0,[6,1]], 'dest': [0,[2,1]]},"
		  "  {'shape': [2,2], 'source': [4,[6,1]], 'dest': [4,[2,1]]}"
		  " ]},"
		  " 1: {'pieces': ["
		  "  {'shape': [2,2], 'source': [2,[6,1]], 'dest': [0,[2,1]]}"
		  " ]}}}",
	  .shape = "[2,6]", .rows = 1,
	  .elements = "0:0-1 1:0-1 0:4-5 0:2-3 1:2-3 0:6-7" },
	{ .what = "affine, a last row cut short", .rule = MERGE_AFFINE,
	  .slices = "[[5],[2]]",
	  .spec = "{'logical_shape': [2,3], 'ranks': {"
		  " 0: {'pieces': [{'shape': [2,2], 'source': [0,[3,1]],"
		  "     'dest': [0,[3,1]]}]},"
		  " 1: {'pieces': [{'shape': [2,1], 'source': [2,[3,1]],"
		  "     'dest': [0,[1,1]]}]}}}",
	  .shape = "[2,3]", .rows = 1, .elements = "0:0-1 1:0 0:3-4 1:1" },
	{ .what = "affine, every row the same", .rule = MERGE_AFFINE,
	  .slices = "[[2]]",
	  .spec = "{'logical_shape': [3,2], 'ranks': {"
		  " 0: {'pieces': [{'shape': [3,2], 'source': [0,[2,1]],"
		  "     'dest': [0,[0,1]]}]}}}",
	  .shape = "[3,2]", .rows = 1, .elements = "0:0-1 0:0-1 0:0-1" },
	{ .what = "affine, transposed", .rule = MERGE_AFFINE,
	  .slices = "[[3,2]]",
	  .spec = "{'logical_shape': [2,3], 'ranks': {"
		  " 0: {'pieces': [{'shape': [2,3], 'source': [0,[3,1]],"
		  "     'dest': [0,[1,2]], 'locations': [0]}]}}}",
	  .shape = "[2,3]", .rows = 1,
	  .elements = "0:0 0:2 0:4 0:1 0:3 0:5" },
	{ .what = "affine, held twice", .rule = MERGE_AFFINE,
	  .slices = "[[2],[2]]",
	  .spec = "{'logical_shape': [2], 'ranks': {"
		  " 0: {'pieces': [{'shape': [2], 'source': [0,[1]],"
		  "     'dest': [0,[1]], 'locations': [1,0]}]},"
		  " 1: {'pieces': [{'shape': [2], 'source': [0,[1]],"
		  "     'dest': [0,[1]], 'locations': [1,0]}]}}}",
	  .shape = "[2]", .rows = 1, .elements = "1:0-1" },
	{ .what = "affine, two orders of the same replicas", .rule = MERGE_AFFINE,
	  .slices = "[[2],[2]]", .spec = HOLDERS("[0,1]", "[1,0]"),
	  .shape = "[2]", .rows = 1, .elements = "1:0-1" },
	{ .what = "affine, replicas without the piece", .rule = MERGE_AFFINE,
	  .slices = "[[2],[2]]", .spec = HOLDERS("[1]", "[0]"),
	  .shape = "[2]", .rows = 1, .elements = "1:0-1" },
	{ .what = "affine, a replica that cuts it otherwise", .rule = MERGE_AFFINE,
	  .slices = "[[3],[4]]",
	  .spec = "{'logical_shape': [5], 'ranks': {"
		  " 0: {'pieces': [{'shape': [3], 'source': [2,[1]],"
		  "     'dest': [0,[1]], 'locations': [0,1]}]},"
		  " 1: {'pieces': [{'shape': [4], 'source': [0,[1]],"
		  "     'dest': [0,[1]], 'locations': [0,1]}]}}}",
	  .shape = "[5]", .rows = 1, .elements = "1:0-1 0:0-2" },
	{ .what = "affine, twice on a rank: the last one", .rule = MERGE_AFFINE,
	  .slices = "[[6]]",
	  .spec = "{'logical_shape': [4], 'ranks': {0: {'pieces': ["
		  "  {'shape': [4], 'source': [0,[1]], 'dest': [0,[1]]},"
		  "  {'shape': [2], 'source': [1,[1]], 'dest': [4,[1]]}]}}}",
	  .shape = "[4]", .rows = 1, .elements = "0:0 0:4-5 0:3" },
	{ .what = "affine, halves of rows that make whole rows", .rule = MERGE_AFFINE,
	  .slices = "[[2,4]]",
	  .spec = "{'logical_shape': [2,4], 'ranks': {0: {'pieces': ["
		  "  {'shape': [2,2], 'source': [0,[4,1]], 'dest': [0,[4,1]]},"
		  "  {'shape': [2,1,2], 'source': [2,[4,9,1]], 'dest': [2,[4,9,1]]}]}}}",
	  .shape = "[2,4]", .rows = 1, .elements = "0:0-7" },
	{ .what = "affine, a rank without", .rule = MERGE_AFFINE,
	  .slices = "[[2],None]",
	  .spec = "{'logical_shape': [2], 'ranks': {"
		  " 0: {'pieces': [{'shape': [2], 'source': [0,[1]],"
		  "     'dest': [0,[1]], 'scale': 1}]}, 1: {'pieces': []}}}",
	  .shape = "[2]", .rows = 1, .elements = "0:0-1" },
	{ .what = "affine, a scalar", .rule = MERGE_AFFINE, .slices = "[[]]",
	  .spec = "{'logical_shape': [], 'ranks': {"
		  " 0: {'pieces': [{'shape': [], 'source': [0,[]],"
		  "     'dest': [0,[]], 'scale': None}]}}}",
	  .shape = "[]", .rows = 1, .elements = "0:0" },
	{ .what = "affine, nothing", .rule = MERGE_AFFINE, .slices = "[[0,3]]",
	  .spec = "{'logical_shape': [0,3], 'ranks': {0: {'pieces': []}}}",
	  .shape = "[0,3]", .rows = 1, .elements = "" },
};

static void examples_are_laid_out_as_worked_out(void **state)
{
	for (size_t i = 0; i < COUNT(examples); i++) {
		const struct example *const x = &examples[i];
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = x->rule,
					    .dim = x->dim,
					    .spec = literal_value(&m, x->spec),
					    .widths = literal_value(
						    &m, x->widths) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;

		slices_parse(&l, &m, x->slices);
		if (slices_geometry(&g, &rule, "w", &l, &err))
			fail_msg("%s: %s", x->what, err.text);
		check_shape(&g, literal_value(&m, x->shape), x->what);
		slices_check(&l, &g, x->elements, x->what);
		if (g.rows != x->rows || g.mean)
			fail_msg("%s: %llu rows", x->what,
				 (unsigned long long)g.rows);
		geometry_done(&g);
		geometry_done(&g); /* also valid for an incomplete one */
		mkpt_done(&m);
	}
}

/* Pieces with several replicas are read from each in turn; a piece with fewer, from its first. */
static void copies_are_read_from_any_replica(void **state)
{
	static const char *const elements[] = { "2:0-1 0:2", "0:0-1 0:2",
						"1:0-1 0:2", "2:0-1 0:2" };

	for (size_t replica = 0; replica < COUNT(elements); replica++) {
		struct mkpt m = { 0 };
		const struct merge rule = {
			.rule = MERGE_AFFINE,
			.replica = replica,
			.spec = literal_value(
				&m, "{'logical_shape': [3], 'ranks': {"
				    "0: {'pieces': [" BOTH
				    ", {'shape': [1], 'source': [2,[1]],"
				    "   'dest': [2,[1]], 'locations': [0]}]},"
				    "1: {'pieces': [" BOTH "]},"
				    "2: {'pieces': [" BOTH "]}}}"),
		};
		struct errmsg err = { "" };
		struct geometry g;
		struct slices l;

		slices_parse(&l, &m, "[[3],[2],[2]]");
		if (slices_geometry(&g, &rule, "w", &l, &err))
			fail_msg("replica %zu: %s", replica, err.text);
		assert_int_equal(g.replicas, 3);
		slices_check(&l, &g, elements[replica], "a copy");
		geometry_done(&g);
		mkpt_done(&m);
	}
}

static void averages_are_means_of_all(void **state)
{
	static const struct merge rule = { .rule = MERGE_AVERAGE };
	static const char *const slices[] = { "[[2,3]]", "[[2,3],[2,3]]",
					      "[[2,3],[2,3],[2,3],[2,3]]" };

	for (size_t i = 0; i < COUNT(slices); i++) {
		struct mkpt m = { 0 };
		struct slices l;
		struct geometry g;

		slices_parse(&l, &m, slices[i]);
		assert_int_equal(slices_geometry(&g, &rule, "w", &l, NULL),
				 0);
		/* The mean of one slice is the slice. */
		assert_int_equal(g.mean, l.n > 1);
		assert_int_equal(g.nsources, l.n);
		check_shape(&g, literal_value(&m, "[2,3]"), slices[i]);
		slices_check_invariants(&l, &g);
		geometry_done(&g);
		mkpt_done(&m);
	}
}

/* A weight of a large model on 64 ranks. */
static void large_weights_cost_no_more_than_a_row(void **state)
{
	static const uint64_t shape[] = { UINT64_C(1) << 30, 1024 };
	static const struct merge rule = { .rule = MERGE_CAT, .dim = 1 };
	static const struct slice s = { .ndim = 2, .shape = shape,
					.numel = UINT64_C(1) << 40 };
	const struct slice *slices[64];
	const struct param p = { .name = "w", .merge = rule, .slices = slices,
				 .nslices = 64, .first = &s };
	struct geometry g;

	for (size_t t = 0; t < 64; t++)
		slices[t] = &s;
	assert_int_equal(geometry_init(&g, &p, NULL), 0);
	assert_int_equal(g.nsegs, 64);
	assert_int_equal(g.rows, shape[0]);
	assert_int_equal(g.numel, UINT64_C(1) << 46);
	geometry_done(&g);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(examples_are_laid_out_as_worked_out),
		cmocka_unit_test(copies_are_read_from_any_replica),
		cmocka_unit_test(averages_are_means_of_all),
		cmocka_unit_test(large_weights_cost_no_more_than_a_row),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
