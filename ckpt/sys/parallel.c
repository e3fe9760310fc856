/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork and join over an index range.  Threads are started per call: the work
 * handed out here (parsing shards, summing tens of megabytes) takes
 * milliseconds, a thread takes microseconds, and a server that has no pool
 * has nothing to shut down.
 */
#include "ckpt/sys/parallel.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"

struct job {
	pthread_mutex_t lock; /* protects all below */
	size_t next;
	size_t n;
	size_t failed_at;
	int rc;
	struct errmsg *err; /* of `rc`; or NULL */

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

static void *parallel_run(void *arg)
{
	struct job *const job = arg;

	pthread_mutex_lock(&job->lock);
	while (job->next < job->n && !job->rc) {
		const size_t i = job->next++;
		struct errmsg err;
		int rc;

		pthread_mutex_unlock(&job->lock);
		err.text[0] = '\0';
		rc = job->work(job->ctx, i, &err);
		pthread_mutex_lock(&job->lock);
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
	pthread_t *const threads = malloc(width * sizeof(*threads));
	size_t started = 0;

	/* Fewer threads than wanted only make it slower. */
	while (threads && started + 1 < width && started + 1 < job->n &&
	       pthread_create(&threads[started], NULL, parallel_run, job) == 0)
		started++;
	parallel_run(job);
	while (started)
		pthread_join(threads[--started], NULL);
	free(threads);
}

/* Let team_join find the job until all who joined have left. */
static void run_with_team(struct job *job, unsigned width, struct team *c)
{
	pthread_mutex_lock(&c->lock);
	assert(!c->job); /* one loop at a time */
	c->job = job;
	pthread_mutex_unlock(&c->lock);
	run_all(job, width);
	pthread_mutex_lock(&c->lock);
	c->job = NULL;
	while (c->helping)
		pthread_cond_wait(&c->left, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

int parallel_try(size_t n, unsigned width, struct team *team,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err)
{
	struct job job = { .n = n, .work = work, .ctx = ctx, .err = err };
	int rc = 0;

	if (!team && (n < 2 || width < 2)) {
		for (size_t i = 0; i < n && !rc; i++)
			rc = work(ctx, i, err);
		return rc;
	}
	pthread_mutex_init(&job.lock, NULL);
	if (team)
		run_with_team(&job, width, team);
	else
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

	return parallel_try(n, width, NULL, work_silently, &s, NULL);
}

void team_init(struct team *c)
{
	*c = (struct team){ 0 };
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->left, NULL);
}

void team_done(struct team *c)
{
	pthread_cond_destroy(&c->left);
	pthread_mutex_destroy(&c->lock);
}

void team_join(struct team *c, unsigned most)
{
	struct job *job;

	pthread_mutex_lock(&c->lock);
	job = c->helping < most ? c->job : NULL;
	if (job) {
		c->helping++;
		pthread_mutex_unlock(&c->lock);
		parallel_run(job);
		pthread_mutex_lock(&c->lock);
		assert(c->helping > 0);
		if (--c->helping == 0)
			pthread_cond_signal(&c->left);
	}
	pthread_mutex_unlock(&c->lock);
}
