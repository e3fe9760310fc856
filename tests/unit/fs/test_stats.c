/* SPDX-License-Identifier: Apache-2.0 */
/* Counters, and their text. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/system.h"
#include "fs/log/stats.h"
#include "tests/support/unit.h"

static void counters_are_lines(void **state)
{
	struct bytebuf text = { 0 };
	struct stats s = { 0 };

	(void)state;
	stats_add(&s, STATS_READS, 3);
	stats_add(&s, STATS_READ_BYTES, INT64_C(5) << 30);
	stats_add(&s, STATS_OPEN_FILES, 4);
	stats_add(&s, STATS_OPEN_FILES, -1);
	assert_int_equal(stats_text(&s, &text), 0);
	bytebuf_add(&text, "", 1);
	assert_string_equal((char *)text.data,
			    "opens_streamed 0\nopens_passthrough 0\n"
			    "opens_failed 0\nreads 3\nreads_failed 0\n"
			    "read_bytes 5368709120\nopen_files 3\n"
			    "open_us\nread_us\n");
	bytebuf_done(&text);
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

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(counters_are_lines),
		cmocka_unit_test(times_fall_into_their_buckets),
		cmocka_unit_test(threads_count_together),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
