/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a packed file.
 *
 * A block that is wanted whole is decoded to where it is wanted.  Of a block of
 * which a part is wanted the rest soon will be, since readers go on where they
 * stopped: it goes through the cache.
 *
 * Each read of a server's file is a request.  There all blocks of a read go through the
 * cache, so that the stored bytes of up to a megabyte are fetched by one request, and
 * a block that two readers share is fetched by one of them.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_impl.h"
#include "ckpt/sys/scratch.h"
#include "ckpt/tensor/cast.h"

/* Floats of a block, which are rounded at once. */
#define ROUNDED_MAX (BLOCK_SIZE / sizeof(float))

/* Blocks that are rounded at once where each read is a request: two requests' worth. */
#define ROUNDED_BLOCKS 32

/* A thread decodes with one of these; as many are made as threads decode at the
 * same time. */
struct worker {
	struct block_decoder *decoder;
	struct worker *next;
	uint8_t stored[BLOCK_STORED_MAX];
	uint8_t block[BLOCK_SIZE]; /* of which a part is wanted */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct worker *idle; /* protected by the lock */

static struct worker *take_worker(void)
{
	struct worker *w;

	pthread_mutex_lock(&lock);
	w = idle;
	if (w)
		idle = w->next;
	pthread_mutex_unlock(&lock);
	if (w)
		return w;
	w = malloc(sizeof(*w));
	if (w && !(w->decoder = block_decoder_new())) {
		free(w);
		w = NULL;
	}
	return w;
}

static void give_worker(struct worker *w)
{
	pthread_mutex_lock(&lock);
	w->next = idle;
	idle = w;
	pthread_mutex_unlock(&lock);
}

static size_t block_len(const struct pack_extent *e, uint64_t block)
{
	const uint64_t left = e->len - block * BLOCK_SIZE;

	return left < BLOCK_SIZE ? (size_t)left : BLOCK_SIZE;
}

static const char *owner_name(const struct pack *p, uint32_t extent)
{
	return p->x.entries[pack_index_owner(&p->x, extent)].name;
}

static int fail_block(const struct pack *p, uint32_t extent, uint64_t block,
		      struct errmsg *err)
{
	const struct pack_extent *const e = &p->x.extents[extent];

	return errmsg_set(err, -EBADMSG,
			  "%s: %s: block %llu of extent %u (%zu bytes at %llu)"
			  " is damaged",
			  p->src.name, owner_name(p, extent),
			  (unsigned long long)block, extent,
			  block_len(e, block),
			  (unsigned long long)(e->start + block * BLOCK_SIZE));
}

/* Bytes [off, off + len) of a stored extent, and the stored bytes of its blocks if they
 * were fetched together. */
struct decoding {
	struct pack *p;
	uint32_t extent;
	uint8_t *to;
	size_t len;
	uint64_t off;
	const struct pack_block *table;
	uint64_t first, end; /* blocks */
	uint8_t *fetched;    /* NULL: each block is read by itself */
};

static int decode_block(const struct decoding *d, struct worker *w,
			uint64_t block, uint8_t *to, struct errmsg *err)
{
	const struct pack_extent *const e = &d->p->x.extents[d->extent];
	const struct pack_block *const b = &d->table[block];
	const size_t len = (size_t)(b[1].at - b->at);
	const uint8_t *stored = w->stored;
	int rc = 0;

	if (d->fetched)
		stored = d->fetched + (b->at - d->table[d->first].at);
	else
		rc = source_read_exact(&d->p->src, w->stored, len, b->at, err);
	if (!rc && !block_decode(w->decoder, e->type, stored, len, b->hash, to,
				 block_len(e, block)))
		rc = fail_block(d->p, d->extent, block, err);
	return rc;
}

/* Decode all blocks: those of which a part is wanted elsewhere first. */
static int decode_blocks(const struct decoding *d, struct worker *w,
			 struct errmsg *err)
{
	const struct pack_extent *const e = &d->p->x.extents[d->extent];
	const uint64_t end = d->off + d->len;
	uint8_t *to = d->to;
	int rc = 0;

	for (uint64_t i = d->first; !rc && i < d->end; i++) {
		const uint64_t begin = i * BLOCK_SIZE;
		const size_t skip = d->off > begin ? (size_t)(d->off - begin) : 0;
		const size_t all = block_len(e, i);
		const size_t n = (begin + all < end ? all : (size_t)(end - begin)) -
				 skip;

		rc = decode_block(d, w, i, n == all ? to : w->block, err);
		if (!rc && n != all)
			memcpy(to, w->block + skip, n);
		to += n;
	}
	return rc;
}

/* Fetch the stored bytes of all blocks by one request. */
static int fetch_stored(struct decoding *d, struct errmsg *err)
{
	const uint64_t at = d->table[d->first].at;
	const size_t len = (size_t)(d->table[d->end].at - at);

	d->fetched = scratch_take(len);
	return d->fetched ? source_read_exact(&d->p->src, d->fetched, len, at, err)
			  : errmsg_nomem(err, d->p->src.name);
}

int pack_fill(void *ctx, uint32_t extent, void *buf, size_t len, uint64_t off,
	      struct errmsg *err)
{
	struct decoding d = { .p = ctx,
			      .extent = extent,
			      .to = buf,
			      .len = len,
			      .off = off,
			      .first = off / BLOCK_SIZE,
			      .end = (off + len - 1) / BLOCK_SIZE + 1 };
	struct worker *w;
	int rc = pack_load_table(d.p, extent, &d.table, err);

	if (rc)
		return rc;
	w = take_worker();
	if (!w)
		return errmsg_nomem(err, d.p->src.name);
	if (pack_is_requested(d.p) && d.end - d.first > 1)
		rc = fetch_stored(&d, err);
	if (!rc)
		rc = decode_blocks(&d, w, err);
	scratch_give(d.fetched);
	give_worker(w);
	return rc;
}

/* Have the blocks that hold bytes [from, to) of an extent decoded into the cache. */
static void keep_blocks(struct pack *p, uint32_t extent, uint64_t from,
			uint64_t to)
{
	const uint64_t begin = from - from % BLOCK_SIZE;
	const uint64_t end = to + -to % BLOCK_SIZE;
	const uint64_t all = p->x.extents[extent].len;

	cache_want(p->cache, extent, begin, (end < all ? end : all) - begin,
		   CACHE_KEEP);
}

static int read_stored(struct pack *p, uint32_t extent, uint8_t *to, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const uint64_t end = off + len;

	if (pack_is_requested(p)) {
		keep_blocks(p, extent, off, end);
	} else {
		if (off % BLOCK_SIZE)
			keep_blocks(p, extent, off, off + 1);
		if (end % BLOCK_SIZE && end != p->x.extents[extent].len)
			keep_blocks(p, extent, end - 1, end);
	}
	return cache_read(p->cache, extent, to, len, off, err);
}

/* Bytes [off, off + len) of an extent that is rounded from another: as many elements as
 * are rounded at once, of which the first and the last may be wanted in part. */
static int round_some(struct pack *p, const struct pack_extent *e, uint8_t *to,
		      size_t len, uint64_t off, struct errmsg *err)
{
	const enum dtype type = e->type == BLOCK_F16 ? DTYPE_F16 : DTYPE_BF16;
	const uint64_t first = off / 2;
	const size_t n = (size_t)((off + len + 1) / 2 - first);
	const bool part = off % 2 || len % 2;
	uint8_t *const floats = scratch_take(n * sizeof(float));
	uint8_t *const rounded = part ? scratch_take(2 * n) : to;
	int rc = -ENOMEM;

	if (floats && rounded)
		rc = read_stored(p, e->target, floats, n * sizeof(float),
				 e->from + first * sizeof(float), err);
	else
		errmsg_nomem(err, p->src.name);
	if (!rc) {
		cast(DTYPE_F32, floats, type, rounded, n);
		if (part)
			memcpy(to, rounded + off % 2, len);
	}
	if (part)
		scratch_give(rounded);
	scratch_give(floats);
	return rc;
}

/* In steps that end where blocks of the source do. */
static int read_rounded(struct pack *p, const struct pack_extent *e, uint8_t *to,
			size_t len, uint64_t off, struct errmsg *err)
{
	const size_t most = pack_is_requested(p) ? ROUNDED_BLOCKS * ROUNDED_MAX
						 : ROUNDED_MAX;
	int rc = 0;

	while (!rc && len) {
		const uint64_t source = e->from / sizeof(float) + off / 2;
		const size_t room =
			2 * (most - (size_t)(source % ROUNDED_MAX)) - off % 2;
		const size_t n = len < room ? len : room;

		rc = round_some(p, e, to, n, off, err);
		to += n;
		off += n;
		len -= n;
	}
	return rc;
}

int pack_read(struct pack *p, uint32_t entry, void *buf, size_t len,
	      uint64_t off, struct errmsg *err)
{
	const struct pack_entry *const f = &p->x.entries[entry];
	uint32_t i = len ? pack_index_extent(&p->x, f, off) : 0;
	uint8_t *to = buf;
	int rc = 0;

	assert(off <= f->size && len <= f->size - off);
	for (; !rc && len; i++) {
		const struct pack_extent *const e = &p->x.extents[i];
		const uint64_t skip = off - e->start, left = e->len - skip;
		const size_t n = left < len ? (size_t)left : len;

		if (e->kind == PACK_STORED)
			rc = read_stored(p, i, to, n, skip, err);
		else if (e->kind == PACK_COPY)
			rc = read_stored(p, e->target, to, n, e->from + skip,
					 err);
		else
			rc = read_rounded(p, e, to, n, skip, err);
		to += n;
		off += n;
		len -= n;
	}
	return rc;
}
