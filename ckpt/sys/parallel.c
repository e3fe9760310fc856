/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork and join over an index range.  Threads are started per call: the work
 * handed out here (parsing shards, summing tens of megabytes) takes
 * milliseconds, a thread takes microseconds, and a server that has no pool
 * has nothing to shut down.
 */
#include "ckpt/sys/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/resource.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"

/* Work that took longer, and slept, has waited for something. */
#define WAITED_NS UINT64_C(1000000)

struct job {
	pthread_mutex_t lock; /* protects all below */
	size_t next;
	size_t n;
	size_t failed_at;
	int rc;
	struct errmsg *err; /* of `rc`; or NULL */
	pthread_t *threads; /* those started, with room for `most` */
	size_t started, most;
	bool grows; /* when work waits */

	int (*work)(void *ctx, size_t i, struct errmsg *err);
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

static void *parallel_run(void *arg);

/* Start a thread, if there is room and work for it.  Called with the lock held, or
 * before others have it. */
static bool start_thread(struct job *job)
{
	if (job->started == job->most || job->next >= job->n || job->rc ||
	    pthread_create(&job->threads[job->started], NULL, parallel_run, job))
		return false;
	job->started++;
	return true;
}

static long count_sleeps(void)
{
	struct rusage u;

	return getrusage(RUSAGE_THREAD, &u) < 0 ? 0 : u.ru_nvcsw;
}

static void *parallel_run(void *arg)
{
	struct job *const job = arg;

	pthread_mutex_lock(&job->lock);
	while (job->next < job->n && !job->rc) {
		const size_t i = job->next++;
		const uint64_t begun = job->grows ? clock_ns() : 0;
		const long sleeps = job->grows ? count_sleeps() : 0;
		struct errmsg err;
		bool waited;
		int rc;

		pthread_mutex_unlock(&job->lock);
		err.text[0] = '\0';
		rc = job->work(job->ctx, i, &err);
		waited = job->grows && clock_ns() - begun > WAITED_NS &&
			 count_sleeps() != sleeps;
		pthread_mutex_lock(&job->lock);
		if (waited)
			start_thread(job);
		if (rc && (!job->rc || i < job->failed_at)) {
			job->rc = rc;
			job->failed_at = i;
			if (job->err)
				*job->err = err;
		}
	}
	pthread_mutex_unlock(&job->lock);
	return NULL;
}

/* Run on `width` threads, including this one. */
static void run_all(struct job *job, unsigned width)
{
	size_t wanted = width < job->n ? width : job->n;

	job->most =
		job->grows && wanted < PARALLEL_FAR ? PARALLEL_FAR - 1 : wanted;
	job->threads = malloc((job->most + 1) * sizeof(*job->threads));
	/* Fewer threads than wanted only make it slower. */
	if (!job->threads)
		job->most = 0;
	pthread_mutex_lock(&job->lock);
	while (wanted > 1 && start_thread(job))
		wanted--;
	pthread_mutex_unlock(&job->lock);
	parallel_run(job);
	/* Nobody starts another one when no work is left. */
	pthread_mutex_lock(&job->lock);
	while (job->started) {
		const pthread_t last = job->threads[--job->started];

		pthread_mutex_unlock(&job->lock);
		pthread_join(last, NULL);
		pthread_mutex_lock(&job->lock);
	}
	pthread_mutex_unlock(&job->lock);
	free(job->threads);
}

int parallel_try(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err)
{
	struct job job = { .n = n, .work = work, .ctx = ctx, .err = err };
	int rc = 0;

	if (n < 2 || width < 2) {
		for (size_t i = 0; i < n && !rc; i++)
			rc = work(ctx, i, err);
		return rc;
	}
	pthread_mutex_init(&job.lock, NULL);
	run_all(&job, width);
	pthread_mutex_destroy(&job.lock);
	return job.rc;
}

int parallel_far(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err)
{
	struct job job = {
		.n = n, .grows = true, .work = work, .ctx = ctx, .err = err
	};

	pthread_mutex_init(&job.lock, NULL);
	run_all(&job, width);
	pthread_mutex_destroy(&job.lock);
	return job.rc;
}

struct silent {
	int (*work)(void *ctx, size_t i);
	void *ctx;
};

static int work_silently(void *ctx, size_t i, struct errmsg *err)
{
	const struct silent *const s = ctx;

	(void)err;
	return s->work(s->ctx, i);
}

int parallel_for(size_t n, unsigned width, int (*work)(void *ctx, size_t i),
		 void *ctx)
{
	struct silent s = { work, ctx };

	return parallel_try(n, width, work_silently, &s, NULL);
}
