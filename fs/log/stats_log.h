/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_REPORT_H
#define UCFS_REPORT_H

struct stats;

/* Log the statistics, one line of JSON, whenever SIGUSR1 comes.  To be called
 * before other threads are started. */
void report_start(const struct stats *stats);
void report_stop(void);

#endif
