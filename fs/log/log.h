/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_LOG_H
#define UCFS_LOG_H

/* Lines go to stderr while somebody may be reading it, and to syslog once the
 * server runs in the background.  One event, one line. */
void log_to_syslog(void);

/* Something a user should know although it is served: a tag left out, a
 * defect of the checkpoint that was corrected. */
void log_warning(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* What somebody asked for. */
void log_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* A request that failed. */
void log_error(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
