/* SPDX-License-Identifier: Apache-2.0 */
/* Loaders are known by their second step, whoever else is about. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "fs/backing/predictor.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Files are numbers from 1 on: way 0 leads to the next one, way 1 to the one
 * after three. */
static bool open_file(struct order *o, uint64_t ino, unsigned *way)
{
	const bool met = order_meet(o, ino, way);

	order_expect(o, ino + 1, 0);
	order_expect(o, ino + 3, 1);
	return met;
}

static void ways_are_recognised(void **state)
{
	static const struct {
		const char *what;
		uint64_t opens[4];
		bool met; /* at the last one */
		unsigned way;
	} cases[] = {
		{ "one file after the other", { 10, 11, 12, 13 }, true, 0 },
		{ "one of each three", { 10, 13, 16, 19 }, true, 1 },
		{ "the same one again", { 10, 10, 10, 10 }, false, 0 },
		{ "backwards", { 13, 12, 11, 10 }, false, 0 },
		{ "anywhere", { 50, 10, 30, 20 }, false, 0 },
		{ "two loaders far apart", { 10, 90, 11, 91 }, true, 0 },
		{ "two that go different ways", { 10, 90, 11, 93 }, true, 1 },
		{ "expected both ways", { 10, 12, 90, 13 }, true, 0 },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct order o = { 0 };
		unsigned way = 9;
		bool met = false;

		for (size_t k = 0; k < 4; k++)
			met = open_file(&o, cases[i].opens[k], &way);
		if (met != cases[i].met || (met && way != cases[i].way))
			fail_msg("%s", cases[i].what);
	}
}

static void old_expectations_are_forgotten(void **state)
{
	struct order o = { 0 };
	unsigned way;

	(void)state;
	order_expect(&o, 1, 0);
	for (uint64_t i = 0; i < ORDER_EXPECTED; i++)
		order_expect(&o, 100 + i, 0);
	assert_false(order_meet(&o, 1, &way));
	assert_true(order_meet(&o, 100, &way));
	assert_false(order_meet(&o, 100, &way)); /* it is told once */
}

/* Three files to a parameter, read by name: 1, 2, 0.  In the order of numbers
 * (way 0) and by parameters (way 2) they are met, too. */
static void who_reads_all_goes_the_way_of_each_step(void **state)
{
	struct order o = { 0 };
	unsigned way = 9;
	uint64_t ino = 10 * 3 + 1;

	(void)state;
	for (int i = 0; i < 30; i++) {
		const uint64_t param = ino / 3, file = ino % 3;
		const uint64_t next = (param + (file == 0)) * 3 +
				      (file == 2 ? 0 : file + 1);
		const bool met = order_meet(&o, ino, &way);

		if (i >= 6 && (!met || way != 1))
			fail_msg("step %d: way %u", i, way);
		order_expect(&o, ino + 1, 0);
		order_expect(&o, next, 1);
		order_expect(&o, ino + 3, 2);
		ino = next;
	}
}

/* Otherwise a second pass would seem to go the ways that the first did not. */
static void ways_not_taken_are_forgotten(void **state)
{
	struct order o = { 0 };
	unsigned way;

	(void)state;
	open_file(&o, 10, &way);
	open_file(&o, 11, &way);
	assert_false(order_meet(&o, 13, &way));
}

/* Passes through the same tree, by one after the other, begin alike. */
static void who_begins_goes_as_the_last_one_did(void **state)
{
	struct order o = { 0 };
	unsigned way = 9;

	(void)state;
	assert_false(order_guess(&o, &way)); /* nobody went anywhere yet */
	open_file(&o, 10, &way);
	assert_true(open_file(&o, 13, &way));
	assert_false(open_file(&o, 50, &way));
	assert_true(order_guess(&o, &way));
	assert_int_equal(way, 1);
	assert_false(open_file(&o, 80, &way));
	assert_false(order_guess(&o, &way)); /* 53 did not come */
	assert_true(open_file(&o, 81, &way));
	assert_true(order_guess(&o, &way));
	assert_int_equal(way, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(ways_are_recognised),
		cmocka_unit_test(old_expectations_are_forgotten),
		cmocka_unit_test(who_reads_all_goes_the_way_of_each_step),
		cmocka_unit_test(ways_not_taken_are_forgotten),
		cmocka_unit_test(who_begins_goes_as_the_last_one_did),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
