/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of virtual files as pieces of mapped shards, for who can be handed
 * addresses: the kernel, and code that is guarded.
 */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <sys/uio.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/sys/scratch.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile_impl.h"

/* Pieces smaller than this cost the kernel more as an iovec than as a copy. */
#define IOV_PIECE_MIN 2048

/* What zeros are mapped to: never written, so all of it is one page. */
static uint8_t zeros[1u << 20];

/* Shards of a window among which one that comes back is looked for. */
#define MAPS_LOOKED_AT 32

void vfile_unmap(struct vfile *f, struct vfile_window *w)
{
	if (w->nmaps)
		shardcache_count_mapped(f->shards, w->len);
	while (w->nmaps)
		shardcache_put(f->shards, w->maps[--w->nmaps].shard);
	scratch_give(w->bounce);
	w->bounce = NULL;
}

static int map_shard(struct vfile *f, uint32_t shard, struct vfile_window *w,
		     const uint8_t **p, struct errmsg *err)
{
	struct shard_map m;
	int rc;

	/* A gather comes back to the same few shards. */
	for (int i = w->nmaps; i > 0 && i > w->nmaps - MAPS_LOOKED_AT; i--)
		if (w->maps[i - 1].shard == shard) {
			*p = w->maps[i - 1].p;
			return 0;
		}
	rc = shardcache_get(f->shards, shard, &m, err);
	if (rc)
		return rc;
	w->maps[w->nmaps].shard = shard;
	w->maps[w->nmaps++].p = m.p;
	*p = m.p;
	return 0;
}

static int add_piece(struct vfile_window *w, const uint8_t *p, size_t n)
{
	if (w->n == VFILE_IOV_MAX)
		return -E2BIG;
	w->iov[w->n++] = (struct iovec){ .iov_base = (void *)p, .iov_len = n };
	return 0;
}

struct mapping {
	struct vfile *f;
	const struct gather *gather;
	struct vfile_window *w;
	struct errmsg *err;
};

/* One run of a gather, which come in order; for gather_walk. */
static int map_run(void *ctx, const struct gather_run *run)
{
	const struct mapping *const x = ctx;
	const struct extent_map *const m = &x->gather->sources[run->source];
	uint64_t from = run->from;
	size_t n = run->n;

	for (size_t i = extent_find(m, from); n; i++) {
		const struct extent *const e = &m->v[i];
		const uint64_t rest = e[1].start - from;
		const size_t len = n < rest ? n : (size_t)rest;
		const uint8_t *p = NULL;
		int rc;

		if (x->w->nmaps == VFILE_IOV_MAX)
			return -E2BIG;
		rc = map_shard(x->f, e->shard, x->w, &p, x->err);
		if (!rc)
			rc = add_piece(x->w, p + e->from + (from - e->start),
				       len);
		if (rc)
			return rc;
		from += len;
		n -= len;
	}
	return 0;
}

/* Is the window made of few enough, large enough pieces to be mapped? */
static bool can_map(const struct vfile *f, size_t first, size_t len,
		    uint64_t off)
{
	const uint64_t end = off + len;
	uint64_t n = 0;

	for (size_t i = first; i < f->map.n && f->map.v[i].start < end; i++) {
		const struct extent *const e = &f->map.v[i];
		const uint64_t begin = e->start > off ? e->start : off;
		const uint64_t stop = e[1].start < end ? e[1].start : end;

		const struct gather *const x =
			extent_is_gather(e) ? f->gathers.v[e->shard] : NULL;

		if (extent_is_cast(e) || (x && !gather_is_plain(x)))
			return false;
		n += x			      ? (stop - begin) / gather_run_len(x) + 1 :
		     e->kind == EXTENT_ZERO ? (stop - begin) / sizeof(zeros) + 1 :
					      1;
		if (n > VFILE_IOV_MAX)
			return false;
	}
	return n <= 2 || len / n >= IOV_PIECE_MIN;
}

static int map_zeros(struct vfile_window *w, size_t n)
{
	int rc = 0;

	for (size_t len; !rc && n; n -= len) {
		len = n < sizeof(zeros) ? n : sizeof(zeros);
		rc = add_piece(w, zeros, len);
	}
	return rc;
}

static int map_pieces(struct vfile *f, size_t i, uint64_t off,
		      struct vfile_window *w, struct errmsg *err)
{
	struct mapping x = { .f = f, .w = w, .err = err };
	size_t left = w->len;

	for (; left; i++) {
		const struct extent *const e = &f->map.v[i];
		const uint64_t rest = e[1].start - off, skip = off - e->start;
		const size_t n = left < rest ? left : (size_t)rest;
		const uint8_t *p = NULL;
		int rc = 0;

		if (e->kind == EXTENT_GATHER) {
			x.gather = f->gathers.v[e->shard];
			rc = gather_walk(x.gather, map_run, &x, n,
					 e->from + skip);
		} else if (e->kind == EXTENT_SHARD) {
			rc = map_shard(f, e->shard, w, &p, err);
		} else if (e->kind == EXTENT_ZERO) {
			rc = map_zeros(w, n);
		} else {
			if (e->from + skip + n > f->early)
				rc = vfile_prepare(f, err);
			p = f->literal.data;
		}
		if (!rc && p)
			rc = add_piece(w, p + e->from + skip, n);
		if (rc)
			return rc;
		off += n;
		left -= n;
	}
	return 0;
}

/* Move the end of what has been mapped in sequence. */
static void note_mapped(struct vfile *f, size_t len, uint64_t off)
{
	uint64_t to = atomic_load(&f->mapped);

	while (off <= to && to < off + len &&
	       !atomic_compare_exchange_weak(&f->mapped, &to, off + len))
		;
}

int vfile_map_pieces(struct vfile *f, size_t len, uint64_t off,
		     struct vfile_window *w, struct errmsg *err)
{
	int rc = -E2BIG;

	w->n = w->nmaps = 0;
	w->bounce = NULL;
	w->len = vfile_clamp(f, len, off);
	if (w->len == 0)
		return 0;

	const size_t first = extent_find(&f->map, off);

	if (can_map(f, first, w->len, off))
		rc = map_pieces(f, first, off, w, err);
	if (rc)
		vfile_unmap(f, w);
	return rc;
}

int vfile_map(struct vfile *f, size_t len, uint64_t off, struct vfile_window *w,
	      struct errmsg *err)
{
	int rc = vfile_map_pieces(f, len, off, w, err);

	if (rc == -E2BIG) {
		w->bounce = scratch_take(w->len);
		rc = w->bounce ? vfile_read_exact(f, w->bounce, w->len, off, err)
			       : errmsg_set(err, -ENOMEM, "out of memory");
		w->iov[0] = (struct iovec){ w->bounce, w->len };
		w->n = 1;
	}
	if (rc)
		vfile_unmap(f, w);
	else
		note_mapped(f, w->len, off);
	return rc;
}
