/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The background thread.  It assembles the files that a loader which walks
 * the tree in a known order opens next, and frees the cache when loading ends.
 */
#include <assert.h>
#include <errno.h>
#include <time.h>

#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"

/* How many files to prefetch: so many, and more as long as together they are
 * at most this part of the bound.  Small files lie between large ones, which
 * leave time to assemble them. */
#define PREFETCH_FILES 2
#define PREFETCH_PART 64

/* Without an open for so long, loading has ended, and training needs the
 * memory. */
#define QUIET_SECONDS 60

static void prefetch_file(struct backing *b, uint64_t ino)
{
	struct pool_buffer *buffer = NULL;
	struct backed *file;
	struct tree_file f;
	uint64_t size;

	if (tree_file_open(b->tree, ino, &f, NULL))
		return; /* opening it reports the error */
	size = vfile_size(f.v);
	pthread_mutex_lock(&b->lock);
	file = assembly_eligible(b, size) ? backing_find(b, ino, size) : NULL;
	if (file && file->state == BACKED_ABSENT)
		buffer = assembly_take_buffer(b, file);
	if (buffer) {
		stats_add(b->stats, STATS_PREFETCHED, 1);
		assembly_build(b, file, buffer, f.v, true);
	}
	pthread_mutex_unlock(&b->lock);
	tree_file_close(&f);
}

static void prefetch_next(struct backing *b, uint64_t ino, unsigned order,
			  uint64_t bound)
{
	uint64_t size, bytes = 0;

	for (unsigned k = 1;; k++) {
		/* All of them and the open one must fit. */
		if (tree_next_file(b->tree, ino, order, ASSEMBLY_MIN, &ino,
				   &size) ||
		    size > bound / (k + 1))
			return;
		bytes += size;
		if (k > PREFETCH_FILES && bytes > bound / PREFETCH_PART)
			return;
		prefetch_file(b, ino);
	}
}

static void prefetch_after(struct backing *b, uint64_t ino, uint64_t bound)
{
	uint64_t next, size;
	unsigned order;

	if (predictor_observe(&b->predictor, ino, &order))
		prefetch_next(b, ino, order, bound);
	for (order = 0; order < PLAN_ORDERS; order++)
		if (tree_next_file(b->tree, ino, order, ASSEMBLY_MIN, &next,
				   &size) == 0)
			predictor_expect(&b->predictor, next, order);
}

/* Wait for an open.  Called with the lock held. */
static void prefetch_wait(struct backing *b)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += QUIET_SECONDS;
	if (pthread_cond_timedwait(&b->wake, &b->lock, &until) == ETIMEDOUT)
		assembly_drop_idle(b);
}

static void *prefetch_run(void *arg)
{
	struct backing *const b = arg;

	pthread_mutex_lock(&b->lock);
	while (!atomic_load(&b->stop)) {
		uint64_t ino, bound;

		if (b->queued == 0) {
			prefetch_wait(b);
			continue;
		}
		ino = b->queue[b->first];
		b->first = (b->first + 1) % BACKING_QUEUE;
		b->queued--;
		bound = b->bound;
		pthread_mutex_unlock(&b->lock);
		prefetch_after(b, ino, bound);
		pthread_mutex_lock(&b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

void prefetch_opened(struct backing *b, uint64_t ino)
{
	/* If the loader is faster than this thread, drop the report. */
	if (!b->running || b->queued == BACKING_QUEUE)
		return;
	b->queue[(b->first + b->queued++) % BACKING_QUEUE] = ino;
	assert(b->queued <= BACKING_QUEUE);
	pthread_cond_signal(&b->wake);
}

void prefetch_start(struct backing *b)
{
	pthread_mutex_lock(&b->lock);
	b->running = pthread_create(&b->thread, NULL, prefetch_run, b) == 0;
	pthread_mutex_unlock(&b->lock);
}

void prefetch_stop(struct backing *b)
{
	bool running;

	pthread_mutex_lock(&b->lock);
	running = b->running;
	b->running = false;
	atomic_store(&b->stop, true);
	pthread_cond_signal(&b->wake);
	pthread_mutex_unlock(&b->lock);
	if (running)
		pthread_join(b->thread, NULL);
}
