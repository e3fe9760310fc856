/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How slices form the whole: DeepSpeed 0.19.8, checkpoint/ds_to_universal.py merge_tp_slices, as
 * offsets instead of copies.
 *
 *   concatenation along d	row = everything from dimension d on:
 *				| slice 0 | slice 1 | ... |
 *   two sub-parameters		| half of 0 | half of 1 | other half of 0 | ...
 *   three sub-parameters	the same in thirds
 *   sub-parameters along d	the same with any number of parts, whose widths
 *				the checkpoint records
 *   affine map			pieces {shape, place in the whole, place in the
 *				slice}; see geometry_affine.c
 *   experts			of AutoEP, in the order of their numbers, or by affine maps
 */
#include "ckpt/table/geometry.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/format/value.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/geometry_impl.h"

/* Limit of sub-parameters of one parameter. */
#define PARTS_MAX 1024

int geometry_add(const struct geometry_args *j, struct geometry_segment s)
{
	struct geometry *g = j->g;

	if (s.len == 0)
		return 0;
	if (g->nsegs == GEOMETRY_SEGMENTS_MAX)
		return errmsg_set(j->err, -E2BIG, "parameter %s: is cut into more than %u runs",
				  j->p->name, GEOMETRY_SEGMENTS_MAX);
	if (!array_reserve(&g->segs, &g->cap, g->nsegs + 1, sizeof(*g->segs)))
		return -ENOMEM;
	g->segs[g->nsegs++] = s;
	return 0;
}

static uint64_t product(const uint64_t *v, unsigned from, unsigned to)
{
	uint64_t n = 1;

	/* The products of all dimensions were checked for overflow. */
	for (unsigned i = from; i < to; i++)
		n *= v[i];
	return n;
}

int geometry_set_shape(const struct geometry_args *j, const uint64_t *shape, size_t ndim)
{
	struct geometry *g = j->g;

	assert(ndim <= TENSOR_DIMS_MAX);
	g->ndim = (unsigned)ndim;
	g->numel = 1;
	memcpy(g->shape, shape, ndim * sizeof(*shape));
	for (size_t i = 0; i < ndim; i++)
		if (!checked_mul(g->numel, shape[i], &g->numel) || g->numel > INT64_MAX / 16)
			return GEOMETRY_BAD(j, "its size overflows");
	return 0;
}

/* The whole is one slice: the first of several slices, which must have the same shape. */
static int take_first(const struct geometry_args *j)
{
	const struct slice *first = j->p->first;
	struct geometry *g = j->g;

	for (unsigned t = 0; t < j->p->nslices; t++)
		if (!j->p->slices[t] || SHAPE_ORDER(j->p->slices[t], first))
			return GEOMETRY_BAD(j, "is not of one shape on all tensor-parallel ranks");
	g->rows = 1;
	g->row_len = g->stride[0] = first->numel;
	return geometry_set_shape(j, first->shape, first->ndim)
		       ?: geometry_add(j, (struct geometry_segment){ .len = g->row_len });
}

/* Compute the shape of the slices concatenated along `dim`. */
static int joined_shape(const struct geometry_args *j, unsigned dim)
{
	const struct slice *first = j->p->first;
	uint64_t shape[TENSOR_DIMS_MAX];

	if (dim >= first->ndim)
		return GEOMETRY_BAD(j,
				"%u slices of %u dimensions cannot be joined along dimension %u",
				    j->p->nslices, first->ndim, dim);
	memcpy(shape, first->shape, first->ndim * sizeof(*shape));
	shape[dim] = 0;
	for (unsigned t = 0; t < j->p->nslices; t++) {
		const struct slice *s = j->p->slices[t];

		if (!s)
			continue;
		for (unsigned i = 0; i < first->ndim; i++)
			if (s->ndim != first->ndim || (i != dim && s->shape[i] != first->shape[i]))
				return GEOMETRY_BAD(j,
				"the slice of tensor-parallel rank %u does not fit the others",
						    t);
		if (!checked_add(shape[dim], s->shape[dim], &shape[dim]))
			return GEOMETRY_BAD(j, "its size overflows");
	}
	return geometry_set_shape(j, shape, first->ndim);
}

/* Lay out rows of `parts` parts, each of which is the ranks' shares in order:
 * widths[part * n + t] is rank t's share of dimension `dim`. */
static int lay_parts(const struct geometry_args *job, const uint64_t *widths, size_t parts,
		     size_t n, unsigned dim)
{
	struct geometry *g = job->g;
	const uint64_t inner = product(g->shape, dim + 1, g->ndim);
	uint64_t at = 0;

	if (n == 1) {
		/* The parts of all rows are contiguous, so they form one run. */
		g->rows = 1;
		g->row_len = g->stride[0] = product(g->shape, 0, g->ndim);
		return geometry_add(job, (struct geometry_segment){ .len = g->row_len });
	}
	g->rows = product(g->shape, 0, dim);
	for (size_t j = 0; j < parts; j++)
		for (size_t t = 0; t < n; t++) {
			const uint64_t len = widths[j * n + t] * inner;
			/* A slice has its shares of all parts end to end. */
			const int rc = geometry_add(job, (struct geometry_segment){
							       .at = at, .len = len,
							       .from = g->stride[t],
							       .source = (uint32_t)t });

			if (rc)
				return rc;
			at += len;
			g->stride[t] += len;
		}
	g->row_len = at;
	return 0;
}

static int concatenate(const struct geometry_args *j)
{
	const unsigned parts = merge_rule_parts(j->p->merge.rule);
	const unsigned dim = parts > 1 ? 0 : j->p->merge.dim;
	const size_t n = j->p->nslices;
	uint64_t *widths;
	int rc = joined_shape(j, dim);

	if (rc)
		return rc;
	widths = calloc(parts * n, sizeof(*widths));
	if (!widths)
		return -ENOMEM;
	for (size_t t = 0; t < n; t++) {
		const struct slice *s = j->p->slices[t];
		uint64_t left = s ? s->shape[dim] : 0;
		/* As torch.chunk: the last part is smaller if the division has a remainder. */
		const uint64_t chunk = (left + parts - 1) / parts;

		for (unsigned i = 0; i < parts; i++) {
			const uint64_t w = left < chunk ? left : chunk;

			widths[i * n + t] = w;
			left -= w;
		}
	}
	rc = lay_parts(j, widths, parts, n, dim);
	free(widths);
	return rc;
}

/* Sum an entry of a sub-parameter shape: a number, or a tuple of the widths of the parts. */
static bool entry_sum(const struct value *v, int64_t *sum)
{
	const struct value_seq *parts = value_items(v);

	if (!parts)
		return value_get_int(v, sum);
	*sum = 0;
	for (size_t i = 0; i < parts->n; i++) {
		uint64_t w;

		if (!value_get_count(parts->v[i], &w) || __builtin_add_overflow(*sum, w, sum))
			return false;
	}
	return true;
}

/* Read the shape in which the parameter is viewed; one -1 represents the remaining elements. */
static int logical_shape(const struct geometry_args *j, const struct value_seq *spec, uint64_t dim,
			 uint64_t dim_size, uint64_t numel)
{
	struct geometry_args silent = *j;
	uint64_t shape[TENSOR_DIMS_MAX], known = 1;
	size_t open = SIZE_MAX;

	silent.err = NULL;
	if (spec->n > TENSOR_DIMS_MAX)
		goto bad;
	for (size_t i = 0; i < spec->n; i++) {
		int64_t d = (int64_t)dim_size;

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
	if (!geometry_set_shape(&silent, shape, spec->n) && j->g->numel == numel)
		return 0;
bad:
	return GEOMETRY_BAD(j, "its sub-parameter shape does not fit its %llu elements",
			    (unsigned long long)numel);
}

/* Read the widths of the parts: recorded as a tuple or, in the oldest files, as a number of equal
 * parts. */
static bool part_sizes(const struct value *spec, uint64_t whole, uint64_t *out, size_t *parts)
{
	const struct value_seq *tuple = value_items(spec);
	uint64_t n = tuple ? tuple->n : 0;

	if (!tuple && !value_get_count(spec, &n))
		return false;
	if (n == 0 || n > PARTS_MAX || (!tuple && whole % n))
		return false;
	*parts = (size_t)n;
	for (size_t j = 0; j < *parts; j++) {
		out[j] = whole / n;
		if (tuple && !value_get_count(tuple->v[j], &out[j]))
			return false;
	}
	return true;
}

/* Set each rank's share of each part: as recorded, or equal. */
static bool part_widths(const struct merge *m, const uint64_t *sizes, size_t parts, size_t n,
			uint64_t *out)
{
	const struct value_seq *all = value_items(m->widths);

	if (m->widths && (!all || all->n != parts))
		return false;
	for (size_t j = 0; j < parts; j++) {
		const struct value_seq *row = all ? value_items(all->v[j]) : NULL;
		uint64_t sum = 0;

		if (all ? !row || row->n != n : sizes[j] % n != 0)
			return false;
		for (size_t t = 0; t < n; t++) {
			uint64_t *w = &out[j * n + t];

			*w = sizes[j] / n;
			if ((all && !value_get_count(row->v[t], w)) || !checked_add(sum, *w, &sum))
				return false;
		}
		if (sum != sizes[j])
			return false;
	}
	return true;
}

/* Return the sum of the slices' extents along dimension `dim`, in their own shapes. */
static uint64_t joined_extent(const struct geometry_args *j, uint64_t dim)
{
	uint64_t sum = 0;

	for (unsigned t = 0; t < j->p->nslices; t++) {
		const struct slice *s = j->p->slices[t];

		if (s && dim < s->ndim)
			sum += s->shape[dim];
	}
	return sum;
}

/* Do the widths account for exactly the elements of each slice? */
static bool widths_fit(const struct geometry_args *j)
{
	for (unsigned t = 0; t < j->p->nslices; t++)
		if (j->g->rows * j->g->stride[t] != geometry_numel(j, t))
			return false;
	return true;
}

static int sub_params(const struct geometry_args *j)
{
	const struct value *v = j->p->merge.spec;
	const size_t n = j->p->nslices;
	const struct value_seq *spec = value_find_items(v, "shape");
	uint64_t sizes[PARTS_MAX], *widths, numel = 0, whole = 0, dim;
	size_t parts = 0;
	int rc;

	for (unsigned t = 0; t < n; t++)
		numel += geometry_numel(j, t);
	if (!spec || !value_get_count(value_find(v, "partition_dim"), &dim) || dim >= spec->n ||
	    !part_sizes(spec->v[dim], joined_extent(j, dim), sizes, &parts))
		goto bad;
	for (size_t k = 0; k < parts; k++)
		if (!checked_add(whole, sizes[k], &whole) || whole > INT64_MAX)
			goto bad;
	rc = logical_shape(j, spec, dim, whole, numel);
	if (rc)
		return rc;
	widths = calloc(parts * n, sizeof(*widths));
	if (!widths)
		return -ENOMEM;
	rc = part_widths(&j->p->merge, sizes, parts, n, widths)
		     ? lay_parts(j, widths, parts, n, (unsigned)dim)
		     : -EBADMSG;
	free(widths);
	if ((rc && rc != -EBADMSG) || (!rc && widths_fit(j)))
		return rc;
bad:
	return GEOMETRY_BAD(j,
		"its sub-parameters do not fit its slices, or cannot be divided among %zu ranks",
			    n);
}

/* Count the experts from `e` on that are also adjacent on one rank. */
static unsigned run_length(const struct expert_layer *l, unsigned e)
{
	const struct expert_place first = experts_place(l, e);
	unsigned n = 0;
	struct expert_place next;

	do {
		n++;
		next = experts_place(l, e + n < l->n ? e + n : e);
	} while (next.rank == first.rank && next.index == first.index + n);
	return n;
}

/*
 * Each expert-parallel rank has one tensor with its experts in order; the whole has all experts by
 * number (checkpoint/autoep_affine.py).
 *
 *	placement {0: [2, 0], 1: [3, 1]}
 *	whole	| 0: index 1 | 1: index 1 | 0: index 0 | 1: index 0 |
 */
static int join_experts(const struct geometry_args *j)
{
	const struct expert_layer *l = j->p->merge.experts;
	const struct slice *first = j->p->first;
	struct geometry *g = j->g;
	uint64_t shape[TENSOR_DIMS_MAX], len;
	int rc;

	for (unsigned i = 0; i < j->p->nslices; i++)
		if (j->p->nslices != experts_degree(l) || first->ndim == 0 ||
		    first->shape[0] != l->local || !j->p->slices[i] ||
		    SHAPE_ORDER(j->p->slices[i], first))
			return GEOMETRY_BAD(j, "is not of %u experts on each of %u ranks",
					    l->local, experts_degree(l));
	memcpy(shape, first->shape, first->ndim * sizeof(*shape));
	shape[0] = l->n;
	rc = geometry_set_shape(j, shape, first->ndim);
	if (rc)
		return rc;
	g->rows = 1;
	g->row_len = g->numel;
	len = g->numel / l->n;
	for (unsigned i = 0; i < j->p->nslices; i++)
		g->stride[i] = first->numel;
	for (unsigned e = 0, run; !rc && e < l->n; e += run) {
		const struct expert_place at = experts_place(l, e);

		run = run_length(l, e);
		rc = geometry_add(j, (struct geometry_segment){ .at = e * len, .len = run * len,
								.from = at.index * len,
								.source = at.rank });
	}
	return rc;
}

/* The checkpoint says piece by piece where ranks have the experts. */
static int map_experts(const struct geometry_args *j)
{
	const unsigned n = j->p->merge.experts->n;
	const struct slice *first = j->p->first;
	const struct geometry *g = j->g;
	const int rc = geometry_affine(j);

	if (rc || (g->ndim && g->ndim == first->ndim && g->shape[0] == n &&
		   !shape_order(g->shape + 1, g->ndim - 1, first->shape + 1, g->ndim - 1)))
		return rc;
	return GEOMETRY_BAD(j, "its affine map is not of %u experts like those of its slices", n);
}

static int geometry_apply(const struct geometry_args *j)
{
	switch (j->p->merge.rule) {
	case MERGE_AFFINE:
		return geometry_affine(j);
	case MERGE_EXPERTS:
		return j->p->merge.spec ? map_experts(j) : join_experts(j);
	case MERGE_SUB_PARAMS:
		return sub_params(j);
	case MERGE_AVERAGE:
		/* The mean of one slice is the slice. */
		j->g->mean = j->p->nslices > 1;
		return take_first(j);
	case MERGE_REPLICATED:
		return take_first(j);
	case MERGE_TWO_SUB_PARAMS:
	case MERGE_THREE_SUB_PARAMS:
	case MERGE_CAT:
		break;
	}
	/* A single slice is the whole, even a scalar, which cannot be
	 * concatenated. */
	return j->p->nslices == 1 ? take_first(j) : concatenate(j);
}

bool geometry_is_covered(const struct geometry *g)
{
	uint64_t at = 0;
	size_t i;

	for (i = 0; i < g->nsegs && g->segs[i].at == at; i++)
		at += g->segs[i].len;
	return i == g->nsegs && at == g->row_len;
}

int geometry_init(struct geometry *g, const struct param *p, struct errmsg *err)
{
	const struct geometry_args j = { g, p, err };
	int rc = -ENOMEM;

	assert(p->first);
	*g = (struct geometry){ .nsources = p->nslices,
				.replicas = 1,
				.stride = calloc(p->nslices, sizeof(*g->stride)) };
	if (g->stride)
		rc = geometry_apply(&j);
	if (rc == -ENOMEM)
		errmsg_set(err, rc, "parameter %s: out of memory", p->name);
	else if (!rc && !geometry_is_covered(g))
		rc = GEOMETRY_BAD(&j, "its slices do not make it up");
	if (rc)
		geometry_done(g);
	return rc;
}
