/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_BLOCKCACHE_H
#define UCKPT_BLOCKCACHE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/*
 * Decoded blocks of all packs that the process has open: one cache with one
 * limit, least recently used first out.  Thread-safe.
 */

/* The limit until blockcache_set_limit: 64 MiB, or a sixteenth of the memory that
 * the process may use where that is less. */
size_t blockcache_default(void);

struct blockcache_key {
	uint64_t pack;  /* unique in the process */
	uint64_t block; /* unique in the pack */
};

/* A block in use: neither freed nor moved until it is released. */
struct cached_block;

/* Decode a block into `to`, which has room for BLOCK_SIZE; 0 or a negative
 * errno. */
typedef int blockcache_fill(void *ctx, uint8_t *to);

/*
 * Find a block, or let `fill` decode it; of several threads that want one block
 * one decodes it and the others wait.  Errors are those of `fill`, or -ENOMEM.
 */
int blockcache_get(struct blockcache_key key, blockcache_fill *fill, void *ctx,
		   struct cached_block **out);

/*
 * Announce that the caller will decode a block, so that others wait for it instead of
 * fetching it, too.  NULL if it is there, being decoded or announced already, or when
 * memory runs out.  The caller fills the block before it waits for another one.
 */
struct cached_block *blockcache_claim(struct blockcache_key key);

/* Decode a claimed block, which then is in use by the caller; on failure it is not.
 * Returns what `fill` does. */
int blockcache_fill_claimed(struct cached_block *b, blockcache_fill *fill,
			    void *ctx);

/* Find a block that is there, or being decoded; NULL if neither. */
struct cached_block *blockcache_find(struct blockcache_key key);

/* Is a block there, or being decoded?  Does not wait. */
bool blockcache_has(struct blockcache_key key);

const uint8_t *blockcache_data(const struct cached_block *b);
void blockcache_release(struct cached_block *b);

/* The most bytes of blocks, at least a block for each thread that reads: blocks
 * in use stay. */
void blockcache_set_limit(size_t bytes);

/* Drop the blocks of a pack, of which none may be in use. */
void blockcache_drop(uint64_t pack);

/* Bytes of blocks that are held now. */
size_t blockcache_bytes(void);

#endif
