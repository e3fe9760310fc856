/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How slices make the whole: DeepSpeed 0.19.8, checkpoint/ds_to_universal.py
 * merge_tp_slices, as offsets instead of copies.
 *
 *   concatenation along d	row = everything from dimension d on:
 *				| slice 0 | slice 1 | ... |
 *   two sub-parameters		| half of 0 | half of 1 | other half of 0 | ...
 *   sub-parameters along d	the same with any number of parts, whose widths
 *				the checkpoint records
 *   affine map			pieces {shape, place in the whole, place in the
 *				slice}; see geometry_affine.c
 *   experts			see geometry_experts.c
 */
#include "ckpt/model/geometry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/model/geometry_impl.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/pickle/value.h"

/* Limit of sub-parameters of one parameter. */
#define PARTS_MAX 1024

int geometry_add(struct geometry *g, struct geometry_segment s)
{
	if (s.len == 0)
		return 0;
	if (g->nsegs == GEOMETRY_SEGMENTS_MAX ||
	    !array_reserve(&g->segs, &g->cap, g->nsegs + 1, sizeof(*g->segs)))
		return -ENOMEM;
	g->segs[g->nsegs++] = s;
	return 0;
}

/* The whole row comes from slice 0. */
static int add_first(struct geometry *g)
{
	return geometry_add(g, (struct geometry_segment){ .len = g->row_len });
}

static uint64_t product(const uint64_t *v, unsigned from, unsigned to)
{
	uint64_t n = 1;

	/* The products of all dimensions were checked for overflow. */
	for (unsigned i = from; i < to; i++)
		n *= v[i];
	return n;
}

static const struct geometry_slice *first_slice(const struct geometry_slice *s,
						size_t n)
{
	for (size_t t = 0; t < n; t++)
		if (s[t].present)
			return &s[t];
	assert(!"a parameter has a slice");
	return NULL;
}

int geometry_set_shape(struct geometry *g, const char *name,
		       const uint64_t *shape, unsigned ndim,
		       struct errmsg *err)
{
	g->ndim = ndim;
	g->numel = 1;
	memcpy(g->shape, shape, ndim * sizeof(*shape));
	for (unsigned i = 0; i < ndim; i++)
		if (!checked_mul(g->numel, shape[i], &g->numel) ||
		    g->numel > INT64_MAX / 16)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: its size overflows",
					  name);
	return 0;
}

/* Check that all slices have one shape, as for replicated and averaged ones. */
static int same_shapes(struct geometry *g, const char *name,
		       const struct geometry_slice *s, size_t n,
		       struct errmsg *err)
{
	const struct geometry_slice *const first = first_slice(s, n);

	for (size_t t = 0; t < n; t++)
		if (!s[t].present || s[t].ndim != first->ndim ||
		    memcmp(s[t].shape, first->shape,
			   first->ndim * sizeof(*first->shape)) != 0)
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: is not of one shape on"
					  " all tensor-parallel ranks", name);
	g->rows = 1;
	g->row_len = first->numel;
	return geometry_set_shape(g, name, first->shape, first->ndim, err);
}

/* The shape of the slices concatenated along `dim`. */
static int joined_shape(struct geometry *g, const char *name, unsigned dim,
			const struct geometry_slice *s, size_t n,
			struct errmsg *err)
{
	const struct geometry_slice *const first = first_slice(s, n);
	uint64_t shape[TENSOR_DIMS_MAX];

	if (dim >= first->ndim)
		return errmsg_set(err, -EBADMSG,
				  "parameter %s: %zu slices of %u dimensions"
				  " cannot be joined along dimension %u", name,
				  n, first->ndim, dim);
	memcpy(shape, first->shape, first->ndim * sizeof(*shape));
	shape[dim] = 0;
	for (size_t t = 0; t < n; t++) {
		if (!s[t].present)
			continue;
		for (unsigned i = 0; i < first->ndim; i++)
			if (s[t].ndim != first->ndim ||
			    (i != dim && s[t].shape[i] != first->shape[i]))
				return errmsg_set(err, -EBADMSG,
						  "parameter %s: the slice of"
						  " tensor-parallel rank %zu"
						  " does not fit the others",
						  name, t);
		if (!checked_add(shape[dim], s[t].shape[dim], &shape[dim]))
			return errmsg_set(err, -EBADMSG,
					  "parameter %s: its size overflows",
					  name);
	}
	return geometry_set_shape(g, name, shape, first->ndim, err);
}

/* Lay out rows of `parts` parts, each of which is the ranks' shares in order:
 * widths[part * n + t] is rank t's share, in units of `inner` elements. */
static int lay_parts(struct geometry *g, const uint64_t *widths, size_t parts,
		     size_t n, uint64_t inner)
{
	uint64_t at = 0;

	for (size_t t = 0; t < n; t++)
		for (size_t j = 0; j < parts; j++)
			g->stride[t] += widths[j * n + t] * inner;
	for (size_t j = 0; j < parts; j++)
		for (size_t t = 0; t < n; t++) {
			const uint64_t len = widths[j * n + t] * inner;
			uint64_t from = 0;

			for (size_t k = 0; k < j; k++)
				from += widths[k * n + t] * inner;
			if (geometry_add(g, (struct geometry_segment){
						    .at = at,
						    .len = len,
						    .from = from,
						    .source = (uint32_t)t }))
				return -ENOMEM;
			at += len;
		}
	g->row_len = at;
	return 0;
}

static int concatenate(struct geometry *g, const struct merge *m,
		       const char *name, const struct geometry_slice *s,
		       size_t n, struct errmsg *err)
{
	const unsigned parts = m->rule == MERGE_TWO_SUB_PARAMS ? 2 : 1;
	const unsigned dim = m->rule == MERGE_TWO_SUB_PARAMS ? 0 : m->dim;
	uint64_t *widths;
	int rc = joined_shape(g, name, dim, s, n, err);

	if (rc)
		return rc;
	widths = calloc(parts * n, sizeof(*widths));
	if (!widths)
		return -ENOMEM;
	for (size_t t = 0; t < n; t++) {
		const uint64_t w = s[t].present ? s[t].shape[dim] : 0;

		/* torch.chunk gives the odd row to the first half. */
		widths[t] = parts == 2 ? w / 2 + w % 2 : w;
		if (parts == 2)
			widths[n + t] = w / 2;
	}
	g->rows = product(g->shape, 0, dim);
	rc = lay_parts(g, widths, parts, n,
		       product(g->shape, dim + 1, g->ndim));
	free(widths);
	return rc;
}

/* --- sub-parameters --------------------------------------------------------- */

/* An entry of a sub-parameter shape: a number, or a tuple of the widths of
 * the parts. */
static bool entry_sum(const struct value *v, int64_t *sum)
{
	const struct value_seq *const parts = value_items(v);

	if (!parts)
		return value_get_int(v, sum);
	*sum = 0;
	for (size_t i = 0; i < parts->n; i++) {
		int64_t w;

		if (!value_get_int(parts->v[i], &w) || w < 0 ||
		    __builtin_add_overflow(*sum, w, sum))
			return false;
	}
	return true;
}

/* The shape in which the parameter is viewed; one -1 stands for the remaining
 * elements. */
static int logical_shape(struct geometry *g, const char *name,
			 const struct value_seq *spec, size_t dim,
			 int64_t dim_size, uint64_t numel, struct errmsg *err)
{
	uint64_t shape[TENSOR_DIMS_MAX], known = 1;
	size_t open = SIZE_MAX;

	if (spec->n > TENSOR_DIMS_MAX)
		goto bad;
	for (size_t i = 0; i < spec->n; i++) {
		int64_t d = dim_size;

		if (i != dim && !entry_sum(spec->v[i], &d))
			goto bad;
		if (d == -1 && open == SIZE_MAX) {
			open = i;
			continue;
		}
		if (d < 0 || !checked_mul(known, (uint64_t)d, &known))
			goto bad;
		shape[i] = (uint64_t)d;
	}
	if (open != SIZE_MAX)
		shape[open] = known ? numel / known : 0;
	if (geometry_set_shape(g, name, shape, (unsigned)spec->n, NULL) ||
	    g->numel != numel)
		goto bad;
	return 0;
bad:
	return errmsg_set(err, -EBADMSG,
			  "parameter %s: its sub-parameter shape does not fit"
			  " its %llu elements", name,
			  (unsigned long long)numel);
}

/* The widths of the parts: recorded as a tuple or, in the oldest files, as a
 * number of equal parts. */
static int part_sizes(const struct value *spec, uint64_t whole, uint64_t *out,
		      size_t *parts)
{
	const struct value_seq *const tuple = value_items(spec);
	int64_t n;

	if (!tuple) {
		if (!value_get_int(spec, &n) || n <= 0 || n > PARTS_MAX ||
		    whole % (uint64_t)n)
			return -EBADMSG;
		*parts = (size_t)n;
		for (size_t j = 0; j < *parts; j++)
			out[j] = whole / (uint64_t)n;
		return 0;
	}
	if (tuple->n == 0 || tuple->n > PARTS_MAX)
		return -EBADMSG;
	*parts = tuple->n;
	for (size_t j = 0; j < *parts; j++) {
		int64_t w;

		if (!value_get_int(tuple->v[j], &w) || w < 0)
			return -EBADMSG;
		out[j] = (uint64_t)w;
	}
	return 0;
}

/* Each rank's share of each part: as recorded, or equal. */
static int part_widths(const struct merge *m, const uint64_t *sizes,
		       size_t parts, size_t n, uint64_t *out)
{
	const struct value_seq *const all = value_items(m->widths);

	if (m->widths && (!all || all->n != parts))
		return -EBADMSG;
	for (size_t j = 0; j < parts; j++) {
		const struct value_seq *const row =
			all ? value_items(all->v[j]) : NULL;
		uint64_t sum = 0;

		if (all ? !row || row->n != n : sizes[j] % n != 0)
			return -EBADMSG;
		for (size_t t = 0; t < n; t++) {
			int64_t w = (int64_t)(sizes[j] / n);

			if (all && (!value_get_int(row->v[t], &w) || w < 0))
				return -EBADMSG;
			out[j * n + t] = (uint64_t)w;
			if (!checked_add(sum, (uint64_t)w, &sum))
				return -EBADMSG;
		}
		if (sum != sizes[j])
			return -EBADMSG;
	}
	return 0;
}

/* The sum of the slices' extents along dimension `dim`, in their own shape. */
static uint64_t joined_extent(const struct geometry_slice *s, size_t n,
			      size_t dim)
{
	uint64_t sum = 0;

	for (size_t t = 0; t < n; t++)
		if (s[t].present && dim < s[t].ndim)
			sum += s[t].shape[dim];
	return sum;
}

/* Do the widths account for exactly the elements of each slice? */
static bool widths_fit(const struct geometry *g,
		       const struct geometry_slice *s, size_t n)
{
	for (size_t t = 0; t < n; t++)
		if (g->rows * g->stride[t] != (s[t].present ? s[t].numel : 0))
			return false;
	return true;
}

static int sub_params(struct geometry *g, const struct merge *m,
		      const char *name, const struct geometry_slice *s,
		      size_t n, struct errmsg *err)
{
	const struct value_seq *const spec =
		value_items(value_find(m->spec, "shape"));
	uint64_t sizes[PARTS_MAX], *widths = NULL, numel = 0, whole = 0;
	size_t parts = 0;
	int64_t dim;
	int rc = -EBADMSG;

	for (size_t t = 0; t < n; t++)
		numel += s[t].present ? s[t].numel : 0;
	if (!spec ||
	    !value_get_int(value_find(m->spec, "partition_dim"), &dim) ||
	    dim < 0 || (uint64_t)dim >= spec->n ||
	    part_sizes(spec->v[dim], joined_extent(s, n, (size_t)dim), sizes,
		       &parts))
		goto bad;
	for (size_t j = 0; j < parts; j++)
		if (!checked_add(whole, sizes[j], &whole) ||
		    whole > INT64_MAX)
			goto bad;
	rc = logical_shape(g, name, spec, (size_t)dim, (int64_t)whole, numel,
			   err);
	if (rc)
		return rc;
	widths = calloc(parts * n, sizeof(*widths));
	if (!widths)
		return -ENOMEM;
	rc = part_widths(m, sizes, parts, n, widths);
	g->rows = product(g->shape, 0, (unsigned)dim);
	if (!rc)
		rc = lay_parts(g, widths, parts, n,
			       product(g->shape, (unsigned)dim + 1, g->ndim));
	free(widths);
	if (!rc && !widths_fit(g, s, n))
		rc = -EBADMSG;
	if (rc != -EBADMSG)
		return rc;
bad:
	return errmsg_set(err, -EBADMSG,
			  "parameter %s: its sub-parameters do not fit its"
			  " slices, or cannot be divided among %zu ranks", name,
			  n);
}

/* --- the whole --------------------------------------------------------------- */

static int geometry_apply(struct geometry *g, const struct merge *m,
			  const char *name, const struct geometry_slice *s,
			  size_t n, struct errmsg *err)
{
	int rc;

	switch (m->rule) {
	case MERGE_AFFINE:
		return geometry_affine(g, m->spec, m->holder, name, s, n, err);
	case MERGE_EXPERTS:
		return geometry_experts(g, m->experts, name, s, n, err);
	case MERGE_SUB_PARAMS: return sub_params(g, m, name, s, n, err);
	case MERGE_REPLICATED:
	case MERGE_AVERAGE:
		rc = same_shapes(g, name, s, n, err);
		/* The mean of one slice is the slice. */
		g->mean = m->rule == MERGE_AVERAGE && n > 1;
		g->stride[0] = g->row_len;
		return rc ? rc : add_first(g);
	case MERGE_TWO_SUB_PARAMS:
	case MERGE_CAT: break;
	}
	/* A single slice is the whole, even a scalar, which cannot be
	 * concatenated. */
	if (n == 1) {
		rc = same_shapes(g, name, s, n, err);
		g->stride[0] = g->row_len;
		return rc ? rc : add_first(g);
	}
	return concatenate(g, m, name, s, n, err);
}

/* Do the segments fill a row in order, without gap or overlap? */
static bool is_row_covered(const struct geometry *g)
{
	uint64_t at = 0;

	for (size_t i = 0; i < g->nsegs && g->segs[i].at == at; i++)
		at += g->segs[i].len;
	return at == g->row_len;
}

int geometry_init(struct geometry *g, const struct merge *m, const char *name,
		  const struct geometry_slice *slices, size_t n,
		  struct errmsg *err)
{
	int rc = -ENOMEM;

	assert(n > 0);
	*g = (struct geometry){ .nsources = n, .holders = 1,
				.stride = calloc(n, sizeof(*g->stride)) };
	if (g->stride)
		rc = geometry_apply(g, m, name, slices, n, err);
	if (rc == -ENOMEM)
		errmsg_set(err, rc, "parameter %s: out of memory", name);
	assert(rc || is_row_covered(g));
	if (rc)
		geometry_done(g);
	return rc;
}

void geometry_done(struct geometry *g)
{
	free(g->segs);
	free(g->stride);
	free(g->scales);
	g->segs = NULL;
	g->stride = NULL;
	g->scales = NULL;
}
