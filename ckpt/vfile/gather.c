/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strided gathers.
 *
 * Runs that a read needs from a source are mostly close together: rows of a row-parallel weight are
 * even adjacent.  So runs are listed and sorted by source and offset.  Close runs are read together
 * into a bounce buffer and copied from there; long runs are read directly into the reader's buffer.
 */
#include "ckpt/vfile/gather.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/cast.h"

/* A run of at least this length is read by itself. */
#define RUN_DIRECT_MIN (32u << 10)

/* Runs of a source with gaps up to this may be read together. */
#define GAP_MAX (4u << 10)

/* The longest read of several runs. */
#define BOUNCE_MAX (256u << 10)

/* Runs listed at a time. */
#define RUNS_MAX 4096

/* Bytes of a mean, and of each slice, in memory at once. */
#define MEAN_CHUNK (64u << 10)

void geometry_done(struct geometry *g)
{
	free(g->segs);
	free(g->stride);
	free(g->scales);
	g->segs = NULL;
	g->stride = NULL;
	g->scales = NULL;
}

static double *make_divisors(const struct geometry *g, int power)
{
	double *v = malloc(g->nscales * sizeof(*v));

	for (size_t i = 0; v && i < g->nscales; i++)
		v[i] = pow(g->scales[i], power);
	return v;
}

struct gather *gather_new(struct geometry *g, enum dtype dtype, int power,
			  struct extent_map *sources)
{
	struct gather *x = calloc(1, sizeof(*x));

	assert((!g->mean && !g->nscales) || arith_knows(dtype));
	if (!x || (g->nscales && !(x->divisors = make_divisors(g, power)))) {
		free(x);
		return NULL;
	}
	x->g = *g;
	x->dtype = dtype;
	x->sources = sources;
	x->nsources = g->nsources;
	g->segs = NULL;
	g->stride = NULL;
	g->scales = NULL;
	return x;
}

void gather_free(struct gather *x)
{
	if (!x)
		return;
	free(x->view);
	for (size_t t = 0; t < x->nsources; t++)
		extent_done(&x->sources[t]);
	free(x->sources);
	free(x->divisors);
	geometry_done(&x->g);
	free(x);
}

bool gathers_add(struct gathers *s, struct gather *x)
{
	if (!array_reserve(&s->v, &s->cap, s->n + 1, sizeof(*s->v))) {
		gather_free(x);
		return false;
	}
	s->v[s->n++] = x;
	return true;
}

void gathers_done(struct gathers *s)
{
	for (size_t i = 0; i < s->n; i++)
		gather_free(s->v[i]);
	free(s->v);
	*s = (struct gathers){ 0 };
}

bool gathers_add_view(struct gathers *s, const struct tensor *view, const struct extent_map *source,
		      struct extent_map *out)
{
	struct gather *x = calloc(1, sizeof(*x));

	if (x) {
		x->view = malloc(sizeof(*x->view));
		x->sources = calloc(1, sizeof(*x->sources));
	}
	if (!x || !x->view || !x->sources) {
		gather_free(x);
		return false;
	}
	*x->view = *view;
	x->dtype = view->dtype;
	x->nsources = 1;
	if (extent_add_map(x->sources, source) &&
	    extent_add(out, EXTENT_GATHER, view->numel * dtype_size(view->dtype), (uint32_t)s->n, 0,
		       view->dtype))
		return gathers_add(s, x);
	gather_free(x);
	return false;
}

bool gathers_add_tensor(struct gathers *s, const struct tensor *t, uint32_t shard, uint64_t storage,
			enum dtype to, struct extent_map *out)
{
	const size_t item = dtype_size(t->dtype);
	struct extent_map source = { 0 }, made = { 0 };
	struct tensor view = *t;
	bool ok;

	if (!t->numel)
		return true;
	view.storage_offset = 0;
	ok = extent_add(&source, EXTENT_SHARD, (tensor_place(&view, view.numel - 1) + 1) * item,
			shard, storage + t->storage_offset * item, t->dtype) &&
	     gathers_add_view(s, &view, &source, &made) &&
	     extent_add_range(out, &made, 0, t->numel * item, t->dtype, to);
	extent_done(&source);
	extent_done(&made);
	return ok;
}

bool gather_is_plain(const struct gather *x)
{
	return !x->g.mean && !x->divisors;
}

uint64_t gather_run_len(const struct gather *x)
{
	return x->view ? tensor_run(x->view) * dtype_size(x->dtype)
		       : x->g.row_len * dtype_size(x->dtype) / x->g.nsegs;
}

static int walk_view(const struct gather *x, gather_step_fn step, void *ctx, size_t len,
		     uint64_t off)
{
	const uint64_t item = dtype_size(x->dtype), bytes = gather_run_len(x);
	int rc = 0;

	for (size_t at = 0; !rc && at < len;) {
		const uint64_t skip = (off + at) % bytes, left = bytes - skip;
		const uint64_t first = (off + at - skip) / item;
		const struct gather_run run = {
			.from = tensor_place(x->view, first) * item + skip,
			.n = left < len - at ? (size_t)left : len - at,
			.at = at,
		};

		rc = step(ctx, &run);
		at += run.n;
	}
	return rc;
}

int gather_walk(const struct gather *x, gather_step_fn step, void *ctx, size_t len, uint64_t off)
{
	const struct geometry *g = &x->g;
	const uint64_t item = dtype_size(x->dtype), row_bytes = g->row_len * item;
	uint64_t row;
	size_t i;

	if (x->view)
		return walk_view(x, step, ctx, len, off);
	row = off / row_bytes;
	i = interval_find(&g->segs->at, g->nsegs, sizeof(*g->segs), off % row_bytes / item);
	for (size_t at = 0; at < len; row++, i = 0)
		for (; at < len && i < g->nsegs; i++) {
			const struct geometry_segment *s = &g->segs[i];
			const uint64_t begin = row * row_bytes + s->at * item;
			const uint64_t skip = off + at - begin;
			const uint64_t left = s->len * item - skip;
			const struct gather_run run = {
				.source = s->source,
				.scale = s->scale,
				.from = (row * g->stride[s->source] + s->from) * item + skip,
				.n = left < len - at ? (size_t)left : len - at,
				.at = at,
			};
			const int rc = step(ctx, &run);

			if (rc)
				return rc;
			at += run.n;
		}
	return 0;
}

struct weaving {
	const struct gather *x;
	gather_read_fn read;
	void *ctx;
	uint8_t *buf; /* of the requested range; NULL: nothing is copied */
	struct errmsg *err;

	uint8_t *bounce;
	struct gather_run *runs, *sorted;
	size_t n, cap;
	size_t *begin; /* first index of each source's runs in `sorted' */
};

static int gather_by_place(const void *a, const void *b)
{
	const struct gather_run *x = a, *y = b;

	return ORDER(x->from, y->from);
}

/* Copy the runs to `sorted', by source, in order. */
static void sort_runs(struct weaving *w)
{
	const size_t sources = w->x->nsources;

	memset(w->begin, 0, (sources + 1) * sizeof(*w->begin));
	for (size_t i = 0; i < w->n; i++)
		w->begin[w->runs[i].source]++;
	for (size_t t = 0, at = 0; t <= sources; t++) {
		const size_t n = w->begin[t];

		w->begin[t] = at;
		at += n;
	}
	for (size_t i = 0; i < w->n; i++)
		w->sorted[w->begin[w->runs[i].source]++] = w->runs[i];
	/* Each begin has advanced to the end of its source's runs. */
	for (size_t t = 0, at = 0; t < sources; at = w->begin[t++])
		for (size_t i = at + 1; i < w->begin[t]; i++)
			if (w->sorted[i].from < w->sorted[i - 1].from) {
				qsort(w->sorted + at, w->begin[t] - at, sizeof(*w->sorted),
				      gather_by_place);
				break;
			}
}

/* Return how many runs at `v` can be read together, and their end in `*end`. */
static size_t find_close(const struct gather_run *v, size_t n, uint64_t *end)
{
	size_t k = 1;

	*end = v->from + v->n;
	if (v->n >= RUN_DIRECT_MIN)
		return 1;
	for (; k < n && v[k].source == v->source; k++) {
		const uint64_t to = v[k].from + v[k].n;

		if (v[k].n >= RUN_DIRECT_MIN || v[k].from > *end + GAP_MAX ||
		    to - v->from > BOUNCE_MAX)
			break;
		if (to > *end)
			*end = to;
	}
	return k;
}

static int read_run(const struct weaving *w, const struct gather_run *v, void *to, uint64_t end)
{
	return w->read(w->ctx, &w->x->sources[v->source], to, (size_t)(end - v->from), v->from,
		       w->err);
}

/* Read close runs, which end at `end`, at once, or else one by one: perhaps only what lies between
 * cannot be read. */
static int read_close(const struct weaving *w, const struct gather_run *v, size_t k, uint64_t end)
{
	const int failed = read_run(w, v, w->bounce, end);
	int rc = 0;

	if (!w->buf)
		return failed;
	for (size_t j = 0; !rc && j < k; j++)
		if (failed)
			rc = read_run(w, &v[j], w->buf + v[j].at, v[j].from + v[j].n);
		else
			memcpy(w->buf + v[j].at, w->bounce + (v[j].from - v->from), v[j].n);
	return rc;
}

static int read_runs(struct weaving *w)
{
	int rc = 0;

	sort_runs(w);
	for (size_t i = 0, k; !rc && i < w->n; i += k) {
		const struct gather_run *v = &w->sorted[i];
		uint64_t end;

		k = find_close(v, w->n - i, &end);
		rc = k == 1 && w->buf ? read_run(w, v, w->buf + v->at, end)
				      : read_close(w, v, k, end);
	}
	w->n = 0;
	return rc;
}

static int gather_add_run(void *ctx, const struct gather_run *run)
{
	struct weaving *w = ctx;

	w->runs[w->n++] = *run;
	return w->n == w->cap ? read_runs(w) : 0;
}

/* Copy the sources' bytes unchanged. */
static int weave(struct weaving *w, size_t len, uint64_t off)
{
	const uint64_t runs = len / (gather_run_len(w->x) + 1) + 3;
	int rc;

	w->cap = runs < RUNS_MAX ? (size_t)runs : RUNS_MAX;
	w->n = 0;
	w->runs = scratch_take(2 * w->cap * sizeof(*w->runs));
	w->begin = scratch_take((w->x->nsources + 1) * sizeof(*w->begin));
	w->bounce = scratch_take(BOUNCE_MAX);
	if (w->runs && w->begin && w->bounce) {
		w->sorted = w->runs + w->cap;
		rc = gather_walk(w->x, gather_add_run, w, len, off);
		if (!rc)
			rc = read_runs(w);
	} else {
		rc = errmsg_nomem(w->err, NULL);
	}
	scratch_give(w->bounce);
	scratch_give(w->begin);
	scratch_give(w->runs);
	return rc;
}

/*
 * sum(slices) / len(slices) as Python computes it: left to right, beginning
 * with 0.
 */
static int read_mean(struct weaving *w, size_t len, uint64_t off)
{
	const struct gather *x = w->x;
	const size_t item = dtype_size(x->dtype);
	uint8_t *one = scratch_take(MEAN_CHUNK);
	int rc = 0;

	if (!one)
		return errmsg_nomem(w->err, NULL);
	for (size_t at = 0, n; !rc && at < len; at += n) {
		n = len - at < MEAN_CHUNK ? len - at : MEAN_CHUNK;
		memset(w->buf + at, 0, n);
		for (size_t t = 0; !rc && t < x->nsources; t++) {
			rc = w->read(w->ctx, &x->sources[t], one, n, off + at, w->err);
			if (!rc)
				arith_add(x->dtype, w->buf + at, one, n / item);
		}
		if (!rc)
			arith_divide(x->dtype, w->buf + at, (double)x->nsources, n / item);
	}
	scratch_give(one);
	return rc;
}

/* Python's `tensor / factor`, or the tensor itself when that is 1. */
static int divide_run(void *ctx, const struct gather_run *run)
{
	const struct weaving *w = ctx;
	const double by = w->x->divisors[run->scale];

	if (by != 1)
		arith_divide(w->x->dtype, w->buf + run->at, by, run->n / dtype_size(w->x->dtype));
	return 0;
}

/* `off` and `len` are multiples of the element size. */
static int compute(struct weaving *w, size_t len, uint64_t off)
{
	int rc;

	if (w->x->g.mean)
		return read_mean(w, len, off);
	rc = weave(w, len, off);
	return rc ? rc : gather_walk(w->x, divide_run, w, len, off);
}

/* Compute a part of one element. */
static int compute_part(struct weaving *w, size_t len, uint64_t off)
{
	const size_t item = dtype_size(w->x->dtype);
	const size_t skip = (size_t)(off % item);
	uint8_t *to = w->buf;
	uint8_t whole[sizeof(double)];
	int rc;

	assert(item <= sizeof(whole));
	w->buf = whole;
	rc = compute(w, item, off - skip);
	if (!rc)
		memcpy(to, whole + skip, len);
	return rc;
}

int gather_read(const struct gather *x, gather_read_fn read, void *ctx, void *buf, size_t len,
		uint64_t off, struct errmsg *err)
{
	const size_t item = dtype_size(x->dtype);
	struct weaving w = { .x = x, .read = read, .ctx = ctx, .err = err };
	int rc = 0;

	for (size_t at = 0, n; !rc && at < len; at += n) {
		const size_t skip = (size_t)((off + at) % item);

		w.buf = (uint8_t *)buf + at;
		n = len - at;
		if (gather_is_plain(x)) {
			rc = weave(&w, n, off + at);
		} else if (skip || n < item) {
			n = n < item - skip ? n : item - skip;
			rc = compute_part(&w, n, off + at);
		} else {
			n -= n % item;
			rc = compute(&w, n, off + at);
		}
	}
	return rc;
}

int gather_each_read(const struct gather *x, gather_read_fn read, void *ctx, size_t len,
		     uint64_t off)
{
	struct weaving w = { .x = x, .read = read, .ctx = ctx };
	int rc = 0;

	if (!x->g.mean)
		return weave(&w, len, off);
	for (size_t t = 0; !rc && t < x->nsources; t++)
		rc = read(ctx, &x->sources[t], NULL, len, off, NULL);
	return rc;
}
