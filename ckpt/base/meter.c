/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/base/meter.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/system.h"
#include "ckpt/base/text.h"

#define INTERVAL_NS 100000000L
#define BAR "============================"
#define BAR_LEN (sizeof(BAR) - 1)

static pthread_t thread;
static atomic_bool started; /* set by the main thread */
static const char *program;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects: */
static pthread_cond_t stopped = PTHREAD_COND_INITIALIZER;
static bool stopping;
static bool drawn; /* the terminal shows the line */
static bool named; /* the line begins with the program's name */
static char line[METER_TEXT_MAX]; /* empty: nothing to draw */

/* The origin of the rate: the first work of this process.  A resumed conversion counts earlier
 * work, which must not raise the rate. */
static const char *work; /* kind of the steps; NULL: bytes */
static uint64_t first_done;
static double first_at; /* clock_seconds */

/* Append the estimated time left at this rate. */
static void add_left(uint64_t done, uint64_t total, double rate, char out[METER_TEXT_MAX])
{
	const size_t n = strlen(out);
	char left[SIZE_TEXT_LEN];

	if (rate > 0 && done < total)
		snprintf(out + n, METER_TEXT_MAX - n, "  %s left",
			 duration_text((uint64_t)((double)(total - done) / rate), left));
}

void meter_step_text(const char *what, uint64_t done, uint64_t total, double rate,
		     char out[METER_TEXT_MAX])
{
	char a[SIZE_TEXT_LEN], b[SIZE_TEXT_LEN];

	if (total)
		snprintf(out, METER_TEXT_MAX, "%s: %s of %s", what,
			 count_text(done, a), count_text(total, b));
	else if (done)
		snprintf(out, METER_TEXT_MAX, "%s: %s", what,
			 count_text(done, a));
	else
		snprintf(out, METER_TEXT_MAX, "%s", what);
	add_left(done, total, rate, out);
}

void meter_bytes_text(uint64_t done, uint64_t total, double rate, char out[METER_TEXT_MAX])
{
	char a[SIZE_TEXT_LEN], b[SIZE_TEXT_LEN], per_second[SIZE_TEXT_LEN];
	const double part = (double)done / (double)(total + !total);

	snprintf(out, METER_TEXT_MAX, "%3d%% [%-*.*s]  %s of %s  %s/s", (int)(part * 100),
		 (int)BAR_LEN, (int)(part * BAR_LEN), BAR, size_text(done, a), size_text(total, b),
		 size_text((uint64_t)rate, per_second));
	add_left(done, total, rate, out);
}

/* Return steps or bytes per second.  The caller holds the lock. */
static double measure(const char *what, uint64_t done)
{
	const double now = clock_seconds();

	if (!first_done || done < first_done || !what != !work || (what && strcmp(what, work) != 0)) {
		work = what;
		first_done = done;
		first_at = now;
	}
	return now > first_at ? (double)(done - first_done) / (now - first_at) : 0;
}

/* The caller holds the lock. */
static void clear(void)
{
	if (drawn)
		fputs(METER_CLEAR, stderr);
	drawn = false;
}

static void *draw_lines(void *unused)
{
	struct timespec at;

	(void)unused;
	clock_gettime(CLOCK_REALTIME, &at);
	at.tv_sec += METER_AFTER_S;
	pthread_mutex_lock(&lock);
	while (!stopping) {
		if (pthread_cond_timedwait(&stopped, &lock, &at) == 0)
			continue;
		if (*line) {
			fprintf(stderr, "\r%s%s%s\033[K", named ? program : "",
				named ? ": " : "", line);
			fflush(stderr);
			drawn = true;
		}
		clock_gettime(CLOCK_REALTIME, &at);
		at.tv_nsec += INTERVAL_NS;
		at.tv_sec += at.tv_nsec / 1000000000L;
		at.tv_nsec %= 1000000000L;
	}
	clear();
	pthread_mutex_unlock(&lock);
	return NULL;
}

void meter_start(const char *name)
{
	program = name;
	stopping = false;
	started = isatty(STDERR_FILENO) &&
		  pthread_create(&thread, NULL, draw_lines, NULL) == 0;
}

void meter_step(const char *what, uint64_t done, uint64_t total)
{
	if (!started)
		return;
	pthread_mutex_lock(&lock);
	named = true;
	meter_step_text(what, done, total, measure(what, done), line);
	pthread_mutex_unlock(&lock);
}

void meter_bytes(uint64_t done, uint64_t total)
{
	if (!started)
		return;
	pthread_mutex_lock(&lock);
	named = false;
	meter_bytes_text(done, total, measure(NULL, done), line);
	pthread_mutex_unlock(&lock);
}

void meter_clear(void)
{
	pthread_mutex_lock(&lock);
	clear();
	*line = '\0';
	pthread_mutex_unlock(&lock);
}

void meter_stop(void)
{
	if (!started)
		return;
	pthread_mutex_lock(&lock);
	stopping = true;
	pthread_cond_signal(&stopped);
	pthread_mutex_unlock(&lock);
	pthread_join(thread, NULL);
	started = false;
}
