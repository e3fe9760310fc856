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

/* Bytes of blocks that are read at once: what is worth a request to a server, or what the
 * processor's cache holds. */
static size_t chunk_of(const struct pack *p)
{
	return (pack_is_requested(p) ? 32 : 8) * BLOCK_SIZE;
}

static int load_table(struct pack *p, uint32_t extent,
		      const struct pack_block **out, struct errmsg *err)
{
	pack_table *const t = &p->tables[extent];
	struct pack_block *v = atomic_load(t);
	int rc = 0;

	if (!v) {
		pthread_mutex_lock(&p->lock);
		v = atomic_load(t);
		if (!v && !(rc = pack_table_read(&p->src, &p->x, extent, &v, err)))
			atomic_store(t, v);
		pthread_mutex_unlock(&p->lock);
	}
	if (!rc)
		*out = v;
	return rc;
}

static int decode_block(const struct pack *p, uint32_t extent, uint64_t block,
			const struct pack_block *b, const uint8_t *stored,
			uint8_t *to, struct errmsg *err)
{
	const struct pack_extent *const e = &p->x.extents[extent];
	const size_t len = pack_block_len(e->len, block);
	const int rc = block_decode(e->type, stored, (size_t)(b[1].at - b->at),
				    b->hash, to, len);

	if (rc == -EBADMSG)
		errmsg_set(err, rc,
			   "%s: %s: block %llu of extent %u (%zu bytes at %llu)"
			   " is damaged",
			   p->src.name,
			   p->x.entries[pack_index_owner(&p->x, extent)].name,
			   (unsigned long long)block, extent, len,
			   (unsigned long long)(e->start + block * BLOCK_SIZE));
	else if (rc)
		errmsg_nomem(err, p->src.name);
	return rc;
}

/* Decode bytes [off, off + len) of a stored extent, of some blocks, whose stored bytes
 * are read together. */
static int read_chunk(struct pack *p, uint32_t extent, uint8_t *to, size_t len,
		      uint64_t off, struct errmsg *err)
{
	const uint64_t first = off / BLOCK_SIZE;
	const uint64_t end = (off + len - 1) / BLOCK_SIZE + 1;
	const struct pack_block *v;
	uint8_t *stored, *whole;
	size_t size;
	int rc = load_table(p, extent, &v, err);

	if (rc)
		return rc;
	size = (size_t)(v[end].at - v[first].at);
	stored = scratch_take(size + BLOCK_SIZE);
	if (!stored)
		return errmsg_nomem(err, p->src.name);
	whole = stored + size; /* a block of which a part is wanted */
	rc = source_read_exact(&p->src, stored, size, v[first].at, err);
	for (uint64_t i = first; !rc && i < end; i++) {
		const size_t all = pack_block_len(p->x.extents[extent].len, i);
		const size_t skip = i == first ? off % BLOCK_SIZE : 0;
		const size_t n = all - skip < len ? all - skip : len;

		rc = decode_block(p, extent, i, &v[i],
				  stored + (v[i].at - v[first].at),
				  n == all ? to : whole, err);
		if (!rc && n != all)
			memcpy(to, whole + skip, n);
		to += n;
		len -= n;
	}
	scratch_give(stored);
	return rc;
}

int pack_fill(void *ctx, uint32_t extent, void *buf, size_t len, uint64_t off,
	      struct errmsg *err)
{
	struct pack *const p = ctx;
	const uint64_t end = off + len;
	uint8_t *to = buf;
	int rc = 0;

	for (size_t n; !rc && off < end; off += n) {
		n = chunk_of(p) - off % BLOCK_SIZE;
		n = n < end - off ? n : (size_t)(end - off);
		rc = read_chunk(p, extent, to, n, off, err);
		to += n;
	}
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

/* Bytes [off, off + len) of an extent that is rounded from another, which may begin and
 * end within an element. */
static int round_some(struct pack *p, const struct pack_extent *e, uint8_t *to,
		      size_t len, uint64_t off, struct errmsg *err)
{
	const uint64_t first = off / 2;
	const size_t n = (size_t)((off + len + 1) / 2 - first);
	uint8_t *const floats = scratch_take(n * (sizeof(float) + 2));
	uint8_t *const rounded = floats + n * sizeof(float);
	int rc;

	if (!floats)
		return errmsg_nomem(err, p->src.name);
	rc = read_stored(p, e->target, floats, n * sizeof(float),
			 e->from + first * sizeof(float), err);
	if (!rc) {
		block_round(e->type, floats, rounded, n);
		memcpy(to, rounded + off % 2, len);
	}
	scratch_give(floats);
	return rc;
}

/* In steps that end where blocks of the source do. */
static int read_rounded(struct pack *p, const struct pack_extent *e, uint8_t *to,
			size_t len, uint64_t off, struct errmsg *err)
{
	int rc = 0;

	while (!rc && len) {
		const uint64_t source = e->from + off / 2 * sizeof(float);
		const size_t most = chunk_of(p) - (size_t)(source % BLOCK_SIZE);
		const size_t room = most / 2 - off % 2;
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
