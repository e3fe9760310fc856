/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loops over an index range, shared by the threads of one pool.
 *
 * The caller of a loop works on it, too, and never waits for a thread to become free:
 * loops may be nested, and without threads they only take longer.  A thread is started
 * when none is free, and ends after IDLE_S seconds without work, so that a program has
 * nothing to shut down.  A forked child has its own pool.
 */
#include "ckpt/base/parallel.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>
#include <time.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"

/* A call that took longer than this, and slept, counts as waiting. */
#define WAITED_NS UINT64_C(1000000)

#define IDLE_S 2

struct job {
	size_t next, n;
	unsigned wanted;  /* threads of the pool that may still join */
	unsigned helping; /* threads that have joined and not yet left */
	bool grows;       /* more threads may join when work waits */
	size_t failed_at;
	int rc;
	struct errmsg *err;  /* set with `rc`; or NULL */
	pthread_cond_t left; /* signalled when the last helper leaves */
	TAILQ_ENTRY(job) at; /* in pool.jobs while `wanted` */
	parallel_work *work;
	void *ctx;
};

static struct {
	pthread_mutex_t lock; /* protects all fields below and every job; released while work is
			       * done */
	pthread_cond_t more;    /* signalled when a job is added */
	TAILQ_HEAD(, job) jobs; /* jobs that want threads, the newest first */
	unsigned wanted;        /* threads wanted by all jobs */
	unsigned free;          /* threads that work on no job */
} pool = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.more = PTHREAD_COND_INITIALIZER,
	.jobs = TAILQ_HEAD_INITIALIZER(pool.jobs),
};

unsigned parallel_width(void)
{
	cpu_set_t set;
	const int n = sched_getaffinity(0, sizeof(set), &set) < 0
			      ? 0
			      : CPU_COUNT(&set);

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

/* A forked child has none of the threads, and runs no loops. */
static void reset_pool(void)
{
	pthread_mutex_init(&pool.lock, NULL);
	pthread_cond_init(&pool.more, NULL);
	TAILQ_INIT(&pool.jobs);
	pool.wanted = pool.free = 0;
}

__attribute__((constructor)) static void watch_forks(void)
{
	pthread_atfork(lock_pool, unlock_pool, reset_pool);
}

static void want_thread(struct job *job)
{
	pool.wanted++;
	if (job->wanted++ == 0)
		TAILQ_INSERT_HEAD(&pool.jobs, job, at);
}

/* Take back `n` of the threads that a job wants. */
static void want_less(struct job *job, unsigned n)
{
	pool.wanted -= n;
	job->wanted -= n;
	if (n && !job->wanted)
		TAILQ_REMOVE(&pool.jobs, job, at);
}

static void *pool_run(void *arg);

/* Start threads until there are as many free ones as jobs want.  If some cannot be started, jobs
 * take longer. */
static void summon(void)
{
	pthread_t thread;

	pthread_cond_broadcast(&pool.more);
	while (pool.free < pool.wanted &&
	       pthread_create(&thread, NULL, pool_run, NULL) == 0) {
		pthread_detach(thread);
		pool.free++;
	}
}

static bool has_work(const struct job *job)
{
	return job->next < job->n && !job->rc;
}

/* Work on a job until all its indices have begun.  The caller holds the lock, which is released
 * during the work. */
static void run_job(struct job *job)
{
	while (has_work(job)) {
		const size_t i = job->next++;
		const uint64_t begun = job->grows ? clock_ns() : 0;
		const long sleeps = job->grows ? clock_sleeps() : 0;
		struct errmsg err;
		bool waited;
		int rc;

		unlock_pool();
		err.text[0] = '\0';
		rc = job->work(job->ctx, i, &err);
		waited = job->grows && clock_ns() - begun > WAITED_NS &&
			 clock_sleeps() != sleeps;
		lock_pool();
		if (rc && (!job->rc || i < job->failed_at)) {
			job->rc = rc;
			job->failed_at = i;
			if (job->err)
				*job->err = err;
		}
		if (waited && job->helping + job->wanted < PARALLEL_FAR - 1 &&
		    has_work(job)) {
			want_thread(job);
			summon();
		}
	}
	want_less(job, job->wanted);
}

static void help(struct job *job)
{
	pool.free--;
	want_less(job, 1);
	job->helping++;
	run_job(job);
	if (--job->helping == 0)
		pthread_cond_signal(&job->left);
	pool.free++;
}

static void *pool_run(void *arg)
{
	struct timespec until;
	int rc = 0;

	(void)arg;
	lock_pool();
	while (rc == 0 || !TAILQ_EMPTY(&pool.jobs)) {
		while (!TAILQ_EMPTY(&pool.jobs))
			help(TAILQ_FIRST(&pool.jobs));
		clock_gettime(CLOCK_REALTIME, &until);
		until.tv_sec += IDLE_S;
		rc = pthread_cond_timedwait(&pool.more, &pool.lock, &until);
	}
	pool.free--;
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
	if (job->wanted)
		summon();
	run_job(job);
	while (job->helping)
		pthread_cond_wait(&job->left, &pool.lock);
	unlock_pool();
	pthread_cond_destroy(&job->left);
	return job->rc;
}

int parallel_for(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err)
{
	struct job job = { .n = n, .work = work, .ctx = ctx, .err = err };
	int rc = 0;

	if (n > 1 && width > 1)
		return run(&job, width);
	for (size_t i = 0; i < n && !rc; i++)
		rc = work(ctx, i, err);
	return rc;
}

int parallel_far(size_t n, unsigned width, parallel_work *work, void *ctx,
		 struct errmsg *err)
{
	struct job job = {
		.n = n, .work = work, .ctx = ctx, .err = err, .grows = true
	};

	return run(&job, width);
}

int turns_take(struct turns *t, size_t i, int rc, parallel_work *step,
	       void *ctx, struct errmsg *err)
{
	pthread_mutex_lock(&t->lock);
	while (!rc && t->next < i && i < t->end)
		pthread_cond_wait(&t->moved, &t->lock);
	if (!rc)
		rc = i < t->end ? step(ctx, i, err) : -ECANCELED;
	if (!rc)
		t->next = i + 1;
	else if (i < t->end)
		t->end = i;
	pthread_cond_broadcast(&t->moved);
	pthread_mutex_unlock(&t->lock);
	return rc;
}

struct steps {
	const struct uckpt *u;
	const char *what;
	size_t n;
	parallel_work *work;
	void *ctx;
	atomic_size_t done;
};

static int make_step(void *ctx, size_t i, struct errmsg *err)
{
	struct steps *s = ctx;
	const int rc = s->work(s->ctx, i, err);

	progress_step(s->u, s->what, atomic_fetch_add(&s->done, 1) + 1, s->n);
	return rc;
}

int parallel_steps(const struct uckpt *u, const char *what, parallel_loop *loop, size_t n,
		   unsigned width, parallel_work *work, void *ctx, struct errmsg *err)
{
	struct steps s = { u, what, n, work, ctx, 0 };

	if (n)
		progress_step(u, what, 0, n);
	return loop(n, width, make_step, &s, err);
}
