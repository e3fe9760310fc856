/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_STATS_H
#define UCFS_STATS_H

#include <stdatomic.h>
#include <stdint.h>

struct bytebuf;

/*
 * Counters of a mount since it was created, and distributions of times.
 * Updates take no lock, so that a rendering is no consistent snapshot.  Valid
 * when zero-initialised.
 */
enum stats_count {
	STATS_OPENS_STREAMED,    /* the kernel sends us READ requests */
	STATS_OPENS_PASSTHROUGH, /* passed through to a shard */
	STATS_OPENS_FAILED,
	STATS_READS,
	STATS_READS_FAILED,
	STATS_READ_BYTES, /* sent to readers */
	STATS_OPEN_FILES, /* now */
	STATS_COUNTS
};

enum stats_time {
	STATS_TIME_OPEN,
	STATS_TIME_READ,
	STATS_TIMES
};

/* Bucket i counts times from 2^(i-1) up to 2^i microseconds; the last bucket
 * counts all longer ones. */
#define STATS_BUCKETS 24

struct stats {
	_Atomic uint64_t count[STATS_COUNTS];
	_Atomic uint64_t time[STATS_TIMES][STATS_BUCKETS];
};

/* `n` may be negative. */
void stats_add(struct stats *s, enum stats_count what, int64_t n);

/* Count the time since `clock`, a value of clock_ns. */
void stats_since(struct stats *s, enum stats_time what, uint64_t clock);

/* Append all statistics to `out`, a name and its value on each line.  0 or -ENOMEM. */
int stats_text(const struct stats *s, struct bytebuf *out);

#endif
