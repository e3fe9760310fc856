/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Keeps the list of blocks and their memory.  Only functions that end in _piece touch the memory of
 * blocks, so the others may run with a lock held.
 *
 * Large blocks take pieces of CACHE_PIECE bytes, which are reused: new memory costs more than a
 * copy.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "ckpt/base/array.h"
#include "ckpt/base/system.h"
#include "ckpt/remote/cache_impl.h"

/* A block that was not read for this long may be evicted. */
#define STALE_NS UINT64_C(5000000000)

/* One part in RECENT_PART of the memory is for prefetched blocks in use and for those read last:
 * torch.load reads the beginning of a file four times. */
#define RECENT_PART 16

/* Blocks up to this size are allocated one by one. */
#define SMALL (128u << 10)

/* Pieces are halves of huge pages.  The kernel looks up each page of a direct read's memory,
 * which takes a quarter of the reader's time with small ones; and FUSE splits a request whose
 * memory touches more pages than its bytes fill. */
#define HUGE ((size_t)2 << 20)

/* Bytes of address space taken at a time: taking more has to wait while pages are being filled
 * with zeros. */
#define SLAB ((size_t)64 << 20)
#define PIECES (SLAB / CACHE_PIECE)

/* Return the memory that a block of `len` bytes takes. */
static size_t size_of(size_t len)
{
	assert(len <= CACHE_PIECE);
	return len <= SMALL ? len + sizeof(struct cache_block) : CACHE_PIECE;
}

static bool grow_slabs(struct slabs *p)
{
	char *slab;

	assert(p->nempty == 0);
	if (!array_reserve(&p->v, &p->cap, p->n + PIECES, sizeof(*p->v)) ||
	    !array_reserve(&p->slabs, &p->slabs_cap, p->nslabs + 1, sizeof(*p->slabs)))
		return false;
	slab = aligned_alloc(HUGE, SLAB);
	if (!slab)
		return false;
	madvise(slab, SLAB, MADV_HUGEPAGE);
	p->slabs[p->nslabs++] = slab;
	p->n += PIECES;
	while (p->nempty < PIECES) {
		const size_t i = ++p->nempty;

		p->v[p->n - i] = slab + SLAB - i * CACHE_PIECE;
	}
	return true;
}

static void *take_memory(struct cache_pool *a, size_t len)
{
	struct slabs *p = &a->slabs;
	void *m;

	if (len > SMALL && p->nfree)
		return p->v[--p->nfree];
	if (len <= SMALL)
		m = malloc(len);
	else
		m = p->nempty || grow_slabs(p) ? p->v[p->n - p->nempty--] : NULL;
	if (m)
		a->held += size_of(len);
	return m;
}

static void give_memory(struct cache_pool *a, void *m, size_t len)
{
	if (len > SMALL) {
		a->slabs.v[a->slabs.nfree++] = m;
		return;
	}
	a->held -= size_of(len);
	free(m);
}

void *blocks_take_excess(struct cache_pool *a, uint64_t limit)
{
	if (!a->slabs.nfree || a->held <= limit)
		return NULL;
	a->held -= CACHE_PIECE;
	return a->slabs.v[--a->slabs.nfree];
}

void blocks_return_place(struct cache_pool *a, void *piece)
{
	struct slabs *p = &a->slabs;

	p->v[p->n - ++p->nempty] = piece;
}

void blocks_done(struct cache_pool *a)
{
	struct slabs *p = &a->slabs;

	assert(p->nfree + p->nempty == p->n);
	while (p->nslabs)
		free(p->slabs[--p->nslabs]);
	free(p->slabs);
	free(p->v);
}

static struct cache_block **bucket_of(const struct cache_pool *a, const struct cache *c,
				      uint32_t file, uint64_t slot)
{
	/* The address is of a small allocation: its lowest bits say nothing. */
	const uint64_t key =
		(uintptr_t)c / 16 + file * UINT64_C(0x9e3779b1) + slot * UINT64_C(0xc2b2ae3d);

	return (struct cache_block **)&a->buckets[key * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

static struct block_list *list_of(struct cache_pool *a, const struct cache_block *b)
{
	return b->state == BLOCK_QUEUED ? &a->queue : b->want == WANT_NOW ? &a->kept : &a->ready;
}

/* Put a block into the list for its state; take it out before the state changes. */
static void enlist(struct cache_pool *a, struct cache_block *b)
{
	TAILQ_INSERT_TAIL(list_of(a, b), b, at);
}

static void delist(struct cache_pool *a, struct cache_block *b)
{
	TAILQ_REMOVE(list_of(a, b), b, at);
}

static void set_want(struct cache_pool *a, struct cache_block *b, enum want want)
{
	a->bytes[b->want] -= size_of(b->len);
	b->want = want;
	a->bytes[b->want] += size_of(b->len);
}

static void unhash(struct cache_pool *a, struct cache_block *b)
{
	struct cache_block **at = bucket_of(a, b->c, b->file, b->off / CACHE_PIECE);

	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
	b->c->nblocks--;
}

/* Free a block that is in no list. */
static void free_block(struct cache_pool *a, struct cache_block *b)
{
	assert(b->users == 0 && b->state != BLOCK_FETCHING);
	if (!b->failed)
		unhash(a, b);
	if (b->data)
		give_memory(a, b->data, b->len);
	a->bytes[b->want] -= size_of(b->len);
	free(b);
}

static void drop_block(struct cache_pool *a, struct cache_block *b)
{
	delist(a, b);
	free_block(a, b);
}

/* May a block be evicted?  A kept one only after it has been read. */
static bool may_go(const struct cache_block *b, uint64_t now)
{
	return b->users == 0 &&
	       ((b->want == WANT_NOW && b->unread < b->len) || b->touched <= now - STALE_NS);
}

static bool drop_oldest(struct cache_pool *a, struct block_list *list, uint64_t now)
{
	struct cache_block *b;

	TAILQ_FOREACH(b, list, at)
	if (may_go(b, now)) {
		drop_block(a, b);
		return true;
	}
	return false;
}

/* Return the part of the limit that is for WANT_LATER. */
static uint64_t waiting(const struct cache_pool *a)
{
	const uint64_t later = a->bytes[WANT_LATER];

	return a->bytes[WANT_NEXT] + (later > a->later_limit ? later - a->later_limit : 0);
}

/* Return the memory for kept blocks, which is not 0 even if nothing is read ahead. */
static uint64_t room_for_kept(const struct cache_pool *a)
{
	const uint64_t all = a->limit ? a->limit : CACHE_MIN;

	return all > waiting(a) ? all - waiting(a) : 0;
}

/* Evict blocks as needed, and return whether there is room for `size` more bytes. */
static bool make_room(struct cache_pool *a, size_t size, enum want when)
{
	const uint64_t most =
		when == WANT_LATER ? a->limit / 8 * 5
				   : a->limit - a->limit / RECENT_PART / CACHE_PIECE * CACHE_PIECE;
	const uint64_t now = clock_ns();

	if (when == WANT_LATER && a->bytes[WANT_LATER] + size <= a->later_limit)
		return true;
	while (when != WANT_NOW && waiting(a) + size > most)
		if (!drop_oldest(a, &a->ready, now))
			return false;
	while (a->bytes[WANT_NOW] + size > room_for_kept(a))
		if (!drop_oldest(a, &a->kept, now))
			return false;
	return true;
}

struct cache_block *block_find(const struct cache_pool *a, const struct cache *c, uint32_t file,
			       uint64_t off, uint64_t *end)
{
	const uint64_t slot = off / CACHE_PIECE;

	/* A block of the previous slot may reach into this one. */
	for (uint64_t i = slot - (slot > 0); i <= (*end - 1) / CACHE_PIECE; i++)
		for (struct cache_block *b = *bucket_of(a, c, file, i); b; b = b->next) {
			if (b->c != c || b->file != file)
				continue;
			if (off >= b->off && off < b->off + b->len)
				return b;
			if (b->off > off && b->off < *end)
				*end = b->off;
		}
	return NULL;
}

/* May a queued block be extended to [off, end)?  It must stay in its bucket. */
static bool can_extend(const struct cache_block *b, uint64_t off, uint64_t end)
{
	const uint64_t slot = b->off / CACHE_PIECE;

	return b->state == BLOCK_QUEUED && off / CACHE_PIECE == slot && end - off <= CACHE_PIECE &&
	       (b->c->config.crosses || (end - 1) / CACHE_PIECE == slot);
}

/* Find a queued block that these bytes can be joined to: one request takes less time than two. */
static struct cache_block *find_neighbour(const struct cache_pool *a, const struct cache *c,
					  uint32_t file, uint64_t off, uint64_t end)
{
	struct cache_block *b;
	uint64_t past = off;

	b = off ? block_find(a, c, file, off - 1, &past) : NULL;
	if (b && can_extend(b, b->off, end))
		return b;
	past = end + 1;
	b = block_find(a, c, file, end, &past);
	return b && b->off == end && can_extend(b, off, end + b->len) ? b : NULL;
}

static bool extend_block(struct cache_pool *a, struct cache_block *b, uint64_t off, size_t len,
			 enum want when)
{
	const enum want want = b->want > when ? b->want : when;
	const size_t more = size_of(b->len + len) - size_of(b->len);

	if (!make_room(a, b->want == want ? more : size_of(b->len + len), want))
		return false;
	set_want(a, b, want);
	a->bytes[want] += more;
	if (off < b->off)
		b->off = off;
	b->len += len;
	return true;
}

static struct cache_block *insert_block(struct cache_pool *a, struct cache *c, uint32_t file,
					uint64_t off, size_t len, enum want when)
{
	struct cache_block **bucket = bucket_of(a, c, file, off / CACHE_PIECE);
	struct cache_block *b = malloc(sizeof(*b));

	if (!b)
		return NULL;
	*b = (struct cache_block){ .c = c,
				   .file = file,
				   .off = off,
				   .len = len,
				   .want = when,
				   .touched = clock_ns(),
				   .next = *bucket };
	*bucket = b;
	c->nblocks++;
	a->bytes[when] += size_of(len);
	enlist(a, b);
	return b;
}

bool block_add(struct cache_pool *a, struct cache *c, uint32_t file, uint64_t off, size_t len,
	       enum want when)
{
	struct cache_block *b = find_neighbour(a, c, file, off, off + len);

	if (!b || !extend_block(a, b, off, len, when)) {
		if (!make_room(a, size_of(len), when))
			return false;
		b = insert_block(a, c, file, off, len, when);
	}
	if (b)
		b->unread += len;
	return b != NULL;
}

bool block_want(struct cache_pool *a, struct cache_block *b, uint64_t n, enum want when)
{
	bool fits;

	b->touched = clock_ns();
	if (when != WANT_LATER)
		return true;
	b->users++;
	fits = make_room(a, b->want == WANT_NOW ? size_of(b->len) : 0, when);
	b->users--;
	if (!fits)
		return false;
	if (b->state == BLOCK_READY)
		delist(a, b);
	b->unread += n;
	set_want(a, b, when);
	if (b->state == BLOCK_READY)
		enlist(a, b);
	return true;
}

void block_begin(struct cache_pool *a, struct cache_block *b)
{
	delist(a, b);
	b->state = BLOCK_FETCHING;
	b->data = take_memory(a, b->len);
}

void block_settle(struct cache_pool *a, struct cache_block *b, bool failed)
{
	b->state = BLOCK_READY;
	b->touched = clock_ns();
	if (!failed) {
		enlist(a, b);
		return;
	}
	b->failed = true;
	unhash(a, b);
	if (b->users == 0)
		free_block(a, b);
}

void block_leave(struct cache_pool *a, struct cache_block *b, size_t n)
{
	b->users--;
	if (b->failed) {
		if (!b->users)
			free_block(a, b);
		return;
	}
	delist(a, b);
	b->unread -= n < b->unread ? n : b->unread;
	b->touched = clock_ns();
	if (!b->unread)
		set_want(a, b, WANT_NOW);
	if (!b->unread && !b->users &&
	    (!a->keeps || !cache_is_slow(b->c) || a->bytes[WANT_NOW] > room_for_kept(a)))
		free_block(a, b);
	else
		enlist(a, b);
}

void blocks_drop(struct cache_pool *a, struct cache *c)
{
	for (size_t i = 0; c->nblocks && i < BLOCK_BUCKETS; i++)
		for (struct cache_block *b = a->buckets[i], *next; b; b = next) {
			next = b->next;
			if (b->c == c && b->state != BLOCK_FETCHING)
				drop_block(a, b);
		}
}

void blocks_trim(struct cache_pool *a)
{
	const uint64_t now = clock_ns();

	while (drop_oldest(a, &a->kept, now) || drop_oldest(a, &a->ready, now))
		;
}
