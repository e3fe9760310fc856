/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CACHE_H
#define UCKPT_CACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct latency;
struct uckpt;

/*
 * The context's cache of blocks that are expensive to read: files of slow storage, windows of a
 * server's file, decoded blocks of a pack.
 *
 * A caller that knows which bytes will be read next prefetches them; background threads fetch
 * these, with as many requests at once as make the store faster (latency.h), and readers take them
 * from memory.  A block has exactly the prefetched bytes, at most CACHE_PIECE: nothing else is
 * fetched, and nothing twice while it is in memory or under way.  All caches of a context share its
 * threads and its limit of memory.  Thread-safe.
 */
struct cache;

/* The longest block.  FUSE sends no larger requests; a store that could answer larger ones gets
 * several at once instead. */
#define CACHE_PIECE (UINT64_C(1) << 20)

/* Read exactly `len` bytes at `off` of a file; 0 or a negative errno. */
typedef int cache_fill(void *ctx, uint32_t file, void *buf, size_t len, uint64_t off,
		       struct errmsg *err);

/* Return 0 if a file whose bytes were read is still the right one; else a negative
 * errno, which cache_read returns. */
typedef int cache_check(void *ctx, uint32_t file, struct errmsg *err);

struct cache_config {
	cache_fill *fill;
	cache_check *check; /* after each fill, not counted as a request; may be NULL */
	void *ctx;
	/* While this store is fast, requests are limited to the number of processors, and bytes
	 * are not kept after a read.  NULL: the store is always slow. */
	const struct latency *latency;
	/* Blocks may cross multiples of CACHE_PIECE; otherwise a request never does. */
	bool crosses;
};

/* The part that all caches of a context share; NULL when memory runs out. */
struct cache_pool *cache_pool_new(struct uckpt *u);

/* Wait for the threads, and free the pool.  All caches must have been freed.  `a` may be NULL. */
void cache_pool_free(struct cache_pool *a);

/* A cache of files that are identified by a number; NULL when memory runs out. */
struct cache *cache_new(struct uckpt *u, const struct cache_config *config);

/* Wait for requests under way, and free the cache.  The caller guarantees that it has no
 * readers.  `c` may be NULL. */
void cache_free(struct cache *c);

enum want {
	WANT_NOW,   /* the caller reads the bytes next; the rest of a block stays until memory is
	             * needed */
	WANT_NEXT,  /* the caller reads them later; limited to a part of the memory */
	WANT_LATER, /* for later readers; they have extra memory (cache_set_limit) and five
	             * eighths of the rest */
};

/*
 * Queue bytes [off, off + len) of a file for fetching.  Returns how many of the first ones are in
 * memory or under way: fewer than `len` when memory is used up.
 */
uint64_t cache_prefetch(struct cache *c, uint32_t file, uint64_t off, uint64_t len, enum want when);

/* Read bytes [off, off + len): from memory where they were prefetched, the rest directly.
 * Errors are those of `fill`. */
int cache_read(struct cache *c, uint32_t file, void *buf, size_t len, uint64_t off,
	       struct errmsg *err);

/* Bytes in the cache, borrowed without a copy. */
struct cache_pin {
	struct cache_block *b;
	const uint8_t *p;
	size_t len;
};

/* Borrow up to `len` bytes of a file from `off` on, which were prefetched and are contiguous in
 * memory; waits until they are there.  False if they were not prefetched or the fetch failed:
 * cache_read reports why.  They stay until cache_unpin. */
bool cache_pin(struct cache *c, uint32_t file, uint64_t off, size_t len, struct cache_pin *out);

/* Return borrowed bytes; `read`: count them as read. */
void cache_unpin(const struct cache_pin *l, bool read);

/* Has the cache any blocks? */
bool cache_has_blocks(const struct cache *c);

/* The limit until cache_set_limit. */
#define CACHE_DEFAULT (UINT64_C(256) << 20)

/* The smallest useful limit for reading ahead; 0 turns that off. */
#define CACHE_MIN (UINT64_C(4) << 20)

/* Set the most memory for blocks, and the extra memory for WANT_LATER.  `keep`: blocks of slow
 * stores stay after they have been read while there is memory. */
void cache_set_limit(struct uckpt *u, uint64_t bytes, uint64_t later, bool keep);
uint64_t cache_limit(const struct uckpt *u);

/* The measured latency of the stores that the context reads. */
struct latency *cache_latency(const struct uckpt *u);

/* Number of bytes that a sequential reader should prefetch. */
uint64_t cache_readahead_bytes(const struct uckpt *u);

/* Memory in use, in bytes; frees blocks without readers first. */
uint64_t cache_bytes(const struct uckpt *u);
void cache_trim(struct uckpt *u);

#endif
