/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Affine maps (universal checkpoints of AutoTP): DeepSpeed 0.19.8,
 * checkpoint/affine.py.  A map lists pieces; a piece is a box of `shape` that
 * lies in the whole at source = [offset, strides] and in a rank's slice at
 * dest = [offset, strides]:
 *
 *   whole[so + sum i_a * ss_a] = slice[do + sum i_a * ds_a] / scale
 *
 * A box that several ranks hold (`locations`) is read from one of them. If the
 * outermost dimension of all boxes steps through the whole and the slices in
 * rows, one row is laid out and repeated; otherwise every run is listed.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/format/value.h"
#include "ckpt/table/geometry_impl.h"

/* Limit of different scales in one map. */
#define SCALES_MAX 256u

struct piece {
	uint32_t source; /* rank of the slice */
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
};

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

/* Return the number of ranks that hold the box; 0 if not recorded. */
static size_t count_holders(const struct value *v)
{
	const struct value_seq *s = value_find_items(v, "locations");

	return s ? s->n : 0;
}

/* Is the box read from rank `r`? It is read from the `holder`-th rank that
 * holds it, or from the first if there are fewer. */
static bool is_holder(const struct value *v, uint32_t r, size_t holder)
{
	const size_t n = count_holders(v);
	int64_t rank;

	return n == 0 ||
	       (value_get_int(value_item(value_find(v, "locations"), holder < n ? holder : 0),
			      &rank) &&
		rank == (int64_t)r);
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
static int get_scale(const struct geometry_job *j, const struct value *v, uint32_t *out)
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

static int affine_add_piece(struct pieces *l, const struct geometry_job *j, const struct value *v,
			    uint32_t rank)
{
	struct piece p = { .source = rank, .numel = 1 };
	struct geometry *g = j->g;
	size_t ndim;
	int rc;

	if (!get_counts(value_find(v, "shape"), p.shape, &ndim) ||
	    !get_place(value_find(v, "source"), &p.so, p.ss, ndim) ||
	    !get_place(value_find(v, "dest"), &p.from, p.ds, ndim))
		goto bad;
	p.ndim = (unsigned)ndim;
	for (unsigned i = 0; i < p.ndim; i++)
		if (!checked_mul(p.numel, p.shape[i], &p.numel))
			goto bad;
	if (count_holders(v) > g->holders)
		g->holders = count_holders(v);
	if (p.numel == 0 || !is_holder(v, rank, j->p->merge.holder))
		return 0;
	if (!box_fits(&p, p.so, p.ss, g->numel) ||
	    !box_fits(&p, p.from, p.ds, geometry_numel(j, rank)))
		goto bad;
	rc = get_scale(j, v, &p.scale);
	if (rc)
		return rc;
	if (!array_reserve(&l->v, &l->cap, l->n + 1, sizeof(*l->v)))
		return -ENOMEM;
	l->v[l->n++] = p;
	return 0;
bad:
	return GEOMETRY_BAD(j,
			"a piece of its affine map lies outside of it or of the slice of rank %u",
			    rank);
}

static int read_pieces(struct pieces *l, const struct geometry_job *j)
{
	const struct value_dict *ranks = value_find_pairs(j->p->merge.spec, "ranks");
	int rc = 0;

	if (!ranks)
		return GEOMETRY_BAD(j, "its affine map has no ranks");
	for (size_t i = 0; !rc && i < ranks->n; i++) {
		const struct value_seq *pieces = value_find_items(ranks->v[i].val, "pieces");
		uint64_t r;

		if (!pieces || !value_get_count(ranks->v[i].key, &r) || r >= j->p->nslices)
			return GEOMETRY_BAD(j, "its affine map is of other ranks than the %u here",
					    j->p->nslices);
		for (size_t k = 0; !rc && k < pieces->n; k++)
			rc = affine_add_piece(l, j, pieces->v[k], (uint32_t)r);
	}
	return rc;
}

/* Do all boxes step through the whole and their slices in the same rows? Then
 * one row describes all. */
static bool find_rows(const struct geometry_job *j, const struct pieces *l)
{
	const struct piece *first = l->v;
	struct geometry *g = j->g;

	if (l->n == 0 || first->ndim < 2 || first->shape[0] < 2)
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

/* Add the runs of box p from dimension `dim` on. */
static int add_runs(struct geometry *g, const struct piece *p, unsigned dim)
{
	uint64_t index[TENSOR_DIMS_MAX] = { 0 }, run = 1;
	unsigned inner = p->ndim;

	/* Dimensions that are dense on both sides form one run. */
	while (inner > dim && p->ss[inner - 1] == run && p->ds[inner - 1] == run)
		run *= p->shape[--inner];
	for (;;) {
		uint64_t at = p->so, from = p->from;
		unsigned a = inner;

		for (unsigned i = dim; i < inner; i++) {
			at += index[i] * p->ss[i];
			from += index[i] * p->ds[i];
		}
		if (geometry_add(g, (struct geometry_segment){ .at = at, .len = run, .from = from,
							       .source = p->source,
							       .scale = p->scale }))
			return -ENOMEM;
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

int geometry_affine(const struct geometry_job *j)
{
	struct geometry *g = j->g;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct pieces l = { 0 };
	unsigned dim = 1;
	size_t ndim;
	int rc;

	if (!get_counts(value_find(j->p->merge.spec, "logical_shape"), shape, &ndim))
		return GEOMETRY_BAD(j, "its affine map has no shape");
	rc = geometry_set_shape(j, shape, ndim) ?: read_pieces(&l, j);
	if (!rc && !find_rows(j, &l)) {
		g->rows = 1;
		g->row_len = g->numel;
		memset(g->stride, 0, j->p->nslices * sizeof(*g->stride));
		dim = 0;
	}
	for (size_t i = 0; !rc && i < l.n; i++)
		rc = add_runs(g, &l.v[i], dim);
	free(l.v);
	if (rc)
		return rc;
	if (g->nsegs)
		qsort(g->segs, g->nsegs, sizeof(*g->segs), affine_by_place);
	return geometry_is_covered(g) ? 0
				      : GEOMETRY_BAD(j, "the pieces of its affine map overlap"
							" or leave elements out");
}
