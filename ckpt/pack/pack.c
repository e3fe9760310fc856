/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Open packs and the bytes of packed files.
 *
 * All users of a context that open a path share one pack, since views, readers and checks each open
 * it, and the index of a large checkpoint takes a while to check.  The last few packs of servers
 * stay open without a user: the next one would fetch the index, tables and some blocks again.
 *
 * A block that is read as a whole is decoded into the reader's buffer.  A block that is read in
 * part is decoded into the cache, because readers usually continue with the rest.
 *
 * Each read of a server's file is a request.  So all blocks of a server's pack go through the
 * cache, so that the stored bytes of up to a megabyte are fetched by one request, and a block that
 * two readers share is fetched by one of them.
 */
#include "ckpt/pack/pack.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"

/* Packs of servers that stay open without a user. */
#define KEPT_MAX 4

/* A stored extent's table (pack_table_read).  NULL until a reader needs it, then immutable. */
typedef struct pack_block *_Atomic pack_table;

struct pack {
	struct source src;
	char *path; /* set by pack_share; else NULL */
	struct pack_index x;
	pack_table *tables;   /* of each extent; only those of stored ones are used */
	struct cache *cache;  /* decoded bytes of stored extents */
	pthread_mutex_t lock; /* held while a table is read */
	struct uckpt *u;
	/* Set by pack_share, protected by the context's lock: */
	unsigned users;
	struct pack *next;
};

/* Is each read of the pack a request to a server? */
static bool is_requested(const struct pack *p)
{
	return p->src.fd < 0 && !p->src.p;
}

/* Bytes of blocks to read at once: for a server a sensible request, else what fits the
 * processor's cache. */
static size_t chunk_of(const struct pack *p)
{
	return (is_requested(p) ? 32 : 8) * BLOCK_SIZE;
}

static int load_table(struct pack *p, uint32_t extent,
		      const struct pack_block **out, struct errmsg *err)
{
	pack_table *t = &p->tables[extent];
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
	const struct pack_extent *e = &p->x.extents[extent];
	const size_t len = pack_block_len(e->len, block);
	const int rc = block_decode(e->type, stored, (size_t)(b[1].at - b->at),
				    b->hash, to, len);

	if (rc == -EBADMSG)
		errmsg_set(err, rc, "%s: %s: block %llu of extent %u (%zu bytes at %llu) is damaged",
			   p->src.name, p->x.entries[pack_index_owner(&p->x, extent)].name,
			   (unsigned long long)block, extent, len,
			   (unsigned long long)(e->start + block * BLOCK_SIZE));
	else if (rc)
		errmsg_nomem(err, p->src.name);
	return rc;
}

/* Decode bytes [off, off + len) of a stored extent from a few blocks, whose stored bytes are
 * read together. */
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
	whole = stored + size; /* a block that is read only in part */
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

/* As cache_fill: decode bytes of a stored extent. */
static int fill(void *ctx, uint32_t extent, void *buf, size_t len, uint64_t off,
		struct errmsg *err)
{
	struct pack *p = ctx;
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

/* Decode the blocks that hold bytes [from, to) of an extent into the cache. */
static void keep_blocks(struct pack *p, uint32_t extent, uint64_t from,
			uint64_t to)
{
	const uint64_t begin = from - from % BLOCK_SIZE;
	const uint64_t end = to + -to % BLOCK_SIZE;
	const uint64_t all = p->x.extents[extent].len;

	cache_prefetch(p->cache, extent, begin, (end < all ? end : all) - begin,
		       WANT_NOW);
}

static int read_stored(struct pack *p, uint32_t extent, uint8_t *to, size_t len,
		       uint64_t off, struct errmsg *err)
{
	const uint64_t end = off + len;

	if (is_requested(p)) {
		keep_blocks(p, extent, off, end);
	} else {
		if (off % BLOCK_SIZE)
			keep_blocks(p, extent, off, off + 1);
		if (end % BLOCK_SIZE && end != p->x.extents[extent].len)
			keep_blocks(p, extent, end - 1, end);
	}
	return cache_read(p->cache, extent, to, len, off, err);
}

/* Bytes from `off` on of an extent that is rounded from another: up to `*len`, which is
 * set, and up to the end of some blocks of the source.  They may begin and end within an
 * element. */
static int read_rounded(struct pack *p, const struct pack_extent *e, uint8_t *to,
			size_t *len, uint64_t off, struct errmsg *err)
{
	const uint64_t first = off / 2;
	const uint64_t source = e->from + first * sizeof(float);
	const size_t most = chunk_of(p) - (size_t)(source % BLOCK_SIZE);
	const size_t room = most / 2 - off % 2;
	const size_t got = *len < room ? *len : room;
	const size_t n = (size_t)((off + got + 1) / 2 - first);
	uint8_t *floats = scratch_take(n * (sizeof(float) + 2));
	uint8_t *rounded = floats + n * sizeof(float);
	int rc;

	if (!floats)
		return errmsg_nomem(err, p->src.name);
	rc = read_stored(p, e->target, floats, n * sizeof(float), source, err);
	if (!rc) {
		block_round(e->type, floats, rounded, n);
		memcpy(to, rounded + off % 2, got);
	}
	scratch_give(floats);
	*len = got;
	return rc;
}

int pack_read(struct pack *p, uint32_t entry, void *buf, size_t len,
	      uint64_t off, struct errmsg *err)
{
	const struct pack_entry *f = &p->x.entries[entry];
	uint32_t i = len ? pack_index_extent(&p->x, f, off) : 0;
	uint8_t *to = buf;
	int rc = 0;

	assert(off <= f->size && len <= f->size - off);
	while (!rc && len) {
		const struct pack_extent *e = &p->x.extents[i];
		const uint64_t skip = off - e->start, left = e->len - skip;
		size_t n = left < len ? (size_t)left : len;

		if (e->kind == PACK_STORED)
			rc = read_stored(p, i, to, n, skip, err);
		else if (e->kind == PACK_COPY)
			rc = read_stored(p, e->target, to, n, e->from + skip,
					 err);
		else
			rc = read_rounded(p, e, to, &n, skip, err);
		i += n == left;
		to += n;
		off += n;
		len -= n;
	}
	return rc;
}

static void pack_free(struct pack *p)
{
	if (!p)
		return;
	cache_free(p->cache);
	for (uint32_t i = 0; p->tables && i < p->x.nextents; i++)
		free(atomic_load(&p->tables[i]));
	free(p->tables);
	pack_index_done(&p->x);
	source_close(&p->src);
	free(p->path);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static int make_tables(struct pack *p, struct errmsg *err)
{
	static const struct latency local; /* never high */

	p->tables = calloc((size_t)p->x.nextents + 1, sizeof(*p->tables));
	p->cache = cache_new(
		p->u, &(struct cache_config){ .fill = fill,
					      .ctx = p,
					      .latency = is_requested(p) ? NULL : &local,
					      .crosses = true });
	return p->tables && p->cache ? 0 : errmsg_nomem(err, p->src.name);
}

int pack_open_source(struct uckpt *u, const struct source *src,
		     struct pack **out, struct errmsg *err)
{
	struct pack *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return errmsg_nomem(err, src->name);
	pthread_mutex_init(&p->lock, NULL);
	p->src = *src;
	p->u = u;
	rc = pack_index_read(&p->src, &p->x, err);
	if (!rc)
		rc = make_tables(p, err);
	if (rc) {
		p->src = (struct source){ .fd = -1 }; /* the caller keeps ownership */
		pack_free(p);
		return rc;
	}
	*out = p;
	return 0;
}

struct pack *pack_find(struct uckpt *u, const char *path, const struct fileid *id)
{
	struct pack *p;

	pthread_mutex_lock(&u->lock);
	p = u->packs;
	while (p && (strcmp(p->path, path) != 0 || !fileid_equal(&p->src.id, id)))
		p = p->next;
	if (p)
		p->users++;
	pthread_mutex_unlock(&u->lock);
	return p;
}

/* If another thread has opened the same file in the meantime, there are two packs. */
void pack_share(struct pack *p, char *path)
{
	struct uckpt *u = p->u;

	pthread_mutex_lock(&u->lock);
	p->path = path;
	p->users = 1;
	p->next = u->packs;
	u->packs = p;
	pthread_mutex_unlock(&u->lock);
}

/* Take the oldest pack without a user out of the list, except the `keep` newest; NULL if there
 * is none.  The caller holds the context's lock. */
static struct pack *take_surplus(struct uckpt *u, unsigned keep)
{
	for (struct pack **at = &u->packs; *at; at = &(*at)->next) {
		struct pack *q = *at;

		if (q->users || (keep && is_requested(q) && keep--))
			continue;
		*at = q->next;
		return q;
	}
	return NULL;
}

void pack_close(struct pack *p)
{
	if (p && p->path) {
		struct uckpt *u = p->u;

		pthread_mutex_lock(&u->lock);
		p = --p->users == 0 ? take_surplus(u, KEPT_MAX) : NULL;
		pthread_mutex_unlock(&u->lock);
	}
	pack_free(p);
}

void pack_close_kept(struct uckpt *u)
{
	struct pack *p;

	while ((p = take_surplus(u, 0)))
		pack_free(p);
}

const struct pack_index *pack_index_of(const struct pack *p)
{
	return &p->x;
}

const struct fileid *pack_id(const struct pack *p)
{
	return &p->src.id;
}
