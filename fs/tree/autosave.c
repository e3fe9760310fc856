/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree/autosave.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "fs/tree/tree.h"

/* The most that a mount can lose. */
#define SAVE_SECONDS 10

static struct tree *saved; /* set before the thread starts */
static pthread_t thread;
static bool running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `stop` */
static pthread_cond_t wake; /* measures time by CLOCK_MONOTONIC */
static bool stop;

static struct timespec autosave_deadline(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += SAVE_SECONDS;
	return t;
}

static void *autosave_run(void *arg)
{
	struct timespec until = autosave_deadline();

	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stop)
		if (pthread_cond_timedwait(&wake, &lock, &until) == ETIMEDOUT) {
			pthread_mutex_unlock(&lock);
			tree_save(saved);
			until = autosave_deadline();
			pthread_mutex_lock(&lock);
		}
	pthread_mutex_unlock(&lock);
	return NULL;
}

void autosave_start(struct tree *tree)
{
	pthread_condattr_t attr;

	assert(!running);
	saved = tree;
	/* pthread_cond_clockwait is glibc's, since 2.30. */
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&wake, &attr);
	pthread_condattr_destroy(&attr);
	running = pthread_create(&thread, NULL, autosave_run, NULL) == 0;
}

void autosave_stop(void)
{
	if (!running)
		return;
	pthread_mutex_lock(&lock);
	stop = true;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	pthread_cond_destroy(&wake);
	running = false;
}
