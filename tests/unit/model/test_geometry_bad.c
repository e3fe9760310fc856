/* SPDX-License-Identifier: Apache-2.0 */
/* Rules and slices that do not fit each other are refused, with a reason. */
#include <errno.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/model/geometry.h"
#include "ckpt/model/merge_rules.h"
#include "tests/make/literal.h"
#include "tests/make/mkpt.h"
#include "tests/support/slices.h"
#include "tests/support/unit.h"

#define PIECE(shape, source, dest) \
	"{'shape': " shape ", 'source': " source ", 'dest': " dest "}"
#define SCALED(scale) \
	"{'shape': [4], 'source': [0,[1]], 'dest': [0,[1]], 'scale': " scale "}"
#define ONE_RANK(shape, pieces) \
	"{'logical_shape': " shape ", 'ranks': {0: {'pieces': [" pieces "]}}}"
#define HUGE "9223372036854775807"

static const struct {
	enum merge_rule rule;
	unsigned dim;
	const char *slices;
	const char *spec, *widths;
	int rc;
	const char *says;
} refusals[] = {
	{ MERGE_CAT, 0, "[[2,3],[2,4]]", NULL, NULL, -EBADMSG,
	  "rank 1 does not fit" },
	{ MERGE_CAT, 1, "[[2,3],[2,3],[3,3]]", NULL, NULL, -EBADMSG,
	  "rank 2 does not fit" },
	{ MERGE_CAT, 0, "[[2,3],[2]]", NULL, NULL, -EBADMSG, "does not fit" },
	{ MERGE_CAT, 0, "[[2],[2,3]]", NULL, NULL, -EBADMSG, "does not fit" },
	{ MERGE_CAT, 1, "[[2],[2]]", NULL, NULL, -EBADMSG,
	  "2 slices of 1 dimensions cannot be joined along dimension 1" },
	{ MERGE_CAT, 0, "[[],[]]", NULL, NULL, -EBADMSG, "cannot be joined" },
	{ MERGE_CAT, 0, "[[" HUGE "],[" HUGE "],[2]]", NULL, NULL, -EBADMSG,
	  "overflows" },
	{ MERGE_CAT, 0, "[[4611686018427387904,1],[4611686018427387904,1]]",
	  NULL, NULL, -EBADMSG, "overflows" },
	{ MERGE_TWO_SUB_PARAMS, 0, "[[2,3],[2,4]]", NULL, NULL, -EBADMSG,
	  "does not fit" },
	{ MERGE_TWO_SUB_PARAMS, 0, "[[],[]]", NULL, NULL, -EBADMSG,
	  "cannot be joined" },
	{ MERGE_REPLICATED, 0, "[[2,3],[3,2]]", NULL, NULL, -EBADMSG,
	  "is not of one shape" },
	{ MERGE_REPLICATED, 0, "[[2],[2,1]]", NULL, NULL, -EBADMSG,
	  "is not of one shape" },
	{ MERGE_REPLICATED, 0, "[[2],None]", NULL, NULL, -EBADMSG,
	  "is not of one shape" },
	{ MERGE_AVERAGE, 0, "[[2],[3]]", NULL, NULL, -EBADMSG,
	  "is not of one shape" },
	{ MERGE_AVERAGE, 0, "[None,[3]]", NULL, NULL, -EBADMSG,
	  "is not of one shape" },

	/* sub-parameters: no valid spec */
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]", "{}", NULL, -EBADMSG,
	  "do not fit its slices" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]", "5", NULL, -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]", "{'shape': 8, 'partition_dim': 0}",
	  NULL, -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]", "{'shape': ((4,4),)}", NULL,
	  -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 1}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': -1}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,'x'),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((12,-4),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	/* sub-parameters that cannot be divided */
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((5,3),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "cannot be divided among 2 ranks" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': (3,), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': (0,), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': (-2,), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': (" HUGE ",), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },
	/* sub-parameters of another number of elements */
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((8,8),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "does not fit its 8 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]",
	  "{'shape': ((4,4),2), 'partition_dim': 0}", NULL, -EBADMSG,
	  "does not fit its 24 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]",
	  "{'shape': ((4,4),-1,-1), 'partition_dim': 0}", NULL, -EBADMSG,
	  "does not fit its 24 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]",
	  "{'shape': ((4,4),-3), 'partition_dim': 0}", NULL, -EBADMSG,
	  "does not fit its 24 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((0,0),-1), 'partition_dim': 0}", NULL, -EBADMSG,
	  "does not fit its 8 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),4611686018427387904,4), 'partition_dim': 0}", NULL,
	  -EBADMSG, "does not fit its 8 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((" HUGE "," HUGE "," HUGE "),), 'partition_dim': 0}",
	  NULL, -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),(" HUGE "," HUGE ")), 'partition_dim': 0}", NULL,
	  -EBADMSG, "does not fit its 8 elements" },
	/* wrong or missing widths */
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[2,2]]", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[2,2],[2,2],[2,2]]",
	  -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[4],[4]]", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[2,2],[2,1]]", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[3,1],[2,2]]", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[5,-1],[-1,5]]",
	  -EBADMSG, "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[2,2],5]", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "'x'", -EBADMSG,
	  "do not fit" },
	{ MERGE_SUB_PARAMS, 0, "[[4],[4]]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", "[[2,'x'],[2,2]]",
	  -EBADMSG, "do not fit" },
	/* a rank without a slice */
	{ MERGE_SUB_PARAMS, 0, "[[8],None]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },

	/* affine maps: not a map */
	{ MERGE_AFFINE, 0, "[[4]]", "{}", NULL, -EBADMSG, "has no shape" },
	{ MERGE_AFFINE, 0, "[[4]]", "{'logical_shape': [-4], 'ranks': {}}",
	  NULL, -EBADMSG, "has no shape" },
	{ MERGE_AFFINE, 0, "[[4]]", "{'logical_shape': [4]}", NULL, -EBADMSG,
	  "has no ranks" },
	{ MERGE_AFFINE, 0, "[[4]]", "{'logical_shape': [4], 'ranks': []}", NULL,
	  -EBADMSG, "has no ranks" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  "{'logical_shape': [4], 'ranks': {1: {'pieces': []}}}", NULL,
	  -EBADMSG, "other ranks than the 1" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  "{'logical_shape': [4], 'ranks': {-1: {'pieces': []}}}", NULL,
	  -EBADMSG, "other ranks" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  "{'logical_shape': [4], 'ranks': {'0': {'pieces': []}}}", NULL,
	  -EBADMSG, "other ranks" },
	{ MERGE_AFFINE, 0, "[[4]]", "{'logical_shape': [4], 'ranks': {0: {}}}",
	  NULL, -EBADMSG, "other ranks" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  "{'logical_shape': [4294967296,4294967296], 'ranks': {}}", NULL,
	  -EBADMSG, "overflows" },
	/* pieces that leave elements out */
	{ MERGE_AFFINE, 0, "[[4]]", "{'logical_shape': [4], 'ranks': {}}", NULL,
	  -EBADMSG, "overlap or leave elements out" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[3]", "[0,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "leave elements out" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[3]", "[1,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "leave elements out" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[3,4]", PIECE("[2,2]", "[0,[4,1]]", "[0,[2,1]]")), NULL,
	  -EBADMSG, "leave elements out" },
	{ MERGE_AFFINE, 0, "[[8]]",
	  ONE_RANK("[2,4]", PIECE("[2,3]", "[0,[4,1]]", "[0,[4,1]]")), NULL,
	  -EBADMSG, "leave elements out" },
	/* pieces that overlap */
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[3]", "[0,[1]]", "[0,[1]]") ","
			  PIECE("[2]", "[2,[1]]", "[2,[1]]")),
	  NULL, -EBADMSG, "overlap" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0,[1]]") ","
			  PIECE("[4]", "[0,[1]]", "[0,[1]]")),
	  NULL, -EBADMSG, "overlap" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[0]]", "[0,[1]]")), NULL, -EBADMSG,
	  "overlap" },
	{ MERGE_AFFINE, 0, "[[4],[4]]",
	  "{'logical_shape': [2,2], 'ranks': {"
	  "0: {'pieces': [" PIECE("[2,2]", "[0,[2,1]]", "[0,[2,1]]") "]},"
	  "1: {'pieces': [" PIECE("[2,1]", "[1,[2,1]]", "[0,[2,1]]") "]}}}",
	  NULL, -EBADMSG, "overlap" },
	/* pieces beyond the whole or the slice */
	{ MERGE_AFFINE, 0, "[[8]]",
	  ONE_RANK("[4]", PIECE("[5]", "[0,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[1,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[3]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "outside of it or of the slice of rank 0" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[1,[1]]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0,[2]]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4],None]",
	  "{'logical_shape': [4], 'ranks': {"
	  "1: {'pieces': [" PIECE("[4]", "[0,[1]]", "[0,[1]]") "]}}}", NULL,
	  -EBADMSG, "slice of rank 1" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[" HUGE ",[1]]")), NULL,
	  -EBADMSG, "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[" HUGE "]]", "[0,[1]]")), NULL,
	  -EBADMSG, "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[" HUGE "," HUGE "]", "[0,[0,0]]",
				"[0,[0,0]]")),
	  NULL, -EBADMSG, "lies outside" },
	/* pieces that are not pieces */
	{ MERGE_AFFINE, 0, "[[4]]", ONE_RANK("[4]", "5"), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1,1]]", "[0,[1]]")), NULL,
	  -EBADMSG, "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[0,[-1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "lies outside" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", PIECE("[4]", "[-1,[1]]", "[0,[1]]")), NULL, -EBADMSG,
	  "lies outside" },
	/* scales that cannot divide */
	{ MERGE_AFFINE, 0, "[[4]]", ONE_RANK("[4]", SCALED("0")), NULL,
	  -EBADMSG, "has a scale that nothing" },
	{ MERGE_AFFINE, 0, "[[4]]", ONE_RANK("[4]", SCALED("0.0")), NULL,
	  -EBADMSG, "has a scale that nothing" },
	{ MERGE_AFFINE, 0, "[[4]]", ONE_RANK("[4]", SCALED("'x'")), NULL,
	  -EBADMSG, "has a scale that nothing" },
	{ MERGE_AFFINE, 0, "[[4]]", ONE_RANK("[4]", SCALED("[2]")), NULL,
	  -EBADMSG, "has a scale that nothing" },
};

static void what_does_not_fit_is_refused(void **state)
{
	for (size_t i = 0; i < COUNT(refusals); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = {
			.rule = refusals[i].rule,
			.dim = refusals[i].dim,
			.spec = literal_value(&m, refusals[i].spec),
			.widths = literal_value(&m, refusals[i].widths)
		};
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;
		int rc;

		slices_parse(&l, &m, refusals[i].slices);
		rc = slices_geometry(&g, &rule, "h.0.w", &l, &err);
		if (rc != refusals[i].rc || !strstr(err.text, refusals[i].says))
			fail_msg("case %zu, %s: %d, %s", i,
				 refusals[i].spec ? refusals[i].spec :
						    refusals[i].slices,
				 rc, err.text);
		assert_int_equal(strncmp(err.text, "parameter h.0.w: ", 17), 0);
		mkpt_done(&m);
	}
}

/* A few numbers can ask for any number of runs: here, every second element.
 * Missing elements are only found once all runs are laid out. */
static void runs_beyond_number_are_refused(void **state)
{
	static const struct {
		const char *map;
		int rc;
	} cases[] = {
		{ ONE_RANK("[1099511627776]",
			   PIECE("[4194304]", "[0,[2]]", "[0,[2]]")),
		  -EBADMSG },
		{ ONE_RANK("[1099511627776]",
			   PIECE("[4194305]", "[0,[2]]", "[0,[2]]")),
		  -ENOMEM },
	};

	assert_int_equal(GEOMETRY_SEGMENTS_MAX, 4194304);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = MERGE_AFFINE,
					    .spec = literal_value(
						    &m, cases[i].map) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;

		slices_parse(&l, &m, "[[1099511627776]]");
		assert_int_equal(slices_geometry(&g, &rule, "w", &l, &err),
				 cases[i].rc);
		assert_string_not_equal(err.text, "");
		mkpt_done(&m);
	}
}

/* One piece per element, each with its own scale. */
static int init_scales(unsigned n, double first, struct errmsg *err)
{
	struct mkpt m = { 0 };
	struct value *const map = literal_value(
		&m, "{'logical_shape': [300], 'ranks': {0: {'pieces': []}}}");
	struct value *const pieces = value_find(
		value_find(map, "ranks")->dict.v[0].val, "pieces");
	const struct merge rule = { .rule = MERGE_AFFINE, .spec = map };
	struct geometry g;
	struct slices l;
	int rc;

	for (unsigned i = 0; i < 300; i++) {
		struct value *const piece = literal_value(
			&m, "{'shape': [], 'source': [0,[]], 'dest': [0,[]]}");

		value_find(piece, "source")->seq.v[0] = mkpt_int(&m, i);
		value_find(piece, "dest")->seq.v[0] = mkpt_int(&m, i);
		mkpt_set(&m, piece, "scale", mkpt_float(&m, first + i % n));
		mkpt_add(&m, pieces, piece);
	}
	slices_parse(&l, &m, "[[300]]");
	rc = slices_geometry(&g, &rule, "w", &l, err);
	if (!rc) {
		assert_int_equal(g.nscales, n + 1);
		for (unsigned i = 0; i < 300; i++)
			assert_true(g.scales[g.segs[i].scale] == first + i % n);
		geometry_done(&g);
	}
	mkpt_done(&m);
	return rc;
}

static void scales_are_bounded(void **state)
{
	struct errmsg err = { "" };

	assert_int_equal(init_scales(255, 2, &err), 0);
	assert_int_equal(init_scales(256, 2, &err), -E2BIG);
	assert_non_null(strstr(err.text, "parameter w: "));
	assert_non_null(strstr(err.text, "more than 255 scales"));
	assert_int_equal(init_scales(1, INFINITY, &err), -EBADMSG);
	assert_int_equal(init_scales(1, (double)NAN, &err), -EBADMSG);
	assert_int_equal(init_scales(1, 0, &err), -EBADMSG);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_does_not_fit_is_refused),
		cmocka_unit_test(runs_beyond_number_are_refused),
		cmocka_unit_test(scales_are_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
