/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the server's lines go.  One damaged shard makes every request for its
 * tensors fail, so a line that says what the last one said is dropped for a
 * while.
 */
#include "fs/log/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#define LINE_MAX_LEN 4096
#define REPEAT_SECONDS 10

static bool to_syslog; /* set once, before there are threads */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char last[LINE_MAX_LEN]; /* protected by lock, as is the next */
static time_t last_time;

void log_to_syslog(void)
{
	openlog("ucfs", LOG_PID, LOG_DAEMON);
	to_syslog = true;
}

static bool is_repeated(const char *line)
{
	const time_t now = time(NULL);
	bool repeated;

	pthread_mutex_lock(&lock);
	repeated = strcmp(line, last) == 0 && now - last_time < REPEAT_SECONDS;
	if (!repeated) {
		strcpy(last, line);
		last_time = now;
	}
	pthread_mutex_unlock(&lock);
	return repeated;
}

static void write_line(int priority, const char *fmt, va_list ap)
{
	char line[LINE_MAX_LEN];

	vsnprintf(line, sizeof(line), fmt, ap);
	if (is_repeated(line))
		return;
	if (to_syslog)
		syslog(priority, "%s", line);
	else
		fprintf(stderr, "ucfs: %s\n", line);
}

void log_warning(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line(LOG_WARNING, fmt, ap);
	va_end(ap);
}

void log_note(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line(LOG_NOTICE, fmt, ap);
	va_end(ap);
}

void log_error(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	write_line(LOG_ERR, fmt, ap);
	va_end(ap);
}
