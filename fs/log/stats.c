/* SPDX-License-Identifier: Apache-2.0 */
/* Counters of a mount, in three formats: .ucfs/stats, .ucfs/stats.json and
 * .ucfs/metrics. */
#include "fs/log/stats.h"

#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/json.h"
#include "ckpt/sys/clock.h"

static const char *const count_names[STATS_COUNTS] = {
	[STATS_OPENS_STREAMED] = "opens_streamed",
	[STATS_OPENS_PASSTHROUGH] = "opens_passthrough",
	[STATS_OPENS_FAILED] = "opens_failed",
	[STATS_READS] = "reads",
	[STATS_READS_FAILED] = "reads_failed",
	[STATS_READ_BYTES] = "read_bytes",
};

static const char *const level_names[STATS_LEVELS] = {
	[STATS_HANDLES] = "open_files",
};

static const char *const time_names[STATS_TIMES] = {
	[STATS_TIME_OPEN] = "open",
	[STATS_TIME_READ] = "read",
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

void stats_since(struct stats *s, enum stats_time what, uint64_t clock)
{
	const uint64_t us = (clock_ns() - clock) / 1000;
	unsigned bucket = us ? 64 - (unsigned)__builtin_clzll(us) : 0;

	if (bucket >= STATS_BUCKETS)
		bucket = STATS_BUCKETS - 1;
	atomic_fetch_add_explicit(&s->time[what][bucket], 1,
				  memory_order_relaxed);
	atomic_fetch_add_explicit(&s->time_us[what], us, memory_order_relaxed);
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

	assert(n > 0 && (size_t)n < sizeof(line));
	bytebuf_add(out, line, (size_t)n);
}


/* Append the non-empty buckets: the upper bound in microseconds, and the
 * count. */
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
			bytebuf_add_str(out, between);
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
		bytebuf_add_str(out, time_names[i]);
		bytebuf_add_str(out, "_us ");
		add_times(s, i, "<%s:%llu", " ", out);
		bytebuf_add_str(out, "\n");
	}
	return out->failed ? -ENOMEM : 0;
}

int stats_json(const struct stats *s, const struct cJSON *errors,
	       struct bytebuf *out)
{
	bytebuf_add_str(out, "{");
	for (unsigned i = 0; i < STATS_COUNTS; i++)
		add_number(out, "\"%s\":%llu,", count_names[i],
			   value_of(&s->count[i]));
	for (unsigned i = 0; i < STATS_LEVELS; i++)
		add_number(out, "\"%s\":%llu,", level_names[i],
			   value_of(&s->level[i]));
	for (unsigned i = 0; i < STATS_TIMES; i++) {
		bytebuf_add_str(out, i ? "},\"" : "\"");
		bytebuf_add_str(out, time_names[i]);
		bytebuf_add_str(out, "_us\":{");
		add_times(s, i, "\"%s\":%llu", ",", out);
	}
	bytebuf_add_str(out, "}");
	if (errors) {
		bytebuf_add_str(out, ",\"errors\":");
		json_write(out, errors, false);
	}
	bytebuf_add_str(out, "}\n");
	return out->failed ? -ENOMEM : 0;
}

/* A label's value, by Prometheus's exposition format: three characters are
 * escaped. */
static void add_label(struct bytebuf *out, const char *text)
{
	for (; *text; text++) {
		if (*text == '\\' || *text == '"')
			bytebuf_add(out, "\\", 1);
		if (*text == '\n')
			bytebuf_add_str(out, "\\n");
		else
			bytebuf_add(out, text, 1);
	}
}

static void add_metric(struct bytebuf *out, const char *name, const char *suffix,
		       const char *type, const char *source, uint64_t value)
{
	char text[128];

	snprintf(text, sizeof(text), "# TYPE ucfs_%s%s %s\nucfs_%s%s{source=\"",
		 name, suffix, type, name, suffix);
	bytebuf_add_str(out, text);
	add_label(out, source);
	add_number(out, "%s} %llu\n", "\"", value);
}

/* One line of a histogram; the rest of its labels is `label`. */
static void add_bucket(struct bytebuf *out, const char *name, const char *suffix,
		       const char *source, const char *label, const char *value)
{
	bytebuf_add_str(out, "ucfs_");
	bytebuf_add_str(out, name);
	bytebuf_add_str(out, suffix);
	bytebuf_add_str(out, "{source=\"");
	add_label(out, source);
	bytebuf_add_str(out, label);
	bytebuf_add_str(out, "} ");
	bytebuf_add_str(out, value);
	bytebuf_add_str(out, "\n");
}

/* Buckets are cumulative there. */
static void add_histogram(const struct stats *s, unsigned what,
			  const char *source, struct bytebuf *out)
{
	const char *const name = time_names[what];
	char label[40], value[40];
	uint64_t n = 0;

	snprintf(label, sizeof(label), "# TYPE ucfs_%s_seconds histogram\n", name);
	bytebuf_add_str(out, label);
	for (unsigned i = 0; i < STATS_BUCKETS; i++) {
		n += value_of(&s->time[what][i]);
		snprintf(value, sizeof(value), "%llu", (unsigned long long)n);
		if (i == STATS_BUCKETS - 1)
			snprintf(label, sizeof(label), "\",le=\"+Inf\"");
		else
			snprintf(label, sizeof(label), "\",le=\"%.6f\"",
				 (double)(1ul << i) / 1e6);
		add_bucket(out, name, "_seconds_bucket", source, label, value);
	}
	add_bucket(out, name, "_seconds_count", source, "\"", value);
	snprintf(value, sizeof(value), "%.6f",
		 (double)value_of(&s->time_us[what]) / 1e6);
	add_bucket(out, name, "_seconds_sum", source, "\"", value);
}

int stats_metrics(const struct stats *s, const char *source, struct bytebuf *out)
{
	for (unsigned i = 0; i < STATS_COUNTS; i++)
		add_metric(out, count_names[i], "_total", "counter", source,
			   value_of(&s->count[i]));
	for (unsigned i = 0; i < STATS_LEVELS; i++)
		add_metric(out, level_names[i], "", "gauge", source,
			   value_of(&s->level[i]));
	for (unsigned i = 0; i < STATS_TIMES; i++)
		add_histogram(s, i, source, out);
	return out->failed ? -ENOMEM : 0;
}
