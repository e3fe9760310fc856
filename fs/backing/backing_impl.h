/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_BACKING_IMPL_H
#define UCFS_BACKING_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#include "ckpt/sys/parallel.h"
#include "fs/backing/backing.h"
#include "fs/backing/predictor.h"

struct pool_buffer;
struct vfile;

/*
 * Shared by backing.c (opens), assembly.c (the cache) and prefetch.c (the
 * background thread).  A file's state:
 *
 *	ABSENT ----> STREAMED		opened without a buffer; until the last close
 *	   |
 *	BUILDING ---> ABSENT		the shards cannot be read
 *	   |    \
 *	   |   PREFETCHED --> ABSENT	evicted
 *	   v    v
 *	 READY <---> IDLE --> ABSENT	last close and next open; evicted
 *
 * A shard shown unchanged has no buffer and goes from READY to ABSENT.
 */
enum backed_state {
	BACKED_ABSENT,
	BACKED_STREAMED,   /* has handles, all streamed */
	BACKED_BUILDING,   /* openers wait and help */
	BACKED_PREFETCHED, /* in the cache, not opened since it was built */
	BACKED_READY,      /* has handles, all passed through */
	BACKED_IDLE,       /* in the cache, without handles */
};

/* A file that was opened at least once, or prefetched. */
struct backed {
	struct backed *next; /* in its bucket */
	uint64_t ino;
	uint64_t size;
	enum backed_state state;
	bool ghost; /* was evicted since it was last assembled */
	int id;     /* backing id; 0: none */
	struct pool_buffer *buffer;  /* NULL: not in the cache */
	unsigned handles;            /* open ones that have been answered */
	struct backing_use *waiting; /* opens to answer; BUILDING only */
	struct team team;            /* lets waiting threads help */
	TAILQ_ENTRY(backed) lru;     /* IDLE or PREFETCHED only */
};

TAILQ_HEAD(backed_list, backed);

#define BACKING_BUCKETS 4096
#define BACKING_QUEUE 64

struct backing {
	struct tree *tree;
	struct passthrough *passthrough;
	struct stats *stats;
	struct follow *follow;

	pthread_mutex_t lock; /* protects the rest; never held across I/O */
	uint64_t bound;       /* of the cache, in bytes; 0: no cache */
	uint64_t target;      /* size up to which it grows before it evicts */
	struct pool *pool;    /* created on first use, then constant */
	struct backed *buckets[BACKING_BUCKETS];
	struct backed_list idle, prefetched; /* least recently used first */
	unsigned large_misses;

	/* For the prefetch thread: */
	pthread_t thread;
	bool running;
	atomic_bool stop;
	pthread_cond_t wake;
	uint64_t queue[BACKING_QUEUE]; /* inodes opened: a ring */
	size_t queued, first;
	struct predictor predictor; /* used by the thread alone */
};

/* All functions below are called with the lock held, except prefetch_start and
 * prefetch_stop. */

/* Find or add the file; NULL when memory runs out. */
struct backed *backing_find(struct backing *b, uint64_t ino, uint64_t size);

/* Leave BUILDING, with rc and `err` of the attempt, and answer all waiting
 * opens.  Releases the lock while answering. */
void backing_settle(struct backing *b, struct backed *file, int rc,
		    const struct errmsg *err);

/* Smaller files are streamed: at half this size assembly gains nothing
 * (tests/bench/RESULTS.md). */
#define ASSEMBLY_MIN (UINT64_C(1) << 20)

bool assembly_eligible(const struct backing *b, uint64_t size);

/* Put an assembled file without handles on the LRU list of `state`, IDLE or
 * PREFETCHED; take it off when it is opened. */
void assembly_idle(struct backing *b, struct backed *file,
		   enum backed_state state);
void assembly_reuse(struct backing *b, struct backed *file);

/* Find a buffer for a file that is ABSENT, evicting an idle file if necessary.
 * NULL if there is none; a new one is then requested if that is worth it, and
 * is available to later calls. */
struct pool_buffer *assembly_take_buffer(struct backing *b, struct backed *file);

/* Evict all files without handles, and free their memory. */
void assembly_drop_idle(struct backing *b);

/* Assemble a file that is ABSENT, and settle it.  Releases the lock
 * meanwhile. */
void assembly_build(struct backing *b, struct backed *file,
		    struct pool_buffer *buffer, struct vfile *v, bool prefetch);

/* Help to assemble a file that is BUILDING, unless half the processors do so
 * already.  Releases the lock meanwhile. */
void assembly_help(struct backing *b, struct backed *file);

/* Report an open to the prefetch thread. */
void prefetch_opened(struct backing *b, uint64_t ino);
void prefetch_start(struct backing *b);
void prefetch_stop(struct backing *b);

#endif
