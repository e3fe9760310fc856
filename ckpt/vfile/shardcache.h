/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARDCACHE_H
#define UCKPT_SHARDCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/cache/cache.h"

struct errmsg;
struct extent_map;
struct latency;
struct uckpt;

/* Shards open (and mapped) at once, at most; less if the process may not have
 * that many descriptors. */
#define SHARDCACHE_OPEN_MAX 16384

/* The pages of mappings count as memory of the process.  When this many bytes
 * were touched, the cache lets the kernel take them back. */
#define SHARDCACHE_MAPPED_MAX (UINT64_C(64) << 20)

/*
 * The shard files of one checkpoint, opened and mapped on demand, a bounded
 * number at a time.  Thread-safe.  No lock is held while a store is asked.
 */
struct shardcache;

struct shardcache *shardcache_new(struct uckpt *u);

void shardcache_free(struct shardcache *c);

/* Add a shard by path (copied) and the identity it had when it was planned.
 * Not thread-safe: done before the first use.  -1 when memory runs out,
 * else its number. */
int64_t shardcache_add(struct shardcache *c, const char *path,
		       const struct fileid *id);

struct uckpt *shardcache_context(const struct shardcache *c);
size_t shardcache_count(const struct shardcache *c);
const char *shardcache_path(const struct shardcache *c, uint32_t shard);
const struct fileid *shardcache_id(const struct shardcache *c, uint32_t shard);

/* A shard in use: stays open and mapped until it is put back. */
struct shard_map {
	const uint8_t *p; /* the whole file, read-only, shared; NULL: unmapped */
	int fd;           /* -1: no local file, such as one in a pack */
};

/*
 * Use a shard.  Checks that the open file is still what was planned: -EIO if
 * it was truncated or written to.  The mapping may be handed to the kernel
 * (writev), which answers EFAULT if the file shrinks meanwhile; user code
 * that touched it would get SIGBUS then, and reads through `fd` instead.
 */
int shardcache_get(struct shardcache *c, uint32_t shard, struct shard_map *out,
		   struct errmsg *err);
void shardcache_put(struct shardcache *c, uint32_t shard);

/* Is the shard a local file?  Opens it; true if it cannot be opened. */
bool shardcache_has_descriptor(struct shardcache *c, uint32_t shard);

/* Count `len` bytes that a caller has read from mappings; see
 * SHARDCACHE_MAPPED_MAX. */
void shardcache_count_mapped(struct shardcache *c, size_t len);

/* Read `len` bytes at `off` of a shard; errors as shardcache_get. */
int shardcache_read(struct shardcache *c, uint32_t shard, void *buf, size_t len,
		    uint64_t off, struct errmsg *err);

/* Should readers look for bytes in the cache?  Also of a store that seems to be near now:
 * what was wanted is there, or under way. */
bool shardcache_reads_ahead(const struct shardcache *c);

/* As cache_pin, of a shard that is still what was planned; false if it is not. */
bool shardcache_pin(struct shardcache *c, uint32_t shard, uint64_t off, size_t len,
		    struct cache_pin *out);

/* Suppose that the shards are where their maps were read from (latency_assume). */
void shardcache_assume_latency(struct shardcache *c, const struct latency *maps);

/* Do the shards' files answer slowly?  Then reads take what was wanted from memory
 * (cache.h).  Learned from the reads, and not true before some were slow. */
bool shardcache_is_far(const struct shardcache *c);

/* Is it worth reading ahead of a reader that goes on in order?  It is if the store is far,
 * or if shards lie in packs, so that other processors decode. */
bool shardcache_gains_ahead(const struct shardcache *c);

/* As cache_prefetch. */
uint64_t shardcache_prefetch(struct shardcache *c, uint32_t shard, uint64_t off,
			     uint64_t len, enum want when);

/* Should a reader use mappings for the next `len` bytes?  False for a far store, whose
 * pages come one window at a time, and now and then for a near one: reads show whether
 * it still is near. */
bool shardcache_can_map(struct shardcache *c, size_t len);

/* Read bytes [off, off + len) of a map, which must have them and consist of
 * shards as they are (asserted). */
int shardcache_read_map(struct shardcache *c, const struct extent_map *m,
			void *buf, size_t len, uint64_t off, struct errmsg *err);

/* Check that the paths of `n` shards still lead to the planned files: -EIO if one was
 * replaced.  Each path is checked at most every 100 ms, far ones less often, up to every
 * 10 s, and in parallel. */
int shardcache_check_paths(struct shardcache *c, const uint32_t *shards, size_t n,
			   struct errmsg *err);

/* Check that `n` shards are still what was planned; errors as shardcache_get. */
int shardcache_check_files(struct shardcache *c, const uint32_t *shards, size_t n,
			   struct errmsg *err);

#endif
