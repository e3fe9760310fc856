/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided gathers.
 *
 * The rows that a read touches are contiguous in every source, so each source
 * is read once, into memory, and its segments are copied from there to their
 * places: a row-parallel weight is read in large pieces however short its
 * rows are.  Segments that are long by themselves are read right where they
 * belong.
 */
#include "ckpt/gather.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cast.h"
#include "ckpt/errmsg.h"
#include "ckpt/geometry.h"

/* From this length on, a segment is worth a read of its own. */
#define SEGMENT_DIRECT_MIN (64u << 10)

/* Elements whose mean is taken at once. */
#define MEAN_BATCH 4096

struct gather *gather_new(struct geometry *g, enum dtype dtype,
			  struct extent_map *sources)
{
	struct gather *const x = calloc(1, sizeof(*x));

	if (!x)
		return NULL;
	x->g = malloc(sizeof(*x->g));
	if (!x->g) {
		free(x);
		return NULL;
	}
	*x->g = *g;
	x->dtype = dtype;
	x->sources = sources;
	x->nsources = g->nsources;
	g->segs = NULL;
	g->stride = NULL;
	return x;
}

void gather_free(struct gather *x)
{
	if (!x)
		return;
	for (size_t t = 0; t < x->nsources; t++)
		extent_done(&x->sources[t]);
	free(x->sources);
	geometry_done(x->g);
	free(x->g);
	free(x);
}

/* --- rows -------------------------------------------------------------------- */

struct window {
	const struct gather *x;
	gather_read_fn read;
	void *ctx;
	uint8_t *buf;
	uint64_t off, end; /* bytes of the output */
	struct errmsg *err;
};

/* The part of segment `s` in row `row` that the window wants: its length, and
 * where it begins in the window and in the segment. */
static size_t clip(const struct window *w, const struct geometry_segment *s,
		   uint64_t row, uint64_t *to, uint64_t *skip)
{
	const size_t item = dtype_size(w->x->dtype);
	const uint64_t at = (row * w->x->g->row_len + s->at) * item;
	const uint64_t end = at + s->len * item;
	const uint64_t lo = at > w->off ? at : w->off;
	const uint64_t hi = end < w->end ? end : w->end;

	if (lo >= hi)
		return 0;
	*to = lo - w->off;
	*skip = lo - at;
	return (size_t)(hi - lo);
}

static int read_step(void *ctx, const struct extent_map *m, uint64_t from,
		     size_t n, size_t at)
{
	const struct window *const w = ctx;

	return w->read(w->ctx, m, w->buf + at, n, from, w->err);
}

/* Rows [first, last] of one source, and its segments to their places. */
static int read_source(const struct window *w, uint32_t source,
		       uint64_t first, uint64_t last, uint8_t *rows)
{
	const struct geometry *const g = w->x->g;
	const size_t item = dtype_size(w->x->dtype);
	const uint64_t stride = g->stride[source] * item;
	const int rc = w->read(w->ctx, &w->x->sources[source], rows,
			       (size_t)((last - first + 1) * stride),
			       first * stride, w->err);

	if (rc)
		return rc;
	for (size_t i = 0; i < g->nsegs; i++) {
		const struct geometry_segment *const s = &g->segs[i];

		if (s->source != source)
			continue;
		for (uint64_t row = first; row <= last; row++) {
			uint64_t to, skip;
			const size_t n = clip(w, s, row, &to, &skip);

			if (n)
				memcpy(w->buf + to,
				       rows + (row - first) * stride +
					       s->from * item + skip,
				       n);
		}
	}
	return 0;
}

static int read_rows(const struct window *w)
{
	const struct geometry *const g = w->x->g;
	const size_t item = dtype_size(w->x->dtype);
	const uint64_t row_bytes = g->row_len * item;
	const uint64_t first = w->off / row_bytes;
	const uint64_t last = (w->end - 1) / row_bytes;
	uint64_t widest = 0;
	uint8_t *rows;
	int rc = 0;

	if (gather_run_len(w->x) >= SEGMENT_DIRECT_MIN)
		return gather_walk(w->x, read_step, (void *)w,
				   (size_t)(w->end - w->off), w->off);
	for (size_t t = 0; t < g->nsources; t++)
		if (g->stride[t] > widest)
			widest = g->stride[t];
	rows = malloc((size_t)((last - first + 1) * widest * item) + 1);
	if (!rows)
		return errmsg_set(w->err, -ENOMEM, "out of memory");
	for (size_t t = 0; !rc && t < g->nsources; t++)
		if (g->stride[t])
			rc = read_source(w, (uint32_t)t, first, last, rows);
	free(rows);
	return rc;
}

/* --- means ------------------------------------------------------------------- */

/*
 * sum(slices) / len(slices) as torch computes it: left to right, beginning
 * with 0, each step rounded to the tensor's type.  float32 needs no more than
 * C's own arithmetic; the narrower types are refused when the file is made.
 */
static int read_mean(const struct window *w)
{
	const size_t item = sizeof(float);
	float sum[MEAN_BATCH], one[MEAN_BATCH];
	uint64_t at = w->off / item;
	const uint64_t end = (w->end + item - 1) / item;

	while (at < end) {
		const uint64_t left = end - at;
		const size_t n = left < MEAN_BATCH ? (size_t)left : MEAN_BATCH;
		const uint64_t begin = at * item;
		const uint64_t lo = begin > w->off ? begin : w->off;
		const uint64_t hi = begin + n * item < w->end ?
					    begin + n * item :
					    w->end;

		memset(sum, 0, sizeof(sum));
		for (size_t t = 0; t < w->x->nsources; t++) {
			const int rc = w->read(w->ctx, &w->x->sources[t], one,
					       n * item, begin, w->err);

			if (rc)
				return rc;
			for (size_t i = 0; i < n; i++)
				sum[i] += one[i];
		}
		for (size_t i = 0; i < n; i++)
			sum[i] /= (float)w->x->nsources;
		memcpy(w->buf + (lo - w->off),
		       (const uint8_t *)sum + (lo - begin), (size_t)(hi - lo));
		at += n;
	}
	return 0;
}

int gather_walk(const struct gather *x, gather_step_fn step, void *ctx,
		size_t len, uint64_t off)
{
	const struct window w = { .x = x, .off = off, .end = off + len };
	const struct geometry *const g = x->g;
	const size_t item = dtype_size(x->dtype);
	const uint64_t row_bytes = g->row_len * item;

	for (uint64_t row = off / row_bytes; row * row_bytes < w.end; row++)
		for (size_t i = 0; i < g->nsegs; i++) {
			const struct geometry_segment *const s = &g->segs[i];
			uint64_t to, skip;
			const size_t n = clip(&w, s, row, &to, &skip);
			int rc;

			if (!n)
				continue;
			rc = step(ctx, &x->sources[s->source],
				  (row * g->stride[s->source] + s->from) *
						  item + skip,
				  n, (size_t)to);
			if (rc)
				return rc;
		}
	return 0;
}

uint64_t gather_run_len(const struct gather *x)
{
	return x->g->mean ? 0 :
			    x->g->row_len * dtype_size(x->dtype) / x->g->nsegs;
}

int gather_read(const struct gather *x, gather_read_fn read, void *ctx,
		void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	const struct window w = { .x = x, .read = read, .ctx = ctx,
				  .buf = buf, .off = off, .end = off + len,
				  .err = err };

	if (len == 0)
		return 0;
	return x->g->mean ? read_mean(&w) : read_rows(&w);
}
