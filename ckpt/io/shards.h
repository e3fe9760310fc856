/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARDS_H
#define UCKPT_SHARDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/source.h"
#include "ckpt/remote/cache.h"

struct errmsg;
struct uckpt;

/* Shards open (and mapped) at once, at most; less if the process may not have
 * that many descriptors. */
#define SHARDS_OPEN_MAX 16384

/* The pages of mappings count as memory of the process.  When this many bytes
 * were touched, the cache lets the kernel take them back. */
#define SHARDS_MAPPED_MAX (UINT64_C(64) << 20)

/*
 * The shard files of one checkpoint, opened and mapped on demand, a bounded number at a time.
 * Thread-safe.  No lock is held during I/O.
 */
struct shards;

struct shards *shards_new(struct uckpt *u);

void shards_free(struct shards *c);

/* Add a shard by path (copied) and the identity it had when it was planned.
 * Not thread-safe: done before the first use.  -1 when memory runs out,
 * else its number. */
int64_t shards_add(struct shards *c, const char *path, const struct fileid *id);

struct uckpt *shards_context(const struct shards *c);
size_t shards_count(const struct shards *c);
const char *shards_path(const struct shards *c, uint32_t shard);
const struct fileid *shards_id(const struct shards *c, uint32_t shard);

/* A shard in use: it stays open and mapped until shards_unuse. */
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
int shards_use(struct shards *c, uint32_t shard, struct shard_map *out, struct errmsg *err);
void shards_unuse(struct shards *c, uint32_t shard);

/* Is the shard a local file?  Opens it; true if it cannot be opened. */
bool shards_has_descriptor(struct shards *c, uint32_t shard);

/* Count `len` bytes that a caller has read from mappings; see
 * SHARDS_MAPPED_MAX. */
void shards_count_mapped(struct shards *c, size_t len);

/* Read `len` bytes at `off` of a shard; errors as shards_use. */
int shards_read(struct shards *c, uint32_t shard, void *buf, size_t len, uint64_t off,
		struct errmsg *err);

/* Should readers look for bytes in the cache?  Also true for a fast store while prefetched
 * blocks remain. */
bool shards_reads_ahead(const struct shards *c);

/* As cache_pin, for a shard that is still the planned one; false if it is not. */
bool shards_pin(struct shards *c, uint32_t shard, uint64_t off, size_t len, struct cache_pin *out);

/* Is the shards' store slow? Then reads take prefetched bytes from memory (cache.h).  Learned
 * from the reads, so false until some were slow. */
bool shards_is_slow(const struct shards *c);

/* Should a sequential reader prefetch?  Yes if the store is slow, or if shards lie in packs, so
 * that other processors decode them. */
bool shards_gains_ahead(const struct shards *c);

/* As cache_prefetch. */
uint64_t shards_prefetch(struct shards *c, uint32_t shard, uint64_t off, uint64_t len,
			 enum want when);

/* Should a reader use mappings for the next `len` bytes?  False for a slow store, which would
 * load one window at a time; sometimes false for a fast one, because only reads show whether it
 * still is fast. */
bool shards_can_map(struct shards *c, size_t len);

/* Check that the paths of `n` shards still lead to the planned files: -EIO if one was
 * replaced.  Each path is checked at most every 100 ms, slow ones less often, up to every
 * 10 s, and in parallel. */
int shards_check_paths(struct shards *c, const uint32_t *shards, size_t n, struct errmsg *err);

/* Check that `n` shards are still what was planned; errors as shards_use. */
int shards_check_files(struct shards *c, const uint32_t *shards, size_t n, struct errmsg *err);

#endif
