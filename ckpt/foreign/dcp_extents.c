/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the elements of a tensor.  Its chunks are sorted by offset, so the chunks of a band, which
 * have the same range of the first cut dimension, are adjacent:
 *
 *	cut along the first dimension	each band is a chunk, and one run
 *	across rows			the band is a gather, whose rows have a piece of each
 *					chunk
 *	in no grid			runs, sorted by their places
 */
#include "ckpt/foreign/dcp_extents.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/foreign/dcp_storage.h"
#include "ckpt/format/cast.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/gather.h"

/* Limit of the runs of a tensor, and of the pieces of a row. */
#define RUNS_MAX (1u << 18)

struct finding {
	const struct dcp_storage *b;
	struct wanted {
		const struct dcp_entry *t;
		struct dcp_chunk *c;
	} * v;
	size_t n, cap;
};

static int find_one(void *ctx, size_t i, struct errmsg *err)
{
	const struct finding *f = ctx;

	return dcp_storage_locate(f->b, f->v[i].t, f->v[i].c, err);
}

/* List the chunks of a range that have not been located yet. */
static bool list_chunks(struct finding *f, const struct dcp_range *r)
{
	for (size_t i = 0; i < r->t->nchunks; i++) {
		struct dcp_chunk *c = &r->t->chunks[i];

		if (!c->numel || c->data || dcp_chunk_before(r->t, c, r->first) ==
			    dcp_chunk_before(r->t, c, r->first + r->numel))
			continue;
		if (!array_reserve(&f->v, &f->cap, f->n + 1, sizeof(*f->v)))
			return false;
		f->v[f->n++] = (struct wanted){ r->t, c };
	}
	return true;
}

int dcp_extents_find(const struct dcp_storage *b, const struct dcp_range *v, size_t n,
		     struct errmsg *err)
{
	struct finding f = { .b = b };
	bool ok = true;
	int rc;

	for (size_t i = 0; ok && i < n; i++)
		ok = !v[i].numel || list_chunks(&f, &v[i]);
	rc = ok ? parallel_far(f.n, 1, find_one, &f, err) : errmsg_nomem(err, b->dir);
	free(f.v);
	return rc;
}

/* Chunks that form a box: the tensor, or a part of it with contiguous elements. */
struct band {
	struct dcp_chunk *v;
	size_t n;
	uint64_t box[TENSOR_DIMS_MAX];
};

struct laying {
	const struct dcp_storage *b;
	const struct dcp_entry *t;
	uint64_t first, end;   /* requested elements */
	uint64_t at;           /* first element that is not laid out yet */
	uint64_t base;         /* first element in `out` */
	struct extent_map out; /* in the tensor's own type */
	struct gathers *gathers;
	struct errmsg *err;
};

static int fail_many(const struct laying *l)
{
	return errmsg_set(l->err, -E2BIG, "%s: %s: is cut into too many pieces", l->b->dir,
			  l->t->key);
}

/* Append elements [e, e + n) of a chunk.  A view's elements form short runs. */
static int add_run(struct laying *l, const struct dcp_chunk *c, const struct tensor *view,
		   uint64_t e, uint64_t n)
{
	const size_t item = dtype_size(l->t->dtype);
	const uint64_t run = view ? tensor_run(view) : n;
	bool ok = true;

	for (uint64_t len; ok && n; e += len, n -= len) {
		len = view ? run - e % run : n;
		len = len < n ? len : n;
		ok = extent_add(&l->out, EXTENT_SHARD, len * item, c->file,
				c->data + (view ? tensor_place(view, e) : e) * item, l->t->dtype);
		if (ok && l->out.n > RUNS_MAX)
			return fail_many(l);
	}
	return ok ? 0 : errmsg_nomem(l->err, l->t->key);
}

struct run {
	uint64_t at; /* offset in the tensor */
	uint64_t e, n;
	const struct dcp_chunk *c;
};

static int by_place(const void *a, const void *b)
{
	const struct run *x = a, *y = b;

	return x->at < y->at ? -1 : x->at > y->at;
}

/* List the runs of a band's elements [low, high). */
static int list_runs(const struct laying *l, const struct band *band, uint64_t low, uint64_t high,
		     struct run **runs, size_t *n)
{
	size_t cap = 0;

	for (size_t i = 0; i < band->n; i++) {
		const struct dcp_chunk *c = &band->v[i];
		const uint64_t end = dcp_chunk_before(l->t, c, high);

		for (uint64_t e = dcp_chunk_before(l->t, c, low); e < end;) {
			struct run x = { .e = e, .c = c };

			x.n = dcp_chunk_place(l->t, c, e, &x.at);
			x.n = x.n < end - e ? x.n : end - e;
			if (*n == RUNS_MAX)
				return fail_many(l);
			if (!array_reserve(runs, &cap, *n + 1, sizeof(**runs)))
				return errmsg_nomem(l->err, l->t->key);
			(*runs)[(*n)++] = x;
			e += x.n;
		}
	}
	return 0;
}

/* Append the requested part of a band that begins with element `begin`, run by run. */
static int add_runs(struct laying *l, const struct band *band, uint64_t begin)
{
	const uint64_t low = l->first > begin ? l->first : begin;
	const uint64_t high = l->end < l->at ? l->end : l->at;
	const struct dcp_chunk *viewed = NULL;
	struct tensor view;
	struct run *runs = NULL;
	size_t n = 0;
	int rc = list_runs(l, band, low, high, &runs, &n);

	if (!l->out.n)
		l->base = low;
	if (!rc && n)
		qsort(runs, n, sizeof(*runs), by_place);
	for (size_t i = 0; !rc && i < n; i++) {
		const struct run *x = &runs[i];

		if (x->c->strided && x->c != viewed)
			rc = dcp_storage_view(l->b, l->t, viewed = x->c, &view, l->err);
		rc = rc ?: add_run(l, x->c, x->c->strided ? &view : NULL, x->e, x->n);
	}
	free(runs);
	return rc;
}

/* Append a chunk whose elements are contiguous in the tensor. */
static int add_chunk(struct laying *l, const struct band *band, uint64_t begin)
{
	const struct dcp_chunk *c = band->v;
	struct tensor view;
	int rc;

	if (c->strided && !l->gathers)
		return add_runs(l, band, begin);
	if (!l->out.n)
		l->base = begin;
	if (!c->strided)
		return add_run(l, c, NULL, 0, c->numel);
	rc = dcp_storage_view(l->b, l->t, c, &view, l->err);
	if (!rc && !gathers_add_tensor(l->gathers, &view, c->file, c->data, l->t->dtype, &l->out))
		rc = errmsg_nomem(l->err, l->t->key);
	return rc;
}

static uint64_t product(const uint64_t *v, unsigned from, unsigned end)
{
	uint64_t n = 1;

	while (from < end)
		n *= v[from++];
	return n;
}

/* Count the chunks from v[i] on that have the same range in dimension `d`. */
static size_t count_alike(const struct band *b, size_t i, unsigned d)
{
	size_t k = i + 1;

	while (k < b->n && b->v[k].offset[d] == b->v[i].offset[d] &&
	       b->v[k].size[d] == b->v[i].size[d])
		k++;
	return k - i;
}

/* Do ranges of dimension `d` divide a box, which begins at index `origin`, into bands? */
static bool is_divided(const struct band *b, uint64_t origin, unsigned d)
{
	uint64_t at = origin;

	for (size_t i = 0; i < b->n; i += count_alike(b, i, d)) {
		if (b->v[i].offset[d] != at)
			return false;
		at += b->v[i].size[d];
	}
	return at == origin + b->box[d];
}

/* The rows of a gather while they are listed. */
struct row {
	struct laying *l;
	struct geometry g;
	size_t cap;
	const struct dcp_chunk *chunks;  /* the sources */
	uint64_t index[TENSOR_DIMS_MAX]; /* indices in the dimensions before the row's */
	unsigned begin;                  /* the row's first dimension */
};

static bool add_segment(struct row *r, const struct dcp_chunk *c, unsigned d, uint64_t len)
{
	const unsigned ndim = r->l->t->ndim;
	const size_t n = r->g.nsegs;
	uint64_t from = 0;

	for (unsigned i = r->begin; i < ndim; i++)
		from = from * c->size[i] + (i <= d ? r->index[i] - c->offset[i] : 0);
	if (!array_reserve(&r->g.segs, &r->cap, n + 1, sizeof(*r->g.segs)))
		return false;
	r->g.segs[r->g.nsegs++] = (struct geometry_segment){
		.at = n ? r->g.segs[n - 1].at + r->g.segs[n - 1].len : 0,
		.len = len,
		.from = from,
		.source = (uint32_t)(c - r->chunks),
	};
	return true;
}

/* List the pieces of a row from dimension `d` on.  Returns 1 if the chunks form no grid, or
 * there are too many pieces. */
static int list_pieces(struct row *r, const struct band *b, unsigned d)
{
	const unsigned ndim = r->l->t->ndim;
	int rc = 0;

	if (d == ndim || !is_divided(b, 0, d))
		return 1;
	for (size_t i = 0, n; !rc && i < b->n; i += n) {
		struct band x = { .v = &b->v[i], .n = n = count_alike(b, i, d) };
		const uint64_t end = x.v->offset[d] + x.v->size[d];

		memcpy(x.box, b->box, ndim * sizeof(*x.box));
		r->index[d] = x.v->offset[d];
		if (n == 1 && product(x.v->size, d + 1, ndim) == product(x.box, d + 1, ndim)) {
			if (!add_segment(r, x.v, d, x.v->size[d] * product(x.box, d + 1, ndim)))
				return errmsg_nomem(r->l->err, r->l->t->key);
			continue;
		}
		for (; !rc && r->index[d] < end; r->index[d]++)
			rc = r->g.nsegs > RUNS_MAX ? 1 : list_pieces(r, &x, d + 1);
	}
	return rc;
}

/* Append a band as a gather; it has whole ranges of the dimensions before `d`, and no others. */
static int add_gather(struct laying *l, const struct band *b, unsigned d, uint64_t begin)
{
	const size_t item = dtype_size(l->t->dtype);
	const unsigned ndim = l->t->ndim;
	struct row r = { .l = l, .chunks = b->v, .begin = d };
	struct extent_map *sources = calloc(b->n, sizeof(*sources));
	uint64_t *stride = calloc(b->n, sizeof(*stride));
	bool ok = sources && stride;
	struct gather *x = NULL;
	int rc = ok ? list_pieces(&r, b, d) : errmsg_nomem(l->err, l->t->key);

	for (size_t i = 0; !rc && ok && i < b->n; i++) {
		stride[i] = product(b->v[i].size, d, ndim);
		ok = extent_add(&sources[i], EXTENT_SHARD, b->v[i].numel * item, b->v[i].file,
				b->v[i].data, l->t->dtype);
	}
	r.g.rows = product(b->box, 0, d);
	r.g.row_len = product(b->box, d, ndim);
	r.g.numel = r.g.rows * r.g.row_len;
	r.g.nsources = b->n;
	if (!rc && ok) {
		r.g.stride = stride;
		x = gather_new(&r.g, l->t->dtype, 0, sources);
		stride = x ? NULL : stride;
	}
	free(stride);
	if (x) {
		if (!l->out.n)
			l->base = begin;
		return extent_add(&l->out, EXTENT_GATHER, x->g.numel * item,
				  (uint32_t)l->gathers->n, 0, l->t->dtype) &&
				       gathers_add(l->gathers, x)
			       ? 0
			       : errmsg_nomem(l->err, l->t->key);
	}
	free(r.g.segs);
	for (size_t i = 0; sources && i < b->n; i++)
		extent_done(&sources[i]);
	free(sources);
	return rc > 0 ? add_runs(l, b, begin) : rc ?: errmsg_nomem(l->err, l->t->key);
}

static bool is_strided(const struct band *b)
{
	size_t i = 0;

	while (i < b->n && !b->v[i].strided)
		i++;
	return i < b->n;
}

/* Return the first dimension that the chunks of a band cut. */
static unsigned find_cut(const struct laying *l, const struct band *b)
{
	for (unsigned d = 0; d < l->t->ndim; d++)
		for (size_t i = 0; i < b->n; i++)
			if (b->v[i].size[d] < b->box[d])
				return d;
	return l->t->ndim;
}

static int lay_out(struct laying *l, const struct band *b)
{
	const unsigned ndim = l->t->ndim;
	const struct dcp_range all = { (struct dcp_entry *)l->t, l->at, product(b->box, 0, ndim) };
	unsigned d;
	int rc = 0;

	if (l->at + all.numel <= l->first || l->at >= l->end) {
		l->at += all.numel;
		return 0;
	}
	d = b->n == 1 ? ndim : find_cut(l, b);
	if (d < ndim && product(b->box, 0, d) == 1 && is_divided(b, 0, d)) {
		for (size_t i = 0, n; !rc && i < b->n; i += n) {
			struct band x = { .v = &b->v[i], .n = n = count_alike(b, i, d) };

			memcpy(x.box, b->box, ndim * sizeof(*x.box));
			x.box[d] = x.v->size[d];
			rc = lay_out(l, &x);
		}
		return rc;
	}
	rc = dcp_extents_find(l->b, &all, 1, l->err);
	l->at += all.numel;
	if (rc)
		return rc;
	if (b->n == 1)
		return add_chunk(l, b, all.first);
	return d < ndim && product(b->box, 0, d) > 1 && l->gathers && !is_strided(b)
		       ? add_gather(l, b, d, all.first)
		       : add_runs(l, b, all.first);
}

int dcp_extents_add(const struct dcp_storage *b, const struct dcp_range *r, enum dtype to,
		    struct extent_map *out, struct gathers *gathers, struct errmsg *err)
{
	const struct dcp_entry *t = r->t;
	struct laying l = { .b = b,
			    .t = t,
			    .first = r->first,
			    .end = r->first + r->numel,
			    .gathers = gathers,
			    .err = err };
	struct band all = { .v = t->chunks, .n = t->nchunks };
	int rc;

	if (to != t->dtype && !cast_knows(t->dtype))
		return errmsg_set(err, -ENOTSUP, "%s: %s: is of a type that is not read", b->dir,
				  t->key);
	if (!r->numel)
		return 0;
	rc = dcp_extents_find(b, r, 1, err);
	if (rc)
		return rc;
	/* The records have shown that there are not more dimensions. */
	memcpy(all.box, t->shape, t->ndim * sizeof(*all.box));
	for (; !all.v->numel; all.n--)
		all.v++;
	rc = lay_out(&l, &all);
	if (!rc && !extent_add_range(out, &l.out, (r->first - l.base) * dtype_size(t->dtype),
				     r->numel * dtype_size(t->dtype), t->dtype, to))
		rc = errmsg_nomem(err, t->key);
	extent_done(&l.out);
	return rc;
}
