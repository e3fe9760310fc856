/* SPDX-License-Identifier: Apache-2.0 */
/* Counters are rendered as text and as JSON. */
#include <cJSON.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/sys/clock.h"
#include "fs/log/stats.h"
#include "tests/support/unit.h"

static void counters_are_rendered_both_ways(void **state)
{
	struct bytebuf text = { 0 }, json = { 0 };
	struct stats s = { 0 };
	cJSON *o;

	stats_add(&s, STATS_READS, 3);
	stats_add(&s, STATS_READ_BYTES, UINT64_C(5) << 30);
	stats_move(&s, STATS_HANDLES, 4);
	stats_move(&s, STATS_HANDLES, -1);
	assert_int_equal(stats_text(&s, &text), 0);
	bytebuf_add(&text, "", 1);
	assert_non_null(strstr((char *)text.data, "\nreads 3\n"));
	assert_non_null(strstr((char *)text.data, "\nread_bytes 5368709120\n"));
	assert_non_null(strstr((char *)text.data, "\nopen_files 3\n"));
	assert_non_null(strstr((char *)text.data, "opens_streamed 0\n"));
	assert_int_equal(stats_json(&s, NULL, &json), 0);
	bytebuf_add(&json, "", 1);
	o = cJSON_Parse((char *)json.data);
	assert_non_null(o);
	assert_true(cJSON_GetObjectItem(o, "read_bytes")->valuedouble ==
		    5368709120.0);
	assert_int_equal(cJSON_GetObjectItem(o, "open_files")->valueint, 3);
	assert_int_equal(cJSON_GetArraySize(o),
			 STATS_COUNTS + STATS_LEVELS + STATS_TIMES);
	cJSON_Delete(o);
	bytebuf_done(&text);
	bytebuf_done(&json);
}

static void times_fall_into_their_buckets(void **state)
{
	static const struct {
		uint64_t us;
		const char *bucket;
	} cases[] = {
		{ 1050000, "<2097152:1" },
		{ 2100000, "<4194304:1" },
		{ 60000000, "<inf:1" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf text = { 0 };
		struct stats s = { 0 };

		stats_since(&s, STATS_TIME_READ,
			    clock_ns() - cases[i].us * 1000);
		assert_int_equal(stats_text(&s, &text), 0);
		bytebuf_add(&text, "", 1);
		if (!strstr((char *)text.data, cases[i].bucket))
			fail_msg("%s", cases[i].bucket);
		bytebuf_done(&text);
	}
}

static void *count_on(void *s)
{
	for (unsigned i = 0; i < 100000; i++)
		stats_add(s, STATS_READS, 1);
	return NULL;
}

static void threads_count_together(void **state)
{
	struct stats s = { 0 };
	pthread_t threads[8];

	for (size_t i = 0; i < COUNT(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_on, &s),
				 0);
	for (size_t i = 0; i < COUNT(threads); i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(s.count[STATS_READS], 800000);
}

static void metrics_are_cumulative_and_escape_their_label(void **state)
{
	static const char *const lines[] = {
		("# TYPE ucfs_reads_total counter\n"
		 "ucfs_reads_total{source=\"/a\\\"b\\\\c\\nd\"} 3\n"),
		"# TYPE ucfs_open_files gauge\n",
		"# TYPE ucfs_read_seconds histogram\n",
		",le=\"1.048576\"} 0\n",
		",le=\"2.097152\"} 1\n",
		",le=\"4.194304\"} 2\n",
		",le=\"+Inf\"} 2\n",
	};
	struct bytebuf text = { 0 };
	struct stats s = { 0 };

	(void)state;
	stats_add(&s, STATS_READS, 3);
	stats_since(&s, STATS_TIME_READ, clock_ns() - 1050000000);
	stats_since(&s, STATS_TIME_READ, clock_ns() - 2100000000);
	assert_int_equal(stats_metrics(&s, "/a\"b\\c\nd", &text), 0);
	bytebuf_add(&text, "", 1);
	for (size_t i = 0; i < COUNT(lines); i++)
		if (!strstr((char *)text.data, lines[i]))
			fail_msg("no %s", lines[i]);
	assert_non_null(strstr((char *)text.data, "ucfs_read_seconds_sum"));
	bytebuf_done(&text);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters_are_rendered_both_ways),
		cmocka_unit_test(metrics_are_cumulative_and_escape_their_label),
		cmocka_unit_test(times_fall_into_their_buckets),
		cmocka_unit_test(threads_count_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
