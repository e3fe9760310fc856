/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which bytes of shards a range of a virtual file will be read from.
 *
 * Runs of a gather that a reader takes at once (gather.h) are wanted at once: the
 * gaps between them are read, too.
 */
#include "ckpt/vfile/vfile.h"

#include "ckpt/sys/parallel.h"
#include "ckpt/sys/scratch.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile_impl.h"

/* Bytes of a gather that are wanted together, or not at all. */
#define GATHER_CHUNK (UINT64_C(4) << 20)

/* Smaller windows are of readers that may read something else next. */
#define ROUNDED_MIN (UINT64_C(2) << 20)

/* A window moves on by so much at once, but no more than half of it: a request for each
 * of several shards, and the store has little less to do than a whole window. */
#define STEP (UINT64_C(4) << 20)

struct wanting {
	struct vfile *f;
	enum cache_when when;
	const struct gather *gather;
	/* Of each source of the gather, the run that is not wanted yet. */
	struct wanted_run {
		uint64_t from, to;
	} * runs;
};

/* False if there is no memory for it. */
static bool want_map(const struct wanting *w, const struct extent_map *m,
		     uint64_t off, uint64_t len)
{
	struct extent_walk at = extent_walk(m, off, (size_t)len);

	while (extent_next(&at))
		if (shardcache_want(w->f->shards, at.e->shard, at.from, at.len,
				    w->when) < at.len)
			return false;
	return true;
}

/* For gather_walk. */
static int want_run(void *ctx, const struct gather_run *run)
{
	const struct wanting *const w = ctx;
	struct wanted_run *const r = &w->runs[run->source];
	const uint64_t to = run->from + run->n;
	bool ok = true;

	if (r->to &&
	    (run->from < r->from || run->from > r->to + GATHER_GAP_MAX)) {
		ok = want_map(w, &w->gather->sources[run->source], r->from,
			      r->to - r->from);
		r->to = 0;
	}
	if (!r->to)
		r->from = run->from;
	if (to > r->to)
		r->to = to;
	return ok ? 0 : -1;
}

static bool want_runs(struct wanting *w, uint64_t off, size_t len)
{
	const struct gather *const x = w->gather;
	bool ok = gather_walk(x, want_run, w, len, off) == 0;

	for (size_t t = 0; ok && t < x->nsources; t++)
		if (w->runs[t].to)
			ok = want_map(w, &x->sources[t], w->runs[t].from,
				      w->runs[t].to - w->runs[t].from);
	return ok;
}

static bool want_mean(struct wanting *w, uint64_t off, size_t len)
{
	bool ok = true;

	for (size_t t = 0; ok && t < w->gather->nsources; t++)
		ok = want_map(w, &w->gather->sources[t], off, len);
	return ok;
}

static bool want_gather_chunk(struct wanting *w, uint64_t off, size_t len)
{
	bool ok = false;

	if (gather_is_mean(w->gather))
		return want_mean(w, off, len);
	w->runs = scratch_take(w->gather->nsources * sizeof(*w->runs));
	if (w->runs) {
		for (size_t t = 0; t < w->gather->nsources; t++)
			w->runs[t] = (struct wanted_run){ 0 };
		ok = want_runs(w, off, len);
	}
	scratch_give(w->runs);
	return ok;
}

static uint64_t want_gather(struct wanting *w, uint64_t off, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		const uint64_t left = len - done;
		const size_t n =
			(size_t)(left < GATHER_CHUNK ? left : GATHER_CHUNK);

		if (!want_gather_chunk(w, off + done, n))
			break;
		done += n;
	}
	return done;
}

/* A window that ends inside a piece would make two requests of it: whoever reads that
 * far reads on. */
static uint64_t round_up(const struct extent *e, uint64_t from, uint64_t n)
{
	const uint64_t end = e->from + from + n, all = e[1].start - e->start;
	const uint64_t more = -end % CACHE_PIECE;

	if (n < ROUNDED_MIN || extent_is_cast(e))
		return n;
	return from + n + more < all ? n + more : all - from;
}

/* Want `len` bytes of an extent from byte `skip` on.  Returns how many of them will be
 * read ahead, counted from the first. */
static uint64_t want_extent(struct wanting *w, const struct extent *e,
			    uint64_t skip, uint64_t len)
{
	const uint64_t item = dtype_size(e->dtype), size = dtype_size(e->to);
	uint64_t from = skip, n = len, done;

	if (!extent_has_shard(e) && !extent_is_gather(e))
		return len;
	if (extent_is_cast(e)) { /* whole elements */
		from = skip / size * item;
		n = (skip + len + size - 1) / size * item - from;
	}
	if (extent_has_shard(e)) {
		done = shardcache_want(w->f->shards, e->shard, e->from + from,
				       round_up(e, from, n), w->when);
	} else {
		w->gather = w->f->gathers.v[e->shard];
		done = want_gather(w, e->from + from, n);
	}
	if (done >= n || !extent_is_cast(e))
		return done < len ? done : len;
	done = (from + done) / item * size;
	return done > skip ? done - skip : 0;
}

uint64_t vfile_want(struct vfile *f, uint64_t off, uint64_t len,
		    enum cache_when when)
{
	struct wanting x = { .f = f, .when = when };
	const size_t all =
		vfile_clamp(f, len < SIZE_MAX ? (size_t)len : SIZE_MAX, off);
	struct extent_walk w = extent_walk(&f->map, off, all);
	uint64_t done = 0, n;

	while (extent_next(&w)) {
		n = want_extent(&x, w.e, w.skip, w.len);
		done += n;
		if (n < w.len)
			break;
	}
	return done;
}

bool vfile_is_far(const struct vfile *f)
{
	return f->shards && shardcache_is_far(f->shards);
}

/* Enough for all processors to decode a piece while the reader takes another. */
static uint64_t near_window(void)
{
	return 2 * CACHE_PIECE * parallel_width();
}

void vfile_read_ahead(struct vfile *f, struct vfile_ahead *a, uint64_t off,
		      uint64_t now, uint64_t window)
{
	uint64_t from = atomic_load(&a->at), at = from;

	if (!f->shards || !shardcache_gains_ahead(f->shards))
		return;
	if (!vfile_is_far(f) && window > near_window())
		window = near_window();
	if (at < off)
		at = off;
	if (at - off < now && vfile_is_far(f))
		at += vfile_want(f, at, off + now - at, CACHE_NOW);
	else if (at - off < now)
		at = off + now; /* the reader decodes these itself */
	if (at - off > window - (window < 2 * STEP ? window / 2 : STEP))
		return;
	at += vfile_want(f, at, off + window - at, CACHE_NEXT);
	/* If another thread has done the same, either result will do. */
	atomic_compare_exchange_strong(&a->at, &from, at);
}
