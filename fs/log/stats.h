/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCFS_STATS_H
#define UCFS_STATS_H

#include <stdatomic.h>
#include <stdint.h>

struct bytebuf;

/*
 * What a mount has done since it was made: sums and distributions of times.
 * Counting takes no lock; what is told is not one moment's.  Zero initialised
 * it is valid.
 */
enum stats_count {
	STATS_OPENS_STREAMED,  /* read through us */
	STATS_OPENS_ASSEMBLED, /* passed through to memory */
	STATS_OPENS_IDENTICAL, /* passed through to a shard */
	STATS_OPENS_FAILED,
	STATS_READS,
	STATS_READS_FAILED,
	STATS_READ_BYTES,  /* told to readers */
	STATS_SHARD_BYTES, /* of shards, for readers and for assembling */
	STATS_ASSEMBLED,
	STATS_ASSEMBLED_AHEAD, /* of those, before somebody asked */
	STATS_ASSEMBLED_BYTES,
	STATS_FOUND,   /* opens that found their file assembled */
	STATS_WAITED,  /* opens that waited for one being assembled */
	STATS_CROWDED, /* opens streamed because there was no memory ready */
	STATS_EVICTED,
	STATS_STILL_MAPPED, /* evicted, but somebody's mapping holds them */
	STATS_COUNTS
};

/* How much there is now. */
enum stats_level {
	STATS_MEMORY_BYTES, /* of assembled files, in use and ready for reuse */
	STATS_HANDLES,      /* open files */
	STATS_LEVELS
};

enum stats_time {
	STATS_TIME_OPEN,
	STATS_TIME_READ,
	STATS_TIME_ASSEMBLE,
	STATS_TIMES
};

/* Bucket i holds times below 2^i microseconds that the ones before do not;
 * the last one what is longer. */
#define STATS_BUCKETS 24

struct stats {
	_Atomic uint64_t count[STATS_COUNTS];
	_Atomic uint64_t level[STATS_LEVELS];
	_Atomic uint64_t time[STATS_TIMES][STATS_BUCKETS];
};

void stats_add(struct stats *s, enum stats_count what, uint64_t n);
void stats_move(struct stats *s, enum stats_level what, int64_t by);

/* stats_clock gives what stats_since measures from. */
uint64_t stats_clock(void);
void stats_since(struct stats *s, enum stats_time what, uint64_t clock);

/* Render all of it; -ENOMEM. */
int stats_text(const struct stats *s, struct bytebuf *out);
int stats_json(const struct stats *s, struct bytebuf *out);

#endif
