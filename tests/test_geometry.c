/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Slices put together: each rule on worked examples, and on random ones beside
 * the converter's definition, element by element.
 *
 * What the tables say is written as Python would.  The elements of an output
 * are runs of the slices' elements: "0:0-2 1:7" is elements 0, 1 and 2 of
 * slice 0 and then element 7 of slice 1.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/errmsg.h"
#include "ckpt/geometry.h"
#include "ckpt/merge.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define RANKS_MAX 8
#define DIMS_MAX 5

/* --- literals --------------------------------------------------------------- */

static struct value *parse(struct mkpt *m, const char **s);

static void pass(const char **s, const char *what)
{
	*s += strspn(*s, what);
}

static struct value *parse_dict(struct mkpt *m, const char **s)
{
	struct value *const d = mkpt_dict(m);

	for (pass(s, " {"); **s != '}'; pass(s, ", ")) {
		struct value *const key = parse(m, s);

		pass(s, ": ");
		mkpt_set_key(m, d, key, parse(m, s));
	}
	++*s;
	return d;
}

static struct value *parse_number(struct mkpt *m, const char **s)
{
	char *end;
	const int64_t i = strtoll(*s, &end, 10);
	struct value *v;

	if (*end == '.')
		v = mkpt_float(m, strtod(*s, &end));
	else
		v = mkpt_int(m, i);
	if (end == *s)
		fail_msg("no literal: %s", *s);
	*s = end;
	return v;
}

/* None, numbers, 'strings', (tuples,), [lists] and {dicts}. */
static struct value *parse(struct mkpt *m, const char **s)
{
	struct value *v;
	char text[64];
	size_t n;

	pass(s, " ");
	if (strncmp(*s, "None", 4) == 0) {
		*s += 4;
		return mkpt_none(m);
	}
	if (**s == '\'') {
		n = strcspn(++*s, "'");
		assert_true(n < sizeof(text));
		memcpy(text, *s, n);
		text[n] = '\0';
		*s += n + 1;
		return mkpt_str(m, arena_strndup(&m->arena, text, n));
	}
	if (**s == '{')
		return parse_dict(m, s);
	if (**s != '(' && **s != '[')
		return parse_number(m, s);
	v = **s == '(' ? mkpt_tuple(m, 0) : mkpt_list(m);
	++*s;
	while (**s != ')' && **s != ']') {
		mkpt_add(m, v, parse(m, s));
		pass(s, ", ");
	}
	++*s;
	return v;
}

static struct value *literal(struct mkpt *m, const char *text)
{
	return text ? parse(m, &text) : NULL;
}

/* --- slices ------------------------------------------------------------------ */

struct slices {
	struct geometry_slice v[RANKS_MAX];
	uint64_t shapes[RANKS_MAX][DIMS_MAX];
	size_t n;
};

static void set_slice(struct slices *l, size_t t, const uint64_t *shape,
		      unsigned ndim)
{
	uint64_t numel = 1;

	for (unsigned i = 0; i < ndim; i++) {
		l->shapes[t][i] = shape[i];
		numel *= shape[i];
	}
	l->v[t] = (struct geometry_slice){ true, ndim, l->shapes[t], numel };
}

/* [shape or None, ...] */
static void parse_slices(struct slices *l, struct mkpt *m, const char *text)
{
	const struct value_seq *const all = value_items(literal(m, text));

	*l = (struct slices){ .n = all->n };
	for (size_t t = 0; t < all->n; t++) {
		const struct value_seq *const s = value_items(all->v[t]);
		uint64_t shape[DIMS_MAX];

		for (size_t i = 0; s && i < s->n; i++)
			shape[i] = (uint64_t)s->v[i]->i;
		if (s)
			set_slice(l, t, shape, (unsigned)s->n);
	}
}

/* --- elements ----------------------------------------------------------------- */

struct element {
	uint32_t source;
	uint64_t index;
};

/* What gather.c relies on. */
static void check_invariants(const struct geometry *g, const struct slices *l)
{
	uint64_t at = 0, numel = 1;

	for (unsigned i = 0; i < g->ndim; i++)
		numel *= g->shape[i];
	assert_int_equal(g->numel, numel);
	assert_int_equal(g->nsources, l->n);
	if (!numel)
		return;
	assert_int_equal(g->rows * g->row_len, numel);
	for (size_t i = 0; i < g->nsegs; i++) {
		const struct geometry_segment *const s = &g->segs[i];

		assert_int_equal(s->at, at);
		assert_true(s->len > 0);
		at += s->len;
		assert_true(s->source < l->n);
		assert_true(l->v[s->source].present);
		if (g->rows == 1) {
			assert_true(s->from + s->len <= l->v[s->source].numel);
			continue;
		}
		/* A row of the source holds all that is taken for a row. */
		assert_true(s->from + s->len <= g->stride[s->source]);
		assert_true(g->rows * g->stride[s->source] <=
			    l->v[s->source].numel);
	}
	assert_int_equal(at, g->row_len);
}

/* Every element of the output; free() it. */
static struct element *expand(const struct geometry *g)
{
	struct element *const v = calloc(g->numel + 1, sizeof(*v));

	assert_non_null(v);
	for (uint64_t r = 0; g->numel && r < g->rows; r++)
		for (size_t i = 0; i < g->nsegs; i++) {
			const struct geometry_segment *const s = &g->segs[i];

			for (uint64_t k = 0; k < s->len; k++)
				v[r * g->row_len + s->at + k] = (struct element){
					s->source,
					r * g->stride[s->source] + s->from + k
				};
		}
	return v;
}

static void check_elements(const struct geometry *g, const char *runs,
			   const char *what)
{
	struct element *const v = expand(g);
	uint64_t i = 0;

	for (const char *s = runs; *s; pass(&s, " ")) {
		char *end;
		const unsigned long t = strtoul(s, &end, 10);
		unsigned long a, b;

		assert_int_equal(*end, ':');
		s = end + 1;
		a = b = strtoul(s, &end, 10);
		if (*end == '-')
			b = strtoul(end + 1, &end, 10);
		s = end;
		for (; a <= b; a++, i++)
			if (i >= g->numel || v[i].source != t ||
			    v[i].index != a)
				fail_msg("%s: element %llu is %u:%llu, not"
					 " %lu:%lu", what,
					 (unsigned long long)i, v[i].source,
					 (unsigned long long)v[i].index, t, a);
	}
	if (i != g->numel)
		fail_msg("%s: %llu elements, not %llu", what,
			 (unsigned long long)g->numel, (unsigned long long)i);
	free(v);
}

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

/* --- worked examples ------------------------------------------------------------ */

struct example {
	const char *what;
	enum merge_rule rule;
	unsigned dim;
	const char *slices;
	const char *spec, *widths;
	const char *shape;    /* of the output */
	const char *elements; /* of the output */
	uint64_t rows;
};

#define AFFINE_UNEVEN \
	"{'logical_shape': [4,6], 'ranks': {" \
	" 0: {'pieces': [{'shape': [4,4], 'source': [0,[6,1]]," \
	"     'dest': [0,[4,1]], 'locations': [0], 'scale': 1.0}]}," \
	" 1: {'pieces': [{'shape': [4,2], 'source': [4,[6,1]]," \
	"     'dest': [0,[2,1]], 'locations': [1]}]}}}"

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
	(void)state;
	for (size_t i = 0; i < COUNT(examples); i++) {
		const struct example *const x = &examples[i];
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = x->rule,
					    .dim = x->dim,
					    .spec = literal(&m, x->spec),
					    .widths = literal(&m, x->widths) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;

		parse_slices(&l, &m, x->slices);
		if (geometry_init(&g, &rule, "w", l.v, l.n, &err))
			fail_msg("%s: %s", x->what, err.text);
		check_shape(&g, literal(&m, x->shape), x->what);
		check_elements(&g, x->elements, x->what);
		if (g.rows != x->rows || g.mean)
			fail_msg("%s: %llu rows", x->what,
				 (unsigned long long)g.rows);
		check_invariants(&g, &l);
		geometry_done(&g);
		geometry_done(&g); /* also half built */
		mkpt_done(&m);
	}
}

static void averages_are_means_of_all(void **state)
{
	static const struct merge rule = { .rule = MERGE_AVERAGE };
	static const char *const slices[] = { "[[2,3]]", "[[2,3],[2,3]]",
					      "[[2,3],[2,3],[2,3],[2,3]]" };

	(void)state;
	for (size_t i = 0; i < COUNT(slices); i++) {
		struct mkpt m = { 0 };
		struct slices l;
		struct geometry g;

		parse_slices(&l, &m, slices[i]);
		assert_int_equal(geometry_init(&g, &rule, "w", l.v, l.n, NULL),
				 0);
		/* The mean of one is that one. */
		assert_int_equal(g.mean, l.n > 1);
		assert_int_equal(g.nsources, l.n);
		check_shape(&g, literal(&m, "[2,3]"), slices[i]);
		check_invariants(&g, &l);
		geometry_done(&g);
		mkpt_done(&m);
	}
}

/* Of a weight as it is in large models, and 64 ranks. */
static void large_weights_cost_no_more_than_a_row(void **state)
{
	static const uint64_t shape[] = { UINT64_C(1) << 30, 1024 };
	static const struct merge rule = { .rule = MERGE_CAT, .dim = 1 };
	struct geometry_slice s[64];
	struct geometry g;

	(void)state;
	for (size_t t = 0; t < 64; t++)
		s[t] = (struct geometry_slice){ true, 2, shape,
						shape[0] * shape[1] };
	assert_int_equal(geometry_init(&g, &rule, "w", s, 64, NULL), 0);
	assert_int_equal(g.nsegs, 64);
	assert_int_equal(g.rows, shape[0]);
	assert_int_equal(g.numel, UINT64_C(1) << 46);
	geometry_done(&g);
}

/* --- refusals -------------------------------------------------------------------- */

#define PIECE(shape, source, dest) \
	"{'shape': " shape ", 'source': " source ", 'dest': " dest "}"
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

	/* Sub-parameters: what is no spec, */
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
	/* ... does not divide, */
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
	/* ... has another number of elements, */
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
	/* ... or widths that are others' or none. */
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
	/* Of a rank that has none. */
	{ MERGE_SUB_PARAMS, 0, "[[8],None]",
	  "{'shape': ((4,4),), 'partition_dim': 0}", NULL, -EBADMSG,
	  "do not fit" },

	/* Affine maps: what is no map, */
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
	/* ... whose pieces leave elements out, */
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
	/* ... overlap, */
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
	/* ... reach beyond the whole or the slice, */
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
	/* ... or are none. */
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
	/* Arithmetic is not for us. */
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", "{'shape': [4], 'source': [0,[1]],"
			  " 'dest': [0,[1]], 'scale': 0.5}"),
	  NULL, -ENOTSUP, "scaled" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", "{'shape': [4], 'source': [0,[1]],"
			  " 'dest': [0,[1]], 'scale': 2}"),
	  NULL, -ENOTSUP, "scaled" },
	{ MERGE_AFFINE, 0, "[[4]]",
	  ONE_RANK("[4]", "{'shape': [4], 'source': [0,[1]],"
			  " 'dest': [0,[1]], 'scale': 'x'}"),
	  NULL, -ENOTSUP, "scaled" },
};

static void what_does_not_fit_is_refused(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(refusals); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = {
			.rule = refusals[i].rule,
			.dim = refusals[i].dim,
			.spec = literal(&m, refusals[i].spec),
			.widths = literal(&m, refusals[i].widths)
		};
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;
		int rc;

		parse_slices(&l, &m, refusals[i].slices);
		rc = geometry_init(&g, &rule, "h.0.w", l.v, l.n, &err);
		if (rc != refusals[i].rc || !strstr(err.text, refusals[i].says))
			fail_msg("case %zu, %s: %d, %s", i,
				 refusals[i].spec ? refusals[i].spec :
						    refusals[i].slices,
				 rc, err.text);
		assert_int_equal(strncmp(err.text, "parameter h.0.w: ", 17), 0);
		mkpt_done(&m);
	}
}

/* A few numbers can ask for any number of runs: every second element.  That
 * the others are missing is noticed once all runs are laid out. */
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

	(void)state;
	assert_int_equal(GEOMETRY_SEGMENTS_MAX, 4194304);
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		const struct merge rule = { .rule = MERGE_AFFINE,
					    .spec = literal(&m, cases[i].map) };
		struct errmsg err = { "" };
		struct slices l;
		struct geometry g;

		parse_slices(&l, &m, "[[1099511627776]]");
		assert_int_equal(geometry_init(&g, &rule, "w", l.v, l.n, &err),
				 cases[i].rc);
		assert_string_not_equal(err.text, "");
		mkpt_done(&m);
	}
}

/* --- random ones ------------------------------------------------------------------- */

static uint64_t seed;

/* splitmix64; a number below `n`. */
static uint64_t below(uint64_t n)
{
	uint64_t x = seed += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return (x ^ x >> 31) % n;
}

static uint64_t numel_of(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

/* Row-major index of element `x` of a tensor, and back. */
static void unravel(uint64_t x, const uint64_t *shape, unsigned ndim,
		    uint64_t *index)
{
	while (ndim-- > 0) {
		index[ndim] = x % shape[ndim];
		x /= shape[ndim];
	}
}

static uint64_t ravel(const uint64_t *index, const uint64_t *shape,
		      unsigned ndim)
{
	uint64_t x = 0;

	for (unsigned i = 0; i < ndim; i++)
		x = x * shape[i] + index[i];
	return x;
}

/*
 * Parts along a dimension, each the ranks' shares: widths[j][t].  Of these,
 * one part is a concatenation, and two that halve each slice (the first the
 * larger one) are two sub-parameters.
 */
struct parts {
	uint64_t shape[DIMS_MAX];
	unsigned ndim, dim;
	size_t parts, ranks;
	uint64_t widths[4][RANKS_MAX];
};

static void make_parts(struct parts *p, enum merge_rule rule)
{
	p->ndim = 1 + (unsigned)below(4);
	p->dim = rule == MERGE_SUB_PARAMS ? (unsigned)below(p->ndim) :
		 rule == MERGE_CAT && p->ndim > 1 ? (unsigned)below(2) :
						    0;
	p->ranks = 2 + below(RANKS_MAX - 1);
	p->parts = rule == MERGE_CAT		? 1 :
		   rule == MERGE_TWO_SUB_PARAMS ? 2 :
						  1 + below(4);
	for (unsigned i = 0; i < p->ndim; i++)
		p->shape[i] = 1 + below(5);
	p->shape[p->dim] = 0;
	for (size_t j = 0; j < p->parts; j++)
		for (size_t t = 0; t < p->ranks; t++) {
			p->widths[j][t] = below(5);
			if (j == 1 && rule == MERGE_TWO_SUB_PARAMS)
				p->widths[1][t] = p->widths[0][t] -
						  (p->widths[0][t] && below(2));
			p->shape[p->dim] += p->widths[j][t];
		}
}

/* The slice, and the element in it, that element `x` of the whole is. */
static struct element find_part(const struct parts *p, const struct slices *l,
				uint64_t x)
{
	uint64_t index[DIMS_MAX], own[RANKS_MAX] = { 0 };

	unravel(x, p->shape, p->ndim, index);
	for (size_t j = 0; j < p->parts; j++)
		for (size_t t = 0; t < p->ranks; t++) {
			const uint64_t w = p->widths[j][t];

			if (index[p->dim] < w) {
				index[p->dim] += own[t];
				return (struct element){
					(uint32_t)t,
					ravel(index, l->shapes[t], p->ndim)
				};
			}
			index[p->dim] -= w;
			own[t] += w;
		}
	fail_msg("beyond the parts");
	return (struct element){ 0 };
}

static void parts_as_values(const struct parts *p, struct mkpt *m,
			    struct merge *rule)
{
	struct value *const spec = mkpt_dict(m), *const shape = mkpt_list(m);
	struct value *const widths = mkpt_list(m);
	struct value *const sizes = mkpt_tuple(m, 0);

	for (size_t j = 0; j < p->parts; j++) {
		struct value *const row = mkpt_list(m);
		uint64_t sum = 0;

		for (size_t t = 0; t < p->ranks; t++) {
			mkpt_add(m, row, mkpt_int(m, (int64_t)p->widths[j][t]));
			sum += p->widths[j][t];
		}
		mkpt_add(m, widths, row);
		mkpt_add(m, sizes, mkpt_int(m, (int64_t)sum));
	}
	for (unsigned i = 0; i < p->ndim; i++)
		mkpt_add(m, shape,
			 i == p->dim ? sizes :
				       mkpt_int(m, (int64_t)p->shape[i]));
	mkpt_set(m, spec, "shape", shape);
	mkpt_set(m, spec, "partition_dim", mkpt_int(m, p->dim));
	rule->spec = spec;
	rule->widths = widths;
}

static void check_parts(enum merge_rule kind)
{
	struct parts p = { 0 };
	struct mkpt m = { 0 };
	struct merge rule = { .rule = kind };
	struct slices l = { 0 };
	struct errmsg err = { "" };
	struct geometry g;
	struct element *v;

	make_parts(&p, kind);
	l.n = p.ranks;
	for (size_t t = 0; t < p.ranks; t++) {
		uint64_t shape[DIMS_MAX];

		memcpy(shape, p.shape, sizeof(shape));
		shape[p.dim] = 0;
		for (size_t j = 0; j < p.parts; j++)
			shape[p.dim] += p.widths[j][t];
		/* A rank that has nothing may also lack the parameter. */
		if (shape[p.dim] || t == 0 || below(2))
			set_slice(&l, t, shape, p.ndim);
	}
	rule.dim = p.dim;
	if (kind == MERGE_SUB_PARAMS)
		parts_as_values(&p, &m, &rule);
	if (geometry_init(&g, &rule, "w", l.v, l.n, &err))
		fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
	assert_int_equal(g.ndim, p.ndim);
	assert_memory_equal(g.shape, p.shape, p.ndim * sizeof(*p.shape));
	check_invariants(&g, &l);
	v = expand(&g);
	for (uint64_t x = 0; x < g.numel; x++) {
		const struct element e = find_part(&p, &l, x);

		if (e.source != v[x].source || e.index != v[x].index)
			fail_msg("%s, seed %llu: element %llu is %u:%llu, not"
				 " %u:%llu", merge_rule_name(kind),
				 (unsigned long long)seed,
				 (unsigned long long)x, v[x].source,
				 (unsigned long long)v[x].index, e.source,
				 (unsigned long long)e.index);
	}
	free(v);
	geometry_done(&g);
	mkpt_done(&m);
}

static void parts_agree_with_the_definition(void **state)
{
	(void)state;
	seed = 1;
	for (int i = 0; i < 3000; i++) {
		check_parts(MERGE_CAT);
		check_parts(MERGE_TWO_SUB_PARAMS);
		check_parts(MERGE_SUB_PARAMS);
	}
}

/*
 * A whole cut into boxes by a grid; each box is put into the slice of a rank,
 * in an order of dimensions of its own, with room after each row and before
 * the next box.
 */
struct boxes {
	uint64_t shape[DIMS_MAX];
	unsigned ndim;
	struct slices l;
	uint64_t used[RANKS_MAX];
	struct element *want; /* of each element of the whole */
	struct value *pieces[RANKS_MAX];
};

static struct value *numbers(struct mkpt *m, const uint64_t *v, unsigned n)
{
	struct value *const l = mkpt_list(m);

	for (unsigned i = 0; i < n; i++)
		mkpt_add(m, l, mkpt_int(m, (int64_t)v[i]));
	return l;
}

static struct value *place(struct mkpt *m, uint64_t off, const uint64_t *strides,
			   unsigned n)
{
	return mkpt_tuple(m, 2, mkpt_int(m, (int64_t)off),
			  numbers(m, strides, n));
}

/* The box of `size` at `lo` goes to a rank. */
static void put_box(struct boxes *b, struct mkpt *m, const uint64_t *lo,
		    const uint64_t *size)
{
	const size_t t = below(b->l.n);
	const uint64_t off = b->used[t] + below(3) / 2;
	const unsigned first = below(4) ? b->ndim - 1 : (unsigned)below(b->ndim);
	const uint64_t numel = numel_of(size, b->ndim);
	uint64_t ss[DIMS_MAX], ds[DIMS_MAX], step = 1, last = off;
	struct value *const piece = mkpt_dict(m);

	for (unsigned i = b->ndim; i-- > 0; step *= b->shape[i])
		ss[i] = step;
	/* `first` varies fastest in the slice, then as in the whole. */
	ds[first] = 1;
	step = size[first] + below(4) / 3;
	for (unsigned i = b->ndim; i-- > 0;) {
		if (i == first)
			continue;
		ds[i] = step;
		step *= size[i];
	}
	for (uint64_t x = 0; x < numel; x++) {
		uint64_t index[DIMS_MAX], at = 0, from = off;

		unravel(x, size, b->ndim, index);
		for (unsigned i = 0; i < b->ndim; i++) {
			at += (lo[i] + index[i]) * ss[i];
			from += index[i] * ds[i];
		}
		b->want[at] = (struct element){ (uint32_t)t, from };
		last = from > last ? from : last;
	}
	b->used[t] = last + 1;
	mkpt_set(m, piece, "shape", numbers(m, size, b->ndim));
	mkpt_set(m, piece, "source",
		 place(m, ravel(lo, b->shape, b->ndim), ss, b->ndim));
	mkpt_set(m, piece, "dest", place(m, off, ds, b->ndim));
	mkpt_add(m, b->pieces[t], piece);
}

/* Cut dimension `dim` and those after it. */
static void cut(struct boxes *b, struct mkpt *m, unsigned dim, uint64_t *lo,
		uint64_t *size, unsigned odds)
{
	if (dim == b->ndim) {
		put_box(b, m, lo, size);
		return;
	}
	for (lo[dim] = 0; lo[dim] < b->shape[dim]; lo[dim] += size[dim]) {
		const uint64_t left = b->shape[dim] - lo[dim];
		const uint64_t keep_lo = lo[dim];
		uint64_t keep;

		keep = size[dim] = dim && below(odds) == 0 ? 1 + below(left) :
				   below(odds + 3) == 0	   ? 1 + below(left) :
							     left;
		cut(b, m, dim + 1, lo, size, odds);
		lo[dim] = keep_lo;
		size[dim] = keep;
	}
}

static uint64_t check_boxes(void)
{
	uint64_t lo[DIMS_MAX] = { 0 }, size[DIMS_MAX] = { 0 };
	struct boxes b = { .ndim = 1 + (unsigned)below(4) };
	struct mkpt m = { 0 };
	struct value *const map = mkpt_dict(&m), *const ranks = mkpt_dict(&m);
	const struct merge rule = { .rule = MERGE_AFFINE, .spec = map };
	struct errmsg err = { "" };
	struct geometry g;
	struct element *v;
	uint64_t rows;

	for (unsigned i = 0; i < b.ndim; i++)
		b.shape[i] = 1 + below(6);
	b.want = calloc(numel_of(b.shape, b.ndim), sizeof(*b.want));
	assert_non_null(b.want);
	b.l.n = 1 + below(4);
	for (size_t t = 0; t < b.l.n; t++)
		b.pieces[t] = mkpt_list(&m);
	cut(&b, &m, 0, lo, size, 1 + (unsigned)below(4));
	for (size_t t = 0; t < b.l.n; t++) {
		struct value *const r = mkpt_dict(&m);

		mkpt_set(&m, r, "pieces", b.pieces[t]);
		mkpt_set_key(&m, ranks, mkpt_int(&m, (int64_t)t), r);
		if (b.used[t])
			set_slice(&b.l, t, &b.used[t], 1);
	}
	mkpt_set(&m, map, "logical_shape", numbers(&m, b.shape, b.ndim));
	mkpt_set(&m, map, "ranks", ranks);
	if (geometry_init(&g, &rule, "w", b.l.v, b.l.n, &err))
		fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
	check_invariants(&g, &b.l);
	v = expand(&g);
	for (uint64_t x = 0; x < g.numel; x++)
		if (v[x].source != b.want[x].source ||
		    v[x].index != b.want[x].index)
			fail_msg("seed %llu: element %llu is %u:%llu, not"
				 " %u:%llu", (unsigned long long)seed,
				 (unsigned long long)x, v[x].source,
				 (unsigned long long)v[x].index,
				 b.want[x].source,
				 (unsigned long long)b.want[x].index);
	rows = g.rows;
	free(v);
	free(b.want);
	geometry_done(&g);
	mkpt_done(&m);
	return rows;
}

static void affine_maps_agree_with_the_definition(void **state)
{
	int repeated = 0;

	(void)state;
	seed = 2;
	for (int i = 0; i < 5000; i++)
		repeated += check_boxes() > 1;
	/* Both forms were met. */
	assert_in_range(repeated, 100, 4900);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(examples_are_laid_out_as_worked_out),
		cmocka_unit_test(averages_are_means_of_all),
		cmocka_unit_test(large_weights_cost_no_more_than_a_row),
		cmocka_unit_test(what_does_not_fit_is_refused),
		cmocka_unit_test(runs_beyond_number_are_refused),
		cmocka_unit_test(parts_agree_with_the_definition),
		cmocka_unit_test(affine_maps_agree_with_the_definition),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
