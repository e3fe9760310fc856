/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of virtual files as pieces of memory for the kernel: mapped shards or, for a remote file,
 * prefetched blocks.
 */
#include "ckpt/vfile/vfile.h"

#include <errno.h>
#include <sys/uio.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/vfile/vfile_impl.h"

/* Pieces smaller than this cost the kernel more as an iovec than as a copy. */
#define IOV_PIECE_MIN 2048

/* The source of mapped zeros: never written, so it takes one page of memory. */
static uint8_t zeros[1u << 20];

/* Number of a window's recent shards that are searched before a shard is mapped again. */
#define MAPS_LOOKED_AT 32

static void unpin_all(struct reply_pieces *w, bool read)
{
	while (w->npins)
		cache_unpin(&w->pins[--w->npins], read);
}

void vfile_unmap(struct vfile *f, struct reply_pieces *w, bool sent)
{
	if (sent)
		vfile_crc_add_pieces(f, w);
	if (w->nmaps)
		shards_count_mapped(f->shards, w->len);
	while (w->nmaps)
		shards_unuse(f->shards, w->maps[--w->nmaps].shard);
	unpin_all(w, true);
	scratch_give(w->bounce);
	w->bounce = NULL;
}

int vfile_check_pieces(struct vfile *f, const struct reply_pieces *w, struct errmsg *err)
{
	int rc = 0;

	for (int i = 0; !rc && i < w->nmaps; i++)
		rc = shards_check_files(f->shards, &w->maps[i].shard, 1, err);
	return rc;
}

static int map_shard(struct vfile *f, uint32_t shard, struct reply_pieces *w, const uint8_t **p,
		     struct errmsg *err)
{
	struct shard_map m;
	int rc;

	/* Search backwards: a gather alternates between few shards. */
	for (int i = w->nmaps; i > 0 && i > w->nmaps - MAPS_LOOKED_AT; i--)
		if (w->maps[i - 1].shard == shard) {
			*p = w->maps[i - 1].p;
			return 0;
		}
	rc = shards_use(f->shards, shard, &m, err);
	if (rc)
		return rc;
	w->maps[w->nmaps].shard = shard;
	w->maps[w->nmaps++].p = m.p;
	*p = m.p;
	return m.p ? 0 : -E2BIG;
}

static int vfile_map_add_piece(struct reply_pieces *w, const uint8_t *p, size_t n)
{
	if (w->n == VFILE_IOV_MAX)
		return -E2BIG;
	w->iov[w->n++] = (struct iovec){ .iov_base = (void *)p, .iov_len = n };
	return 0;
}

struct mapping {
	struct vfile *f;
	const struct gather *gather;
	struct reply_pieces *w;
	bool borrow; /* use prefetched bytes instead of mapping shards */
	struct errmsg *err;
};

static int borrow_piece(const struct mapping *x, uint32_t shard, uint64_t off, size_t len)
{
	struct reply_pieces *w = x->w;
	int rc = 0;

	while (!rc && len) {
		struct cache_pin *l = &w->pins[w->npins];

		if (w->npins == VFILE_PINS_MAX || !shards_pin(x->f->shards, shard, off, len, l))
			return -E2BIG;
		w->npins++;
		rc = vfile_map_add_piece(w, l->p, l->len);
		off += l->len;
		len -= l->len;
	}
	return rc;
}

/* Add bytes of a shard to the window. */
static int add_shard(const struct mapping *x, uint32_t shard, uint64_t off, size_t len)
{
	const uint8_t *p;
	int rc;

	if (x->borrow)
		return borrow_piece(x, shard, off, len);
	if (x->w->nmaps == VFILE_IOV_MAX)
		return -E2BIG;
	rc = map_shard(x->f, shard, x->w, &p, x->err);
	return rc ? rc : vfile_map_add_piece(x->w, p + off, len);
}

/* Map a run of a gather; for gather_walk. */
static int map_run(void *ctx, const struct gather_run *run)
{
	const struct mapping *x = ctx;
	const struct extent_map *m = &x->gather->sources[run->source];
	struct extent_walk w = extent_walk(m, run->from, run->n);
	int rc = 0;

	while (!rc && extent_next(&w))
		rc = extent_is_cast(w.e) || w.e->kind == EXTENT_ZERO
			     ? -E2BIG
			     : add_shard(x, w.e->shard, w.from, w.len);
	return rc;
}

/* Does the window consist of few, large pieces that can be mapped? */
static bool can_map(const struct vfile *f, size_t len, uint64_t off)
{
	struct extent_walk w = extent_walk(&f->map, off, len);
	uint64_t n = 0;

	while (extent_next(&w)) {
		const struct gather *x =
			w.e->kind == EXTENT_GATHER ? f->gathers.v[w.e->shard] : NULL;

		if (extent_is_cast(w.e) || (x && !gather_is_plain(x)))
			return false;
		n += x                          ? w.len / gather_run_len(x) + 1
		     : w.e->kind == EXTENT_ZERO ? w.len / sizeof(zeros) + 1
						: 1;
		if (n > VFILE_IOV_MAX)
			return false;
	}
	return n <= 2 || len / n >= IOV_PIECE_MIN;
}

static int map_zeros(struct reply_pieces *w, size_t n)
{
	int rc = 0;

	for (size_t len; !rc && n; n -= len) {
		len = n < sizeof(zeros) ? n : sizeof(zeros);
		rc = vfile_map_add_piece(w, zeros, len);
	}
	return rc;
}

static int map_pieces(struct vfile *f, uint64_t off, struct reply_pieces *w, bool borrow,
		      struct errmsg *err)
{
	struct extent_walk at = extent_walk(&f->map, off, w->len);
	struct mapping x = { .f = f, .w = w, .borrow = borrow, .err = err };
	int rc = 0;

	while (!rc && extent_next(&at)) {
		const uint8_t *p = NULL;

		if (at.e->kind == EXTENT_GATHER) {
			x.gather = f->gathers.v[at.e->shard];
			rc = gather_walk(x.gather, map_run, &x, at.len, at.from);
		} else if (at.e->kind == EXTENT_SHARD) {
			rc = add_shard(&x, at.e->shard, at.from, at.len);
		} else if (at.e->kind == EXTENT_ZERO) {
			rc = map_zeros(w, at.len);
		} else {
			if (at.from + at.len > f->header_len)
				rc = vfile_render_trailer(f, err);
			p = f->literal.data;
		}
		if (!rc && p)
			rc = vfile_map_add_piece(w, p + at.from, at.len);
	}
	return rc;
}

/* Advance the end of the bytes mapped in sequence. */
static void note_mapped(struct vfile *f, size_t len, uint64_t off)
{
	uint64_t to = atomic_load(&f->mapped);

	while (off <= to && to < off + len &&
	       !atomic_compare_exchange_weak(&f->mapped, &to, off + len))
		;
}

/* As vfile_map, but -E2BIG where that would copy: casts, or too many or too small pieces. */
static int map_reply(struct vfile *f, size_t len, uint64_t off, struct reply_pieces *w,
		     struct errmsg *err)
{
	int rc = -E2BIG;

	w->n = w->nmaps = w->npins = 0;
	w->bounce = NULL;
	w->off = off;
	w->len = vfile_clamp(f, len, off);
	if (w->len == 0)
		return 0;
	if (can_map(f, w->len, off) && (!f->shards || shards_can_map(f->shards, w->len)))
		rc = map_pieces(f, off, w, false, err);
	/* Opening the shards may have shown that they are remote. */
	if (!rc && w->nmaps && !shards_can_map(f->shards, 0))
		rc = -E2BIG;
	if (rc)
		vfile_unmap(f, w, false);
	return rc;
}

/* Pin prefetched bytes; -E2BIG unless all bytes of shards in the window were prefetched. */
static int pin_pieces(struct vfile *f, uint64_t off, struct reply_pieces *w, struct errmsg *err)
{
	int rc = -E2BIG;

	w->n = 0;
	if (f->shards && shards_reads_ahead(f->shards) && can_map(f, w->len, off))
		rc = map_pieces(f, off, w, true, err);
	if (rc)
		unpin_all(w, false);
	return rc;
}

int vfile_map(struct vfile *f, size_t len, uint64_t off, struct reply_pieces *w, struct errmsg *err)
{
	int rc = map_reply(f, len, off, w, err);

	if (rc == -E2BIG)
		rc = pin_pieces(f, off, w, err);
	if (rc == -E2BIG) {
		w->bounce = scratch_take(w->len);
		rc = w->bounce ? vfile_read_exact(f, w->bounce, w->len, off, err)
			       : errmsg_nomem(err, NULL);
		w->iov[0] = (struct iovec){ w->bounce, w->len };
		w->n = 1;
	}
	if (rc)
		vfile_unmap(f, w, false);
	else
		note_mapped(f, w->len, off);
	return rc;
}
