/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_LOG_H
#define UCFS_LOG_H

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

/* Print how often lines were repeated that have not been printed since. */
void log_end(void);

/* Something that does not prevent serving: a tag left out, a corrected defect
 * of the checkpoint. */
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* Output that the user requested. */
void log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A request that failed. */
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
