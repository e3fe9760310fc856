/* SPDX-License-Identifier: Apache-2.0 */
/* The interval that holds a place is the last that starts at or before it. */
#include "ckpt/base/array.h"
#include "tests/support/unit.h"

static void place_is_in_the_last_that_starts_before(void **state)
{
	static const struct {
		uint32_t other;
		uint64_t start;
	} v[] = { { 9, 2 }, { 9, 5 }, { 9, 5 }, { 9, UINT64_MAX } };
	static const struct {
		size_t n;
		uint64_t at;
		size_t want;
	} cases[] = {
		{ 0, 7, 0 }, { 1, 0, 0 }, { 1, 9, 0 }, { 2, 4, 0 },
		{ 2, 5, 1 }, { 3, 5, 2 }, { 4, 4, 0 }, { 4, 5, 2 },
		{ 4, UINT64_MAX - 1, 2 }, { 4, UINT64_MAX, 3 },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		assert_int_equal(interval_find(&v->start, cases[i].n,
					       sizeof(*v), cases[i].at),
				 cases[i].want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(place_is_in_the_last_that_starts_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
