/* SPDX-License-Identifier: Apache-2.0 */
/* The log has one line for each cause and file, however often it occurs. */
#include <stdio.h>
#include <string.h>
#include <syslog.h>

#include "ckpt/base/bytes.h"
#include "fs/log/repeats.h"
#include "tests/support/unit.h"

/* The printed lines: "line|repeated" for each, with newlines. */
static char printed[1u << 16];

static void print(int priority, const char *line, uint64_t repeated)
{
	const size_t len = strlen(printed);

	(void)priority;
	snprintf(printed + len, sizeof(printed) - len, "%s|%llu\n", line,
		 (unsigned long long)repeated);
}

static int forget(void **state)
{
	printed[0] = '\0';
	return 0;
}

struct logged {
	const char *line;
	time_t at;
	unsigned times;
};

static const struct {
	const char *what;
	struct logged lines[4];
	const char *printed, *flushed;
} cases[] = {
	{ "new lines", { { "a: x", 0, 1 }, { "b: x", 0, 1 }, { "a: y", 0, 1 } },
	  "a: x|0\nb: x|0\na: y|0\n", "" },
	{ "repeated at once", { { "a: x", 0, 1235 } }, "a: x|0\n", "a: x|1234\n" },
	{ "two that alternate", { { "a", 0, 1 }, { "b", 0, 1 }, { "a", 1, 1 },
				  { "b", 1, 1 } },
	  "a|0\nb|0\n", "a|1\nb|1\n" },
	{ "again after an interval", { { "a", 0, 5 }, { "a", REPEATS_SECONDS, 1 },
				       { "a", REPEATS_SECONDS + 1, 2 } },
	  "a|0\na|5\n", "a|2\n" },
	{ "another cause after an interval", { { "a", 0, 5 },
					       { "b", REPEATS_SECONDS, 1 } },
	  "a|0\na|4\nb|0\n", "" },
	{ "offsets", { { "/r/f.pt: read at 4096: Input/output error", 0, 1 },
		       { "/r/f.pt: read at 8192: Input/output error", 0, 1 },
		       { "/r/f.pt: read at 8192: No such device", 0, 1 } },
	  "/r/f.pt: read at 4096: Input/output error|0\n"
	  "/r/f.pt: read at 8192: No such device|0\n",
	  "/r/f.pt: read at 4096: Input/output error|1\n" },
	{ "numbers at both ends", { { "7 of 9", 0, 1 }, { "8 of 10", 0, 1 } },
	  "7 of 9|0\n8 of 10|0\n", "" },
	{ "digits in names", { { "/s 4/rank_1.pt: (block 3) bad", 0, 1 },
			       { "/s 5/rank_1.pt: (block 3) bad", 0, 1 },
			       { "/s 5/rank_2.pt: (block 4) bad", 0, 1 },
			       { "/s 5/rank_2.pt: (block 5) bad", 0, 1 } },
	  "/s 4/rank_1.pt: (block 3) bad|0\n/s 5/rank_1.pt: (block 3) bad|0\n"
	  "/s 5/rank_2.pt: (block 4) bad|0\n",
	  "/s 5/rank_2.pt: (block 4) bad|1\n" },
};

static void each_cause_and_file_has_a_line(void **state)
{
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct repeats r = { .print = print };

		forget(NULL);
		for (size_t k = 0; k < COUNT(cases[i].lines); k++)
			for (unsigned n = 0; n < cases[i].lines[k].times; n++)
				repeats_add(&r, LOG_ERR, cases[i].lines[k].line,
					    1000 + cases[i].lines[k].at);
		if (strcmp(printed, cases[i].printed) != 0)
			fail_msg("%s: printed '%s'", cases[i].what, printed);
		forget(NULL);
		repeats_flush(&r);
		if (strcmp(printed, cases[i].flushed) != 0)
			fail_msg("%s: in the end '%s'", cases[i].what, printed);
		forget(NULL);
		repeats_flush(&r);
		assert_string_equal(printed, "");
		repeats_done(&r);
	}
}

/* Log more different lines than are remembered, twice. */
static void a_flood_of_causes_is_bounded(void **state)
{
	struct repeats r = { .print = print };
	char line[32];
	size_t lines = 0;

	for (unsigned turn = 0; turn < 10; turn++)
		for (unsigned i = 0; i < 2 * REPEATS_MAX; i++) {
			snprintf(line, sizeof(line), "rank_%u", i);
			repeats_add(&r, LOG_ERR, line, 1000);
		}
	for (const char *p = printed; (p = strchr(p, '\n')); p++)
		lines++;
	assert_int_equal(lines, REPEATS_MAX + 1);
	assert_non_null(strstr(printed, "the rest is left out|0\n"));
	/* Lines that have stopped make room. */
	forget(NULL);
	repeats_add(&r, LOG_ERR, "later", 1000 + REPEATS_SECONDS);
	assert_non_null(strstr(printed, "rank_0|9\n"));
	assert_non_null(strstr(printed, "later|0\n"));
	repeats_done(&r);
}

static void lists_have_times_and_counts(void **state)
{
	struct repeats r = { .print = print };
	struct bytebuf out = { 0 };

	repeats_add(&r, LOG_ERR, "a: x", 0);
	for (unsigned i = 0; i < 1235; i++)
		repeats_add(&r, LOG_WARNING, "b: y", 86400 + i % 2);
	repeats_list(&r, &out);
	bytebuf_add(&out, "", 1);
	assert_string_equal((char *)out.data,
			    "1970-01-01T00:00:00Z a: x\n"
			    "1970-01-02T00:00:00Z b: y (repeated 1,234 times)\n");
	bytebuf_done(&out);
	repeats_done(&r);
}

static void counts_are_grouped(void **state)
{
	static const struct {
		uint64_t n;
		const char *text;
	} counts[] = {
		{ 1, " (repeated 1 time)" },
		{ 999, " (repeated 999 times)" },
		{ 1000, " (repeated 1,000 times)" },
		{ UINT64_MAX, " (repeated 18,446,744,073,709,551,615 times)" },
	};
	char text[REPEATS_TEXT_MAX];

	for (size_t i = 0; i < COUNT(counts); i++) {
		repeats_text(counts[i].n, text);
		assert_string_equal(text, counts[i].text);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(each_cause_and_file_has_a_line, forget),
		cmocka_unit_test_setup(a_flood_of_causes_is_bounded, forget),
		cmocka_unit_test_setup(lists_have_times_and_counts, forget),
		cmocka_unit_test(counts_are_grouped),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
