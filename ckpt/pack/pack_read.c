/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of a packed file.
 *
 * A block that is wanted whole is decoded to where it is wanted.  Of a block of
 * which a part is wanted the rest soon will be, since readers go on where they
 * stopped: it goes through the cache.
 *
 * Each read of a server's file is a request.  There the stored bytes of all
 * blocks that a read needs are fetched by one request, or by a few at the same time.
 * A block of which two readers want a part each is fetched by the one that comes
 * first, even if its request is still under way when the other comes.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_impl.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/scratch.h"
#include "ckpt/tensor/cast.h"

/* Floats of a block, which are rounded at once. */
#define ROUNDED_MAX (BLOCK_SIZE / sizeof(float))

/* Blocks that are worth a request, a megabyte of the file; a request is for fewer than
 * twice as many. */
#define SPAN_BLOCKS 16

/* Blocks that are rounded at once where each read is a request. */
#define ROUNDED_BLOCKS (2 * SPAN_BLOCKS)

/* Requests of one reader at the same time. */
#define SPANS_MAX 8

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

/* Bytes of a pack that have been fetched for several blocks; none if `len` is 0. */
struct fetched {
	uint8_t *p;
	uint64_t at;
	size_t len;
};

struct wanted {
	struct pack *p;
	uint32_t extent;
	uint64_t block;
	struct fetched fetched;
	struct errmsg *err;
};

static size_t block_len(const struct pack_extent *e, uint64_t block)
{
	const uint64_t left = e->len - block * BLOCK_SIZE;

	return left < BLOCK_SIZE ? (size_t)left : BLOCK_SIZE;
}

static const char *owner_name(const struct pack *p, uint32_t extent)
{
	return p->x.entries[pack_index_owner(&p->x, extent)].name;
}

static int fail_block(const struct wanted *w)
{
	const struct pack_extent *const e = &w->p->x.extents[w->extent];

	return errmsg_set(
		w->err, -EBADMSG,
		"%s: %s: block %llu of extent %u (%zu bytes at %llu)"
		" is damaged",
		w->p->src.name, owner_name(w->p, w->extent),
		(unsigned long long)w->block, w->extent, block_len(e, w->block),
		(unsigned long long)(e->start + w->block * BLOCK_SIZE));
}

/* The stored bytes of a block: fetched before, or read into `buf`. */
static int get_stored(const struct wanted *w, const struct pack_block *b,
		      uint8_t *buf, const uint8_t **out)
{
	const struct fetched *const f = &w->fetched;
	const size_t len = (size_t)(b[1].at - b->at);

	if (b->at >= f->at && b[1].at - f->at <= f->len) {
		*out = f->p + (b->at - f->at);
		return 0;
	}
	*out = buf;
	return source_read_exact(&w->p->src, buf, len, b->at, w->err);
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
	const uint8_t *stored;

	rc = get_stored(w, b, worker->stored, &stored);
	if (!rc && !block_decode(worker->decoder, e->type, stored,
				 (size_t)(b[1].at - b->at), b->hash, to,
				 block_len(e, w->block)))
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

static int get_block(struct wanted *w, struct cached_block **out)
{
	const int rc = blockcache_get(key_of(w), decode, w, out);

	/* Another thread may have met the failure, and has the message. */
	if (rc == -EBADMSG)
		return fail_block(w);
	if (rc && w->err && !w->err->text[0])
		errmsg_set(w->err, rc, "%s: %s: cannot decode: %s",
			   w->p->src.name, owner_name(w->p, w->extent),
			   strerror(-rc));
	return rc;
}

int pack_get_block(struct pack *p, uint32_t extent, uint64_t block,
		   struct cached_block **out, struct errmsg *err)
{
	struct wanted w = { .p = p, .extent = extent, .block = block, .err = err };

	return get_block(&w, out);
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

static int read_part(struct wanted *w, uint8_t *to, size_t len, size_t skip)
{
	struct cached_block *b;
	const int rc = get_block(w, &b);

	if (rc)
		return rc;
	memcpy(to, blockcache_data(b) + skip, len);
	blockcache_release(b);
	return 0;
}

/* Bytes of a stored extent. */
struct stored_read {
	struct pack *p;
	uint32_t extent;
	uint8_t *to;
	size_t len;
	uint64_t off;
};

/* Read block by block, from what has been fetched if it has a block. */
static int read_blocks(const struct stored_read *r, struct fetched fetched,
		       struct errmsg *err)
{
	const struct pack_extent *const e = &r->p->x.extents[r->extent];
	struct wanted w = { r->p, r->extent, r->off / BLOCK_SIZE, fetched, err };
	uint8_t *to = r->to;
	uint64_t off = r->off;
	size_t len = r->len;
	int rc = 0;

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

/* --- files of servers -------------------------------------------------------- */

static struct blockcache_key key_in(const struct stored_read *r, uint64_t block)
{
	const struct wanted w = { .p = r->p,
				  .extent = r->extent,
				  .block = block };

	return key_of(&w);
}

/* The blocks of a read, and those at its ends that this reader has claimed. */
struct block_run {
	uint64_t first, end;
	struct cached_block *claimed[2]; /* of blocks `first` and `end - 1`; or NULL */
};

/* Claim the blocks at the ends of which a part is wanted. */
static struct block_run claim_ends(const struct stored_read *r)
{
	const uint64_t end = r->off + r->len;
	struct block_run run = { .first = r->off / BLOCK_SIZE,
				 .end = (end - 1) / BLOCK_SIZE + 1 };

	if (run.end - run.first == 1)
		return run; /* read_part claims it */
	if (r->off % BLOCK_SIZE)
		run.claimed[0] = blockcache_claim(key_in(r, run.first));
	if (end % BLOCK_SIZE && end < r->p->x.extents[r->extent].len)
		run.claimed[1] = blockcache_claim(key_in(r, run.end - 1));
	return run;
}

/* Where in the pack the blocks of a run are which are not in the cache, from the
 * first to the last of them; no length if there is but one that is not claimed: it
 * needs no buffer of its own. */
static struct fetched find_span(const struct stored_read *r,
				const struct block_run *run,
				const struct pack_block *v)
{
	uint64_t first = run->first, end = run->end;
	struct fetched f;

	while (!run->claimed[0] && first < end &&
	       blockcache_has(key_in(r, first)))
		first++;
	while (!run->claimed[1] && first < end &&
	       blockcache_has(key_in(r, end - 1)))
		end--;
	f = (struct fetched){ .at = v[first].at };
	if (end - first > 1 || run->claimed[0] || run->claimed[1])
		f.len = (size_t)(v[end].at - v[first].at);
	return f;
}

/* As blockcache_fill, for a block that could not be fetched. */
static int fail_fill(void *ctx, uint8_t *to)
{
	(void)to;
	return *(const int *)ctx;
}

/* Let others have the claimed blocks, or the error with which they were fetched. */
static int fill_claimed(const struct stored_read *r, struct block_run *run,
			struct fetched f, int rc, struct errmsg *err)
{
	for (unsigned i = 0; i < 2; i++) {
		const uint64_t block = i ? run->end - 1 : run->first;
		struct wanted w = { r->p, r->extent, block, f, err };
		int failed;

		if (!run->claimed[i])
			continue;
		failed = rc ? blockcache_fill_claimed(run->claimed[i],
						      fail_fill, &rc)
			    : blockcache_fill_claimed(run->claimed[i], decode,
						      &w);
		if (failed)
			run->claimed[i] = NULL;
		rc = failed;
	}
	return rc;
}

/* Read by one request. */
static int read_span(const struct stored_read *r, struct errmsg *err)
{
	const struct pack_block *v;
	struct block_run run;
	struct fetched f;
	int rc = pack_load_table(r->p, r->extent, &v, err);

	if (rc)
		return rc;
	run = claim_ends(r);
	f = find_span(r, &run, v);
	if (f.len) {
		f.p = scratch_take(f.len);
		rc = f.p ? source_read_exact(&r->p->src, f.p, f.len, f.at, err)
			 : errmsg_nomem(err, r->p->src.name);
	}
	rc = fill_claimed(r, &run, f, rc, err);
	if (!rc)
		rc = read_blocks(r, f, err);
	for (unsigned i = 0; i < 2; i++)
		if (run.claimed[i])
			blockcache_release(run.claimed[i]);
	scratch_give(f.p);
	return rc;
}

/* A read in spans of equal numbers of blocks, but for the last. */
struct spans {
	const struct stored_read *whole;
	uint64_t blocks; /* in each */
};

/* As for parallel_for. */
static int read_span_of(void *ctx, size_t i, struct errmsg *err)
{
	const struct spans *const s = ctx;
	const uint64_t size = s->blocks * BLOCK_SIZE;
	const uint64_t off = s->whole->off, end = off + s->whole->len;
	const uint64_t at = off - off % BLOCK_SIZE + i * size;
	const uint64_t from = at > off ? at : off;
	const uint64_t to = at + size < end ? at + size : end;
	struct stored_read part = *s->whole;

	part.to += from - off;
	part.off = from;
	part.len = (size_t)(to - from);
	return read_span(&part, err);
}

static int read_requested(const struct stored_read *r, struct errmsg *err)
{
	const uint64_t blocks =
		(r->off + r->len - 1) / BLOCK_SIZE + 1 - r->off / BLOCK_SIZE;
	/* A megabyte that begins within a block is one span, too. */
	const uint64_t n = blocks < 2 * SPAN_BLOCKS ? 1 : blocks / SPAN_BLOCKS;
	struct spans s = { r, (blocks + n - 1) / n };

	return parallel_for((size_t)((blocks + s.blocks - 1) / s.blocks),
			    SPANS_MAX, read_span_of, &s, err);
}

static int read_stored(struct pack *p, uint32_t extent, uint8_t *to, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const struct stored_read r = { p, extent, to, len, off };

	if (pack_is_requested(p))
		return read_requested(&r, err);
	pack_ahead(p, extent, off / BLOCK_SIZE,
		   (off + len - 1) / BLOCK_SIZE + 1);
	return read_blocks(&r, (struct fetched){ .len = 0 }, err);
}

/* --- extents ----------------------------------------------------------------- */

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
