/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops over an index range, shared by the threads of one pool.
 *
 * The caller of a loop works on it, too, and never waits for a thread to become free:
 * loops may be nested, and without threads they only take longer.  A thread is started
 * when none is idle, and ends after IDLE_S seconds without work, so that a program has
 * nothing to shut down.  A forked child has a pool of its own.
 */
#include "ckpt/sys/parallel.h"

#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <sys/resource.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/clock.h"

/* Work that took longer, and slept, has waited for something. */
#define WAITED_NS UINT64_C(1000000)

#define IDLE_S 2

struct job {
	size_t next, n;
	unsigned wanted;  /* threads of the pool that may still join */
	unsigned helping; /* those that have joined and not left */
	unsigned most;    /* that may join in all, for a job that grows */
	bool grows;       /* when work waits */
	size_t failed_at;
	int rc;
	struct errmsg *err; /* of `rc`; or NULL */
	pthread_cond_t left; /* the last helper left */
	TAILQ_ENTRY(job) at; /* in pool.jobs while `wanted` */
	int (*work)(void *ctx, size_t i, struct errmsg *err);
	void *ctx;
};

static struct {
	pthread_mutex_t lock; /* protects all below, and every job; not held while
			       * work is done */
	pthread_cond_t more;  /* a job was added */
	TAILQ_HEAD(, job) jobs; /* that want threads, the newest first */
	unsigned wanted; /* by all jobs */
	unsigned coming; /* threads that were called or started and are not here yet */
	unsigned idle;   /* threads that wait to be called */
	unsigned called; /* of these, those that have been */
	bool watches_forks;
} pool = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
	.jobs = TAILQ_HEAD_INITIALIZER(pool.jobs),
};

unsigned parallel_width(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set) < 0)
		return 1;

	const int n = CPU_COUNT(&set);

	return n > 0 ? (unsigned)n : 1;
}

static void lock_pool(void)
{
	pthread_mutex_lock(&pool.lock);
}

static void unlock_pool(void)
{
	pthread_mutex_unlock(&pool.lock);
}

/* A child has none of the threads, and runs none of the loops. */
static void reset_pool(void)
{
	pthread_mutex_init(&pool.lock, NULL);
	pthread_cond_init(&pool.more, NULL);
	TAILQ_INIT(&pool.jobs);
	pool.wanted = pool.coming = pool.idle = pool.called = 0;
}

static void want_thread(struct job *job)
{
	pool.wanted++;
	if (job->wanted++ == 0)
		TAILQ_INSERT_HEAD(&pool.jobs, job, at);
}

static void want_no_more(struct job *job)
{
	if (job->wanted)
		TAILQ_REMOVE(&pool.jobs, job, at);
	pool.wanted -= job->wanted;
	job->wanted = 0;
}

static void *pool_run(void *arg);

static bool start_thread(void)
{
	pthread_attr_t attr;
	pthread_t thread;
	int rc;

	if (!pool.watches_forks)
		pool.watches_forks =
			pthread_atfork(lock_pool, unlock_pool, reset_pool) == 0;
	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	rc = pthread_create(&thread, &attr, pool_run, NULL);
	pthread_attr_destroy(&attr);
	return rc == 0;
}

/* Have as many threads come as are wanted.  Those that do not start only make it
 * slower. */
static void summon(void)
{
	for (; pool.coming < pool.wanted; pool.coming++) {
		if (pool.idle > pool.called) {
			pool.called++;
			pthread_cond_signal(&pool.more);
		} else if (!start_thread()) {
			return;
		}
	}
}

static long count_sleeps(void)
{
	struct rusage u;

	return getrusage(RUSAGE_THREAD, &u) < 0 ? 0 : u.ru_nvcsw;
}

static bool has_work(const struct job *job)
{
	return job->next < job->n && !job->rc;
}

/* Work on a job until no index is left to begin.  Called with the lock held, which is
 * released meanwhile. */
static void run_job(struct job *job)
{
	while (has_work(job)) {
		const size_t i = job->next++;
		const uint64_t begun = job->grows ? clock_ns() : 0;
		const long sleeps = job->grows ? count_sleeps() : 0;
		struct errmsg err;
		bool waited;
		int rc;

		unlock_pool();
		err.text[0] = '\0';
		rc = job->work(job->ctx, i, &err);
		waited = job->grows && clock_ns() - begun > WAITED_NS &&
			 count_sleeps() != sleeps;
		lock_pool();
		if (rc && (!job->rc || i < job->failed_at)) {
			job->rc = rc;
			job->failed_at = i;
			if (job->err)
				*job->err = err;
		}
		if (waited && job->helping + job->wanted < job->most &&
		    has_work(job)) {
			want_thread(job);
			summon();
		}
	}
	want_no_more(job);
}

static void help(struct job *job)
{
	pool.wanted--;
	if (--job->wanted == 0)
		TAILQ_REMOVE(&pool.jobs, job, at);
	job->helping++;
	run_job(job);
	if (--job->helping == 0)
		pthread_cond_signal(&job->left);
}

/* Wait to be called; false if nobody does within IDLE_S seconds. */
static bool wait_for_call(void)
{
	struct timespec until;
	bool called;
	int rc = 0;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += IDLE_S;
	pool.idle++;
	while (!pool.called && rc == 0)
		rc = pthread_cond_timedwait(&pool.more, &pool.lock, &until);
	pool.idle--;
	called = pool.called;
	pool.called -= called;
	return called;
}

static void *pool_run(void *arg)
{
	bool stay = true;

	(void)arg;
	lock_pool();
	while (stay) {
		pool.coming--;
		while (!TAILQ_EMPTY(&pool.jobs))
			help(TAILQ_FIRST(&pool.jobs));
		stay = wait_for_call();
	}
	unlock_pool();
	return NULL;
}

/* Run a job on this thread and on as many of the pool as are wanted. */
static int run(struct job *job, unsigned width)
{
	const size_t others = width < job->n ? width : job->n;

	pthread_cond_init(&job->left, NULL);
	lock_pool();
	for (size_t i = 1; i < others; i++)
		want_thread(job);
	summon();
	run_job(job);
	while (job->helping)
		pthread_cond_wait(&job->left, &pool.lock);
	unlock_pool();
	pthread_cond_destroy(&job->left);
	return job->rc;
}

int parallel_try(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err)
{
	struct job job = { .n = n, .work = work, .ctx = ctx, .err = err };
	int rc = 0;

	if (n > 1 && width > 1)
		return run(&job, width);
	for (size_t i = 0; i < n && !rc; i++)
		rc = work(ctx, i, err);
	return rc;
}

int parallel_far(size_t n, unsigned width,
		 int (*work)(void *ctx, size_t i, struct errmsg *err),
		 void *ctx, struct errmsg *err)
{
	struct job job = { .n = n, .work = work, .ctx = ctx, .err = err,
			   .grows = true, .most = PARALLEL_FAR - 1 };

	return run(&job, width);
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
