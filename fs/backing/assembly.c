/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cache of assembled files: least recently used first out.
 *
 * Its size adapts.  New memory is slow, and reusing a buffer keeps it in the
 * processor's cache, so that up to the bound the cache prefers to evict an idle
 * file rather than to grow beyond its target.  The target doubles whenever a
 * file is missed that was evicted before.
 *
 * Prefetched files stay until they have been opened once: plain LRU would evict
 * them first, since a loader closes each file after the next ones were built.
 */
#include <assert.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/blockcache.h"
#include "ckpt/sys/clock.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/readahead.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/backing/hugefs.h"
#include "fs/backing/pool.h"
#include "fs/log/stats.h"

/* A buffer for a file larger than this part of the bound takes longer to create
 * than the file takes to stream, and pays only after many such files. */
#define LARGE_PART 8
#define LARGE_MISSES 16

/* More threads do not assemble a file faster. */
#define THREADS_MAX 4

/* An opener waits and leaves its processor idle.  A prefetch leaves half the
 * processors to the reader of another file. */
static unsigned threads_for_a_file(bool prefetch)
{
	const unsigned width = parallel_width() / (prefetch ? 2 : 1);

	return width < 1 ? 1 : width < THREADS_MAX ? width : THREADS_MAX;
}

bool assembly_eligible(const struct backing *b, uint64_t size)
{
	/* Two files must fit: one being read, one being assembled. */
	return size >= ASSEMBLY_MIN && size <= b->bound / 2;
}

static struct backed_list *list_of(struct backing *b, const struct backed *file)
{
	assert(file->state == BACKED_IDLE || file->state == BACKED_PREFETCHED);
	return file->state == BACKED_IDLE ? &b->idle : &b->prefetched;
}

void assembly_idle(struct backing *b, struct backed *file,
		   enum backed_state state)
{
	assert(file->buffer && file->handles == 0);
	file->state = state;
	TAILQ_INSERT_TAIL(list_of(b, file), file, lru);
}

void assembly_reuse(struct backing *b, struct backed *file)
{
	TAILQ_REMOVE(list_of(b, file), file, lru);
}

static void assembly_evict(struct backing *b, struct backed *file)
{
	TAILQ_REMOVE(list_of(b, file), file, lru);
	stats_add(b->stats, STATS_EVICTED, 1);
	if (!pool_put(b->pool, file->buffer))
		stats_add(b->stats, STATS_STILL_MAPPED, 1);
	file->buffer = NULL;
	file->id = 0;
	file->state = BACKED_ABSENT;
	file->ghost = true;
}

/* What the cache has for files: all but the decoded blocks of packs and what was read
 * ahead. */
static uint64_t files_bound(const struct backing *b)
{
	const uint64_t other = blockcache_bytes() + readahead_bytes();

	return other < b->bound ? b->bound - other : 0;
}

/* Request a new buffer, evicting files until it fits the bound. */
static void assembly_request_buffer(struct backing *b, uint64_t size)
{
	while (!pool_has_room(b->pool, size, files_bound(b))) {
		struct backed *file = TAILQ_FIRST(&b->idle);

		if (!file)
			file = TAILQ_FIRST(&b->prefetched);
		if (!file)
			return;
		assembly_evict(b, file);
	}
	pool_request(b->pool, size);
}

static bool is_worth_a_buffer(struct backing *b, uint64_t size)
{
	return size <= b->bound / LARGE_PART || ++b->large_misses > LARGE_MISSES;
}

static bool assembly_has_pool(struct backing *b)
{
	if (!b->pool)
		b->pool = pool_new(hugefs_mount(), b->bound, b->passthrough,
				   b->stats);
	if (!b->pool)
		b->bound = 0;
	return b->pool;
}

/* The least recently used idle file whose buffer fits. */
static struct backed *find_victim(struct backing *b, uint64_t size)
{
	struct backed *file = TAILQ_FIRST(&b->idle);

	while (file && !pool_fits(file->buffer, size))
		file = TAILQ_NEXT(file, lru);
	return file;
}

struct pool_buffer *assembly_take_buffer(struct backing *b, struct backed *file)
{
	const uint64_t size = file->size;
	struct pool_buffer *buffer;

	assert(file->state == BACKED_ABSENT);
	if (!assembly_has_pool(b))
		return NULL;
	if (file->ghost)
		b->target = b->target < b->bound / 2 ? b->target * 2 : b->bound;
	file->ghost = false;
	while (!(buffer = pool_take(b->pool, size))) {
		struct backed *const victim = find_victim(b, size);
		const bool grow =
			!victim || pool_has_room(b->pool, size, b->target);

		/* Before the request, which may evict it, too. */
		if (victim) {
			assembly_evict(b, victim);
			buffer = pool_take(b->pool, size);
		}
		/* For later opens: this one would have to be streamed. */
		if (grow && is_worth_a_buffer(b, size))
			assembly_request_buffer(b, size);
		if (buffer || !victim)
			break;
	}
	return buffer;
}

void assembly_drop_idle(struct backing *b)
{
	struct backed *file;

	while ((file = TAILQ_FIRST(&b->idle)))
		assembly_evict(b, file);
	while ((file = TAILQ_FIRST(&b->prefetched)))
		assembly_evict(b, file);
	if (b->pool)
		pool_trim(b->pool);
	readahead_trim();
}

void assembly_help(struct backing *b, struct backed *file)
{
	pthread_mutex_unlock(&b->lock);
	/* The other server threads answer requests. */
	team_join(&file->team, threads_for_a_file(true));
	pthread_mutex_lock(&b->lock);
}

void assembly_build(struct backing *b, struct backed *file,
		    struct pool_buffer *buffer, struct vfile *v, bool prefetch)
{
	const uint64_t clock = clock_ns();
	struct errmsg err = { "" };
	int rc;

	assert(file->state == BACKED_ABSENT && buffer->size == file->size);
	file->state = BACKED_BUILDING;
	pthread_mutex_unlock(&b->lock);
	rc = vfile_read_all(v, buffer->p, threads_for_a_file(prefetch),
			    &file->team, &err);
	pthread_mutex_lock(&b->lock);
	if (rc) {
		pool_put(b->pool, buffer);
	} else {
		file->buffer = buffer;
		file->id = buffer->id;
		stats_since(b->stats, STATS_TIME_ASSEMBLE, clock);
		stats_add(b->stats, STATS_ASSEMBLED, 1);
		stats_add(b->stats, STATS_ASSEMBLED_BYTES, file->size);
		stats_add(b->stats, STATS_SHARD_BYTES, file->size);
	}
	backing_settle(b, file, rc, &err);
}
