/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How an open is answered, by the state of its file (backing_impl.h):
 *
 *	STREAMED			stream
 *	PREFETCHED, READY, IDLE		pass through: a cache hit
 *	BUILDING			help, wait, then pass through
 *	ABSENT, a shard			open the shard, then pass through
 *	ABSENT, O_NONBLOCK		stream
 *	ABSENT, a buffer at hand	assemble, then pass through
 *	ABSENT, no buffer		stream, and request a buffer
 *
 * Assembling a file copies every byte once more, but is faster even for a single
 * reader: the next files are assembled while this one is read, and a loader that
 * seeks through the file before it reads the tensor sends us no requests
 * (tests/bench/RESULTS.md).
 *
 * The backing id of a shard is released with its last handle; that of an
 * assembled file stays with its buffer.
 */
#include "fs/backing/backing.h"

#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/blockcache.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/memory.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/backing/follow.h"
#include "fs/backing/passthrough.h"
#include "fs/backing/pool.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"

/* The default bound is a sixteenth of the memory that the process may use, and at
 * most this. */
#define BOUND_PART 16
#define BOUND_MAX  (UINT64_C(1) << 30)

/* The cache's first target.  It is small because new memory costs a single
 * loader more than anything else (tests/bench/RESULTS.md). */
#define TARGET_FIRST (UINT64_C(32) << 20)

/* An eighth of the cache is for decoded blocks of packs. */
#define BLOCKS_PART 8

/* What is read ahead from far storage, unless the options say how much: this part of
 * the memory, and at most READAHEAD_DEFAULT. */
#define AHEAD_PART 64

/* The part of the cache that a file of a far store may take instead, which is read once
 * for its checksum and then by its reader. */
#define TWICE_PART 2

/* How much of the cache blocks of packs may take: what many readers need to find
 * the rest of a block again, and to have the next ones decoded ahead. */
static size_t blocks_bound(uint64_t bound)
{
	const size_t most = blockcache_default();

	return bound == 0 || bound / BLOCKS_PART > most
		       ? most
		       : (size_t)(bound / BLOCKS_PART);
}

struct backing *backing_new(const struct backing_options *options,
			    struct tree *tree, struct passthrough *passthrough,
			    struct stats *stats)
{
	struct backing *const b = calloc(1, sizeof(*b));
	pthread_condattr_t monotonic;

	if (!b)
		return NULL;
	b->follow = follow_new(tree);
	if (!b->follow) {
		free(b);
		return NULL;
	}
	b->tree = tree;
	b->passthrough = passthrough;
	b->stats = stats;
	if (!options->no_cache)
		b->bound = options->cache_size
				   ? options->cache_size
				   : memory_share(BOUND_PART, BOUND_MAX);
	blockcache_set_limit(blocks_bound(b->bound));
	readahead_set_limit(options->has_readahead
				    ? options->readahead
				    : memory_share(AHEAD_PART, READAHEAD_DEFAULT),
			    true);
	readahead_set_twice(b->bound / TWICE_PART);
	b->target = b->bound < TARGET_FIRST ? b->bound : TARGET_FIRST;
	TAILQ_INIT(&b->idle);
	TAILQ_INIT(&b->prefetched);
	pthread_mutex_init(&b->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&b->wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return b;
}

void backing_free(struct backing *b)
{
	if (!b)
		return;
	for (size_t i = 0; i < BACKING_BUCKETS; i++)
		while (b->buckets[i]) {
			struct backed *const file = b->buckets[i];

			assert(file->state != BACKED_BUILDING && !file->waiting);
			b->buckets[i] = file->next;
			if (file->buffer)
				pool_put(b->pool, file->buffer);
			team_done(&file->team);
			free(file);
		}
	pool_free(b->pool);
	follow_free(b->follow);
	pthread_cond_destroy(&b->wake);
	pthread_mutex_destroy(&b->lock);
	free(b);
}

void backing_start(struct backing *b)
{
	if (b->bound && atomic_load(&b->passthrough->on))
		prefetch_start(b);
	if (readahead_limit())
		follow_start(b->follow);
}

void backing_stop(struct backing *b)
{
	prefetch_stop(b);
	follow_stop(b->follow);
	if (b->pool)
		pool_stop(b->pool);
}

struct backed *backing_find(struct backing *b, uint64_t ino, uint64_t size)
{
	struct backed **const bucket =
		&b->buckets[(ino ^ ino >> 32) * UINT64_C(0x9e3779b97f4a7c15) >> 52];
	struct backed *file = *bucket;

	while (file && file->ino != ino)
		file = file->next;
	if (file)
		return file;
	file = calloc(1, sizeof(*file));
	if (!file)
		return NULL;
	team_init(&file->team);
	file->ino = ino;
	file->size = size;
	file->next = *bucket;
	*bucket = file;
	return file;
}

/* --- state changes: called with the lock held --------------------------------- */

static int backing_pass(struct backing *b, struct backed *file,
			struct backing_use *use)
{
	assert(file->id > 0);
	if (file->state != BACKED_READY)
		assembly_reuse(b, file);
	file->state = BACKED_READY;
	file->handles++;
	use->id = file->id;
	stats_add(b->stats,
		  file->buffer ? STATS_OPENS_CACHED : STATS_OPENS_PASSTHROUGH,
		  1);
	return BACKING_PASS;
}

static int backing_stream(struct backing *b, struct backed *file)
{
	assert(file->state == BACKED_ABSENT || file->state == BACKED_STREAMED);
	file->state = BACKED_STREAMED;
	file->handles++;
	stats_add(b->stats, STATS_OPENS_STREAMED, 1);
	return BACKING_STREAM;
}

void backing_settle(struct backing *b, struct backed *file, int rc,
		    const struct errmsg *err)
{
	struct backing_use *use = file->waiting, *next;

	assert(file->state == BACKED_BUILDING && file->handles == 0);
	file->waiting = NULL;
	file->state = BACKED_ABSENT;
	if (file->buffer)
		assembly_idle(b, file, BACKED_PREFETCHED);
	else if (file->id)
		file->state = BACKED_READY;
	for (struct backing_use *u = use; u && !rc; u = u->next)
		if (file->id)
			backing_pass(b, file, u);
		else
			backing_stream(b, file);
	pthread_mutex_unlock(&b->lock);
	for (; use; use = next) {
		next = use->next; /* the answer may free `use` */
		use->answer(use,
			    rc        ? rc
			    : use->id ? BACKING_PASS
				      : BACKING_STREAM,
			    err);
	}
	pthread_mutex_lock(&b->lock);
}

void backing_release(struct backing *b, struct backing_use *use)
{
	struct backed *const file = use->file;

	if (!file)
		return;
	pthread_mutex_lock(&b->lock);
	assert(file->handles > 0);
	if (--file->handles == 0) {
		if (file->buffer) {
			assembly_idle(b, file, BACKED_IDLE);
		} else {
			if (file->id)
				passthrough_end(b->passthrough, file->id);
			file->id = 0;
			file->state = BACKED_ABSENT;
		}
	}
	pthread_mutex_unlock(&b->lock);
}

/* --- opening: called with the lock held ---------------------------------------- */

/* The answer comes, or came, from backing_settle. */
#define ANSWERED (-1)

/* Register a shard with the kernel.  Releases the lock meanwhile, since the
 * shard may have to be opened. */
static int begin_shard(struct backing *b, struct backed *file,
		       struct shardcache *shards, uint32_t shard,
		       struct backing_use *use)
{
	struct errmsg err = { "" };
	struct shard_map m;
	int rc, id = 0;

	file->state = BACKED_BUILDING;
	file->waiting = use;
	pthread_mutex_unlock(&b->lock);
	rc = shardcache_get(shards, shard, &m, &err);
	if (!rc) {
		/* The kernel would wait for each window of a far one. */
		if (m.fd >= 0 && shardcache_can_map(shards, 0))
			id = passthrough_begin(b->passthrough, m.fd);
		shardcache_put(shards, shard);
	}
	pthread_mutex_lock(&b->lock);
	file->id = id;
	backing_settle(b, file, rc, &err);
	return ANSWERED;
}

static int backing_miss(struct backing *b, struct backed *file, struct vfile *v,
			struct backing_use *use)
{
	struct pool_buffer *const buffer = assembly_take_buffer(b, file);
	int answer = ANSWERED;

	stats_add(b->stats, STATS_CACHE_MISSES, 1);
	if (buffer) {
		file->waiting = use;
		assembly_build(b, file, buffer, v, false);
	} else {
		stats_add(b->stats, STATS_NO_BUFFER, 1);
		answer = backing_stream(b, file);
	}
	/* Not earlier: prefetching would compete with this assembly. */
	prefetch_opened(b, file->ino);
	return answer;
}

static int backing_wait(struct backing *b, struct backed *file,
			struct backing_use *use)
{
	use->next = file->waiting;
	file->waiting = use;
	stats_add(b->stats, STATS_CACHE_WAITS, 1);
	prefetch_opened(b, file->ino);
	assembly_help(b, file);
	return ANSWERED;
}

static int backing_open_file(struct backing *b, struct backed *file,
			     const struct tree_file *f, bool nonblock,
			     struct backing_use *use)
{
	const int64_t shard = vfile_verbatim_shard(f->v);
	int answer;

	if (file->state == BACKED_BUILDING)
		return backing_wait(b, file, use);
	if (file->state == BACKED_ABSENT && shard >= 0)
		return begin_shard(b, file, vfile_shards(f->v), (uint32_t)shard,
				   use);
	if (file->state == BACKED_ABSENT && !nonblock)
		return backing_miss(b, file, f->v, use);
	if (file->id) {
		answer = backing_pass(b, file, use);
		if (file->buffer)
			stats_add(b->stats, STATS_CACHE_HITS, 1);
	} else {
		answer = backing_stream(b, file);
	}
	if (!nonblock)
		prefetch_opened(b, file->ino);
	return answer;
}

void backing_open(struct backing *b, uint64_t ino, const struct tree_file *f,
		  bool nonblock, struct backing_use *use)
{
	const uint64_t size = f->v && f->plan ? vfile_size(f->v) : 0;
	int answer = BACKING_STREAM;

	use->id = 0;
	use->file = NULL;
	use->next = NULL;
	if (size && !nonblock && vfile_is_far(f->v))
		follow_opened(b->follow, ino);
	pthread_mutex_lock(&b->lock);
	if (size && atomic_load(&b->passthrough->on) &&
	    (vfile_verbatim_shard(f->v) >= 0 || assembly_eligible(b, size)))
		use->file = backing_find(b, ino, size);
	if (use->file)
		answer = backing_open_file(b, use->file, f, nonblock, use);
	else
		stats_add(b->stats, STATS_OPENS_STREAMED, 1);
	pthread_mutex_unlock(&b->lock);
	if (answer != ANSWERED)
		use->answer(use, answer, NULL);
}
