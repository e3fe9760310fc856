/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that fetch segments, and readers that take bytes from them.  A reader that
 * comes to a segment in the queue fetches it itself.
 */
#include "ckpt/vfile/readahead.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"
#include "ckpt/vfile/aheadsegs.h"
#include "ckpt/vfile/far.h"

#define SLOT READAHEAD_PIECE

/* Requests at once before anything was learned. */
#define WIDTH_FIRST 64

/* Two readers at once have half of the memory; the other half is for what follows. */
#define WINDOW_PART 4

/* A part of the memory is for what readers wait for, and for what was read last:
 * torch.load reads the beginning of a file four times. */
#define RECENT_PART 16

/* A thread without work ends after this time. */
#define IDLE_NS UINT64_C(5000000000)

struct readahead {
	readahead_fill *fill;
	readahead_check *check; /* NULL: none */
	void *ctx;
	unsigned fetching; /* protected by the lock, as all below */
};

static pthread_mutex_t lock =
	PTHREAD_MUTEX_INITIALIZER;                     /* not held across I/O */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER; /* the queue has grown */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* a segment came in */
static struct aheadsegs segs = AHEADSEGS_INIT(segs, READAHEAD_DEFAULT);
static struct far_width width;
static unsigned nthreads, fetching, checking, idle;
static unsigned called;      /* of nthreads, those that are to be started */
static bool starter_is_here; /* to start them */
static pthread_cond_t call = PTHREAD_COND_INITIALIZER; /* some were called */

static bool may_fetch(void)
{
	return !TAILQ_EMPTY(&segs.queue) && fetching < width.width;
}

/* False if nothing came within the time. */
static bool wait_for(pthread_cond_t *cond, uint64_t ns)
{
	struct timespec until;

	clock_gettime(CLOCK_REALTIME, &until);
	ns += (uint64_t)until.tv_nsec;
	until.tv_sec += (time_t)(ns / 1000000000);
	until.tv_nsec = (long)(ns % 1000000000);
	return pthread_cond_timedwait(cond, &lock, &until) == 0;
}

/* --- threads ------------------------------------------------------------------------- */

static bool start_thread(void *(*work)(void *))
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, work, NULL);
	pthread_attr_destroy(&attr);
	return rc == 0;
}

static void *run(void *arg);

/* The thread that starts the others: a new stack has to wait until the pages under way,
 * of which many may be new, have been made, and no reader should. */
static void *start_others(void *arg)
{
	bool stay = true;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (stay) {
		while (called) {
			bool started;

			called--;
			pthread_mutex_unlock(&lock);
			started = start_thread(run);
			pthread_mutex_lock(&lock);
			nthreads -= !started;
		}
		stay = wait_for(&call, IDLE_NS) || called;
	}
	starter_is_here = false;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* See that somebody fetches what is in the queue: `n` segments at once.  Called before
 * unlock_and_start. */
static void summon(size_t n)
{
	for (; n && may_fetch(); n--) {
		if (idle) {
			pthread_cond_signal(&more);
		} else if (nthreads < width.width + checking) {
			nthreads++;
			called++;
		} else {
			break;
		}
	}
	if (called)
		pthread_cond_signal(&call);
}

/* Release the lock, and see that the threads that were called are started. */
static void unlock_and_start(void)
{
	const bool alone = called && !starter_is_here;

	starter_is_here |= alone;
	pthread_mutex_unlock(&lock);
	if (!alone || start_thread(start_others))
		return;
	pthread_mutex_lock(&lock);
	starter_is_here = false;
	nthreads -= called;
	called = 0;
	pthread_mutex_unlock(&lock);
}

/* Give memory without use back to the system, beyond so many bytes of buffers.  Releases
 * the lock meanwhile: it takes time. */
static void release_beyond(uint64_t bytes)
{
	void *p;

	while ((p = aheadbufs_excess(&segs.buffers, bytes))) {
		pthread_mutex_unlock(&lock);
		aheadbufs_release(p);
		pthread_mutex_lock(&lock);
		aheadbufs_add_place(&segs.buffers, p);
	}
}

static void release_excess(void)
{
	release_beyond(segs.limit + segs.twice_bytes);
}

/* Fetch a segment of the queue.  Releases the lock meanwhile. */
static void fetch(struct segment *s)
{
	struct readahead *const r = s->r;
	int rc;

	aheadsegs_begin(&segs, s);
	r->fetching++;
	fetching++;
	summon(1); /* one calls the next */
	unlock_and_start();
	rc = s->data ? r->fill(r->ctx, s->file, s->data, s->len, s->off, NULL)
		     : -ENOMEM;
	pthread_mutex_lock(&lock);
	fetching--;
	if (!rc)
		far_width_done(&width, s->len, !TAILQ_EMPTY(&segs.queue),
			       clock_ns());
	if (!rc && r->check) {
		checking++;
		summon(1); /* the next request need not wait */
		unlock_and_start();
		rc = r->check(r->ctx, s->file, NULL);
		pthread_mutex_lock(&lock);
		checking--;
	}
	r->fetching--;
	aheadsegs_settle(&segs, s, rc != 0);
	pthread_cond_broadcast(&done);
	release_excess();
}

static void *run(void *arg)
{
	bool stay = true;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (stay) {
		if (may_fetch()) {
			fetch(TAILQ_FIRST(&segs.queue));
			continue;
		}
		idle++;
		stay = wait_for(&more, IDLE_NS) || may_fetch();
		idle--;
	}
	nthreads--;
	pthread_mutex_unlock(&lock);
	return NULL;
}

/* --- readers ------------------------------------------------------------------------- */

struct readahead *readahead_new(readahead_fill *fill, readahead_check *check,
				void *ctx)
{
	struct readahead *const r = calloc(1, sizeof(*r));

	if (r)
		*r = (struct readahead){ .fill = fill,
					 .check = check,
					 .ctx = ctx };
	return r;
}

void readahead_free(struct readahead *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&lock);
	aheadsegs_drop_all(&segs, r);
	while (r->fetching)
		pthread_cond_wait(&done, &lock);
	aheadsegs_drop_all(&segs, r);
	pthread_mutex_unlock(&lock);
	free(r);
}

/* The most memory for what is wanted then.  Called with the lock held. */
static uint64_t room_for(enum readahead_when when)
{
	if (when == READAHEAD_NOW)
		return segs.limit;
	if (when == READAHEAD_LATER)
		return segs.limit / 2;
	return segs.limit - segs.limit / RECENT_PART / SLOT * SLOT;
}

uint64_t readahead_want(struct readahead *r, uint32_t file, uint64_t off,
			uint64_t len, enum readahead_when when)
{
	const bool once = when == READAHEAD_NOW || when == READAHEAD_NEXT;
	const uint64_t to = off + len;
	uint64_t at = off, most;
	size_t added = 0;

	pthread_mutex_lock(&lock);
	most = room_for(when);
	if (!width.width)
		far_width_init(&width, WIDTH_FIRST);
	while (at < to) {
		uint64_t end = at / SLOT * SLOT + SLOT;
		struct segment *s;

		end = end < to ? end : to;
		s = aheadsegs_find(&segs, r, file, at, &end);
		if (s) {
			end = s->off + s->len < to ? s->off + s->len : to;
			aheadsegs_want(&segs, s, once ? 0 : end - at,
				       when == READAHEAD_TWICE);
		} else if (aheadsegs_add(&segs, r, file, at, (size_t)(end - at),
					 most, when == READAHEAD_TWICE)) {
			added++;
		} else {
			break;
		}
		at = end;
	}
	summon(added);
	unlock_and_start();
	return at - off;
}

/* Become a user of a segment, once its bytes are there; false if they could not be read.
 * Called with the lock held, releases it meanwhile. */
static bool enter(struct segment *s)
{
	s->users++;
	/* No thread has come to it, or none could start. */
	if (s->state == SEGMENT_QUEUED)
		fetch(s);
	while (s->state != SEGMENT_READY)
		pthread_cond_wait(&done, &lock);
	if (!s->failed)
		return true;
	aheadsegs_leave(&segs, s);
	return false;
}

/* Copy bytes that a segment has; -EAGAIN if they could not be read.  Called with the lock
 * held, releases it meanwhile. */
static int copy_from(struct segment *s, void *buf, size_t len, uint64_t off)
{
	if (!enter(s))
		return -EAGAIN;
	pthread_mutex_unlock(&lock);
	memcpy(buf, s->data + (off - s->off), len);
	pthread_mutex_lock(&lock);
	aheadsegs_consume(&segs, s, len);
	return 0;
}

int readahead_read(struct readahead *r, uint32_t file, void *buf, size_t len,
		   uint64_t off, struct errmsg *err)
{
	const uint64_t to = off + len;
	int rc = 0;

	/* Several pieces at once. */
	if (len > SLOT)
		readahead_want(r, file, off, len, READAHEAD_NOW);
	pthread_mutex_lock(&lock);
	for (uint64_t at = off, end; !rc && at < to; at = end) {
		uint8_t *const p = (uint8_t *)buf + (at - off);
		struct segment *s;

		end = to;
		s = aheadsegs_find(&segs, r, file, at, &end);
		if (s) {
			end = s->off + s->len < to ? s->off + s->len : to;
			if (copy_from(s, p, (size_t)(end - at), at))
				end = at;
			continue;
		}
		end = aheadsegs_find_gap(&segs, r, file, at, to);
		pthread_mutex_unlock(&lock);
		rc = r->fill(r->ctx, file, p, (size_t)(end - at), at, err);
		if (!rc && r->check)
			rc = r->check(r->ctx, file, err);
		pthread_mutex_lock(&lock);
	}
	release_excess();
	pthread_mutex_unlock(&lock);
	return rc;
}

bool readahead_borrow(struct readahead *r, uint32_t file, uint64_t off,
		      size_t len, struct readahead_loan *out)
{
	uint64_t end = off + len;
	bool found = false;
	struct segment *s;

	pthread_mutex_lock(&lock);
	s = aheadsegs_find(&segs, r, file, off, &end);
	if (s && enter(s)) {
		const size_t left = (size_t)(s->off + s->len - off);

		*out = (struct readahead_loan){ .s = s,
						.p = s->data + (off - s->off),
						.len = len < left ? len : left };
		found = true;
	}
	pthread_mutex_unlock(&lock);
	return found;
}

void readahead_return(const struct readahead_loan *l, bool read)
{
	pthread_mutex_lock(&lock);
	aheadsegs_consume(&segs, l->s, read ? l->len : 0);
	release_excess();
	pthread_mutex_unlock(&lock);
}

bool readahead_is_waited_for(void)
{
	bool is;

	pthread_mutex_lock(&lock);
	is = segs.held != segs.used_bytes;
	pthread_mutex_unlock(&lock);
	return is;
}

/* --- limits -------------------------------------------------------------------------- */

void readahead_set_limit(uint64_t bytes, bool keep)
{
	pthread_mutex_lock(&lock);
	segs.limit = bytes < READAHEAD_MIN ? 0 : bytes;
	segs.keeps = keep;
	pthread_mutex_unlock(&lock);
}

void readahead_set_twice(uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	segs.twice_limit = bytes;
	pthread_mutex_unlock(&lock);
}

uint64_t readahead_limit(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&lock);
	bytes = segs.limit;
	pthread_mutex_unlock(&lock);
	return bytes;
}

/* Memory for what is read twice: its own, less what buffers are larger than their
 * bytes, and what is free of five eighths of the other; the rest is for windows.
 * Called with the lock held. */
static uint64_t room_for_twice(void)
{
	const uint64_t waiting = segs.held - segs.twice_bytes - segs.used_bytes;
	const uint64_t most = segs.limit / 8 * 5;
	uint64_t room = waiting < most ? most - waiting : 0;

	if (segs.twice_bytes < segs.twice_limit)
		room += (segs.twice_limit - segs.twice_bytes) / 17 * 16;
	return room;
}

uint64_t readahead_keeps(uint64_t size)
{
	uint64_t room;

	pthread_mutex_lock(&lock);
	if (!segs.keeps)
		room = 0;
	else if (size <= segs.limit / 8 * 5)
		room = size;
	else
		room = room_for_twice();
	pthread_mutex_unlock(&lock);
	return size < room ? size : room;
}

uint64_t readahead_window(void)
{
	return readahead_limit() / WINDOW_PART;
}

uint64_t readahead_bytes(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&lock);
	bytes = segs.buffers.bytes;
	pthread_mutex_unlock(&lock);
	return bytes;
}

void readahead_trim(void)
{
	pthread_mutex_lock(&lock);
	aheadsegs_trim(&segs);
	release_beyond(0);
	pthread_mutex_unlock(&lock);
}
