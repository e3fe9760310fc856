/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/tree/autosave.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "fs/tree/tree.h"

/* Between two looks at whether more is known: what is lost at most. */
#define SECONDS 10

static struct tree *kept;
static pthread_t thread;
static bool running;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects `stop' */
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static bool stop;

static struct timespec soon(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	t.tv_sec += SECONDS;
	return t;
}

static void *run(void *arg)
{
	struct timespec until = soon();

	(void)arg;
	pthread_mutex_lock(&lock);
	while (!stop)
		if (pthread_cond_clockwait(&wake, &lock, CLOCK_MONOTONIC,
					   &until) == ETIMEDOUT) {
			pthread_mutex_unlock(&lock);
			tree_save(kept);
			until = soon();
			pthread_mutex_lock(&lock);
		}
	pthread_mutex_unlock(&lock);
	return NULL;
}

void keeper_start(struct tree *tree)
{
	kept = tree;
	running = pthread_create(&thread, NULL, run, NULL) == 0;
}

void keeper_stop(void)
{
	if (!running)
		return;
	pthread_mutex_lock(&lock);
	stop = true;
	pthread_cond_signal(&wake);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	running = false;
}
