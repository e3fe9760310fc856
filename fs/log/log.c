/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The server's log.  One damaged shard makes every request for its tensors
 * fail, so a line that repeats the previous one is dropped for a while.
 */
#include "fs/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <syslog.h>
#include <time.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/utf8.h"
#include "ckpt/sys/write_all.h"

#define LINE_MAX_LEN 4096
#define REPEAT_SECONDS 10
#define RECENT 64

/* Set before threads are started: */
static bool to_syslog;   /* else to stderr */
static int log_file = -1; /* lines go there, too */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Protected by lock: */
static char last[LINE_MAX_LEN];
static time_t last_time;
static char *recent[RECENT]; /* a ring of lines with their times */
static size_t nrecent;       /* how many were put into it */

void log_to_syslog(void)
{
	openlog("ucfs", LOG_PID, LOG_DAEMON);
	to_syslog = true;
}

int log_to_file(const char *path)
{
	/* Others may append to it or truncate it meanwhile, as logrotate's
	 * copytruncate does. */
	log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	return log_file < 0 ? -errno : 0;
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

/* The line with its time; NULL if memory runs out. */
static char *log_stamp(const char *line)
{
	const time_t now = time(NULL);
	char stamp[32], *stamped;
	struct tm tm;

	strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	return asprintf(&stamped, "%s %s\n", stamp, line) < 0 ? NULL : stamped;
}

/* Keep a line for log_recent, which owns it then. */
static void keep_line(char *stamped)
{
	pthread_mutex_lock(&lock);
	free(recent[nrecent % RECENT]);
	recent[nrecent++ % RECENT] = stamped;
	pthread_mutex_unlock(&lock);
}

void log_recent(struct bytebuf *out)
{
	pthread_mutex_lock(&lock);
	for (size_t i = nrecent > RECENT ? nrecent - RECENT : 0; i < nrecent; i++)
		bytebuf_add(out, recent[i % RECENT], strlen(recent[i % RECENT]));
	pthread_mutex_unlock(&lock);
}

static bool log_append(const char *stamped)
{
	return log_file >= 0 && stamped &&
	       write_all(log_file, stamped, strlen(stamped)) == 0;
}

static void write_line(int priority, const char *fmt, va_list ap)
{
	char text[LINE_MAX_LEN], line[LINE_MAX_LEN], *stamped;
	bool appended;

	vsnprintf(text, sizeof(text), fmt, ap);
	utf8_clean(line, sizeof(line), text);
	if (is_repeated(line))
		return;
	stamped = log_stamp(line);
	appended = log_append(stamped);
	if (!to_syslog)
		fprintf(stderr, "ucfs: %s\n", line);
	else if (!appended)
		syslog(priority, "%s", line);
	if (stamped && priority <= LOG_WARNING)
		keep_line(stamped);
	else
		free(stamped);
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
