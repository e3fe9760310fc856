/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The watching thread must not call MPI while the training thread is in it: it ends the process by
 * _exit.
 */
#include "gpu/watch/watch.h"

#include <assert.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"

/*
 * Threads that compute must not be interrupted: oneDNN's GEMMs run with the stack pointer in heap
 * memory, where a signal handler's frame overwrites the data below.  The signals are therefore
 * blocked and polled with sigtimedwait.  Threads that MPI started earlier may still receive them:
 * the handler only sets a flag.
 */
static atomic_bool requested;

static void note(int sig)
{
	(void)sig;
	requested = true;
}

static sigset_t requests(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGUSR1);
	return set;
}

void stop_on_signals(void)
{
	const struct sigaction sa = { .sa_handler = note, .sa_flags = SA_RESTART };
	const sigset_t set = requests();

	pthread_sigmask(SIG_BLOCK, &set, NULL);
	sigaction(SIGTERM, &sa, NULL);
	sigaction(SIGUSR1, &sa, NULL);
	signal(SIGXFSZ, SIG_IGN);
}

bool stop_requested(void)
{
	const struct timespec now = { 0 };
	const sigset_t set = requests();

	while (sigtimedwait(&set, NULL, &now) > 0)
		requested = true;
	return requested;
}

#define TICK_NS 250000000
#define STOPPED 2.0 /* seconds without a tick */
#define TICKS_PER_CHECK 4

/* Seconds between the deadlines of consecutive ranks, and the limit of their sum: a launcher on a
 * busy machine takes half a second to end the others. */
#define STAGGER 1.0
#define STAGGER_MAX 10.0

/* When one rank has reported, the launcher ends the others by SIGTERM, then SIGKILL within this
 * many seconds. */
#define LAUNCHER_SECONDS 3.0

static struct {
	pthread_mutex_t lock;
	pthread_cond_t stopped;
	pthread_t thread;
	bool watching;
	unsigned rank, seconds;
	uint64_t step;
	const char *what; /* NULL: the training thread does not wait */
	unsigned depth;
	double waited;   /* seconds */
	double stopping; /* seconds since a signal asked this rank to stop */
	struct watch_probe *probes;
} watch = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Set in the training thread; only its waits count. */
static _Thread_local bool is_watched;

static void give_up(const char *why)
{
	if (watch.step)
		fprintf(stderr, "uctrain: rank %u: step %" PRIu64 ": %s\n", watch.rank, watch.step,
			why);
	else
		fprintf(stderr, "uctrain: rank %u: before the first step: %s\n", watch.rank, why);
	_exit(EXIT_FAILURE);
}

static void check_probes(void)
{
	struct errmsg why;

	for (const struct watch_probe *p = watch.probes; p; p = p->next)
		if (p->check(p->ctx, &why))
			give_up(why.text);
}

static bool is_late(void)
{
	const double later = watch.rank * STAGGER;

	if (stop_requested() && watch.stopping < LAUNCHER_SECONDS)
		return false;
	return watch.seconds && watch.what &&
	       watch.waited > watch.seconds + (later < STAGGER_MAX ? later : STAGGER_MAX);
}

static void report_late(void)
{
	const char *what = NULL;
	struct errmsg why;

	for (const struct watch_probe *p = watch.probes; p && !what; p = p->next)
		what = p->pending(p->ctx);
	errmsg_set(&why, 0,
		"%s did not end within %u s (--comm_timeout): another rank is gone, stuck or slow",
		what ? what : watch.what, watch.seconds);
	give_up(why.text);
}

/* Wait for the next tick or a request to stop the thread. */
static void wait_tick(void)
{
	struct timespec until;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += TICK_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	pthread_cond_timedwait(&watch.stopped, &watch.lock, &until);
}

/* The thread is not cancelled: sanitizers do not support cancelled threads. */
static void *watch_run(void *unused)
{
	double last = clock_seconds(), now;
	unsigned ticks = 0;

	(void)unused;
	pthread_mutex_lock(&watch.lock);
	for (; watch.watching; last = now) {
		wait_tick();
		now = clock_seconds();
		/* Restart the count after a pause of the process. */
		watch.waited = now - last < STOPPED ? watch.waited + now - last : 0;
		if (stop_requested())
			watch.stopping += now - last;
		if (++ticks % TICKS_PER_CHECK == 0)
			check_probes();
		if (is_late())
			report_late();
	}
	pthread_mutex_unlock(&watch.lock);
	return NULL;
}

int watch_start(unsigned rank, unsigned seconds, struct errmsg *err)
{
	pthread_condattr_t attr;
	int rc;

	assert(!is_watched);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&watch.stopped, &attr);
	pthread_condattr_destroy(&attr);
	watch.rank = rank;
	watch.seconds = seconds;
	watch.step = 0;
	watch.watching = true;
	rc = pthread_create(&watch.thread, NULL, watch_run, NULL);
	is_watched = !rc;
	return rc ? errmsg_set(err, -rc, "--comm_timeout: no thread") : 0;
}

void watch_stop(void)
{
	if (!is_watched)
		return;
	is_watched = false;
	pthread_mutex_lock(&watch.lock);
	watch.watching = false;
	pthread_cond_signal(&watch.stopped);
	pthread_mutex_unlock(&watch.lock);
	pthread_join(watch.thread, NULL);
	pthread_cond_destroy(&watch.stopped);
}

void watch_step(uint64_t step)
{
	pthread_mutex_lock(&watch.lock);
	watch.step = step;
	pthread_mutex_unlock(&watch.lock);
}

void watch_begin(const char *what)
{
	if (!is_watched)
		return;
	pthread_mutex_lock(&watch.lock);
	if (!watch.depth++) {
		watch.what = what;
		watch.waited = 0;
	}
	pthread_mutex_unlock(&watch.lock);
}

void watch_end(void)
{
	if (!is_watched)
		return;
	pthread_mutex_lock(&watch.lock);
	assert(watch.depth);
	if (!--watch.depth)
		watch.what = NULL;
	pthread_mutex_unlock(&watch.lock);
}

void watch_add(struct watch_probe *p)
{
	pthread_mutex_lock(&watch.lock);
	p->next = watch.probes;
	watch.probes = p;
	pthread_mutex_unlock(&watch.lock);
}

void watch_remove(struct watch_probe *p)
{
	struct watch_probe **at = &watch.probes;

	pthread_mutex_lock(&watch.lock);
	while (*at && *at != p)
		at = &(*at)->next;
	if (*at)
		*at = p->next;
	pthread_mutex_unlock(&watch.lock);
}
