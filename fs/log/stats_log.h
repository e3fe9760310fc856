/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_STATS_LOG_H
#define UCFS_STATS_LOG_H

struct stats;

/* Log the statistics as one line of JSON on each SIGUSR1.  `stats` must outlive
 * stats_log_stop.  Must be called before other threads are started, since they
 * inherit the signal mask. */
void stats_log_start(const struct stats *stats);
void stats_log_stop(void);

#endif
