/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments of files that are read ahead.
 *
 *	QUEUED ---> FETCHING ---> READY ---> freed
 *	   |            '-> freed: the reader will meet the error
 *	   '-> freed with its set of files
 *
 * A reader that comes to a segment in the queue fetches it itself.
 *
 * A segment is what was wanted of one slot of a file, a READAHEAD_PIECE: it
 * is not rounded to blocks, so that no byte is read that nobody wants.  It is freed
 * when all of its bytes have been read as often as they were wanted, or, if they are
 * kept, when memory is needed.  A segment that nobody came for is given up when a
 * reader finds no memory for what it wants.
 */
#include "ckpt/vfile/readahead.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"
#include "ckpt/vfile/aheadbufs.h"
#include "ckpt/vfile/far.h"

#define SLOT READAHEAD_PIECE
#define BUCKETS 4096

/* Requests at once before anything was learned. */
#define WIDTH_FIRST 32

/* Two readers at once have half of the memory; the other half is for what follows. */
#define WINDOW_PART 4

/* A thread without work ends after this time. */
#define IDLE_NS UINT64_C(5000000000)

/* A segment that was wanted, but not read for so long, may be given up. */
#define STALE_NS UINT64_C(5000000000)

enum segment_state { QUEUED, FETCHING, READY };

struct segment {
	struct readahead *r;
	uint32_t file;
	uint64_t off;
	size_t len; /* does not cross the end of a slot */
	enum segment_state state;
	uint8_t *data;   /* NULL while QUEUED */
	unsigned users;  /* readers that copy from it, or wait for it */
	bool failed;     /* freed by its last user */
	bool again;      /* counts in again_bytes */
	uint64_t unread; /* bytes that were wanted and have not been read */
	uint64_t touched;
	struct segment *next;    /* in its bucket */
	TAILQ_ENTRY(segment) at; /* in `queue`, `ready` or `used` */
};

TAILQ_HEAD(segments, segment);

struct readahead {
	readahead_fill *fill;
	readahead_check *check; /* NULL: none */
	void *ctx;
	/* Protected by the lock, as all below: */
	size_t segments;
	unsigned fetching;
};

static pthread_mutex_t lock =
	PTHREAD_MUTEX_INITIALIZER;                     /* not held across I/O */
static pthread_cond_t more = PTHREAD_COND_INITIALIZER; /* the queue has grown */
static pthread_cond_t done = PTHREAD_COND_INITIALIZER; /* a segment came in */
static pthread_cond_t room = PTHREAD_COND_INITIALIZER; /* one was freed */
static struct segment *buckets[BUCKETS];
static struct segments queue = TAILQ_HEAD_INITIALIZER(queue);
static struct segments ready =
	TAILQ_HEAD_INITIALIZER(ready); /* with unread bytes */
static struct segments used = TAILQ_HEAD_INITIALIZER(used); /* without */
static uint64_t limit = READAHEAD_DEFAULT;
static uint64_t again_limit; /* beyond it, for what is read for a second time */
static bool keeps;
static uint64_t held; /* bytes of segments, those in the queue among them */
static uint64_t used_bytes;  /* of these, bytes of segments in `used` */
static uint64_t again_bytes; /* of these, what counts in again_limit */
static struct aheadbufs buffers;
static struct far_width width;
static unsigned nthreads, fetching, checking, idle;

static struct segment **bucket_of(const struct readahead *r, uint32_t file,
				  uint64_t slot)
{
	const uint64_t key = (uintptr_t)r / sizeof(*r) +
			     file * UINT64_C(0x9e3779b1) +
			     slot * UINT64_C(0xc2b2ae3d);

	return &buckets[key * UINT64_C(0x9e3779b97f4a7c15) >> 52];
}

static struct segments *list_of(const struct segment *s)
{
	return s->state == QUEUED ? &queue : s->unread ? &ready : &used;
}

/* Put a segment into its list; take it out before its state changes. */
static void enlist(struct segment *s)
{
	struct segments *const list = list_of(s);

	TAILQ_INSERT_TAIL(list, s, at);
	if (list == &used)
		used_bytes += aheadbufs_size(s->len);
}

static void delist(struct segment *s)
{
	struct segments *const list = list_of(s);

	TAILQ_REMOVE(list, s, at);
	if (list == &used)
		used_bytes -= aheadbufs_size(s->len);
}

/* Does the limit of what is read again count a segment? */
static void set_again(struct segment *s, bool again)
{
	if (again && again_bytes + aheadbufs_size(s->len) > again_limit)
		again = false;
	again_bytes += aheadbufs_size(s->len) * again;
	again_bytes -= aheadbufs_size(s->len) * s->again;
	s->again = again;
}

static void unlink_segment(struct segment *s)
{
	struct segment **at = bucket_of(s->r, s->file, s->off / SLOT);

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
	s->r->segments--;
}

/* Free a segment that is in no list. */
static void free_segment(struct segment *s)
{
	assert(s->users == 0 && s->state != FETCHING);
	if (!s->failed)
		unlink_segment(s);
	set_again(s, false);
	if (s->data)
		aheadbufs_give(&buffers, s->data, s->len, limit + again_bytes);
	held -= aheadbufs_size(s->len);
	free(s);
	pthread_cond_broadcast(&room);
}

static void drop_segment(struct segment *s)
{
	delist(s);
	free_segment(s);
}

static bool drop_oldest(struct segments *list, uint64_t before)
{
	struct segment *s;

	TAILQ_FOREACH(s, list, at)
	if (s->users == 0 && s->touched <= before) {
		drop_segment(s);
		return true;
	}
	return false;
}

/* Is there room for `size` more bytes, now that others have gone? */
static bool make_room(size_t size, uint64_t most)
{
	const uint64_t now = clock_ns();

	while (held - again_bytes - used_bytes + size > most)
		if (!drop_oldest(&ready, now - STALE_NS))
			return false;
	while (held - again_bytes + size > limit)
		if (!drop_oldest(&used, now))
			return false;
	return true;
}

/* --- segments ---------------------------------------------------------------------- */

/* The segment that has byte `off`; else NULL, and `*end` is where the next one of the
 * slot begins, at most `*end` as it was. */
static struct segment *find_segment(const struct readahead *r, uint32_t file,
				    uint64_t off, uint64_t *end)
{
	struct segment *s = *bucket_of(r, file, off / SLOT);

	for (; s; s = s->next) {
		if (s->r != r || s->file != file || s->off / SLOT != off / SLOT)
			continue;
		if (off >= s->off && off < s->off + s->len)
			return s;
		if (s->off > off && s->off < *end)
			*end = s->off;
	}
	return NULL;
}

/* A segment in the queue that ends at `off`, or begins at `end`, in the same slot. */
static struct segment *find_neighbour(const struct readahead *r, uint32_t file,
				      uint64_t off, uint64_t end)
{
	struct segment *s = *bucket_of(r, file, off / SLOT);

	while (s && (s->r != r || s->file != file || s->state != QUEUED ||
		     s->off / SLOT != off / SLOT ||
		     (s->off + s->len != off && s->off != end)))
		s = s->next;
	return s;
}

/* Have a segment begin or end with these bytes: one request takes as long as two. */
static bool extend_segment(struct segment *s, uint64_t off, size_t len,
			   uint64_t most)
{
	const size_t growth =
		aheadbufs_size(s->len + len) - aheadbufs_size(s->len);

	if (!make_room(growth, most))
		return false;
	set_again(s, false); /* it counts by its size */
	if (off < s->off)
		s->off = off;
	s->len += len;
	s->unread += len;
	held += growth;
	return true;
}

static bool add_segment(struct readahead *r, uint32_t file, uint64_t off,
			size_t len, uint64_t most)
{
	struct segment *s = find_neighbour(r, file, off, off + len);
	struct segment **bucket;

	if (s)
		return extend_segment(s, off, len, most);
	s = make_room(aheadbufs_size(len), most) ? malloc(sizeof(*s)) : NULL;
	if (!s)
		return false;
	bucket = bucket_of(r, file, off / SLOT);
	*s = (struct segment){ .r = r,
			       .file = file,
			       .off = off,
			       .len = len,
			       .unread = len,
			       .touched = clock_ns(),
			       .next = *bucket };
	*bucket = s;
	r->segments++;
	held += aheadbufs_size(len);
	enlist(s);
	return true;
}

/* `n` more bytes of a segment are wanted. */
static void want_more(struct segment *s, uint64_t n, enum readahead_when when)
{
	if (s->state == READY)
		delist(s);
	if (when == READAHEAD_AGAIN && !s->again)
		set_again(s, true);
	s->unread += when == READAHEAD_NEXT ? 0 : n;
	s->touched = clock_ns();
	if (s->state == READY)
		enlist(s);
}

/* --- threads ------------------------------------------------------------------------ */

static void settle(struct segment *s, int rc)
{
	s->state = READY;
	s->touched = clock_ns();
	s->r->fetching--;
	if (rc) {
		s->failed = true;
		unlink_segment(s);
		if (s->users == 0)
			free_segment(s);
	} else {
		enlist(s);
	}
	pthread_cond_broadcast(&done);
}

static bool may_fetch(void)
{
	return !TAILQ_EMPTY(&queue) && fetching < width.width;
}

static void *run(void *arg);

static void start_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	if (pthread_create(&thread, &attr, run, NULL) == 0)
		nthreads++;
	pthread_attr_destroy(&attr);
}

/* See that somebody fetches what is in the queue: `n` segments at once. */
static void summon(size_t n)
{
	for (; n && may_fetch(); n--) {
		if (idle)
			pthread_cond_signal(&more);
		else if (nthreads < width.width + checking)
			start_thread();
		else
			break;
	}
}

/* Fetch a segment of the queue.  Releases the lock meanwhile. */
static void fetch(struct segment *s)
{
	struct readahead *const r = s->r;
	int rc;

	TAILQ_REMOVE(&queue, s, at);
	s->state = FETCHING;
	s->data = aheadbufs_take(&buffers, s->len, limit);
	r->fetching++;
	fetching++;
	summon(1); /* one calls the next */
	pthread_mutex_unlock(&lock);
	rc = s->data ? r->fill(r->ctx, s->file, s->data, s->len, s->off, NULL)
		     : -ENOMEM;
	pthread_mutex_lock(&lock);
	fetching--;
	if (!rc)
		far_width_done(&width, s->len, !TAILQ_EMPTY(&queue), clock_ns());
	if (!rc && r->check) {
		checking++;
		summon(1); /* the next request need not wait */
		pthread_mutex_unlock(&lock);
		rc = r->check(r->ctx, s->file, NULL);
		pthread_mutex_lock(&lock);
		checking--;
	}
	settle(s, rc);
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

static void *run(void *arg)
{
	bool stay = true;

	(void)arg;
	pthread_mutex_lock(&lock);
	while (stay) {
		if (may_fetch()) {
			fetch(TAILQ_FIRST(&queue));
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

/* Drop the segments of one set of files that a thread has not begun with. */
static void drop_all(struct readahead *r)
{
	for (size_t i = 0; i < BUCKETS && r->segments; i++)
		for (struct segment *s = buckets[i], *next; s; s = next) {
			next = s->next;
			if (s->r == r && s->state != FETCHING)
				drop_segment(s);
		}
}

void readahead_free(struct readahead *r)
{
	if (!r)
		return;
	pthread_mutex_lock(&lock);
	drop_all(r);
	while (r->fetching)
		pthread_cond_wait(&done, &lock);
	drop_all(r);
	assert(r->segments == 0);
	pthread_mutex_unlock(&lock);
	free(r);
}

uint64_t readahead_want(struct readahead *r, uint32_t file, uint64_t off,
			uint64_t len, enum readahead_when when)
{
	const uint64_t to = off + len;
	uint64_t at = off, most;
	size_t added = 0;

	pthread_mutex_lock(&lock);
	most = when == READAHEAD_LATER ? limit / 2 : limit;
	if (!width.width)
		far_width_init(&width, WIDTH_FIRST);
	while (at < to) {
		uint64_t end = at / SLOT * SLOT + SLOT;
		struct segment *s;

		end = end < to ? end : to;
		s = find_segment(r, file, at, &end);
		if (s) {
			end = s->off + s->len < to ? s->off + s->len : to;
			want_more(s, end - at, when);
		} else if (add_segment(r, file, at, (size_t)(end - at), most)) {
			added++;
		} else {
			break;
		}
		at = end;
	}
	summon(added);
	pthread_mutex_unlock(&lock);
	return at - off;
}

/* `n` bytes of a segment were copied.  Called by a user, which it is no longer. */
static void consume(struct segment *s, size_t n)
{
	delist(s);
	s->unread -= n < s->unread ? n : s->unread;
	s->touched = clock_ns();
	s->users--;
	if (!s->unread)
		set_again(s, false);
	if (!s->unread && !s->users && (!keeps || held - again_bytes > limit)) {
		free_segment(s);
		return;
	}
	enlist(s);
	if (!s->unread)
		pthread_cond_broadcast(&room);
}

/* Copy bytes that a segment has, once they are there; -EAGAIN if they could not be
 * read.  Called with the lock held, releases it meanwhile. */
static int copy_from(struct segment *s, void *buf, size_t len, uint64_t off)
{
	s->users++;
	if (s->state == QUEUED) /* no thread has come to it, or none could start */
		fetch(s);
	while (s->state != READY)
		pthread_cond_wait(&done, &lock);
	if (s->failed) {
		if (--s->users == 0)
			free_segment(s);
		return -EAGAIN;
	}
	pthread_mutex_unlock(&lock);
	memcpy(buf, s->data + (off - s->off), len);
	pthread_mutex_lock(&lock);
	consume(s, len);
	return 0;
}

/* The end of the bytes from `off` on, at most `to`, that no segment has. */
static uint64_t find_gap(const struct readahead *r, uint32_t file, uint64_t off,
			 uint64_t to)
{
	uint64_t end = off;

	while (end < to) {
		const uint64_t slot = end / SLOT * SLOT + SLOT;
		const uint64_t most = slot < to ? slot : to;
		uint64_t next = most;

		if (find_segment(r, file, end, &next))
			break;
		end = next;
		if (next < most)
			break;
	}
	return end;
}

int readahead_read(struct readahead *r, uint32_t file, void *buf, size_t len,
		   uint64_t off, struct errmsg *err)
{
	const uint64_t to = off + len;
	int rc = 0;

	/* Several pieces at once. */
	if (len > SLOT)
		readahead_want(r, file, off, len, READAHEAD_NEXT);
	pthread_mutex_lock(&lock);
	for (uint64_t at = off, end; !rc && at < to; at = end) {
		uint8_t *const p = (uint8_t *)buf + (at - off);
		struct segment *s;

		end = to;
		s = find_segment(r, file, at, &end);
		if (s) {
			end = s->off + s->len < to ? s->off + s->len : to;
			if (copy_from(s, p, (size_t)(end - at), at))
				end = at;
			continue;
		}
		end = find_gap(r, file, at, to);
		pthread_mutex_unlock(&lock);
		rc = r->fill(r->ctx, file, p, (size_t)(end - at), at, err);
		if (!rc && r->check)
			rc = r->check(r->ctx, file, err);
		pthread_mutex_lock(&lock);
	}
	pthread_mutex_unlock(&lock);
	return rc;
}

void readahead_wait(uint64_t ns)
{
	pthread_mutex_lock(&lock);
	wait_for(&room, ns);
	pthread_mutex_unlock(&lock);
}

/* --- limits -------------------------------------------------------------------------- */

void readahead_set_limit(uint64_t bytes, bool keep)
{
	pthread_mutex_lock(&lock);
	limit = bytes < READAHEAD_MIN ? 0 : bytes;
	keeps = keep;
	pthread_mutex_unlock(&lock);
}

void readahead_set_again(uint64_t bytes)
{
	pthread_mutex_lock(&lock);
	again_limit = bytes;
	pthread_mutex_unlock(&lock);
}

uint64_t readahead_limit(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&lock);
	bytes = limit;
	pthread_mutex_unlock(&lock);
	return bytes;
}

bool readahead_keeps(uint64_t size)
{
	bool keep;

	pthread_mutex_lock(&lock);
	keep = keeps && (size <= limit / 8 * 5 ||
			 again_bytes + size + size / 16 <= again_limit);
	pthread_mutex_unlock(&lock);
	return keep;
}

uint64_t readahead_window(void)
{
	return readahead_limit() / WINDOW_PART;
}

uint64_t readahead_bytes(void)
{
	uint64_t bytes;

	pthread_mutex_lock(&lock);
	bytes = buffers.bytes;
	pthread_mutex_unlock(&lock);
	return bytes;
}

void readahead_trim(void)
{
	const uint64_t now = clock_ns();

	pthread_mutex_lock(&lock);
	while (drop_oldest(&used, now) || drop_oldest(&ready, now - STALE_NS))
		;
	aheadbufs_trim(&buffers);
	pthread_mutex_unlock(&lock);
}
