/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread in the background: it assembles what a loader that goes through
 * the tree in order will open next, and lets memory go when all are done.
 */
#include <errno.h>
#include <time.h>

#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"
#include "fs/backing/backing_impl.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"
#include "fs/backing/timeslice.h"

/* Files ahead of a loader: so many, and more as long as all of them together
 * are a small part of the bound.  Between large files come small ones, while
 * which there is time. */
#define AHEAD 2
#define AHEAD_MAX 16
#define AHEAD_PART 64

/* When nothing has been opened for so long, the loading is over, and what is
 * trained needs the memory. */
#define QUIET_SECONDS 60

static void make(struct backing *b, uint64_t ino)
{
	struct slot *slot = NULL;
	struct backed *file;
	struct tree_file f;
	uint64_t size;

	if (tree_file_open(b->tree, ino, &f, NULL))
		return; /* who opens it will be told */
	size = vfile_size(f.v);
	pthread_mutex_lock(&b->lock);
	file = assembly_wanted(b, size) ? backing_find(b, ino, size) : NULL;
	if (file && file->state == BACKED_NOT && !file->streamed)
		slot = assembly_claim(b, file);
	if (slot) {
		stats_add(b->stats, STATS_ASSEMBLED_AHEAD, 1);
		assembly_make(b, file, slot, f.v, true);
	}
	pthread_mutex_unlock(&b->lock);
	tree_file_close(&f);
}

static void follow(struct backing *b, uint64_t ino, unsigned way,
		   uint64_t bound, unsigned files, unsigned most)
{
	uint64_t size, bytes = 0;

	for (unsigned k = 1; k <= most; k++) {
		if (tree_following(b->tree, ino, way, ASSEMBLY_MIN, &ino, &size) ||
		    size > bound / (k + 1))
			return;
		bytes += size;
		if (k > files && bytes > bound / AHEAD_PART)
			return;
		make(b, ino);
	}
}

static void look(struct backing *b, uint64_t ino, uint64_t bound)
{
	uint64_t next, size;
	unsigned way;

	if (order_meet(&b->order, ino, &way))
		follow(b, ino, way, bound, AHEAD, AHEAD_MAX);
	else if (order_guess(&b->order, &way))
		follow(b, ino, way, bound, 1, 1);
	for (way = 0; way < PLAN_WAYS; way++)
		if (tree_following(b->tree, ino, way, ASSEMBLY_MIN, &next,
				   &size) == 0)
			order_expect(&b->order, next, way);
}

/* Wait for an open.  Called with the lock held. */
static void wait_for_open(struct backing *b)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += QUIET_SECONDS;
	if (pthread_cond_timedwait(&b->wake, &b->lock, &until) == ETIMEDOUT)
		assembly_let_go(b);
}

static void *run(void *arg)
{
	struct backing *const b = arg;

	/* Not those of the thread that answers requests and started this one:
	 * it would keep the next request waiting. */
	turn_usual();
	pthread_mutex_lock(&b->lock);
	while (!atomic_load(&b->stop)) {
		uint64_t ino, bound;

		if (b->queued == 0) {
			wait_for_open(b);
			continue;
		}
		ino = b->queue[b->first];
		b->first = (b->first + 1) % BACKING_QUEUE;
		b->queued--;
		bound = b->bound;
		pthread_mutex_unlock(&b->lock);
		look(b, ino, bound);
		pthread_mutex_lock(&b->lock);
	}
	pthread_mutex_unlock(&b->lock);
	return NULL;
}

void ahead_opened(struct backing *b, uint64_t ino)
{
	/* A loader faster than we are is served as it comes. */
	if (!b->running || b->queued == BACKING_QUEUE)
		return;
	b->queue[(b->first + b->queued++) % BACKING_QUEUE] = ino;
	pthread_cond_signal(&b->wake);
}

void ahead_start(struct backing *b)
{
	const int rc = pthread_create(&b->thread, NULL, run, b);

	pthread_mutex_lock(&b->lock);
	b->running = rc == 0;
	pthread_mutex_unlock(&b->lock);
}

void ahead_stop(struct backing *b)
{
	pthread_mutex_lock(&b->lock);

	const bool running = b->running;

	b->running = false;
	atomic_store(&b->stop, true);
	pthread_cond_signal(&b->wake);
	pthread_mutex_unlock(&b->lock);
	if (running)
		pthread_join(b->thread, NULL);
}
