/* SPDX-License-Identifier: Apache-2.0 */
/* The bookkeeping of readahead.c, which has the threads, the readers and the lock. */
#include "ckpt/vfile/aheadsegs.h"

#include <assert.h>
#include <stdlib.h>

#include "ckpt/sys/clock.h"

#define SLOT AHEADBUFS_PIECE

/* A segment that was wanted, but not read for so long, may be given up. */
#define STALE_NS UINT64_C(5000000000)

static size_t bucket_number(const struct readahead *r, uint32_t file,
			    uint64_t slot)
{
	/* The address is of a small allocation: its lowest bits say nothing. */
	const uint64_t key = (uintptr_t)r / 16 + file * UINT64_C(0x9e3779b1) +
			     slot * UINT64_C(0xc2b2ae3d);

	return key * UINT64_C(0x9e3779b97f4a7c15) >> 52;
}

static struct segments *list_of(struct aheadsegs *a, const struct segment *s)
{
	return s->state == SEGMENT_QUEUED ? &a->queue
	       : s->unread                ? &a->ready
					  : &a->used;
}

/* Put a segment into its list; take it out before its state changes. */
static void enlist(struct aheadsegs *a, struct segment *s)
{
	struct segments *const list = list_of(a, s);

	TAILQ_INSERT_TAIL(list, s, at);
	if (list == &a->used)
		a->used_bytes += aheadbufs_size(s->len);
}

static void delist(struct aheadsegs *a, struct segment *s)
{
	struct segments *const list = list_of(a, s);

	TAILQ_REMOVE(list, s, at);
	if (list == &a->used)
		a->used_bytes -= aheadbufs_size(s->len);
}

static bool fits_twice(const struct aheadsegs *a, size_t size)
{
	return a->twice_bytes + size <= a->twice_limit;
}

/* Does the limit of what is read twice count a segment? */
static void set_twice(struct aheadsegs *a, struct segment *s, bool twice)
{
	const size_t size = aheadbufs_size(s->len);

	if (s->twice)
		a->twice_bytes -= size;
	s->twice = twice && fits_twice(a, size);
	if (s->twice)
		a->twice_bytes += size;
}

static void unlink_segment(struct aheadsegs *a, struct segment *s)
{
	struct segment **at =
		&a->buckets[bucket_number(s->r, s->file, s->off / SLOT)];

	while (*at != s)
		at = &(*at)->next;
	*at = s->next;
}

/* Free a segment that is in no list. */
static void free_segment(struct aheadsegs *a, struct segment *s)
{
	assert(s->users == 0 && s->state != SEGMENT_FETCHING);
	if (!s->failed)
		unlink_segment(a, s);
	set_twice(a, s, false);
	if (s->data)
		aheadbufs_give(&a->buffers, s->data, s->len);
	a->held -= aheadbufs_size(s->len);
	free(s);
	pthread_cond_broadcast(&a->room);
}

static void drop_segment(struct aheadsegs *a, struct segment *s)
{
	delist(a, s);
	free_segment(a, s);
}

static bool drop_oldest(struct aheadsegs *a, struct segments *list,
			uint64_t before)
{
	struct segment *s;

	TAILQ_FOREACH(s, list, at)
	if (s->users == 0 && s->touched <= before) {
		drop_segment(a, s);
		return true;
	}
	return false;
}

/* Is there room for `size` more bytes, now that others have gone? */
static bool make_room(struct aheadsegs *a, size_t size, uint64_t most,
		      bool twice)
{
	const uint64_t now = clock_ns();

	if (twice && fits_twice(a, size))
		return true;
	while (a->held - a->twice_bytes - a->used_bytes + size > most)
		if (!drop_oldest(a, &a->ready, now - STALE_NS))
			return false;
	while (a->held - a->twice_bytes + size > a->limit)
		if (!drop_oldest(a, &a->used, now))
			return false;
	return true;
}

struct segment *aheadsegs_find(const struct aheadsegs *a,
			       const struct readahead *r, uint32_t file,
			       uint64_t off, uint64_t *end)
{
	struct segment *s = a->buckets[bucket_number(r, file, off / SLOT)];

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

uint64_t aheadsegs_find_gap(const struct aheadsegs *a, const struct readahead *r,
			    uint32_t file, uint64_t off, uint64_t to)
{
	uint64_t end = off;

	while (end < to) {
		const uint64_t slot = end / SLOT * SLOT + SLOT;
		const uint64_t most = slot < to ? slot : to;
		uint64_t next = most;

		if (aheadsegs_find(a, r, file, end, &next))
			break;
		end = next;
		if (next < most)
			break;
	}
	return end;
}

/* A segment in the queue that ends at `off`, or begins at `end`, in the same slot. */
static struct segment *find_neighbour(const struct aheadsegs *a,
				      const struct readahead *r, uint32_t file,
				      uint64_t off, uint64_t end)
{
	struct segment *s = a->buckets[bucket_number(r, file, off / SLOT)];

	while (s && (s->r != r || s->file != file ||
		     s->state != SEGMENT_QUEUED || s->off / SLOT != off / SLOT ||
		     (s->off + s->len != off && s->off != end)))
		s = s->next;
	return s;
}

/* Have a segment begin or end with these bytes: one request takes as long as two. */
static bool extend_segment(struct aheadsegs *a, struct segment *s, uint64_t off,
			   size_t len, uint64_t most, bool twice)
{
	const size_t growth =
		aheadbufs_size(s->len + len) - aheadbufs_size(s->len);

	if (!make_room(a, growth, most, twice))
		return false;
	twice |= s->twice;
	set_twice(a, s, false); /* it counts by its size */
	if (off < s->off)
		s->off = off;
	s->len += len;
	s->unread += len + twice * len;
	a->held += growth;
	set_twice(a, s, twice);
	return true;
}

bool aheadsegs_add(struct aheadsegs *a, struct readahead *r, uint32_t file,
		   uint64_t off, size_t len, uint64_t most, bool twice)
{
	struct segment *s = find_neighbour(a, r, file, off, off + len);
	struct segment **bucket;

	if (s)
		return extend_segment(a, s, off, len, most, twice);
	s = make_room(a, aheadbufs_size(len), most, twice) ? malloc(sizeof(*s))
							   : NULL;
	if (!s)
		return false;
	bucket = &a->buckets[bucket_number(r, file, off / SLOT)];
	*s = (struct segment){ .r = r,
			       .file = file,
			       .off = off,
			       .len = len,
			       .unread = len + twice * len,
			       .touched = clock_ns(),
			       .next = *bucket };
	*bucket = s;
	a->held += aheadbufs_size(len);
	set_twice(a, s, twice);
	enlist(a, s);
	return true;
}

void aheadsegs_want(struct aheadsegs *a, struct segment *s, uint64_t n,
		    bool twice)
{
	if (s->state == SEGMENT_READY)
		delist(a, s);
	if (twice && !s->twice)
		set_twice(a, s, true);
	/* The first of two readers may be the one that it is there for. */
	s->unread += twice && !s->unread ? 2 * n : n;
	s->touched = clock_ns();
	if (s->state == SEGMENT_READY)
		enlist(a, s);
}

void aheadsegs_begin(struct aheadsegs *a, struct segment *s)
{
	TAILQ_REMOVE(&a->queue, s, at);
	s->state = SEGMENT_FETCHING;
	s->data = aheadbufs_take(&a->buffers, s->len);
}

void aheadsegs_settle(struct aheadsegs *a, struct segment *s, bool failed)
{
	s->state = SEGMENT_READY;
	s->touched = clock_ns();
	if (failed) {
		s->failed = true;
		unlink_segment(a, s);
		if (s->users == 0)
			free_segment(a, s);
	} else {
		enlist(a, s);
	}
}

void aheadsegs_consume(struct aheadsegs *a, struct segment *s, size_t n)
{
	delist(a, s);
	s->unread -= n < s->unread ? n : s->unread;
	s->touched = clock_ns();
	s->users--;
	if (!s->unread)
		set_twice(a, s, false);
	if (!s->unread && !s->users &&
	    (!a->keeps || a->held - a->twice_bytes > a->limit)) {
		free_segment(a, s);
		return;
	}
	enlist(a, s);
	if (!s->unread)
		pthread_cond_broadcast(&a->room);
}

void aheadsegs_leave(struct aheadsegs *a, struct segment *s)
{
	assert(s->failed);
	if (--s->users == 0)
		free_segment(a, s);
}

void aheadsegs_drop_all(struct aheadsegs *a, const struct readahead *r)
{
	for (size_t i = 0; i < AHEADSEGS_BUCKETS; i++)
		for (struct segment *s = a->buckets[i], *next; s; s = next) {
			next = s->next;
			if (s->r == r && s->state != SEGMENT_FETCHING)
				drop_segment(a, s);
		}
}

void aheadsegs_trim(struct aheadsegs *a)
{
	const uint64_t now = clock_ns();

	while (drop_oldest(a, &a->used, now) ||
	       drop_oldest(a, &a->ready, now - STALE_NS))
		;
}
