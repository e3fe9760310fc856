/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_STATS_H
#define UCFS_STATS_H

#include <stdatomic.h>
#include <stdint.h>

struct bytebuf;
struct cJSON;

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
	STATS_COUNTS
};

/* Current values. */
enum stats_level {
	STATS_HANDLES, /* open files */
	STATS_LEVELS
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
	_Atomic uint64_t level[STATS_LEVELS];
	_Atomic uint64_t time[STATS_TIMES][STATS_BUCKETS];
	_Atomic uint64_t time_us[STATS_TIMES]; /* sums */
};

void stats_add(struct stats *s, enum stats_count what, uint64_t n);
void stats_move(struct stats *s, enum stats_level what, int64_t by);

/* Count the time since `clock`, a value of clock_ns. */
void stats_since(struct stats *s, enum stats_time what, uint64_t clock);

/* Append all statistics to `out`; to the JSON object also `errors`, unless it is
 * NULL.  0 or -ENOMEM. */
int stats_text(const struct stats *s, struct bytebuf *out);
int stats_json(const struct stats *s, const struct cJSON *errors,
	       struct bytebuf *out);

/* The same in the text format of Prometheus, with `source` as a label. */
int stats_metrics(const struct stats *s, const char *source,
		  struct bytebuf *out);

#endif
