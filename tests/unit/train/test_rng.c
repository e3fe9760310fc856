/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers equal torch's, element for element. tests/interop/make_rng.py
 * prints the table. */
#include "gpu/data/rng.h"

#include "tests/support/unit.h"

static const struct {
	uint64_t seed, high;
	unsigned skip; /* elements to skip */
	uint64_t next[4];
} cases[] = {
	/* from torch 2.15.0 */
	/* clang-format off */
	{ 42u, 256u, 0, { 102u, 179u, 92u, 14u } },
	{ 42u, 50257u, 1000, { 48101u, 36389u, 42170u, 30756u } },
	{ 0u, 2u, 5000, { 1u, 0u, 1u, 1u } },
	{ 0u, 268435455u, 700, { 88348523u, 162304435u, 151880507u, 144516933u } },
	{ 1u, 268435456u, 0, { 256344299u, 247206984u, 13419401u, 264314501u } },
	{ 1099511627781u, 4294967295u, 311, { 2803368701u, 3399703304u, 2866409761u, 3085316341u } },
	{ 7u, 4294967296u, 0, { 976413892u, 1369975286u, 4201435347u, 1956722279u } },
	{ 7u, 1099511627776u, 312, { 374131566044u, 1046666473355u, 519223743499u, 503094733206u } },
	{ 3u, 9223372036854775807u, 0, { 937055941807507097u, 3839649608876091012u, 5366245355481424840u, 199733986212078358u } },
	{ 18446744073709551615u, 10u, 623, { 0u, 9u, 6u, 1u } },
	/* clang-format on */
};

#define NCASES (sizeof(cases) / sizeof(cases[0]))

static void elements_are_those_of_torch_randint(void **state)
{
	for (size_t i = 0; i < NCASES; i++) {
		struct rng r;

		rng_seed(&r, cases[i].seed);
		for (unsigned k = 0; k < cases[i].skip; k++)
			assert_true(rng_randint(&r, cases[i].high) <
				    cases[i].high);
		for (unsigned k = 0; k < 4; k++)
			assert_int_equal(rng_randint(&r, cases[i].high),
					 cases[i].next[k]);
	}
}

static void skipping_is_drawing(void **state)
{
	for (size_t i = 0; i < NCASES; i++) {
		struct rng r;

		rng_seed(&r, cases[i].seed);
		rng_skip(&r, (uint64_t)cases[i].skip *
				     rng_randint_draws(cases[i].high));
		for (unsigned k = 0; k < 4; k++)
			assert_int_equal(rng_randint(&r, cases[i].high),
					 cases[i].next[k]);
	}
}

/* Skips near the boundaries of the 624-word state. */
static void skips_add_up(void **state)
{
	static const uint64_t parts[] = { 0, 1, 622, 623, 624, 625, 1248, 5000 };
	const size_t n = sizeof(parts) / sizeof(parts[0]);

	for (size_t i = 0; i < n * n; i++) {
		const uint64_t first = parts[i / n], second = parts[i % n];
		struct rng once, twice;

		rng_seed(&once, 11);
		rng_seed(&twice, 11);
		rng_skip(&once, first + second);
		rng_skip(&twice, first);
		rng_skip(&twice, second);
		assert_int_equal(rng_u64(&once), rng_u64(&twice));
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements_are_those_of_torch_randint),
		cmocka_unit_test(skipping_is_drawing),
		cmocka_unit_test(skips_add_up),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
