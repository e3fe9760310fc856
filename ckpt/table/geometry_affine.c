/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Affine maps (universal checkpoints of AutoTP): DeepSpeed 0.19.8,
 * checkpoint/affine.py.  A map lists pieces; a piece is a box of `shape` that
 * lies in the whole at source = [offset, strides] and in a rank's slice at
 * dest = [offset, strides]:
 *
 *   whole[so + sum i_a * ss_a] = slice[do + sum i_a * ds_a] / scale
 *
 * A box that several ranks hold (`locations`) is read from one of them.  Boxes of one rank may
 * overlap, those of two only where both name each other; every element must be in one.  If
 * the outermost dimension of all boxes steps through the whole and the slices in rows, one row is
 * laid out and repeated; otherwise every run is listed.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry_impl.h"

/* Limits of a map: different scales, pieces, pieces that have the same element, and ranks looked at
 * in their locations.  A pickle may repeat a list at the cost of a few bytes. */
#define SCALES_MAX 256u
#define PIECES_MAX 65536u
#define OVERLAPS_MAX 256u
#define LOCATIONS_MAX ((uint64_t)1 << 28)

struct piece {
	uint32_t source; /* rank of the slice */
	const struct value_seq *locations; /* NULL: not recorded, the rank alone */
	size_t turn; /* 0: the piece is read from this rank, before others that hold it */
	unsigned ndim;
	uint64_t shape[TENSOR_DIMS_MAX];
	uint64_t so, ss[TENSOR_DIMS_MAX];
	uint64_t from, ds[TENSOR_DIMS_MAX];
	uint64_t numel;
	uint32_t scale; /* index in geometry.scales */
};

struct pieces {
	struct piece *v;
	size_t n, cap;
	size_t seen;      /* of the map, also those that are not read */
	uint64_t looked;  /* ranks in locations, as often as they were looked at */
};

/* Count the ranks of a piece's locations, which will be looked at. */
static int count_locations(const struct geometry_args *j, uint64_t *looked, const struct piece *p)
{
	*looked += p->locations ? p->locations->n : 0;
	return *looked <= LOCATIONS_MAX
		       ? 0
		       : errmsg_set(j->err, -E2BIG,
				"parameter %s: the pieces of its affine map have too many locations",
				    j->p->name);
}

static bool get_counts(const struct value *v, uint64_t *out, size_t *n)
{
	const struct value_seq *s = value_items(v);

	if (!s || s->n > TENSOR_DIMS_MAX)
		return false;
	for (size_t i = 0; i < s->n; i++)
		if (!value_get_count(s->v[i], &out[i]))
			return false;
	*n = s->n;
	return true;
}

/* Read [offset, strides]. */
static bool get_place(const struct value *v, uint64_t *offset, uint64_t *strides, size_t ndim)
{
	const struct value_seq *s = value_items(v);
	size_t n;

	return s && s->n == 2 && value_get_count(s->v[0], offset) &&
	       get_counts(s->v[1], strides, &n) && n == ndim;
}

/* Does the box lie within `size` elements? */
static bool box_fits(const struct piece *p, uint64_t at, const uint64_t *strides, uint64_t size)
{
	uint64_t last = at;

	for (unsigned i = 0; i < p->ndim; i++) {
		uint64_t reach;

		if (!checked_mul(p->shape[i] - 1, strides[i], &reach) ||
		    !checked_add(last, reach, &last))
			return false;
	}
	return last < size;
}

/* Return the place of a rank among those that hold a piece; their number if it is none of them. */
static size_t find_replica(const struct piece *p, uint32_t rank)
{
	const struct value_seq *all = p->locations;
	int64_t r;
	size_t i = 0;

	while (i < all->n && !(value_get_int(all->v[i], &r) && r == (int64_t)rank))
		i++;
	return i;
}

/* A piece is read from the `replica`-th rank that holds it, or from the first if there are fewer,
 * then from the next ones. */
static size_t find_turn(const struct piece *p, size_t replica)
{
	const size_t n = p->locations ? p->locations->n : 0;
	const size_t i = n ? find_replica(p, p->source) : 0;

	return i == n ? n : (i + n - (replica < n ? replica : 0)) % n;
}

/* Return the index of a scale in geometry.scales.  -E2BIG if there are too many. */
static int find_scale(struct geometry *g, double scale, uint32_t *out)
{
	size_t i = 0;

	*out = 0;
	if (scale == 1)
		return 0;
	if (!g->scales) {
		g->scales = malloc(SCALES_MAX * sizeof(*g->scales));
		if (!g->scales)
			return -ENOMEM;
		g->scales[g->nscales++] = 1;
	}
	while (i < g->nscales && g->scales[i] != scale)
		i++;
	if (i == SCALES_MAX)
		return -E2BIG;
	if (i == g->nscales)
		g->scales[g->nscales++] = scale;
	*out = (uint32_t)i;
	return 0;
}

/* Get the scale of a piece; a scale of 1 is not recorded. */
static int get_scale(const struct geometry_args *j, const struct value *v, uint32_t *out)
{
	const struct value *scale = value_find(v, "scale");
	double number = 1;
	int rc;

	if (scale && scale->kind == VALUE_FLOAT)
		number = scale->f;
	else if (scale && scale->kind == VALUE_INT)
		number = (double)scale->i;
	else if (scale && scale->kind != VALUE_NONE)
		number = 0;
	if (!isfinite(number) || number == 0)
		return GEOMETRY_BAD(j, "a piece of its affine map has a scale"
				       " that nothing can be divided by");
	rc = find_scale(j->g, number, out);
	return rc == -E2BIG ? errmsg_set(j->err, rc,
			"parameter %s: the pieces of its affine map have more than %u scales",
					 j->p->name, SCALES_MAX - 1)
			    : rc;
}

/* Read the piece of a rank: false if it is none, or lies outside. */
static bool parse_piece(const struct geometry_args *j, const struct value *v, struct piece *p)
{
	size_t ndim;

	if (!get_counts(value_find(v, "shape"), p->shape, &ndim) ||
	    !get_place(value_find(v, "source"), &p->so, p->ss, ndim) ||
	    !get_place(value_find(v, "dest"), &p->from, p->ds, ndim))
		return false;
	p->ndim = (unsigned)ndim;
	p->numel = 1;
	for (unsigned i = 0; i < p->ndim; i++)
		if (!checked_mul(p->numel, p->shape[i], &p->numel))
			return false;
	p->locations = value_find_items(v, "locations");
	if (p->locations && p->locations->n > j->p->nslices)
		return false;
	return !p->numel || (box_fits(p, p->so, p->ss, j->g->numel) &&
			     box_fits(p, p->from, p->ds, geometry_numel(j, p->source)));
}

/* Add a piece that has elements, if it is read, or if `all` are wanted. */
static int affine_add_piece(struct pieces *l, const struct geometry_args *j, const struct value *v,
			    uint32_t rank, bool all)
{
	struct piece p = { .source = rank };
	struct geometry *g = j->g;
	int rc;

	if (l->seen++ == PIECES_MAX)
		return errmsg_set(j->err, -E2BIG,
				  "parameter %s: its affine map has more than %u pieces", j->p->name,
				  PIECES_MAX);
	if (!parse_piece(j, v, &p))
		return GEOMETRY_BAD(j,
			"a piece of its affine map lies outside of it or of the slice of rank %u",
				    rank);
	if (p.locations && p.locations->n > g->replicas)
		g->replicas = p.locations->n;
	rc = count_locations(j, &l->looked, &p);
	if (rc)
		return rc;
	p.turn = find_turn(&p, j->p->merge.replica);
	if (!p.numel || (p.turn && !all))
		return 0;
	rc = get_scale(j, v, &p.scale);
	if (rc)
		return rc;
	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v)))
		return -ENOMEM;
	l->v[l->n++] = p;
	return 0;
}

/* Does a rank's slice have as many elements as the map says? */
static bool shard_fits(const struct geometry_args *j, const struct value *rank, uint32_t r)
{
	const struct value *recorded = value_find(rank, "shard_shape");
	struct tensor t;

	return !recorded ||
	       (!tensor_set_shape(&t, recorded, NULL) && t.numel == geometry_numel(j, r));
}

static int read_pieces(struct pieces *l, const struct geometry_args *j, bool all)
{
	const struct value_dict *ranks = value_find_pairs(j->p->merge.spec, "ranks");
	int rc = 0;

	if (!ranks)
		return GEOMETRY_BAD(j, "its affine map has no ranks");
	l->n = l->seen = 0;
	for (size_t i = 0; !rc && i < ranks->n; i++) {
		const struct value_seq *pieces = value_find_items(ranks->v[i].val, "pieces");
		uint64_t r;

		if (!pieces || !value_get_count(ranks->v[i].key, &r) || r >= j->p->nslices)
			return GEOMETRY_BAD(j, "its affine map is of other ranks than the %u here",
					    j->p->nslices);
		if (!shard_fits(j, ranks->v[i].val, (uint32_t)r))
			return GEOMETRY_BAD(j,
				"its affine map is of another slice than the %llu elements of rank %llu",
					    (unsigned long long)geometry_numel(j, r),
					    (unsigned long long)r);
		for (size_t k = 0; !rc && k < pieces->n; k++)
			rc = affine_add_piece(l, j, pieces->v[k], (uint32_t)r, all);
	}
	return rc;
}

/* Return the dimension from which on a box is one run in the whole and in the slice, and the run's
 * length. */
static unsigned find_run(const struct piece *p, uint64_t *run)
{
	unsigned inner = p->ndim;

	for (*run = 1; inner > 0; *run *= p->shape[--inner])
		if (p->shape[inner - 1] > 1 &&
		    (p->ss[inner - 1] != *run || p->ds[inner - 1] != *run))
			break;
	return inner;
}

static bool are_runs(const struct pieces *l)
{
	uint64_t run;
	size_t i = 0;

	while (i < l->n && find_run(&l->v[i], &run) == 0)
		i++;
	return i == l->n;
}

/* Do all boxes step through the whole and their slices in the same rows? Then one row describes
 * all. */
static bool find_rows(const struct geometry_args *j, const struct pieces *l)
{
	const struct piece *first = l->v;
	struct geometry *g = j->g;

	memset(g->stride, 0, j->p->nslices * sizeof(*g->stride));
	if (l->n == 0 || are_runs(l) || first->ndim < 2 || first->shape[0] < 2)
		return false;
	g->rows = first->shape[0];
	g->row_len = first->ss[0];
	for (size_t i = 0; i < l->n; i++) {
		const struct piece *p = &l->v[i];
		uint64_t inner = p->so, from = p->from, taken;

		if (p->ndim != first->ndim || p->shape[0] != g->rows || p->ss[0] != g->row_len)
			return false;
		for (unsigned a = 1; a < p->ndim; a++) {
			inner += (p->shape[a] - 1) * p->ss[a];
			from += (p->shape[a] - 1) * p->ds[a];
		}
		if (inner >= g->row_len || from >= p->ds[0])
			return false;
		/* The slice must hold the last row completely. */
		if (!checked_mul(g->rows, p->ds[0], &taken) || taken > geometry_numel(j, p->source))
			return false;
		if (g->stride[p->source] && g->stride[p->source] != p->ds[0])
			return false;
		g->stride[p->source] = p->ds[0];
	}
	return g->rows * g->row_len == g->numel;
}

/* Add the runs of a box from dimension `dim` on.  Until finish(), a segment's `scale` is the number
 * of its piece. */
static int add_runs(const struct geometry_args *j, const struct pieces *l, size_t number,
		    unsigned dim)
{
	const struct piece *p = &l->v[number];
	uint64_t index[TENSOR_DIMS_MAX] = { 0 }, run;
	unsigned inner = find_run(p, &run);

	for (; inner < dim; inner++)
		run /= p->shape[inner];
	for (;;) {
		uint64_t at = p->so, from = p->from;
		unsigned a = inner;
		int rc;

		for (unsigned i = dim; i < inner; i++) {
			at += index[i] * p->ss[i];
			from += index[i] * p->ds[i];
		}
		rc = geometry_add(j, (struct geometry_segment){ .at = at, .len = run, .from = from,
								.source = p->source,
								.scale = (uint32_t)number });
		if (rc)
			return rc;
		while (a > dim && ++index[a - 1] == p->shape[a - 1])
			index[--a] = 0;
		if (a == dim)
			return 0;
	}
}

static int affine_by_place(const void *a, const void *b)
{
	const struct geometry_segment *x = a, *y = b;

	return ORDER(x->at, y->at);
}

/* List the runs of the pieces that are read, or of all, in order. */
static int lay_out(const struct geometry_args *j, struct pieces *l, bool all)
{
	struct geometry *g = j->g;
	unsigned dim = 1;
	int rc = read_pieces(l, j, all);

	g->nsegs = 0;
	if (!rc && !find_rows(j, l)) {
		g->rows = 1;
		g->row_len = g->numel;
		memset(g->stride, 0, j->p->nslices * sizeof(*g->stride));
		dim = 0;
	}
	for (size_t i = 0; !rc && i < l->n; i++)
		rc = add_runs(j, l, i, dim);
	g->work += l->seen + g->nsegs;
	if (!rc && g->nsegs)
		qsort(g->segs, g->nsegs, sizeof(*g->segs), affine_by_place);
	return rc;
}

/* The runs that have an element, of all runs in order. */
struct overlap {
	const struct geometry_args *j;
	struct pieces *l;
	const struct geometry_segment *runs;
	size_t n, next; /* runs from `next` on begin after the element */
	const struct geometry_segment *here[OVERLAPS_MAX];
	size_t nhere;
};

/* Check that two pieces, which have element `at`, may share it. */
static int check_share(struct overlap *o, const struct piece *p, const struct piece *q, uint64_t at)
{
	int rc;

	if (p->source == q->source)
		return 0;
	rc = count_locations(o->j, &o->l->looked, p) ?: count_locations(o->j, &o->l->looked, q);
	if (rc || (p->locations && q->locations &&
		   find_replica(p, q->source) < p->locations->n &&
		   find_replica(q, p->source) < q->locations->n))
		return rc;
	return GEOMETRY_BAD(o->j,
		"the pieces of its affine map overlap: ranks %u and %u have element %llu, and their locations do not say so",
			    q->source, p->source, (unsigned long long)at);
}

/* Find the runs that have element `at`. */
static int move_to(struct overlap *o, uint64_t at)
{
	size_t left = 0;

	for (size_t i = 0; i < o->nhere; i++)
		if (o->here[i]->at + o->here[i]->len > at)
			o->here[left++] = o->here[i];
	o->nhere = left;
	for (; o->next < o->n && o->runs[o->next].at == at; o->next++) {
		const struct geometry_segment *run = &o->runs[o->next];
		int rc = 0;

		for (size_t i = 0; !rc && i < o->nhere; i++)
			rc = check_share(o, &o->l->v[run->scale], &o->l->v[o->here[i]->scale], at);
		if (rc)
			return rc;
		if (o->nhere == OVERLAPS_MAX)
			return errmsg_set(o->j->err, -E2BIG,
				"parameter %s: more than %u pieces of its affine map have element %llu",
					  o->j->p->name, OVERLAPS_MAX, (unsigned long long)at);
		o->here[o->nhere++] = run;
	}
	return o->nhere ? 0
			: GEOMETRY_BAD(o->j,
				"the pieces of its affine map leave elements out, from %llu on",
				       (unsigned long long)at);
}

/* Return the run that is read, and the end of its part here.  Of one rank's pieces, the last one
 * is, as by ParamAffineMap.rebuild. */
static const struct geometry_segment *choose(const struct overlap *o, uint64_t *end)
{
	const struct geometry_segment *best = o->here[0];

	*end = o->next < o->n ? o->runs[o->next].at : UINT64_MAX;
	for (size_t i = 0; i < o->nhere; i++) {
		const struct geometry_segment *run = o->here[i];
		const size_t turn = o->l->v[run->scale].turn, least = o->l->v[best->scale].turn;

		if (turn < least || (turn == least && run->scale > best->scale))
			best = run;
		if (run->at + run->len < *end)
			*end = run->at + run->len;
	}
	return best;
}

/* Replace runs that overlap by those that are read. */
static int resolve(const struct geometry_args *j, struct pieces *l)
{
	struct geometry *g = j->g;
	struct geometry_segment *runs = g->segs;
	struct overlap o = { .j = j, .l = l, .runs = runs, .n = g->nsegs };
	int rc = 0;

	g->segs = NULL;
	g->nsegs = g->cap = 0;
	for (uint64_t at = 0, end; !rc && at < g->row_len; at = end) {
		const struct geometry_segment *run;

		rc = move_to(&o, at);
		if (rc)
			break;
		run = choose(&o, &end);
		rc = geometry_add(j, (struct geometry_segment){ .at = at, .len = end - at,
								.from = run->from + (at - run->at),
								.source = run->source,
								.scale = run->scale });
	}
	free(runs);
	return rc;
}

/* Set the segments' scales, and join those that continue each other, and rows. */
static void finish(struct geometry *g, const struct pieces *l)
{
	size_t n = 0;

	for (size_t i = 0; i < g->nsegs; i++) {
		struct geometry_segment s = g->segs[i], *last = n ? &g->segs[n - 1] : NULL;

		s.scale = l->v[s.scale].scale;
		if (last && last->source == s.source && last->scale == s.scale &&
		    last->at + last->len == s.at && last->from + last->len == s.from)
			last->len += s.len;
		else
			g->segs[n++] = s;
	}
	g->nsegs = n;
	if (n == 1 && g->stride[g->segs->source] == g->row_len) {
		g->segs->len = g->row_len = g->numel;
		g->rows = 1;
	}
}

int geometry_affine(const struct geometry_args *j)
{
	struct geometry *g = j->g;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct pieces l = { 0 };
	size_t ndim;
	int rc;

	if (!get_counts(value_find(j->p->merge.spec, "logical_shape"), shape, &ndim))
		return GEOMETRY_BAD(j, "its affine map has no shape");
	rc = geometry_set_shape(j, shape, ndim) ?: lay_out(j, &l, false);
	if (!rc && !geometry_is_covered(g))
		rc = lay_out(j, &l, true) ?: resolve(j, &l);
	g->work += l.looked;
	if (!rc)
		finish(g, &l);
	free(l.v);
	return rc;
}
