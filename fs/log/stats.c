/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of a mount, and the two ways to tell them: .ucfs/stats. */
#include "fs/log/stats.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/bytebuf.h"

static const char *const count_names[STATS_COUNTS] = {
	[STATS_OPENS_STREAMED] = "opens_streamed",
	[STATS_OPENS_ASSEMBLED] = "opens_assembled",
	[STATS_OPENS_IDENTICAL] = "opens_identical",
	[STATS_OPENS_FAILED] = "opens_failed",
	[STATS_READS] = "reads",
	[STATS_READS_FAILED] = "reads_failed",
	[STATS_READ_BYTES] = "read_bytes",
	[STATS_SHARD_BYTES] = "shard_bytes",
	[STATS_ASSEMBLED] = "assembled",
	[STATS_ASSEMBLED_AHEAD] = "assembled_ahead",
	[STATS_ASSEMBLED_BYTES] = "assembled_bytes",
	[STATS_FOUND] = "found_assembled",
	[STATS_WAITED] = "waited",
	[STATS_CROWDED] = "crowded",
	[STATS_EVICTED] = "evicted",
	[STATS_STILL_MAPPED] = "still_mapped",
};

static const char *const level_names[STATS_LEVELS] = {
	[STATS_MEMORY_BYTES] = "memory_bytes",
	[STATS_HANDLES] = "open_files",
};

static const char *const time_names[STATS_TIMES] = {
	[STATS_TIME_OPEN] = "open",
	[STATS_TIME_READ] = "read",
	[STATS_TIME_ASSEMBLE] = "assemble",
};

void stats_add(struct stats *s, enum stats_count what, uint64_t n)
{
	atomic_fetch_add_explicit(&s->count[what], n, memory_order_relaxed);
}

void stats_move(struct stats *s, enum stats_level what, int64_t by)
{
	atomic_fetch_add_explicit(&s->level[what], (uint64_t)by,
				  memory_order_relaxed);
}

uint64_t stats_clock(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

void stats_since(struct stats *s, enum stats_time what, uint64_t clock)
{
	const uint64_t us = (stats_clock() - clock) / 1000;
	unsigned bucket = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

	if (bucket >= STATS_BUCKETS)
		bucket = STATS_BUCKETS - 1;
	atomic_fetch_add_explicit(&s->time[what][bucket], 1,
				  memory_order_relaxed);
}

static uint64_t value_of(const _Atomic uint64_t *v)
{
	return atomic_load_explicit(v, memory_order_relaxed);
}

static void add_number(struct bytebuf *out, const char *format,
		       const char *name, uint64_t value)
{
	char line[96];
	const int n = snprintf(line, sizeof(line), format, name,
			       (unsigned long long)value);

	bytebuf_add(out, line, (size_t)n);
}

static void add_string(struct bytebuf *out, const char *text)
{
	bytebuf_add(out, text, strlen(text));
}

/* The buckets that are not empty, "below so many microseconds: how many". */
static void add_times(const struct stats *s, unsigned what, const char *format,
		      const char *between, struct bytebuf *out)
{
	bool first = true;
	char bound[24];

	for (unsigned i = 0; i < STATS_BUCKETS; i++) {
		const uint64_t n = value_of(&s->time[what][i]);

		if (n == 0)
			continue;
		if (i == STATS_BUCKETS - 1)
			snprintf(bound, sizeof(bound), "inf");
		else
			snprintf(bound, sizeof(bound), "%lu", 1ul << i);
		if (!first)
			add_string(out, between);
		add_number(out, format, bound, n);
		first = false;
	}
}

int stats_text(const struct stats *s, struct bytebuf *out)
{
	for (unsigned i = 0; i < STATS_COUNTS; i++)
		add_number(out, "%s %llu\n", count_names[i],
			   value_of(&s->count[i]));
	for (unsigned i = 0; i < STATS_LEVELS; i++)
		add_number(out, "%s %llu\n", level_names[i],
			   value_of(&s->level[i]));
	for (unsigned i = 0; i < STATS_TIMES; i++) {
		add_string(out, time_names[i]);
		add_string(out, "_us ");
		add_times(s, i, "<%s:%llu", " ", out);
		add_string(out, "\n");
	}
	return out->failed ? -ENOMEM : 0;
}

int stats_json(const struct stats *s, struct bytebuf *out)
{
	add_string(out, "{");
	for (unsigned i = 0; i < STATS_COUNTS; i++)
		add_number(out, "\"%s\":%llu,", count_names[i],
			   value_of(&s->count[i]));
	for (unsigned i = 0; i < STATS_LEVELS; i++)
		add_number(out, "\"%s\":%llu,", level_names[i],
			   value_of(&s->level[i]));
	for (unsigned i = 0; i < STATS_TIMES; i++) {
		add_string(out, i ? "},\"" : "\"");
		add_string(out, time_names[i]);
		add_string(out, "_us\":{");
		add_times(s, i, "\"%s\":%llu", ",", out);
	}
	add_string(out, "}}\n");
	return out->failed ? -ENOMEM : 0;
}
