/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/log/stats.h"

#include <errno.h>
#include <inttypes.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/system.h"

static const char *const count_names[STATS_COUNTS] = {
	[STATS_OPENS_STREAMED] = "opens_streamed",
	[STATS_OPENS_PASSTHROUGH] = "opens_passthrough",
	[STATS_OPENS_FAILED] = "opens_failed",
	[STATS_READS] = "reads",
	[STATS_READS_FAILED] = "reads_failed",
	[STATS_READ_BYTES] = "read_bytes",
	[STATS_OPEN_FILES] = "open_files",
};

static const char *const time_names[STATS_TIMES] = {
	[STATS_TIME_OPEN] = "open_us",
	[STATS_TIME_READ] = "read_us",
};

void stats_add(struct stats *s, enum stats_count what, int64_t n)
{
	atomic_fetch_add_explicit(&s->count[what], (uint64_t)n,
				  memory_order_relaxed);
}

void stats_since(struct stats *s, enum stats_time what, uint64_t clock)
{
	const uint64_t us = (clock_ns() - clock) / 1000;
	unsigned bucket = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

	if (bucket >= STATS_BUCKETS)
		bucket = STATS_BUCKETS - 1;
	atomic_fetch_add_explicit(&s->time[what][bucket], 1,
				  memory_order_relaxed);
}

/* Append the non-empty buckets: the upper bound in microseconds, and the count. */
static void add_times(const _Atomic uint64_t *buckets, struct bytebuf *out)
{
	for (unsigned i = 0; i < STATS_BUCKETS; i++) {
		const uint64_t n = atomic_load(&buckets[i]);

		if (n && i == STATS_BUCKETS - 1)
			bytebuf_add_format(out, " <inf:%" PRIu64, n);
		else if (n)
			bytebuf_add_format(out, " <%lu:%" PRIu64, 1ul << i, n);
	}
}

int stats_text(const struct stats *s, struct bytebuf *out)
{
	for (unsigned i = 0; i < STATS_COUNTS; i++)
		bytebuf_add_format(out, "%s %" PRIu64 "\n", count_names[i],
				   atomic_load(&s->count[i]));
	for (unsigned i = 0; i < STATS_TIMES; i++) {
		bytebuf_add_str(out, time_names[i]);
		add_times(s->time[i], out);
		bytebuf_add_u8(out, '\n');
	}
	return out->failed ? -ENOMEM : 0;
}
