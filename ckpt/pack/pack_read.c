/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a packed file.
 *
 * A block that is wanted whole is decoded to where it is wanted.  Of a block of
 * which a part is wanted the rest soon will be, since readers go on where they
 * stopped: it goes through the cache.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_impl.h"
#include "ckpt/sys/scratch.h"
#include "ckpt/tensor/cast.h"

/* Floats that are rounded at once: those of a block. */
#define ROUNDED_MAX (BLOCK_SIZE / sizeof(float))

/* --- decoders ---------------------------------------------------------------- */

/* A thread decodes with one of these; as many are made as threads decode at the
 * same time. */
struct worker {
	struct block_decoder *decoder;
	struct worker *next;
	uint8_t stored[BLOCK_STORED_MAX];
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

/* --- blocks ------------------------------------------------------------------ */

struct wanted {
	struct pack *p;
	uint32_t extent;
	uint64_t block;
	struct errmsg *err;
};

static size_t block_len(const struct pack_extent *e, uint64_t block)
{
	const uint64_t left = e->len - block * BLOCK_SIZE;

	return left < BLOCK_SIZE ? (size_t)left : BLOCK_SIZE;
}

/* The entry that an extent belongs to. */
static const struct pack_entry *owner(const struct pack *p, uint32_t extent)
{
	uint32_t low = 0, high = p->x.nentries;

	while (high - low > 1) {
		const uint32_t mid = low + (high - low) / 2;

		if (p->x.entries[mid].first <= extent)
			low = mid;
		else
			high = mid;
	}
	/* Empty entries begin where the next one does. */
	while (low > 0 && p->x.entries[low].n == 0)
		low--;
	return &p->x.entries[low];
}

static int fail_block(const struct wanted *w)
{
	const struct pack_extent *const e = &w->p->x.extents[w->extent];

	return errmsg_set(
		w->err, -EBADMSG,
		"%s: %s: block %llu of extent %u (%zu bytes at %llu)"
		" is damaged",
		w->p->src.name, owner(w->p, w->extent)->name,
		(unsigned long long)w->block, w->extent, block_len(e, w->block),
		(unsigned long long)(e->start + w->block * BLOCK_SIZE));
}

/* As blockcache_fill. */
static int decode(void *ctx, uint8_t *to)
{
	const struct wanted *const w = ctx;
	const struct pack_extent *const e = &w->p->x.extents[w->extent];
	const struct pack_block *v;
	struct worker *worker;
	int rc = pack_load_table(w->p, w->extent, &v, w->err);

	if (rc)
		return rc;
	worker = take_worker();
	if (!worker)
		return errmsg_nomem(w->err, w->p->src.name);

	const struct pack_block *const b = &v[w->block];
	const size_t stored = (size_t)(b[1].at - b->at);

	rc = source_read(&w->p->src, worker->stored, stored, b->at, w->err);
	if (!rc && !block_decode(worker->decoder, e->type, worker->stored,
				 stored, b->hash, to, block_len(e, w->block)))
		rc = fail_block(w);
	give_worker(worker);
	return rc;
}

static struct blockcache_key key_of(const struct wanted *w)
{
	return (struct blockcache_key){
		w->p->serial, w->p->tables[w->extent].first + w->block
	};
}

int pack_get_block(struct pack *p, uint32_t extent, uint64_t block,
		   struct cached_block **out, struct errmsg *err)
{
	struct wanted w = { p, extent, block, err };
	const int rc = blockcache_get(key_of(&w), decode, &w, out);

	/* Another thread may have met the failure, and has the message. */
	if (rc == -EBADMSG)
		return fail_block(&w);
	if (rc && err && !err->text[0])
		errmsg_set(err, rc, "%s: %s: cannot decode: %s", p->src.name,
			   owner(p, extent)->name, strerror(-rc));
	return rc;
}

static int read_whole(struct wanted *w, uint8_t *to)
{
	const struct pack_extent *const e = &w->p->x.extents[w->extent];
	struct cached_block *const b = blockcache_find(key_of(w));

	if (!b)
		return decode(w, to);
	memcpy(to, blockcache_data(b), block_len(e, w->block));
	blockcache_release(b);
	return 0;
}

static int read_part(const struct wanted *w, uint8_t *to, size_t len,
		     size_t skip)
{
	struct cached_block *b;
	const int rc = pack_get_block(w->p, w->extent, w->block, &b, w->err);

	if (rc)
		return rc;
	memcpy(to, blockcache_data(b) + skip, len);
	blockcache_release(b);
	return 0;
}

static int read_stored(struct pack *p, uint32_t extent, uint8_t *to, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const struct pack_extent *const e = &p->x.extents[extent];
	struct wanted w = { p, extent, off / BLOCK_SIZE, err };
	int rc = 0;

	pack_ahead(p, extent, w.block, (off + len - 1) / BLOCK_SIZE + 1);
	for (; !rc && len; w.block++) {
		const size_t skip = (size_t)(off - w.block * BLOCK_SIZE);
		const size_t has = block_len(e, w.block);
		const size_t n = len < has - skip ? len : has - skip;

		rc = n == has ? read_whole(&w, to) : read_part(&w, to, n, skip);
		to += n;
		off += n;
		len -= n;
	}
	return rc;
}

/* --- extents ----------------------------------------------------------------- */

/* Bytes [off, off + len) of an extent that is rounded from another: at most
 * ROUNDED_MAX elements, of which the first and the last may be wanted in part. */
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
	int rc = 0;

	while (!rc && len) {
		const uint64_t source = e->from / sizeof(float) + off / 2;
		const size_t room =
			2 * (ROUNDED_MAX - (size_t)(source % ROUNDED_MAX)) -
			off % 2;
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
