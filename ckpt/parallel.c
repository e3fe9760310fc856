/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork and join over an index range.  Threads are started per call: the work
 * handed out here (parsing shards, summing tens of megabytes) takes
 * milliseconds, a thread takes microseconds, and a server that has no pool
 * has nothing to shut down.
 */
#include "ckpt/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

struct job {
	pthread_mutex_t lock; /* protects all below */
	size_t next;
	size_t n;
	size_t failed_at;
	int rc;

	int (*work)(void *ctx, size_t i);
	void *ctx;
};

unsigned parallel_width(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;

	const int n = CPU_COUNT(&set);

	return n > 0 ? (unsigned)n : 1;
}

static void *run(void *arg)
{
	struct job *const job = arg;

	pthread_mutex_lock(&job->lock);
	while (job->next < job->n && !job->rc) {
		const size_t i = job->next++;

		pthread_mutex_unlock(&job->lock);

		const int rc = job->work(job->ctx, i);

		pthread_mutex_lock(&job->lock);
		if (rc && (!job->rc || i < job->failed_at)) {
			job->rc = rc;
			job->failed_at = i;
		}
	}
	pthread_mutex_unlock(&job->lock);
	return NULL;
}

int parallel_for(size_t n, unsigned width, int (*work)(void *ctx, size_t i),
		 void *ctx)
{
	struct job job = { .n = n, .work = work, .ctx = ctx };
	const size_t extra = n < width ? n : width;
	pthread_t *threads;
	size_t started = 0;

	if (extra < 2) {
		int rc = 0;

		for (size_t i = 0; i < n && !rc; i++)
			rc = work(ctx, i);
		return rc;
	}
	threads = malloc(extra * sizeof(*threads));
	pthread_mutex_init(&job.lock, NULL);
	/* Fewer threads than wanted only make it slower. */
	while (threads && started + 1 < extra &&
	       pthread_create(&threads[started], NULL, run, &job) == 0)
		started++;
	run(&job);
	while (started)
		pthread_join(threads[--started], NULL);
	pthread_mutex_destroy(&job.lock);
	free(threads);
	return job.rc;
}
