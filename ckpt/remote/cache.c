/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that fetch blocks, and readers that take bytes from them.  A reader that needs a queued
 * block fetches it itself.
 */
#include "ckpt/remote/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/system.h"
#include "ckpt/remote/cache_impl.h"

/* Requests at once before anything has been measured. */
#define WIDTH_FIRST 64

/* Two readers at once use half of the memory; the other half is for prefetched blocks. */
#define WINDOW_PART 4

/* A thread without work ends after this time. */
#define IDLE_NS UINT64_C(5000000000)

/* Return the first block of the queue that a thread may fetch now, or NULL. */
static struct cache_block *next_block(const struct cache_pool *a)
{
	struct cache_block *b;

	if (a->fetching >= a->width.width)
		return NULL;
	TAILQ_FOREACH(b, &a->queue, at)
	if (cache_is_slow(b->c) || b->c->fetching < parallel_width())
		return b;
	return NULL;
}

static void *run(void *pool);

/* A forked child has none of its parent's threads, and no other thread is waiting. */
static void forget_lost_threads(struct cache_pool *a)
{
	if (a->pid == getpid())
		return;
	a->pid = getpid();
	a->nthreads = a->idle = a->fetching = a->checking = 0;
	a->has_ended = false;
	pthread_cond_init(&a->more, NULL);
	pthread_cond_init(&a->done, NULL);
}

/* Release the lock, and see that threads fetch up to `n` blocks of the queue.  A reader starts
 * only the first thread; each thread starts the next one, since a new stack may have to wait
 * until pages of blocks under way have been filled with zeros. */
static void unlock_and_summon(struct cache_pool *a, size_t n, bool reader)
{
	bool start = false;
	pthread_t thread;

	if (n)
		forget_lost_threads(a);
	if (n && next_block(a)) {
		start = !a->idle && a->nthreads < (reader ? 1 : a->width.width + a->checking);
		for (size_t i = 0; i < n && i < a->idle; i++)
			pthread_cond_signal(&a->more);
	}
	a->nthreads += start;
	pthread_mutex_unlock(a->lock);
	if (!start || !pthread_create(&thread, NULL, run, a))
		return;
	pthread_mutex_lock(a->lock);
	a->nthreads--;
	pthread_mutex_unlock(a->lock);
}

/* Give free memory beyond `most` bytes back to the system.  This takes time, so the lock is
 * released. */
static void release_beyond(struct cache_pool *a, uint64_t bytes)
{
	void *p;

	while ((p = blocks_take_excess(a, bytes))) {
		pthread_mutex_unlock(a->lock);
		madvise(p, CACHE_PIECE, MADV_DONTNEED);
		pthread_mutex_lock(a->lock);
		blocks_return_place(a, p);
	}
}

static void release_excess(struct cache_pool *a)
{
	const uint64_t later = a->bytes[WANT_LATER];

	release_beyond(a, a->limit + (later < a->later_limit ? later : a->later_limit));
}

/* Fetch a block of the queue.  The lock is released during the fetch. */
static int fetch(struct cache_block *b, bool reader, struct errmsg *err)
{
	struct cache *c = b->c;
	struct cache_pool *a = c->pool;
	int rc = -EBADMSG;

	block_begin(a, b);
	c->fetching++;
	a->fetching += !reader;
	unlock_and_summon(a, 1, reader); /* each thread starts the next one */
	if (b->data)
		rc = c->config.fill(c->config.ctx, b->file, b->data, b->len, b->off, err);
	pthread_mutex_lock(a->lock);
	a->fetching -= !reader;
	if (!rc && !reader && cache_is_slow(c))
		request_width_done(&a->width, b->len, !TAILQ_EMPTY(&a->queue), clock_ns());
	if (!rc && c->config.check) {
		a->checking += !reader;
		unlock_and_summon(a, !reader, false); /* the next block can be fetched meanwhile */
		rc = c->config.check(c->config.ctx, b->file, err);
		pthread_mutex_lock(a->lock);
		a->checking -= !reader;
	}
	c->fetching--;
	block_settle(a, b, rc != 0);
	pthread_cond_broadcast(&a->done);
	release_excess(a);
	return rc;
}

/* Return false if no block was queued within the time. */
static bool wait_for_more(struct cache_pool *a)
{
	struct timespec until;
	int rc;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += IDLE_NS / 1000000000;
	a->idle++;
	rc = pthread_cond_timedwait(&a->more, a->lock, &until);
	a->idle--;
	return rc == 0;
}

static void *run(void *pool)
{
	struct cache_pool *a = pool;
	struct cache_block *b;
	pthread_t before;
	bool joins;

	pthread_mutex_lock(a->lock);
	do {
		while ((b = next_block(a)))
			fetch(b, false, NULL);
	} while (!a->ends && (wait_for_more(a) || next_block(a)));
	joins = a->has_ended;
	before = a->ended;
	a->ended = pthread_self();
	a->has_ended = true;
	if (--a->nthreads == 0)
		pthread_cond_broadcast(&a->done);
	pthread_mutex_unlock(a->lock);
	if (joins)
		pthread_join(before, NULL);
	return NULL;
}

struct cache_pool *cache_pool_new(struct uckpt *u)
{
	struct cache_pool *a = calloc(1, sizeof(*a));

	if (!a)
		return NULL;
	a->lock = &u->lock;
	a->pid = getpid(); /* set before any thread can wait */
	pthread_cond_init(&a->more, NULL);
	pthread_cond_init(&a->done, NULL);
	TAILQ_INIT(&a->queue);
	TAILQ_INIT(&a->ready);
	TAILQ_INIT(&a->kept);
	a->limit = CACHE_DEFAULT;
	request_width_init(&a->width, WIDTH_FIRST);
	return a;
}

void cache_pool_free(struct cache_pool *a)
{
	if (!a)
		return;
	pthread_mutex_lock(a->lock);
	forget_lost_threads(a);
	a->ends = true;
	pthread_cond_broadcast(&a->more);
	while (a->nthreads)
		pthread_cond_wait(&a->done, a->lock);
	pthread_mutex_unlock(a->lock);
	if (a->has_ended)
		pthread_join(a->ended, NULL);
	blocks_done(a);
	pthread_cond_destroy(&a->done);
	pthread_cond_destroy(&a->more);
	free(a);
}

struct cache *cache_new(struct uckpt *u, const struct cache_config *config)
{
	struct cache *c = calloc(1, sizeof(*c));

	if (!c)
		return NULL;
	c->pool = u->cache;
	c->config = *config;
	return c;
}

void cache_free(struct cache *c)
{
	struct cache_pool *a;

	if (!c)
		return;
	a = c->pool;
	pthread_mutex_lock(a->lock);
	blocks_drop(a, c);
	while (c->fetching)
		pthread_cond_wait(&a->done, a->lock);
	blocks_drop(a, c);
	pthread_mutex_unlock(a->lock);
	free(c);
}

/* The end of a block that begins at `off`, at most `to`. */
static uint64_t end_of_block(const struct cache *c, uint64_t off, uint64_t to)
{
	const uint64_t begin = c->config.crosses ? off : off / CACHE_PIECE * CACHE_PIECE;

	return begin + CACHE_PIECE < to ? begin + CACHE_PIECE : to;
}

static uint64_t end_in(const struct cache_block *b, uint64_t to)
{
	return b->off + b->len < to ? b->off + b->len : to;
}

uint64_t cache_prefetch(struct cache *c, uint32_t file, uint64_t off, uint64_t len, enum want when)
{
	struct cache_pool *a = c->pool;
	const uint64_t to = off + len;
	uint64_t at = off;
	size_t added = 0;

	pthread_mutex_lock(a->lock);
	while (at < to) {
		uint64_t end = end_of_block(c, at, to);
		struct cache_block *b = block_find(a, c, file, at, &end);

		if (b)
			end = end_in(b, to);
		if (b ? !block_want(a, b, end - at, when)
		      : !block_add(a, c, file, at, (size_t)(end - at), when))
			break;
		added += !b;
		at = end;
	}
	/* The caller fetches a single block itself, and starts threads then. */
	unlock_and_summon(a, when == WANT_NOW && added == 1 ? 0 : added, true);
	return at - off;
}

/* Become a user of a block once its bytes are there.  Returns 1 if they cannot be fetched: the
 * reader must then read just its own bytes, which may be readable.  If only this reader wanted the
 * block and the store did not answer, returns the error instead, to avoid a second timeout.  The
 * caller holds the lock, which is released while waiting. */
static int enter(struct cache_block *b, struct errmsg *err)
{
	struct cache_pool *a = b->c->pool;
	const bool own = b->want == WANT_NOW;
	int rc = -EBADMSG;

	b->users++;
	/* No thread has fetched it yet, or none could be started. */
	if (b->state == BLOCK_QUEUED) {
		rc = fetch(b, true, own ? err : NULL);
	} else if (b->state == BLOCK_FETCHING) {
		unlock_and_summon(a, 1, true); /* to fetch the blocks that follow */
		pthread_mutex_lock(a->lock);
	}
	while (b->state != BLOCK_READY)
		pthread_cond_wait(&a->done, a->lock);
	if (!b->failed)
		return 0;
	block_leave(a, b, 0);
	return own && rc != -EBADMSG ? rc : 1;
}

/* Copy bytes of a block; as enter. */
static int copy_from(struct cache_block *b, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct cache_pool *a = b->c->pool;
	const int rc = enter(b, err);

	if (rc)
		return rc;
	pthread_mutex_unlock(a->lock);
	memcpy(buf, b->data + (off - b->off), len);
	pthread_mutex_lock(a->lock);
	block_leave(a, b, len);
	return 0;
}

/* Read bytes that are in no block.  The lock is released during the read. */
static int read_past(struct cache *c, uint32_t file, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const struct cache_config *x = &c->config;
	pthread_mutex_t *lock = c->pool->lock;
	int rc;

	pthread_mutex_unlock(lock);
	rc = x->fill(x->ctx, file, buf, len, off, err);
	if (!rc && x->check)
		rc = x->check(x->ctx, file, err);
	pthread_mutex_lock(lock);
	return rc;
}

int cache_read(struct cache *c, uint32_t file, void *buf, size_t len, uint64_t off,
	       struct errmsg *err)
{
	struct cache_pool *a = c->pool;
	const uint64_t to = off + len;
	int rc = 0;

	pthread_mutex_lock(a->lock);
	for (uint64_t at = off, end; rc >= 0 && at < to; at = rc ? at : end) {
		uint8_t *p = (uint8_t *)buf + (at - off);
		struct cache_block *b;

		end = to - at < CACHE_PIECE ? to : at + CACHE_PIECE;
		b = block_find(a, c, file, at, &end);
		if (b) {
			end = end_in(b, to);
			rc = copy_from(b, p, (size_t)(end - at), at, err);
		} else {
			rc = read_past(c, file, p, (size_t)(end - at), at, err);
		}
	}
	release_excess(a);
	pthread_mutex_unlock(a->lock);
	return rc;
}

bool cache_pin(struct cache *c, uint32_t file, uint64_t off, size_t len, struct cache_pin *out)
{
	struct cache_pool *a = c->pool;
	uint64_t end = off + len;
	bool found = false;
	struct cache_block *b;

	pthread_mutex_lock(a->lock);
	b = block_find(a, c, file, off, &end);
	if (b && enter(b, NULL) == 0) {
		*out = (struct cache_pin){ .b = b,
					   .p = b->data + (off - b->off),
					   .len = (size_t)(end_in(b, off + len) - off) };
		found = true;
	}
	pthread_mutex_unlock(a->lock);
	return found;
}

void cache_unpin(const struct cache_pin *l, bool read)
{
	struct cache_pool *a = l->b->c->pool;

	pthread_mutex_lock(a->lock);
	block_leave(a, l->b, read ? l->len : 0);
	release_excess(a);
	pthread_mutex_unlock(a->lock);
}

bool cache_has_blocks(const struct cache *c)
{
	return c->nblocks != 0;
}

void cache_set_limit(struct uckpt *u, uint64_t bytes, uint64_t later, bool keep)
{
	struct cache_pool *a = u->cache;

	pthread_mutex_lock(a->lock);
	a->limit = bytes < CACHE_MIN ? 0 : bytes;
	a->later_limit = later;
	a->keeps = keep;
	pthread_mutex_unlock(a->lock);
}

uint64_t cache_limit(const struct uckpt *u)
{
	return u->cache->limit;
}

struct latency *cache_latency(const struct uckpt *u)
{
	return &u->cache->latency;
}

uint64_t cache_readahead_bytes(const struct uckpt *u)
{
	return cache_limit(u) / WINDOW_PART;
}

uint64_t cache_bytes(const struct uckpt *u)
{
	const struct cache_pool *a = u->cache;
	uint64_t n;

	pthread_mutex_lock(a->lock);
	n = a->held;
	pthread_mutex_unlock(a->lock);
	return n;
}

void cache_trim(struct uckpt *u)
{
	struct cache_pool *a = u->cache;

	pthread_mutex_lock(a->lock);
	blocks_trim(a);
	release_beyond(a, 0);
	pthread_mutex_unlock(a->lock);
}
