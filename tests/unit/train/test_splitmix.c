/* SPDX-License-Identifier: Apache-2.0 */
/* The numbers are those of splitmix64, in sequence and by index. */
#include "gpu/backend/splitmix.h"
#include "tests/support/unit.h"

static void numbers_are_those_of_the_reference(void **state)
{
	/* Vigna's splitmix64.c, seeded with 1234567. */
	static const uint64_t expected[] = {
		UINT64_C(6457827717110365317),  UINT64_C(3203168211198807973),
		UINT64_C(9817491932198370423),  UINT64_C(4593380528125082431),
		UINT64_C(16408922859458223821),
	};
	uint64_t s = 1234567;

	for (size_t i = 0; i < COUNT(expected); i++) {
		assert_true(splitmix64(1234567, i + 1) == expected[i]);
		assert_true(splitmix64_next(&s) == expected[i]);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(numbers_are_those_of_the_reference),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
