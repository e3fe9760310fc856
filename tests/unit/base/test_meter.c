/* SPDX-License-Identifier: Apache-2.0 */
/* The line on a terminal that shows the progress of long work. */
#include "ckpt/base/array.h"
#include "ckpt/base/meter.h"
#include "tests/support/unit.h"

static void test_steps(void **state)
{
	static const struct {
		uint64_t done, total;
		double rate;
		const char *text;
	} cases[] = {
		{ 312, 1024, 16, "reading shards: 312 of 1,024  0:44 left" },
		{ 0, 7, 0, "reading shards: 0 of 7" },
		{ 1234567, 100000000, 20000,
		  "reading shards: 1,234,567 of 100,000,000  1:22:18 left" },
		{ 999, 1000, 0.015, "reading shards: 999 of 1,000  1:06 left" },
		{ 1000, 1000, 7, "reading shards: 1,000 of 1,000" },
		{ 12000, 0, 3, "reading shards: 12,000" },
		{ 0, 0, 0, "reading shards" },
	};
	char text[METER_TEXT_MAX];

	for (size_t i = 0; i < COUNT(cases); i++) {
		meter_step_text("reading shards", cases[i].done, cases[i].total, cases[i].rate,
				text);
		assert_string_equal(text, cases[i].text);
	}
}

static void test_bytes(void **state)
{
	static const struct {
		uint64_t done, total;
		double rate;
		const char *text;
	} cases[] = {
		{ 1 << 20, 4 << 20, 1 << 19,
		  " 25% [=======                     ]  1.0 MiB of 4.0 MiB  512.0 KiB/s  0:06 left" },
		{ 4 << 20, 4 << 20, 1 << 20,
		  "100% [============================]  4.0 MiB of 4.0 MiB  1.0 MiB/s" },
		{ 0, 100, 0,
		  "  0% [                            ]  0 bytes of 100 bytes  0 bytes/s" },
	};
	char text[METER_TEXT_MAX];

	for (size_t i = 0; i < COUNT(cases); i++) {
		meter_bytes_text(cases[i].done, cases[i].total, cases[i].rate, text);
		assert_string_equal(text, cases[i].text);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_steps),
		cmocka_unit_test(test_bytes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
