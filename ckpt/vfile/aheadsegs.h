/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_AHEADSEGS_H
#define UCKPT_AHEADSEGS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ckpt/vfile/aheadbufs.h"

/*
 * Segments of files that are read ahead, and the memory that they have.
 *
 *	QUEUED ---> FETCHING ---> READY ---> freed
 *	   |            '-> freed: the reader will meet the error
 *	   '-> freed with its set of files
 *
 * A segment is what was wanted of one slot of a file, a piece of AHEADBUFS_PIECE
 * bytes: it is not rounded to blocks, so that no byte is read that nobody wants.  It
 * is freed when all of its bytes have been read as often as they were wanted, or, if
 * they are kept, when memory is needed.  A segment that nobody came for is given up
 * when a reader finds no memory for what it wants.
 */
struct readahead; /* a set of files */

enum aheadsegs_state { SEGMENT_QUEUED, SEGMENT_FETCHING, SEGMENT_READY };

struct segment {
	struct readahead *r;
	uint32_t file;
	uint64_t off;
	size_t len; /* does not cross the end of a slot */
	enum aheadsegs_state state;
	uint8_t *data;   /* NULL while QUEUED */
	unsigned users;  /* readers that copy from it, or wait for it */
	bool failed;     /* freed by its last user */
	bool twice;      /* counts in twice_bytes */
	uint64_t unread; /* bytes that were wanted and have not been read */
	uint64_t touched;
	struct segment *next;    /* in its bucket */
	TAILQ_ENTRY(segment) at; /* in `queue`, `ready` or `used` */
};

TAILQ_HEAD(segments, segment);

#define AHEADSEGS_BUCKETS 4096

/* All segments.  Initialise with AHEADSEGS_INIT; a lock of the caller protects it. */
struct aheadsegs {
	struct segment *buckets[AHEADSEGS_BUCKETS];
	struct segments queue;
	struct segments ready; /* with unread bytes */
	struct segments used;  /* without */
	uint64_t limit;
	uint64_t twice_limit; /* beyond it, for what is read twice */
	bool keeps;    /* what has been read stays as long as there is room */
	uint64_t held; /* bytes of segments, those in the queue among them */
	uint64_t used_bytes;  /* of these, bytes of segments in `used` */
	uint64_t twice_bytes; /* of these, what counts in twice_limit */
	struct aheadbufs buffers;
	pthread_cond_t room; /* broadcast when memory may be had */
};

#define AHEADSEGS_INIT(a, bytes)                                          \
	{                                                                 \
		.queue = TAILQ_HEAD_INITIALIZER(a.queue),                 \
		.ready = TAILQ_HEAD_INITIALIZER(a.ready),                 \
		.used = TAILQ_HEAD_INITIALIZER(a.used), .limit = (bytes), \
		.room = PTHREAD_COND_INITIALIZER,                         \
	}

/* The segment that has byte `off`; else NULL, and `*end` is where the next one of the
 * slot begins, at most `*end` as it was. */
struct segment *aheadsegs_find(const struct aheadsegs *a,
			       const struct readahead *r, uint32_t file,
			       uint64_t off, uint64_t *end);

/* The end of the bytes from `off` on, at most `to`, that no segment has. */
uint64_t aheadsegs_find_gap(const struct aheadsegs *a, const struct readahead *r,
			    uint32_t file, uint64_t off, uint64_t to);

/* Put bytes of a slot, which no segment has, into the queue, with others if there are
 * any beside them.  False if segments with unread bytes would hold more than `most`
 * bytes, or memory runs out.  `twice`: two readers will come. */
bool aheadsegs_add(struct aheadsegs *a, struct readahead *r, uint32_t file,
		   uint64_t off, size_t len, uint64_t most, bool twice);

/* `n` more bytes of a segment are wanted, by one reader or by two. */
void aheadsegs_want(struct aheadsegs *a, struct segment *s, uint64_t n,
		    bool twice);

/* Take a segment out of the queue to fetch it.  `data` is NULL if memory runs out. */
void aheadsegs_begin(struct aheadsegs *a, struct segment *s);

/* It was fetched, or that failed. */
void aheadsegs_settle(struct aheadsegs *a, struct segment *s, bool failed);

/* A user has copied `n` bytes of a segment, and is one no longer. */
void aheadsegs_consume(struct aheadsegs *a, struct segment *s, size_t n);

/* A user of a segment that failed leaves it. */
void aheadsegs_leave(struct aheadsegs *a, struct segment *s);

/* Drop the segments of a set of files that nobody fetches. */
void aheadsegs_drop_all(struct aheadsegs *a, const struct readahead *r);

/* Free what nobody waits for. */
void aheadsegs_trim(struct aheadsegs *a);

#endif
