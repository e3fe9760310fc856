/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_LOG_H
#define UCFS_LOG_H

#include <syslog.h>

struct bytebuf;

/*
 * Messages to the user, one line for each event.  They go to stderr until
 * log_to_syslog is called, which the server does when it enters the background.
 * Thread-safe.
 *
 * Warnings and errors that are repeated are counted instead (repeats.h).
 */
void log_to_syslog(void);

/*
 * Append every line to the file `path`, too, each with its time; then nothing goes
 * to syslog.  Called before threads are started.  Returns 0 or a negative errno.
 */
int log_to_file(const char *path);

/* Add the last warnings and errors to `out`, oldest first, each with its time. */
void log_recent(struct bytebuf *out);

/* Print the counts of repeated lines that have not been printed yet. */
void log_end(void);

void log_line(int priority, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Log a failed request. */
#define log_error(...) log_line(LOG_ERR, __VA_ARGS__)

/* Log a problem that does not prevent serving: a tag left out, a corrected defect of the
 * checkpoint. */
#define log_warning(...) log_line(LOG_WARNING, __VA_ARGS__)

/* Print output that the user requested. */
#define log_note(...) log_line(LOG_NOTICE, __VA_ARGS__)

#endif
