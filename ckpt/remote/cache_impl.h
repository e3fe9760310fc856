/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CACHE_IMPL_H
#define UCKPT_CACHE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"

/* Shared by cache.c (threads and readers) and cache_blocks.c (the list of blocks). */
struct cache {
	struct cache_pool *pool;
	struct cache_config config;
	unsigned fetching; /* protected by the lock */
	_Atomic size_t nblocks;
};

static inline bool cache_is_slow(const struct cache *c)
{
	return !c->config.latency || latency_is_high(c->config.latency);
}

/*
 *	QUEUED ---> FETCHING ---> READY ---> freed
 *	   |            '-> freed: the reader will meet the error
 *	   '-> freed with its cache
 *
 * A block is freed when all of its bytes have been read as often as they were wanted, or
 * when memory is needed, if it is kept.  When a reader finds no memory, blocks that
 * nobody has come for are given up.
 */
enum block_state { BLOCK_QUEUED, BLOCK_FETCHING, BLOCK_READY };

struct cache_block {
	struct cache *c;
	uint32_t file;
	uint64_t off;
	size_t len;
	enum block_state state;
	enum want want;  /* WANT_NOW: it may be evicted */
	uint8_t *data;   /* NULL while QUEUED */
	unsigned users;  /* readers that copy from it, or wait for it */
	bool failed;     /* freed by its last user */
	uint64_t unread; /* bytes that were prefetched and have not been read */
	uint64_t touched;
	struct cache_block *next;    /* in its bucket */
	TAILQ_ENTRY(cache_block) at; /* in `queue`, `ready` or `kept` */
};

TAILQ_HEAD(block_list, cache_block);

/* Memory of large blocks: pieces of CACHE_PIECE bytes.  v[0, nfree) have memory, the last
 * `nempty` have only addresses. */
struct slabs {
	void **v;
	size_t n, cap, nfree, nempty;
	void **slabs; /* the allocations themselves */
	size_t nslabs, slabs_cap;
};

#define BLOCK_BUCKETS 4096

/* All blocks of a context, and the threads that fetch them. */
struct cache_pool {
	pthread_mutex_t *lock; /* the context's, which protects the rest */
	pthread_cond_t more;   /* the queue has grown, or the pool ends */
	pthread_cond_t done;   /* a block came in, or the last thread ended */
	struct request_width width;
	struct latency latency; /* cache_latency; not protected */
	/* Numbers of threads: all, fetching, checking what they fetched, idle. */
	unsigned nthreads, fetching, checking, idle;
	pid_t pid; /* the process that these threads belong to */
	bool ends;
	/* The thread that ended last.  It joins the one before, and whoever frees the pool joins it:
	 * libcurl's TLS library frees what a thread had only if the thread ends before the process. */
	pthread_t ended;
	bool has_ended;

	struct cache_block *buckets[BLOCK_BUCKETS];
	struct block_list queue;
	struct block_list ready;
	struct block_list kept; /* of WANT_NOW */
	_Atomic uint64_t limit; /* written with the lock held */
	uint64_t later_limit;   /* beyond it, for WANT_LATER */
	bool keeps;             /* keep blocks after they have been read */
	uint64_t bytes[WANT_LATER + 1];
	struct slabs slabs;
	uint64_t held; /* memory of all blocks and free pieces */
};

/* Return the block that has byte `off`, or NULL; then lower `*end` to the beginning of the next
 * block. */
struct cache_block *block_find(const struct cache_pool *a, const struct cache *c, uint32_t file,
			       uint64_t off, uint64_t *end);

/* Queue bytes that no block has, joined to an adjacent block of the queue if there is
 * one.  False if memory is used up. */
bool block_add(struct cache_pool *a, struct cache *c, uint32_t file, uint64_t off, size_t len,
	       enum want when);

/* Count `n` more bytes of a block as wanted; false as block_add. */
bool block_want(struct cache_pool *a, struct cache_block *b, uint64_t n, enum want when);

/* Take a block out of the queue to fetch it.  `data` is NULL if memory runs out. */
void block_begin(struct cache_pool *a, struct cache_block *b);

/* Set a block's state after the fetch. */
void block_settle(struct cache_pool *a, struct cache_block *b, bool failed);

/* Count `n` bytes as read, 0 of a block that failed, and end the use of it. */
void block_leave(struct cache_pool *a, struct cache_block *b, size_t n);

/* Free the blocks of a cache that are not being fetched. */
void blocks_drop(struct cache_pool *a, struct cache *c);

/* Free blocks that no reader waits for. */
void blocks_trim(struct cache_pool *a);

/* Free the memory of all blocks; none must be left. */
void blocks_done(struct cache_pool *a);

/* Take a free piece of memory while more than `limit` bytes are held; else NULL.  The caller
 * gives its pages back to the system without the lock, and then returns the address. */
void *blocks_take_excess(struct cache_pool *a, uint64_t limit);
void blocks_return_place(struct cache_pool *a, void *piece);

#endif
