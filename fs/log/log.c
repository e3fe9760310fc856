/* SPDX-License-Identifier: Apache-2.0 */
/* The server's log. */
#include "fs/log/log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/text.h"
#include "ckpt/uckpt.h"
#include "fs/log/repeats.h"

#define LINE_MAX_LEN 4096

/* Set before threads are started: */
static bool to_syslog;   /* else to stderr */
static int log_file = -1; /* also gets all lines; -1: no file */

static void log_print(int priority, const char *line, uint64_t repeated);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Warnings and errors; protected by lock. */
static struct repeats repeats = { .print = log_print };

void log_to_syslog(void)
{
	openlog("ucfs", LOG_PID, LOG_DAEMON);
	to_syslog = true;
}

int log_to_file(const char *path)
{
	/* Other programs may append to it or truncate it, as logrotate's copytruncate does. */
	log_file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
	return log_file < 0 ? -errno : 0;
}

static bool log_append(const char *line, const char *again)
{
	const time_t now = time(NULL);
	char stamp[32], *stamped;
	struct tm tm;
	bool appended;

	if (log_file < 0)
		return false;
	strftime(stamp, sizeof(stamp), "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
	if (asprintf(&stamped, "%s %s%s\n", stamp, line, again) < 0)
		return false;
	appended = write(log_file, stamped, strlen(stamped)) >= 0;
	free(stamped);
	return appended;
}

static void log_print(int priority, const char *line, uint64_t repeated)
{
	char again[REPEATS_TEXT_MAX];
	bool appended;

	repeats_text(repeated, again);
	appended = log_append(line, again);
	if (!to_syslog)
		fprintf(stderr, "ucfs: %s%s\n", line, again);
	else if (!appended)
		syslog(priority, "%s%s", line, again);
}

void log_line(int priority, const char *fmt, ...)
{
	char text[LINE_MAX_LEN], line[LINE_MAX_LEN];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	uckpt_hide_secrets(text);
	utf8_clean(line, sizeof(line), text);
	if (priority > LOG_WARNING) {
		log_print(priority, line, 0);
		return;
	}
	pthread_mutex_lock(&lock);
	repeats_add(&repeats, priority, line, time(NULL));
	pthread_mutex_unlock(&lock);
}

void log_recent(struct bytebuf *out)
{
	pthread_mutex_lock(&lock);
	repeats_list(&repeats, out);
	pthread_mutex_unlock(&lock);
}

void log_end(void)
{
	pthread_mutex_lock(&lock);
	repeats_flush(&repeats);
	repeats_done(&repeats);
	pthread_mutex_unlock(&lock);
}
