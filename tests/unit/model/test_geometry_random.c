/* SPDX-License-Identifier: Apache-2.0 */
/* Merging random slices, compared with the converter's definition element by
 * element. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/merge_rules.h"
#include "gpu/backend/splitmix.h"
#include "tests/make/mkpt.h"
#include "tests/support/slices.h"
#include "tests/support/unit.h"

static uint64_t seed;

/* Return a random number below `n`. */
static uint64_t below(uint64_t n)
{
	return splitmix64_next(&seed) % n;
}

static uint64_t numel_of(const uint64_t *shape, unsigned ndim)
{
	uint64_t n = 1;

	for (unsigned i = 0; i < ndim; i++)
		n *= shape[i];
	return n;
}

/* Convert the row-major index of an element to coordinates, and back. */
static void unravel(uint64_t x, const uint64_t *shape, unsigned ndim, uint64_t *index)
{
	while (ndim-- > 0) {
		index[ndim] = x % shape[ndim];
		x /= shape[ndim];
	}
}

static uint64_t ravel(const uint64_t *index, const uint64_t *shape, unsigned ndim)
{
	uint64_t x = 0;

	for (unsigned i = 0; i < ndim; i++)
		x = x * shape[i] + index[i];
	return x;
}

/* Parts along a dimension, each made of the ranks' shares widths[j][t]. One part is a
 * concatenation; two parts that halve each slice (the first the larger one) are two
 * sub-parameters. */
struct parts {
	uint64_t shape[SLICES_DIMS_MAX];
	unsigned ndim, dim;
	size_t parts, ranks;
	uint64_t widths[4][SLICES_RANKS_MAX];
};

static void make_parts(struct parts *p, enum merge_rule rule)
{
	p->ndim = 1 + (unsigned)below(4);
	p->dim = rule == MERGE_SUB_PARAMS           ? (unsigned)below(p->ndim)
		 : rule == MERGE_CAT && p->ndim > 1 ? (unsigned)below(2)
						    : 0;
	p->ranks = 2 + below(SLICES_RANKS_MAX - 1);
	p->parts = rule == MERGE_CAT ? 1 : rule == MERGE_TWO_SUB_PARAMS ? 2 : 1 + below(4);
	for (unsigned i = 0; i < p->ndim; i++)
		p->shape[i] = 1 + below(5);
	p->shape[p->dim] = 0;
	for (size_t j = 0; j < p->parts; j++)
		for (size_t t = 0; t < p->ranks; t++) {
			p->widths[j][t] = below(5);
			if (j == 1 && rule == MERGE_TWO_SUB_PARAMS)
				p->widths[1][t] = p->widths[0][t] - (p->widths[0][t] && below(2));
			p->shape[p->dim] += p->widths[j][t];
		}
}

/* Return the slice and the element in it that hold element `x` of the whole. */
static struct element find_part(const struct parts *p, const struct slices *l, uint64_t x)
{
	uint64_t index[SLICES_DIMS_MAX], own[SLICES_RANKS_MAX] = { 0 };

	unravel(x, p->shape, p->ndim, index);
	for (size_t j = 0; j < p->parts; j++)
		for (size_t t = 0; t < p->ranks; t++) {
			const uint64_t w = p->widths[j][t];

			if (index[p->dim] < w) {
				index[p->dim] += own[t];
				return (struct element){ (uint32_t)t,
							 ravel(index, l->shapes[t], p->ndim) };
			}
			index[p->dim] -= w;
			own[t] += w;
		}
	fail_msg("beyond the parts");
	return (struct element){ 0 };
}

static void parts_as_values(const struct parts *p, struct mkpt *m, struct merge *rule)
{
	struct value *spec = mkpt_dict(m), *shape = mkpt_list(m);
	struct value *widths = mkpt_list(m);
	struct value *sizes = mkpt_tuple(m, 0);

	for (size_t j = 0; j < p->parts; j++) {
		struct value *row = mkpt_list(m);
		uint64_t sum = 0;

		for (size_t t = 0; t < p->ranks; t++) {
			mkpt_add(m, row, mkpt_int(m, (int64_t)p->widths[j][t]));
			sum += p->widths[j][t];
		}
		mkpt_add(m, widths, row);
		mkpt_add(m, sizes, mkpt_int(m, (int64_t)sum));
	}
	for (unsigned i = 0; i < p->ndim; i++)
		mkpt_add(m, shape, i == p->dim ? sizes : mkpt_int(m, (int64_t)p->shape[i]));
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
		uint64_t shape[SLICES_DIMS_MAX];

		memcpy(shape, p.shape, sizeof(shape));
		shape[p.dim] = 0;
		for (size_t j = 0; j < p.parts; j++)
			shape[p.dim] += p.widths[j][t];
		/* A rank without elements may also lack the parameter. */
		if (shape[p.dim] || t == 0 || below(2))
			slices_set(&l, t, shape, p.ndim);
	}
	rule.dim = p.dim;
	if (kind == MERGE_SUB_PARAMS)
		parts_as_values(&p, &m, &rule);
	if (slices_geometry(&g, &rule, "w", &l, &err))
		fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
	assert_int_equal(g.ndim, p.ndim);
	assert_memory_equal(g.shape, p.shape, p.ndim * sizeof(*p.shape));
	v = slices_expand(&l, &g);
	for (uint64_t x = 0; x < g.numel; x++) {
		const struct element e = find_part(&p, &l, x);

		if (e.source != v[x].source || e.index != v[x].index)
			fail_msg("%s, seed %llu: element %llu is %u:%llu, not %u:%llu",
				 merge_rule_name(kind), (unsigned long long)seed,
				 (unsigned long long)x, v[x].source, (unsigned long long)v[x].index,
				 e.source, (unsigned long long)e.index);
	}
	free(v);
	geometry_done(&g);
	mkpt_done(&m);
}

static void parts_agree_with_the_definition(void **state)
{
	seed = 1;
	for (int i = 0; i < 3000; i++) {
		check_parts(MERGE_CAT);
		check_parts(MERGE_TWO_SUB_PARAMS);
		check_parts(MERGE_SUB_PARAMS);
	}
}

/* A whole, cut into boxes by a grid. Each box lies in the slice of a rank, in
 * its own order of dimensions, with room after each row and before the next
 * box. */
struct boxes {
	uint64_t shape[SLICES_DIMS_MAX];
	unsigned ndim;
	struct slices l;
	uint64_t used[SLICES_RANKS_MAX];
	struct element *want[2]; /* of each element of the whole: one of both */
	struct value *pieces[SLICES_RANKS_MAX];
};

static struct value *numbers(struct mkpt *m, const uint64_t *v, unsigned n)
{
	struct value *l = mkpt_list(m);

	for (unsigned i = 0; i < n; i++)
		mkpt_add(m, l, mkpt_int(m, (int64_t)v[i]));
	return l;
}

static struct value *place(struct mkpt *m, uint64_t off, const uint64_t *strides, unsigned n)
{
	return mkpt_tuple(m, 2, mkpt_int(m, (int64_t)off), numbers(m, strides, n));
}

/* Put the box of `size` at `lo` into a rank's slice. */
static void put_copy(struct boxes *b, struct mkpt *m, const uint64_t *lo, const uint64_t *size,
		     size_t t, struct element *want, struct value *locations)
{
	const uint64_t off = b->used[t] + below(3) / 2;
	const unsigned first = below(4) ? b->ndim - 1 : (unsigned)below(b->ndim);
	const uint64_t numel = numel_of(size, b->ndim);
	uint64_t ss[SLICES_DIMS_MAX], ds[SLICES_DIMS_MAX], step = 1, last = off;
	struct value *piece = mkpt_dict(m);

	for (unsigned i = b->ndim; i-- > 0; step *= b->shape[i])
		ss[i] = step;
	/* Dimension `first` varies fastest in the slice; the others follow in
	 * the order of the whole. */
	ds[first] = 1;
	step = size[first] + below(4) / 3;
	for (unsigned i = b->ndim; i-- > 0;) {
		if (i == first)
			continue;
		ds[i] = step;
		step *= size[i];
	}
	for (uint64_t x = 0; x < numel; x++) {
		uint64_t index[SLICES_DIMS_MAX], at = 0, from = off;

		unravel(x, size, b->ndim, index);
		for (unsigned i = 0; i < b->ndim; i++) {
			at += (lo[i] + index[i]) * ss[i];
			from += index[i] * ds[i];
		}
		want[at] = (struct element){ (uint32_t)t, from };
		last = from > last ? from : last;
	}
	b->used[t] = last + 1;
	mkpt_set(m, piece, "shape", numbers(m, size, b->ndim));
	mkpt_set(m, piece, "source", place(m, ravel(lo, b->shape, b->ndim), ss, b->ndim));
	mkpt_set(m, piece, "dest", place(m, off, ds, b->ndim));
	mkpt_set(m, piece, "locations", locations);
	mkpt_add(m, b->pieces[t], piece);
}

/* Some boxes have a copy on another rank, which may list the ranks in another order, be cut
 * otherwise, or only say that both have it. */
static void put_box(struct boxes *b, struct mkpt *m, const uint64_t *lo, const uint64_t *size)
{
	const uint64_t t = below(b->l.n), u = below(3) ? t : below(b->l.n);
	const uint64_t both[] = { t, u }, turned[] = { u, t };
	uint64_t rest_lo[SLICES_DIMS_MAX], rest[SLICES_DIMS_MAX];

	memcpy(rest_lo, lo, sizeof(rest_lo));
	memcpy(rest, size, sizeof(rest));
	put_copy(b, m, lo, size, t, b->want[0], numbers(m, both, u == t ? 1 : 2));
	if (u == t)
		return;
	if (below(2) && size[0] > 1) {
		rest_lo[0]++;
		rest[0]--;
	}
	put_copy(b, m, rest_lo, rest, u, b->want[1], numbers(m, below(2) ? both : turned, 2));
}

/* Cut dimension `dim` and those after it. */
static void cut(struct boxes *b, struct mkpt *m, unsigned dim, uint64_t *lo, uint64_t *size,
		unsigned odds)
{
	if (dim == b->ndim) {
		put_box(b, m, lo, size);
		return;
	}
	for (lo[dim] = 0; lo[dim] < b->shape[dim]; lo[dim] += size[dim]) {
		const uint64_t left = b->shape[dim] - lo[dim];
		const uint64_t keep_lo = lo[dim];
		uint64_t keep;

		keep = size[dim] = dim && below(odds) == 0 ? 1 + below(left)
				   : below(odds + 3) == 0  ? 1 + below(left)
							   : left;
		cut(b, m, dim + 1, lo, size, odds);
		lo[dim] = keep_lo;
		size[dim] = keep;
	}
}

static bool is_element(struct element got, struct element want)
{
	return got.source == want.source && got.index == want.index;
}

/* Return the number of a map that `*left` others precede; NULL if there are fewer. */
static struct value *find_number(struct value *v, uint64_t *left)
{
	const struct value_dict *pairs = value_pairs(v);
	const struct value_seq *items = value_items(v);
	struct value *found = NULL;

	if (v->kind == VALUE_INT)
		return (*left)-- == 0 ? v : NULL;
	for (size_t i = 0; !found && pairs && i < pairs->n; i++)
		found = find_number(pairs->v[i].key, left) ?: find_number(pairs->v[i].val, left);
	for (size_t i = 0; !found && items && i < items->n; i++)
		found = find_number(items->v[i], left);
	return found;
}

/* With any numbers, a map is refused by the parameter's name, or its runs lie in the slices and
 * fill the whole.  Returns whether it is refused. */
static bool check_spoiled(const struct merge *rule, struct value *map, struct slices *l)
{
	static const int64_t odd[] = { 0, 1, 2, 3, 5, -1, INT64_C(1) << 32, INT64_MAX / 2, INT64_MAX };
	uint64_t n = UINT64_MAX;
	struct errmsg err = { "" };
	struct geometry g;

	find_number(map, &n);
	for (uint64_t k = 1 + below(3); k > 0; k--) {
		uint64_t left = below(UINT64_MAX - n);

		find_number(map, &left)->i = odd[below(COUNT(odd))];
	}
	if (slices_geometry(&g, rule, "w", l, &err)) {
		if (strncmp(err.text, "parameter w: ", 13) != 0)
			fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
		return true;
	}
	slices_check_invariants(l, &g);
	geometry_done(&g);
	return false;
}

static unsigned refused;

static uint64_t check_boxes(void)
{
	uint64_t lo[SLICES_DIMS_MAX] = { 0 }, size[SLICES_DIMS_MAX] = { 0 };
	struct boxes b = { .ndim = 1 + (unsigned)below(4) };
	struct mkpt m = { 0 };
	struct value *map = mkpt_dict(&m), *ranks = mkpt_dict(&m);
	const struct merge rule = { .rule = MERGE_AFFINE, .spec = map };
	struct errmsg err = { "" };
	struct geometry g;
	struct element *v;
	uint64_t rows;

	for (unsigned i = 0; i < b.ndim; i++)
		b.shape[i] = 1 + below(6);
	for (int i = 0; i < 2; i++)
		b.want[i] = calloc(numel_of(b.shape, b.ndim), sizeof(*b.want[i]));
	assert_non_null(b.want[0]);
	assert_non_null(b.want[1]);
	memset(b.want[1], 0xff, numel_of(b.shape, b.ndim) * sizeof(*b.want[1]));
	b.l.n = 1 + below(4);
	for (size_t t = 0; t < b.l.n; t++)
		b.pieces[t] = mkpt_list(&m);
	cut(&b, &m, 0, lo, size, 1 + (unsigned)below(4));
	for (size_t t = 0; t < b.l.n; t++) {
		struct value *r = mkpt_dict(&m);

		mkpt_set(&m, r, "pieces", b.pieces[t]);
		mkpt_set_key(&m, ranks, mkpt_int(&m, (int64_t)t), r);
		if (b.used[t])
			slices_set(&b.l, t, &b.used[t], 1);
	}
	mkpt_set(&m, map, "logical_shape", numbers(&m, b.shape, b.ndim));
	mkpt_set(&m, map, "ranks", ranks);
	if (slices_geometry(&g, &rule, "w", &b.l, &err))
		fail_msg("seed %llu: %s", (unsigned long long)seed, err.text);
	v = slices_expand(&b.l, &g);
	for (uint64_t x = 0; x < g.numel; x++)
		if (!is_element(v[x], b.want[0][x]) && !is_element(v[x], b.want[1][x]))
			fail_msg("seed %llu: element %llu is %u:%llu, not %u:%llu",
				 (unsigned long long)seed, (unsigned long long)x, v[x].source,
				 (unsigned long long)v[x].index, b.want[0][x].source,
				 (unsigned long long)b.want[0][x].index);
	rows = g.rows;
	refused += check_spoiled(&rule, map, &b.l);
	free(v);
	free(b.want[0]);
	free(b.want[1]);
	geometry_done(&g);
	mkpt_done(&m);
	return rows;
}

static void affine_maps_agree_with_the_definition(void **state)
{
	int repeated = 0;

	seed = 2;
	for (int i = 0; i < 5000; i++)
		repeated += check_boxes() > 1;
	/* Both forms must have occurred. */
	assert_true(repeated >= 100 && repeated <= 4900);
	assert_true(refused >= 1000 && refused <= 4900);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_agree_with_the_definition),
		cmocka_unit_test(affine_maps_agree_with_the_definition),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
