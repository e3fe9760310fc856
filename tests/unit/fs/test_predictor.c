/* SPDX-License-Identifier: Apache-2.0 */
/* A loader's order is recognised at its second open, also among other loaders. */
#include "fs/backing/predictor.h"

#include "tests/support/unit.h"

/* Files are numbered from 1: order 0 leads to the next file, order 1 to the third
 * next. */
static bool open_file(struct predictor *o, uint64_t ino, unsigned *order)
{
	const bool met = predictor_observe(o, ino, order);

	predictor_expect(o, ino + 1, 0);
	predictor_expect(o, ino + 3, 1);
	return met;
}

static void orders_are_recognised(void **state)
{
	static const struct {
		const char *what;
		uint64_t opens[4];
		bool met; /* at the last one */
		unsigned order;
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

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct predictor o = { 0 };
		unsigned order = 9;
		bool met = false;

		for (size_t k = 0; k < 4; k++)
			met = open_file(&o, cases[i].opens[k], &order);
		if (met != cases[i].met || (met && order != cases[i].order))
			fail_msg("%s", cases[i].what);
	}
}

static void old_expectations_are_forgotten(void **state)
{
	struct predictor o = { 0 };
	unsigned order;

	predictor_expect(&o, 1, 0);
	for (uint64_t i = 0; i < PREDICTOR_EXPECTED; i++)
		predictor_expect(&o, 100 + i, 0);
	assert_false(predictor_observe(&o, 1, &order));
	assert_true(predictor_observe(&o, 100, &order));
	assert_false(predictor_observe(&o, 100, &order)); /* reported once */
}

/* Three files per parameter, read by name: 1, 2, 0.  They also match the order of
 * numbers (order 0) and that of parameters (order 2). */
static void a_loader_of_all_files_keeps_its_order(void **state)
{
	struct predictor o = { 0 };
	unsigned order = 9;
	uint64_t ino = 10 * 3 + 1;

	for (int i = 0; i < 30; i++) {
		const uint64_t param = ino / 3, file = ino % 3;
		const uint64_t next = (param + (file == 0)) * 3 +
				      (file == 2 ? 0 : file + 1);
		const bool met = predictor_observe(&o, ino, &order);

		if (i >= 6 && (!met || order != 1))
			fail_msg("step %d: order %u", i, order);
		predictor_expect(&o, ino + 1, 0);
		predictor_expect(&o, next, 1);
		predictor_expect(&o, ino + 3, 2);
		ino = next;
	}
}

/* Otherwise a second pass would match orders that the first did not take. */
static void orders_not_taken_are_forgotten(void **state)
{
	struct predictor o = { 0 };
	unsigned order;

	open_file(&o, 10, &order);
	open_file(&o, 11, &order);
	assert_false(predictor_observe(&o, 13, &order));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(orders_are_recognised),
		cmocka_unit_test(old_expectations_are_forgotten),
		cmocka_unit_test(a_loader_of_all_files_keeps_its_order),
		cmocka_unit_test(orders_not_taken_are_forgotten),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
