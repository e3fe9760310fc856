/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A hash table of blocks, and a list of those that are not in use, in the order
 * of their last use.  One lock suffices: it is taken a few times for each
 * 64 KiB, and never held while a block is decoded.
 */
#include "ckpt/pack/blockcache.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/pack/block.h"
#include "ckpt/sys/memory.h"

#define BUCKETS 4096 /* power of two */

#define DEFAULT_PART 16
#define DEFAULT_MAX (UINT64_C(64) << 20)

struct cached_block {
	struct blockcache_key key;
	struct cached_block *next;          /* in the bucket */
	struct cached_block *newer, *older; /* in the list, while unused */
	unsigned users;
	bool ready;
	int rc; /* of the thread that decoded it */
	uint8_t data[BLOCK_SIZE];
};

/* All protected by the lock. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t decoded = PTHREAD_COND_INITIALIZER;
static struct cached_block *bucket[BUCKETS];
static struct cached_block *newest, *oldest;
static size_t held;
static size_t limit; /* 0: not decided yet */

static struct cached_block **bucket_of(struct blockcache_key key)
{
	const uint64_t mixed =
		(key.block ^ key.pack << 40) * UINT64_C(0x9e3779b97f4a7c15);

	return &bucket[mixed >> 52];
}

static struct cached_block *lookup(struct blockcache_key key)
{
	struct cached_block *b = *bucket_of(key);

	while (b && (b->key.pack != key.pack || b->key.block != key.block))
		b = b->next;
	return b;
}

static void unlist(struct cached_block *b)
{
	*(b->newer ? &b->newer->older : &newest) = b->older;
	*(b->older ? &b->older->newer : &oldest) = b->newer;
	b->newer = b->older = NULL;
}

static void list_newest(struct cached_block *b)
{
	b->newer = NULL;
	b->older = newest;
	*(newest ? &newest->newer : &oldest) = b;
	newest = b;
}

static void unhash(struct cached_block *b)
{
	struct cached_block **at = bucket_of(b->key);

	while (*at != b)
		at = &(*at)->next;
	*at = b->next;
}

/* Take the oldest unused block out of the cache; NULL if all are in use. */
static struct cached_block *evict(void)
{
	struct cached_block *const b = oldest;

	if (b) {
		unlist(b);
		unhash(b);
		held -= BLOCK_SIZE;
	}
	return b;
}

size_t blockcache_default(void)
{
	const size_t bytes = (size_t)memory_share(DEFAULT_PART, DEFAULT_MAX);

	return bytes < BLOCK_SIZE ? BLOCK_SIZE : bytes;
}

/* A block with memory of its own, in use by the caller. */
static struct cached_block *insert(struct blockcache_key key)
{
	struct cached_block *b = NULL;

	if (!limit)
		limit = blockcache_default();
	while (held + BLOCK_SIZE > limit && oldest) {
		free(b);
		b = evict();
	}
	if (!b)
		b = malloc(sizeof(*b));
	if (!b)
		return NULL;
	b->key = key;
	b->users = 1;
	b->ready = false;
	b->rc = 0;
	b->newer = b->older = NULL;
	b->next = *bucket_of(key);
	*bucket_of(key) = b;
	held += BLOCK_SIZE;
	return b;
}

/* Called with the lock held. */
static void release(struct cached_block *b)
{
	if (--b->users)
		return;
	if (b->rc) {
		free(b); /* was unhashed when it failed */
		return;
	}
	list_newest(b);
	assert(limit);
	while (held > limit && oldest)
		free(evict());
}

/* Use a block that is in the table; waits until it is decoded. */
static int use(struct cached_block *b)
{
	int rc;

	if (b->users++ == 0)
		unlist(b);
	while (!b->ready)
		pthread_cond_wait(&decoded, &lock);
	rc = b->rc;
	if (rc)
		release(b);
	return rc;
}

/* Decode a block that this thread has put into the table. */
static int decode(struct cached_block *b, blockcache_fill *fill, void *ctx)
{
	int rc;

	pthread_mutex_unlock(&lock);
	rc = fill(ctx, b->data);
	pthread_mutex_lock(&lock);
	b->ready = true;
	b->rc = rc;
	pthread_cond_broadcast(&decoded);
	if (rc) {
		unhash(b);
		held -= BLOCK_SIZE;
		release(b);
	}
	return rc;
}

int blockcache_get(struct blockcache_key key, blockcache_fill *fill, void *ctx,
		   struct cached_block **out)
{
	struct cached_block *b;
	int rc;

	pthread_mutex_lock(&lock);
	b = lookup(key);
	if (b) {
		rc = use(b);
	} else {
		b = insert(key);
		rc = b ? decode(b, fill, ctx) : -ENOMEM;
	}
	pthread_mutex_unlock(&lock);
	if (!rc)
		*out = b;
	return rc;
}

struct cached_block *blockcache_claim(struct blockcache_key key)
{
	struct cached_block *b;

	pthread_mutex_lock(&lock);
	b = lookup(key) ? NULL : insert(key);
	pthread_mutex_unlock(&lock);
	return b;
}

int blockcache_fill_claimed(struct cached_block *b, blockcache_fill *fill,
			    void *ctx)
{
	int rc;

	pthread_mutex_lock(&lock);
	rc = decode(b, fill, ctx);
	pthread_mutex_unlock(&lock);
	return rc;
}

struct cached_block *blockcache_find(struct blockcache_key key)
{
	struct cached_block *b;

	pthread_mutex_lock(&lock);
	b = lookup(key);
	if (b && use(b))
		b = NULL;
	pthread_mutex_unlock(&lock);
	return b;
}

bool blockcache_has(struct blockcache_key key)
{
	pthread_mutex_lock(&lock);

	const bool there = lookup(key) != NULL;

	pthread_mutex_unlock(&lock);
	return there;
}

const uint8_t *blockcache_data(const struct cached_block *b)
{
	return b->data;
}

void blockcache_release(struct cached_block *b)
{
	pthread_mutex_lock(&lock);
	release(b);
	pthread_mutex_unlock(&lock);
}

void blockcache_set_limit(size_t bytes)
{
	pthread_mutex_lock(&lock);
	limit = bytes < BLOCK_SIZE ? BLOCK_SIZE : bytes;
	while (held > limit && oldest)
		free(evict());
	pthread_mutex_unlock(&lock);
}

void blockcache_drop(uint64_t pack)
{
	pthread_mutex_lock(&lock);
	for (struct cached_block *b = oldest, *newer; b; b = newer) {
		newer = b->newer;
		if (b->key.pack != pack)
			continue;
		unlist(b);
		unhash(b);
		held -= BLOCK_SIZE;
		free(b);
	}
	pthread_mutex_unlock(&lock);
}

size_t blockcache_bytes(void)
{
	pthread_mutex_lock(&lock);

	const size_t bytes = held;

	pthread_mutex_unlock(&lock);
	return bytes;
}
