/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files assembled in memory.
 *
 * One that nobody has open any more is kept, for others who read the same, but
 * not for long: its memory is hot, and new memory is dear.  Only when files
 * come back that were given up is more of them kept.
 */
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/backing/pool.h"
#include "fs/log/stats.h"

/* A larger part of the bound takes longer to make than it takes to stream a file,
 * and so is only worth it for one that comes again, or where many come. */
#define LARGE_PART 8
#define LARGE_MANY 16

/* More threads do not make one file faster. */
#define THREADS_MAX 4

/* Who opens the file waits for it and leaves its processor; when it is made
 * ahead somebody reads another one meanwhile. */
static unsigned threads_for_a_file(bool ahead)
{
	const unsigned width = parallel_width() / (ahead ? 2 : 1);

	return width < 1 ? 1 : width < THREADS_MAX ? width : THREADS_MAX;
}

bool assembly_wanted(const struct backing *b, uint64_t size)
{
	/* Two, so that the next one can be made while one is read. */
	return size >= ASSEMBLY_MIN && size <= b->bound / 2;
}

void assembly_rest(struct backing *b, struct backed *file)
{
	TAILQ_INSERT_TAIL(&b->idle, file, idle);
	if (file->met)
		b->idle_bytes += file->size;
}

void assembly_wake(struct backing *b, struct backed *file)
{
	TAILQ_REMOVE(&b->idle, file, idle);
	if (file->met)
		b->idle_bytes -= file->size;
}

static void evict(struct backing *b, struct backed *file)
{
	struct slot *const slot = file->slot;

	assembly_wake(b, file);
	file->slot = NULL;
	file->id = 0;
	file->state = BACKED_NOT;
	stats_add(b->stats, STATS_EVICTED, 1);
	if (!pool_put(b->pool, slot))
		stats_add(b->stats, STATS_STILL_MAPPED, 1);
}

/* Those made ahead are waited for. */
static struct backed *oldest_suiting(const struct backing *b, uint64_t size)
{
	struct backed *file;

	TAILQ_FOREACH(file, &b->idle, idle)
	if (file->met && pool_suits(file->slot, size))
		return file;
	return NULL;
}

static struct backed *oldest(const struct backing *b)
{
	struct backed *file;

	TAILQ_FOREACH(file, &b->idle, idle)
	if (file->met)
		return file;
	return TAILQ_FIRST(&b->idle);
}

/* Have a new slot made, if need be in the place of others. */
static void want(struct backing *b, uint64_t size)
{
	while (!pool_has_room(b->pool, size)) {
		struct backed *const file = oldest(b);

		if (!file)
			return;
		evict(b, file);
	}
	pool_want(b->pool, size);
}

static bool is_worth_making(struct backing *b, const struct backed *file)
{
	return file->size <= b->bound / LARGE_PART || file->opened ||
	       ++b->large_missed > LARGE_MANY;
}

struct slot *assembly_claim(struct backing *b, const struct backed *file)
{
	const uint64_t size = file->size;
	struct slot *slot;

	if (!b->pool)
		b->pool = pool_new(b->bound, b->passthrough, b->stats);
	if (!b->pool) {
		b->bound = 0;
		return NULL;
	}
	while (!(slot = pool_take(b->pool, size))) {
		struct backed *const old = oldest_suiting(b, size);
		const bool more = b->idle_bytes + size <= b->keep &&
				  pool_has_room(b->pool, size);

		/* For those to come: this one would have to be streamed. */
		if ((!old || more) && is_worth_making(b, file))
			want(b, size);
		if (!old)
			return NULL;
		evict(b, old);
	}
	return slot;
}

void assembly_let_go(struct backing *b)
{
	while (!TAILQ_EMPTY(&b->idle))
		evict(b, TAILQ_FIRST(&b->idle));
	if (b->pool)
		pool_trim(b->pool);
}

/* A file that comes back was given up too early. */
static void count(struct backing *b, struct backed *file, uint64_t clock)
{
	stats_since(b->stats, STATS_TIME_ASSEMBLE, clock);
	stats_add(b->stats, STATS_ASSEMBLED, 1);
	stats_add(b->stats, STATS_ASSEMBLED_BYTES, file->size);
	stats_add(b->stats, STATS_SHARD_BYTES, file->size);
	if (file->assembled && b->keep < b->bound)
		b->keep *= 2;
	file->assembled = true;
	file->met = false;
}

void assembly_help(struct backing *b, struct backed *file)
{
	pthread_mutex_unlock(&b->lock);
	/* The others answer requests. */
	crew_help(&file->crew, threads_for_a_file(true));
	pthread_mutex_lock(&b->lock);
}

void assembly_make(struct backing *b, struct backed *file, struct slot *slot,
		   struct vfile *v, bool ahead)
{
	const uint64_t clock = stats_clock();
	struct errmsg err = { "" };
	int rc;

	file->state = BACKED_MAKING;
	pthread_mutex_unlock(&b->lock);
	rc = vfile_fill(v, slot->p, threads_for_a_file(ahead), &file->crew,
			&err);
	pthread_mutex_lock(&b->lock);
	if (rc) {
		pool_put(b->pool, slot);
	} else {
		file->slot = slot;
		file->id = slot->id;
		count(b, file, clock);
	}
	backing_settle(b, file, rc, &err);
}
