/* SPDX-License-Identifier: Apache-2.0 */
/* Rules and slices that do not fit each other are refused, with a reason. */
#include <errno.h>
#include <math.h>
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

#define PIECE(shape, source, dest) "{'shape': " shape ", 'source': " source ", 'dest': " dest "}"
#define ONE_RANK(shape, pieces) \
	"{'logical_shape': " shape ", 'ranks': {0: {'pieces': [" pieces "]}}}"
#define HUGE "9223372036854775807"

/* Rows of the table: sub-parameters of two slices; their widths; an affine map of one slice; its
 * pieces; the scale of one piece. */
#define SUB(spec, says)                                            \
	{                                                          \
		MERGE_SUB_PARAMS, 0, "[[4],[4]]", spec, NULL, says \
	}
#define WIDTHS(widths)                                                                       \
	{                                                                                    \
		MERGE_SUB_PARAMS, 0, "[[4],[4]]", "{'shape': ((4,4),), 'partition_dim': 0}", \
			widths, "do not fit"                                                 \
	}
#define MAP(map, says)                                    \
	{                                                 \
		MERGE_AFFINE, 0, "[[4]]", map, NULL, says \
	}
#define PIECES(pieces, says) MAP(ONE_RANK("[4]", pieces), says)
#define HELD(shape, at, locations)                                                             \
	"{'shape': " shape ", 'source': (" at ", [1]), 'dest': (0, [1]), 'locations': " locations "}"
#define TWO_RANKS(p, q, says)                                                                  \
	{                                                                                      \
		MERGE_AFFINE, 0, "[[4],[4]]",                                                  \
			"{'logical_shape': [4], 'ranks': {0: {'pieces': [" p                   \
			"]}, 1: {'pieces': [" q "]}}}",                                        \
			NULL, says                                                             \
	}
#define SCALED(scale)                                                                    \
	PIECES("{'shape': [4], 'source': [0,[1]], 'dest': [0,[1]], 'scale': " scale "}", \
	       "has a scale that nothing")

static const struct {
	enum merge_rule rule;
	unsigned dim;
	const char *slices;
	const char *spec, *widths;
	const char *says;
} refusals[] = {
	{ MERGE_CAT, 0, "[[2,3],[2,4]]", NULL, NULL, "rank 1 does not fit" },
	{ MERGE_CAT, 1, "[[2,3],[2,3],[3,3]]", NULL, NULL, "rank 2 does not fit" },
	{ MERGE_CAT, 0, "[[2,3],[2]]", NULL, NULL, "does not fit" },
	{ MERGE_CAT, 0, "[[2],[2,3]]", NULL, NULL, "does not fit" },
	{ MERGE_CAT, 1, "[[2],[2]]", NULL, NULL,
	  "2 slices of 1 dimensions cannot be joined along dimension 1" },
	{ MERGE_CAT, 0, "[[],[]]", NULL, NULL, "cannot be joined" },
	{ MERGE_CAT, 0, "[[" HUGE "],[" HUGE "],[2]]", NULL, NULL, "overflows" },
	{ MERGE_CAT, 0, "[[4611686018427387904,1],[4611686018427387904,1]]", NULL, NULL,
	  "overflows" },
	{ MERGE_TWO_SUB_PARAMS, 0, "[[2,3],[2,4]]", NULL, NULL, "does not fit" },
	{ MERGE_TWO_SUB_PARAMS, 0, "[[],[]]", NULL, NULL, "cannot be joined" },
	{ MERGE_REPLICATED, 0, "[[2,3],[3,2]]", NULL, NULL, "is not of one shape" },
	{ MERGE_REPLICATED, 0, "[[2],[2,1]]", NULL, NULL, "is not of one shape" },
	{ MERGE_REPLICATED, 0, "[[2],None]", NULL, NULL, "is not of one shape" },
	{ MERGE_AVERAGE, 0, "[[2],[3]]", NULL, NULL, "is not of one shape" },
	{ MERGE_AVERAGE, 0, "[None,[3]]", NULL, NULL, "is not of one shape" },

	/* invalid specs of sub-parameters */
	SUB("{}", "do not fit its slices"),
	SUB("5", "do not fit"),
	SUB("{'shape': 8, 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': ((4,4),)}", "do not fit"),
	SUB("{'shape': ((4,4),), 'partition_dim': 1}", "do not fit"),
	SUB("{'shape': ((4,4),), 'partition_dim': -1}", "do not fit"),
	SUB("{'shape': ((4,'x'),), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': ((),), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': ((12,-4),), 'partition_dim': 0}", "do not fit"),
	/* sub-parameters that cannot be divided */
	SUB("{'shape': ((5,3),), 'partition_dim': 0}", "cannot be divided among 2 ranks"),
	SUB("{'shape': (3,), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': (0,), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': (-2,), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': (" HUGE ",), 'partition_dim': 0}", "do not fit"),
	/* sub-parameters of another number of elements */
	SUB("{'shape': ((8,8),), 'partition_dim': 0}", "does not fit its 8 elements"),
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]", "{'shape': ((4,4),2), 'partition_dim': 0}", NULL,
	  "does not fit its 24 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]", "{'shape': ((4,4),-1,-1), 'partition_dim': 0}",
	  NULL, "does not fit its 24 elements" },
	{ MERGE_SUB_PARAMS, 0, "[[4,3],[4,3]]", "{'shape': ((4,4),-3), 'partition_dim': 0}", NULL,
	  "does not fit its 24 elements" },
	SUB("{'shape': ((0,0),-1), 'partition_dim': 0}", "does not fit its 8 elements"),
	SUB("{'shape': ((4,4),4611686018427387904,4), 'partition_dim': 0}",
	    "does not fit its 8 elements"),
	SUB("{'shape': ((" HUGE "," HUGE "," HUGE "),), 'partition_dim': 0}", "do not fit"),
	SUB("{'shape': ((4,4),(" HUGE "," HUGE ")), 'partition_dim': 0}",
	    "does not fit its 8 elements"),
	/* wrong or missing widths */
	WIDTHS("[[2,2]]"),
	WIDTHS("[[2,2],[2,2],[2,2]]"),
	WIDTHS("[[4],[4]]"),
	WIDTHS("[[2,2],[2,1]]"),
	WIDTHS("[[3,1],[2,2]]"),
	WIDTHS("[[5,-1],[-1,5]]"),
	WIDTHS("[[2,2],5]"),
	WIDTHS("'x'"),
	WIDTHS("[[2,'x'],[2,2]]"),
	/* a rank without a slice */
	{ MERGE_SUB_PARAMS, 0, "[[8],None]", "{'shape': ((4,4),), 'partition_dim': 0}", NULL,
	  "do not fit" },

	/* affine maps: not a map */
	MAP("{}", "has no shape"),
	MAP("{'logical_shape': [-4], 'ranks': {}}", "has no shape"),
	MAP("{'logical_shape': [4]}", "has no ranks"),
	MAP("{'logical_shape': [4], 'ranks': []}", "has no ranks"),
	MAP("{'logical_shape': [4], 'ranks': {1: {'pieces': []}}}", "other ranks than the 1"),
	MAP("{'logical_shape': [4], 'ranks': {-1: {'pieces': []}}}", "other ranks"),
	MAP("{'logical_shape': [4], 'ranks': {'0': {'pieces': []}}}", "other ranks"),
	MAP("{'logical_shape': [4], 'ranks': {0: {}}}", "other ranks"),
	MAP("{'logical_shape': [4294967296,4294967296], 'ranks': {}}", "overflows"),
	/* pieces that leave elements out */
	MAP("{'logical_shape': [4], 'ranks': {}}", "leave elements out, from 0 on"),
	PIECES(PIECE("[3]", "[0,[1]]", "[0,[1]]"), "leave elements out, from 3 on"),
	PIECES(PIECE("[3]", "[1,[1]]", "[0,[1]]"), "leave elements out"),
	MAP(ONE_RANK("[3,4]", PIECE("[2,2]", "[0,[4,1]]", "[0,[2,1]]")), "leave elements out"),
	{ MERGE_AFFINE, 0, "[[8]]", ONE_RANK("[2,4]", PIECE("[2,3]", "[0,[4,1]]", "[0,[4,1]]")),
	  NULL, "leave elements out" },
	PIECES(PIECE("[2]", "[0,[1]]", "[0,[1]]") "," PIECE("[1]", "[3,[1]]", "[3,[1]]"),
	       "leave elements out, from 2 on"),
	PIECES(PIECE("[4]", "[0,[0]]", "[0,[1]]"), "leave elements out, from 1 on"),
	/* pieces of different ranks that overlap */
	TWO_RANKS(HELD("[3]", "0", "[0]"), HELD("[2]", "2", "[1]"),
		  "ranks 0 and 1 have element 2, and their locations do not say so"),
	TWO_RANKS(HELD("[3]", "0", "[0,1]"), HELD("[2]", "2", "[1]"), "ranks 0 and 1 have element 2"),
	TWO_RANKS(HELD("[3]", "0", "[0]"), HELD("[2]", "2", "[0,1]"), "ranks 0 and 1 have element 2"),
	TWO_RANKS(HELD("[4]", "0", "[0,1,0]"), HELD("[2]", "2", "[1]"), "lies outside"),
	/* a slice of another size */
	MAP("{'logical_shape': [4], 'ranks': {0: {'shard_shape': [2,3], 'pieces': ["
	    PIECE("[4]", "[0,[1]]", "[0,[1]]") "]}}}", "another slice than the 4 elements of rank 0"),
	MAP("{'logical_shape': [4], 'ranks': {0: {'shard_shape': [" HUGE "," HUGE "], 'pieces': ["
	    PIECE("[4]", "[0,[1]]", "[0,[1]]") "]}}}", "another slice than the 4 elements of rank 0"),
	{ MERGE_AFFINE, 0, "[[4],[4]]",
	  "{'logical_shape': [2,2], 'ranks': {0: {'pieces': [" PIECE("[2,2]", "[0,[2,1]]",
				  "[0,[2,1]]") "]},1: {'pieces': [" PIECE("[2,1]", "[1,[2,1]]",
								       "[0,[2,1]]") "]}}}",
	  NULL, "overlap" },
	/* pieces beyond the whole or the slice */
	{ MERGE_AFFINE, 0, "[[8]]", ONE_RANK("[4]", PIECE("[5]", "[0,[1]]", "[0,[1]]")), NULL,
	  "lies outside" },
	PIECES(PIECE("[4]", "[1,[1]]", "[0,[1]]"), "lies outside"),
	{ MERGE_AFFINE, 0, "[[3]]", ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0,[1]]")), NULL,
	  "outside of it or of the slice of rank 0" },
	PIECES(PIECE("[4]", "[0,[1]]", "[1,[1]]"), "lies outside"),
	PIECES(PIECE("[4]", "[0,[1]]", "[0,[2]]"), "lies outside"),
	{ MERGE_AFFINE, 0, "[[4],None]",
	  "{'logical_shape': [4], 'ranks': {"
	  "1: {'pieces': [" PIECE("[4]", "[0,[1]]", "[0,[1]]") "]}}}",
	  NULL, "slice of rank 1" },
	PIECES(PIECE("[4]", "[0,[1]]", "[" HUGE ",[1]]"), "lies outside"),
	PIECES(PIECE("[4]", "[0,[" HUGE "]]", "[0,[1]]"), "lies outside"),
	PIECES(PIECE("[" HUGE "," HUGE "]", "[0,[0,0]]", "[0,[0,0]]"), "lies outside"),
	/* pieces that are not pieces */
	PIECES("5", "lies outside"),
	PIECES(PIECE("[4]", "[0,[1,1]]", "[0,[1]]"), "lies outside"),
	PIECES(PIECE("[4]", "[0,[1]]", "[0]"), "lies outside"),
	PIECES(PIECE("[4]", "[0,[-1]]", "[0,[1]]"), "lies outside"),
	PIECES(PIECE("[4]", "[-1,[1]]", "[0,[1]]"), "lies outside"),
	/* scales that cannot divide */
	SCALED("0"),
	SCALED("0.0"),
	SCALED("'x'"),
	SCALED("[2]"),
};

static void what_does_not_fit_is_refused(void **state)
{
	for (size_t i = 0; i < COUNT(refusals); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = refusals[i].rule,
					    .dim = refusals[i].dim,
					    .spec = literal_value(&m, refusals[i].spec),
					    .widths = literal_value(&m, refusals[i].widths) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;
		int rc;

		slices_parse(&l, &m, refusals[i].slices);
		rc = slices_geometry(&g, &rule, "h.0.w", &l, &err);
		if (rc != -EBADMSG || !strstr(err.text, refusals[i].says))
			fail_msg("case %zu, %s: %d, %s", i,
				 refusals[i].spec ? refusals[i].spec : refusals[i].slices, rc,
				 err.text);
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
		{ ONE_RANK("[1099511627776]", PIECE("[4194304]", "[0,[2]]", "[0,[2]]")), -EBADMSG },
		{ ONE_RANK("[1099511627776]", PIECE("[4194305]", "[0,[2]]", "[0,[2]]")), -E2BIG },
	};

	assert_int_equal(GEOMETRY_SEGMENTS_MAX, 4194304);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = MERGE_AFFINE,
					    .spec = literal_value(&m, cases[i].map) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;

		slices_parse(&l, &m, "[[1099511627776]]");
		assert_int_equal(slices_geometry(&g, &rule, "w", &l, &err), cases[i].rc);
		assert_string_not_equal(err.text, "");
		mkpt_done(&m);
	}
}

/* A pickle repeats a piece, or the ranks that hold it, at the cost of a few bytes.  Pieces without
 * elements and the locations of all pieces count, too. */
static int init_repeated(unsigned npieces, unsigned nlocations, struct errmsg *err)
{
	static const uint64_t shape[] = { 4 };
	const struct slice slice = { .ndim = 1, .shape = shape, .numel = 4 };
	const struct slice **slices = calloc(nlocations, sizeof(*slices));
	struct mkpt m = { 0 };
	struct value *map = literal_value(
		&m, ONE_RANK("[4]", PIECE("[4]", "[0,[1]]", "[0,[1]]") "," HELD("[0]", "0", "[0]")));
	struct value *pieces = value_find(value_find(map, "ranks")->dict.v[0].val, "pieces");
	struct value *empty = pieces->seq.v[1], *locations = value_find(empty, "locations");
	const struct param p = { .name = "w",
				 .first = &slice,
				 .slices = slices,
				 .nslices = nlocations,
				 .merge = { .rule = MERGE_AFFINE, .spec = map } };
	struct geometry g;
	int rc;

	for (unsigned i = 0; i < nlocations; i++)
		slices[i] = &slice;
	for (unsigned i = 1; i < nlocations; i++)
		mkpt_add(&m, locations, mkpt_int(&m, i));
	for (unsigned i = 2; i < npieces; i++)
		mkpt_add(&m, pieces, empty);
	rc = geometry_init(&g, &p, err);
	if (!rc)
		geometry_done(&g);
	mkpt_done(&m);
	free(slices);
	return rc;
}

static void repeated_pieces_are_bounded(void **state)
{
	struct errmsg err = { "" };

	assert_int_equal(init_repeated(65536, 1, &err), 0);
	assert_int_equal(init_repeated(65537, 1, &err), -E2BIG);
	assert_string_equal(err.text, "parameter w: its affine map has more than 65536 pieces");
	assert_int_equal(init_repeated(32769, 8192, &err), 0);
	assert_int_equal(init_repeated(32770, 8192, &err), -E2BIG);
	assert_string_equal(err.text,
			    "parameter w: the pieces of its affine map have too many locations");
}

/* One piece per element, each with its own scale. */
static int init_scales(unsigned n, double first, struct errmsg *err)
{
	struct mkpt m = { 0 };
	struct value *map =
		literal_value(&m, "{'logical_shape': [300], 'ranks': {0: {'pieces': []}}}");
	struct value *pieces = value_find(value_find(map, "ranks")->dict.v[0].val, "pieces");
	const struct merge rule = { .rule = MERGE_AFFINE, .spec = map };
	struct geometry g;
	struct slices l;
	int rc;

	for (unsigned i = 0; i < 300; i++) {
		struct value *piece =
			literal_value(&m, "{'shape': [], 'source': [0,[]], 'dest': [0,[]]}");

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
		cmocka_unit_test(repeated_pieces_are_bounded),
		cmocka_unit_test(scales_are_bounded),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
