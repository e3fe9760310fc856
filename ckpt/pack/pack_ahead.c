/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding ahead of readers.
 *
 * Whoever reads in sequence finds the next blocks in the cache, decoded by other
 * processors meanwhile.  Blocks that are asked for too early would push each
 * other out of the cache, so there is a window after the reader.
 */
#include <stdbool.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack_impl.h"

/* Blocks after the last one that was read: 2 MiB. */
#define WINDOW 32

/* Blocks that wait for a thread; those that find no place are left to their
 * readers. */
#define QUEUE 128

#define THREADS_MAX 64

struct ahead_job {
	struct pack *p; /* a reference of its own */
	uint32_t extent;
	uint64_t block;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
/* Protected by the lock: */
static struct ahead_job queue[QUEUE];
static size_t queued_first, queued;
static bool ending;
static pthread_t threads[THREADS_MAX];
/* Changes with the lock held. */
static atomic_uint nthreads;

/* The next job; false when the threads are to end and none is left.  `*wanted`:
 * it is to be done, not only dropped. */
static bool ahead_next(struct ahead_job *out, bool *wanted)
{
	bool there;

	pthread_mutex_lock(&lock);
	while (!queued && !ending)
		pthread_cond_wait(&more, &lock);
	there = queued > 0;
	*wanted = !ending;
	if (there) {
		*out = queue[queued_first];
		queued_first = (queued_first + 1) % QUEUE;
		queued--;
	}
	pthread_mutex_unlock(&lock);
	return there;
}

static void *ahead_run(void *arg)
{
	struct ahead_job job;
	struct cached_block *b;
	bool wanted;

	(void)arg;
	while (ahead_next(&job, &wanted)) {
		/* The reader will meet the error, too. */
		if (wanted &&
		    pack_get_block(job.p, job.extent, job.block, &b, NULL) == 0)
			blockcache_release(b);
		pack_close(job.p);
	}
	return NULL;
}

void pack_start_ahead(unsigned wanted)
{
	pthread_mutex_lock(&lock);
	while (nthreads < wanted && nthreads < THREADS_MAX &&
	       pthread_create(&threads[nthreads], NULL, ahead_run, NULL) == 0)
		nthreads++;
	pthread_mutex_unlock(&lock);
}

void pack_stop_ahead(void)
{
	pthread_mutex_lock(&lock);
	ending = true;
	pthread_cond_broadcast(&more);
	pthread_mutex_unlock(&lock);
	for (unsigned n = atomic_exchange(&nthreads, 0); n; n--)
		pthread_join(threads[n - 1], NULL);
	pthread_mutex_lock(&lock);
	ending = false;
	pthread_mutex_unlock(&lock);
}

static void enqueue(struct pack *p, uint32_t extent, uint64_t first,
		    uint64_t end)
{
	pthread_mutex_lock(&lock);
	for (; first < end && queued < QUEUE && nthreads && !ending; first++) {
		queue[(queued_first + queued++) % QUEUE] =
			(struct ahead_job){ pack_ref(p), extent, first };
		pthread_cond_signal(&more);
	}
	pthread_mutex_unlock(&lock);
}

void pack_ahead(struct pack *p, uint32_t extent, uint64_t first, uint64_t end)
{
	struct pack_table *const t = &p->tables[extent];
	const uint64_t blocks = pack_extent_blocks(&p->x.extents[extent]);
	const uint64_t next = atomic_exchange(&t->next, end);
	/* A reader's requests meet within a block. */
	const bool follows = first == next || first + 1 == next;
	uint64_t from = atomic_load(&t->ahead), to = end + WINDOW;

	if (!nthreads || !follows || next == 0)
		return;
	to = to < blocks ? to : blocks;
	if (from < end || from > to)
		from = end;
	/* In batches, so that the lock is not taken for each. */
	if (to - from < WINDOW / 2 && to < blocks)
		return;
	if (from < to) {
		atomic_store(&t->ahead, to);
		enqueue(p, extent, from, to);
	}
}
