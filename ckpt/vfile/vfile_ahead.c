/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetches the bytes of shards that a range of a virtual file needs; and virtual files as
 * sources. */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/tensor.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile_impl.h"

/* Bytes of a gather that are prefetched together, or not at all. */
#define GATHER_CHUNK (UINT64_C(4) << 20)

/* Smaller windows belong to readers that may read something else next. */
#define ROUNDED_MIN (UINT64_C(2) << 20)

/* A window advances by at most this much at once, and by at most half of itself: enough for a
 * request to each of several shards, without flooding the store. */
#define STEP (UINT64_C(4) << 20)

struct wanting {
	struct vfile *f;
	enum want when;
};

/* As gather_read_fn, for bytes that will be read.  -ENOMEM if the cache has no room for them. */
static int want_map(void *ctx, const struct extent_map *m, void *buf, size_t len, uint64_t off,
		    struct errmsg *err)
{
	const struct wanting *w = ctx;
	struct extent_walk at = extent_walk(m, off, len);

	(void)buf, (void)err;
	while (extent_next(&at)) {
		const bool cast = extent_is_cast(at.e);
		const uint64_t from = cast ? extent_cast_from(at.e, at.skip) : at.from;
		const uint64_t n = cast ? extent_cast_from(at.e, at.skip + at.len - 1) +
						   dtype_size(at.e->dtype) - from
					: at.len;

		if (shards_prefetch(w->f->shards, at.e->shard, from, n, w->when) < n)
			return -ENOMEM;
	}
	return 0;
}

static uint64_t want_gather(struct wanting *w, const struct gather *x, uint64_t off, uint64_t len)
{
	uint64_t done = 0;

	while (done < len) {
		const uint64_t left = len - done;
		const size_t n = (size_t)(left < GATHER_CHUNK ? left : GATHER_CHUNK);

		if (gather_each_read(x, want_map, w, n, off + done))
			break;
		done += n;
	}
	return done;
}

/* A window that ends inside a piece would need two requests for it, so round up: a reader that
 * reaches it will continue. */
static uint64_t round_up(const struct extent *e, uint64_t from, uint64_t n)
{
	const uint64_t end = e->from + from + n, all = e[1].start - e->start;
	const uint64_t more = -end % CACHE_PIECE;

	if (n < ROUNDED_MIN || extent_is_cast(e))
		return n;
	return from + n + more < all ? n + more : all - from;
}

/* Prefetch `len` bytes of an extent from byte `skip` on.  Returns how many, from the first on, will
 * be fetched. */
static uint64_t want_extent(struct wanting *w, const struct extent *e, uint64_t skip, uint64_t len)
{
	const uint64_t item = dtype_size(e->dtype), size = dtype_size(e->to);
	uint64_t from = skip, n = len, done;

	if (e->kind != EXTENT_SHARD && e->kind != EXTENT_GATHER)
		return len;
	if (extent_is_cast(e)) { /* round to whole elements */
		from = skip / size * item;
		n = (skip + len + size - 1) / size * item - from;
	}
	if (e->kind == EXTENT_SHARD)
		done = shards_prefetch(w->f->shards, e->shard, e->from + from, round_up(e, from, n),
				       w->when);
	else
		done = want_gather(w, w->f->gathers.v[e->shard], e->from + from, n);
	if (done >= n || !extent_is_cast(e))
		return done < len ? done : len;
	done = (from + done) / item * size;
	return done > skip ? done - skip : 0;
}

uint64_t vfile_prefetch(struct vfile *f, uint64_t off, uint64_t len, enum want when)
{
	struct wanting x = { .f = f, .when = when };
	const size_t all = vfile_clamp(f, len < SIZE_MAX ? (size_t)len : SIZE_MAX, off);
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

bool vfile_is_slow(const struct vfile *f)
{
	return f->shards && shards_is_slow(f->shards);
}

uint64_t vfile_readahead_bytes(const struct vfile *f)
{
	return f->shards ? cache_readahead_bytes(shards_context(f->shards)) : 0;
}

/* Return a window large enough for all processors to decode pieces while the reader takes another
 * one. */
static uint64_t fast_window(void)
{
	return 2 * CACHE_PIECE * parallel_width();
}

void vfile_read_ahead(struct vfile *f, struct vfile_ahead *a, uint64_t off, uint64_t now,
		      uint64_t window)
{
	uint64_t from = atomic_load(&a->at), at = from;

	if (!f->shards || !shards_gains_ahead(f->shards))
		return;
	if (!vfile_is_slow(f) && window > fast_window())
		window = fast_window();
	if (at < off)
		at = off;
	if (at - off < now && vfile_is_slow(f))
		at += vfile_prefetch(f, at, off + now - at, WANT_NOW);
	else if (at - off < now)
		at = off + now; /* the reader decodes the bytes before this itself */
	if (at - off > window - (window < 2 * STEP ? window / 2 : STEP))
		return;
	at += vfile_prefetch(f, at, off + window - at, WANT_NEXT);
	/* Another thread may have advanced it; either result is valid. */
	atomic_compare_exchange_strong(&a->at, &from, at);
}

struct opened {
	struct vfile *f;
	uint64_t end; /* end of the sequential reads */
	struct vfile_ahead ahead;
};

static int read_opened(const struct source *s, void *buf, size_t len, uint64_t off,
		       struct errmsg *err)
{
	struct opened *o = s->ctx;
	const uint64_t most = vfile_readahead_bytes(o->f);
	int64_t n;

	if (off < o->end)
		vfile_read_ahead(o->f, &o->ahead, off, len,
				 o->end - off < most ? o->end - off : most);
	n = vfile_read(o->f, buf, len, off, err);
	return n < 0 ? (int)n : 0;
}

static void close_opened(struct source *s)
{
	struct opened *o = s->ctx;

	vfile_free(o->f);
	free(o);
}

int vfile_source_open(struct source *s, struct vfile *f, const char *name, struct errmsg *err)
{
	static const struct source_ops ops = { .read = read_opened, .close = close_opened };
	struct opened *o = calloc(1, sizeof(*o));

	if (!o) {
		vfile_free(f);
		return errmsg_nomem(err, name);
	}
	o->f = f;
	*s = (struct source){
		.name = name, .size = vfile_size(f), .fd = -1, .ops = &ops, .ctx = o
	};
	return 0;
}

void vfile_source_expect(struct source *s, uint64_t end)
{
	((struct opened *)s->ctx)->end = end;
}
