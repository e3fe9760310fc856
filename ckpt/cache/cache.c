/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that fetch blocks, and readers that take bytes from them.  A reader that
 * comes to a block in the queue fetches it itself.
 */
#include "ckpt/cache/cache.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/cache/cache_impl.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"

/* Requests at once before anything was learned. */
#define WIDTH_FIRST 64

/* Two readers at once have half of the memory; the other half is for what follows. */
#define WINDOW_PART 4

/* A part of the memory is for what readers wait for, and for what was read last:
 * torch.load reads the beginning of a file four times. */
#define RECENT_PART 16

/* What is read twice takes up to this part of the limit, beside its own; the rest is for
 * windows. */
#define TWICE_PART(limit) ((limit) / 8 * 5)

/* A thread without work ends after this time. */
#define IDLE_NS UINT64_C(5000000000)

static pthread_mutex_t lock =
	PTHREAD_MUTEX_INITIALIZER; /* not held across I/O; protects all below */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER; /* the queue has grown */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* a block came in */
static struct blocks all = { .queue = TAILQ_HEAD_INITIALIZER(all.queue),
			     .ready = TAILQ_HEAD_INITIALIZER(all.ready),
			     .used = TAILQ_HEAD_INITIALIZER(all.used),
			     .limit = CACHE_DEFAULT };
static struct far_width width;
/* Threads: all, those that fetch, those that check what they fetched, those without
 * work. */
static unsigned nthreads, fetching, checking, idle;

/* Return the first block of the queue that a thread may fetch now, or NULL. */
static struct cache_block *next_block(void)
{
	struct cache_block *b;

	if (fetching >= width.width)
		return NULL;
	TAILQ_FOREACH(b, &all.queue, at)
	if (cache_is_far(b->c) || b->c->fetching < parallel_width())
		return b;
	return NULL;
}

static void *run(void *arg);

static bool start_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, run, NULL);
	pthread_attr_destroy(&attr);
	return rc == 0;
}

/* Release the lock, and see that up to `n` blocks of the queue are being fetched.  Only
 * the first thread is started by a reader; each starts the next one, since a new stack
 * may have to wait until pages of blocks under way have been filled with zeros. */
static void unlock_and_summon(size_t n, bool reader)
{
	bool start = false;

	if (n && next_block()) {
		start = !idle && nthreads < (reader ? 1 : width.width + checking);
		for (size_t i = 0; i < n && i < idle; i++)
			pthread_cond_signal(&more);
	}
	nthreads += start;
	pthread_mutex_unlock(&lock);
	if (!start || start_thread())
		return;
	pthread_mutex_lock(&lock);
	nthreads--;
	pthread_mutex_unlock(&lock);
}

/* Give free memory beyond so many bytes back to the system.  Releases the lock
 * meanwhile: it takes time. */
static void release_beyond(uint64_t bytes)
{
	void *p;

	while ((p = blocks_take_excess(&all, bytes))) {
		pthread_mutex_unlock(&lock);
		madvise(p, CACHE_PIECE, MADV_DONTNEED);
		pthread_mutex_lock(&lock);
		blocks_return_place(&all, p);
	}
}

static void release_excess(void)
{
	const uint64_t twice = all.bytes[BLOCK_TWICE];

	release_beyond(all.limit +
		       (twice < all.twice_limit ? twice : all.twice_limit));
}

/* Fetch a block of the queue.  Releases the lock meanwhile. */
static int fetch(struct cache_block *b, bool reader, struct errmsg *err)
{
	struct cache *const c = b->c;
	int rc = -EBADMSG;

	block_begin(&all, b);
	c->fetching++;
	fetching += !reader;
	unlock_and_summon(!reader, false); /* one calls the next */
	if (b->data)
		rc = c->config.fill(c->config.ctx, b->file, b->data, b->len,
				    b->off, err);
	pthread_mutex_lock(&lock);
	fetching -= !reader;
	if (!rc && !reader && cache_is_far(c))
		far_width_done(&width, b->len, !TAILQ_EMPTY(&all.queue),
			       clock_ns());
	if (!rc && c->config.check) {
		checking += !reader;
		unlock_and_summon(!reader, false); /* the next need not wait */
		rc = c->config.check(c->config.ctx, b->file, err);
		pthread_mutex_lock(&lock);
		checking -= !reader;
	}
	c->fetching--;
	block_settle(&all, b, rc != 0);
	pthread_cond_broadcast(&done);
	release_excess();
	return rc;
}

/* False if no block came within the time. */
static bool wait_for_more(void)
{
	struct timespec until;
	int rc;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += IDLE_NS / 1000000000;
	idle++;
	rc = pthread_cond_timedwait(&more, &lock, &until);
	idle--;
	return rc == 0;
}

static void *run(void *arg)
{
	struct cache_block *b;

	(void)arg;
	pthread_mutex_lock(&lock);
	do {
		while ((b = next_block()))
			fetch(b, false, NULL);
	} while (wait_for_more() || next_block());
	nthreads--;
	pthread_mutex_unlock(&lock);
	return NULL;
}

struct cache *cache_new(const struct cache_config *config)
{
	struct cache *const c = calloc(1, sizeof(*c));

	if (c)
		c->config = *config;
	return c;
}

void cache_free(struct cache *c)
{
	if (!c)
		return;
	pthread_mutex_lock(&lock);
	blocks_drop(&all, c);
	while (c->fetching)
		pthread_cond_wait(&done, &lock);
	blocks_drop(&all, c);
	pthread_mutex_unlock(&lock);
	free(c);
}

/* The most memory for readers to come when bytes are wanted.  Called with the lock
 * held. */
static uint64_t room_for(enum cache_when when)
{
	if (when == CACHE_NOW)
		return all.limit;
	if (when == CACHE_LATER)
		return all.limit / 2;
	return all.limit - all.limit / RECENT_PART / CACHE_PIECE * CACHE_PIECE;
}

/* Where a block that begins at `off` ends, at most `to`. */
static uint64_t end_of_block(const struct cache *c, uint64_t off, uint64_t to)
{
	const uint64_t begin =
		c->config.crosses ? off : off / CACHE_PIECE * CACHE_PIECE;

	return begin + CACHE_PIECE < to ? begin + CACHE_PIECE : to;
}

static uint64_t end_in(const struct cache_block *b, uint64_t to)
{
	return b->off + b->len < to ? b->off + b->len : to;
}

uint64_t cache_want(struct cache *c, uint32_t file, uint64_t off, uint64_t len,
		    enum cache_when when)
{
	const uint64_t to = off + len;
	uint64_t at = off;
	size_t added = 0;

	pthread_mutex_lock(&lock);
	if (!width.width)
		far_width_init(&width, WIDTH_FIRST);
	while (at < to) {
		uint64_t end = end_of_block(c, at, to);
		struct cache_block *const b =
			block_find(&all, c, file, at, &end);

		if (b) {
			end = end_in(b, to);
			block_want(&all, b, end - at, when);
		} else if (block_add(&all, c, file, at, (size_t)(end - at),
				     room_for(when), when)) {
			added++;
		} else {
			break;
		}
		at = end;
	}
	/* The caller fetches a single block that it keeps. */
	unlock_and_summon(when == CACHE_KEEP && added == 1 ? 0 : added, true);
	return at - off;
}

/* Become a user of a block once its bytes are there.  If they cannot be fetched, returns
 * 1: the reader must read its own bytes, which may be good.  A store that did not answer
 * for a block that only its reader wanted is not asked again: returns the error.  Called
 * with the lock held, releases it meanwhile. */
static int enter(struct cache_block *b, struct errmsg *err)
{
	const bool own = b->use == BLOCK_USED;
	int rc = -EBADMSG;

	b->users++;
	/* No thread has come to it, or none could start. */
	if (b->state == BLOCK_QUEUED)
		rc = fetch(b, true, own ? err : NULL);
	while (b->state != BLOCK_READY)
		pthread_cond_wait(&done, &lock);
	if (!b->failed)
		return 0;
	block_leave(&all, b, 0);
	return own && rc != -EBADMSG ? rc : 1;
}

/* Copy bytes of a block; as enter. */
static int copy_from(struct cache_block *b, void *buf, size_t len, uint64_t off,
		     struct errmsg *err)
{
	const int rc = enter(b, err);

	if (rc)
		return rc;
	pthread_mutex_unlock(&lock);
	memcpy(buf, b->data + (off - b->off), len);
	pthread_mutex_lock(&lock);
	block_leave(&all, b, len);
	return 0;
}

/* Read bytes that no block has.  Releases the lock meanwhile. */
static int read_past(struct cache *c, uint32_t file, void *buf, size_t len,
		     uint64_t off, struct errmsg *err)
{
	const struct cache_config *const x = &c->config;
	int rc;

	pthread_mutex_unlock(&lock);
	rc = x->fill(x->ctx, file, buf, len, off, err);
	if (!rc && x->check)
		rc = x->check(x->ctx, file, err);
	pthread_mutex_lock(&lock);
	return rc;
}

int cache_read(struct cache *c, uint32_t file, void *buf, size_t len, uint64_t off,
	       struct errmsg *err)
{
	const uint64_t to = off + len;
	int rc = 0;

	pthread_mutex_lock(&lock);
	for (uint64_t at = off, end; rc >= 0 && at < to; at = rc ? at : end) {
		uint8_t *const p = (uint8_t *)buf + (at - off);
		struct cache_block *b;

		end = to - at < CACHE_PIECE ? to : at + CACHE_PIECE;
		b = block_find(&all, c, file, at, &end);
		if (b) {
			end = end_in(b, to);
			rc = copy_from(b, p, (size_t)(end - at), at, err);
		} else {
			rc = read_past(c, file, p, (size_t)(end - at), at, err);
		}
	}
	release_excess();
	pthread_mutex_unlock(&lock);
	return rc;
}

bool cache_borrow(struct cache *c, uint32_t file, uint64_t off, size_t len,
		  struct cache_loan *out)
{
	uint64_t end = off + len;
	bool found = false;
	struct cache_block *b;

	pthread_mutex_lock(&lock);
	b = block_find(&all, c, file, off, &end);
	if (b && enter(b, NULL) == 0) {
		*out = (struct cache_loan){
			.b = b,
			.p = b->data + (off - b->off),
			.len = (size_t)(end_in(b, off + len) - off)
		};
		found = true;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void cache_return(const struct cache_loan *l, bool read)
{
	pthread_mutex_lock(&lock);
	block_leave(&all, l->b, read ? l->len : 0);
	release_excess();
	pthread_mutex_unlock(&lock);
}

bool cache_has_blocks(const struct cache *c)
{
	return c->nblocks != 0;
}

void cache_set_limit(uint64_t bytes, uint64_t twice, bool keep)
{
	pthread_mutex_lock(&lock);
	all.limit = bytes < CACHE_MIN ? 0 : bytes;
	all.twice_limit = twice;
	all.keeps = keep;
	pthread_mutex_unlock(&lock);
}

/* Read a count of bytes that the lock protects. */
static uint64_t get_bytes(const uint64_t *bytes)
{
	uint64_t n;

	pthread_mutex_lock(&lock);
	n = *bytes;
	pthread_mutex_unlock(&lock);
	return n;
}

uint64_t cache_limit(void)
{
	return get_bytes(&all.limit);
}

uint64_t cache_window(void)
{
	return cache_limit() / WINDOW_PART;
}

/* Memory for more that is read twice.  Blocks take a little more than their bytes.
 * Called with the lock held. */
static uint64_t room_for_twice(void)
{
	const uint64_t most = TWICE_PART(all.limit) + all.twice_limit / 17 * 16;
	const uint64_t taken = all.bytes[BLOCK_ONCE] + all.bytes[BLOCK_TWICE];

	return most > taken ? most - taken : 0;
}

uint64_t cache_keeps(uint64_t size)
{
	uint64_t room = 0;

	pthread_mutex_lock(&lock);
	if (all.keeps)
		room = size <= TWICE_PART(all.limit) ? size : room_for_twice();
	pthread_mutex_unlock(&lock);
	return size < room ? size : room;
}

uint64_t cache_bytes(void)
{
	return get_bytes(&all.held);
}

void cache_trim(void)
{
	pthread_mutex_lock(&lock);
	blocks_trim(&all);
	release_beyond(0);
	pthread_mutex_unlock(&lock);
}
