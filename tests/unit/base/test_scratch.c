/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch memory of one call: its thread keeps it, and frees it when it ends. */
#include <pthread.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "tests/support/unit.h"

static void what_was_given_back_is_taken_again(void **state)
{
	void *const first = scratch_take(1000);

	assert_non_null(first);
	scratch_give(first);
	for (size_t len = 0; len <= 1000; len += 100) {
		void *const again = scratch_take(len);

		assert_ptr_equal(again, first);
		scratch_give(again);
	}
}

static void what_is_taken_within_is_apart_and_stays(void **state)
{
	static const size_t lens[] = { 64, 1 << 20, 8, 4096 };
	uint8_t *p[4];

	/* In the second round some buffers are larger than the kept ones. */
	for (size_t factor = 1; factor <= 3; factor += 2) {
		for (size_t i = 0; i < 4; i++) {
			p[i] = scratch_take(factor * lens[i]);
			assert_non_null(p[i]);
			memset(p[i], (int)i, factor * lens[i]);
		}
		for (size_t i = 4; i-- > 0;) {
			assert_int_equal(p[i][0], i);
			assert_int_equal(p[i][factor * lens[i] - 1], i);
			scratch_give(p[i]);
		}
	}
}

static void *take_some(void *other)
{
	uint8_t *const p = scratch_take(100);

	if (p && p != other)
		memset(p, 1, 100);
	scratch_give(p);
	return p == other ? NULL : p;
}

static void *give(void *p)
{
	scratch_give(p);
	return NULL;
}

static void *take_one(void *ignored)
{
	return scratch_take(100);
}

/* Any number of buffers can be taken and released in any order, by any thread, also after the
 * taking thread has ended. */
static void any_number_is_given_back_by_anybody(void **state)
{
	uint8_t *p[40];
	pthread_t thread;
	void *theirs;

	for (int round = 0; round < 2; round++) {
		for (size_t i = 0; i < COUNT(p); i++) {
			p[i] = scratch_take(100 + i);
			assert_non_null(p[i]);
			memset(p[i], (int)i, 100 + i);
		}
		for (size_t i = 0; i < COUNT(p); i++) {
			assert_int_equal(p[i][0], i);
			assert_int_equal(p[i][99 + i], i);
		}
		assert_int_equal(pthread_create(&thread, NULL, give, p[3]), 0);
		assert_int_equal(pthread_join(thread, &theirs), 0);
		for (size_t i = 0; i < COUNT(p); i++)
			scratch_give(i == 3 ? NULL : p[i]);
	}
	assert_int_equal(pthread_create(&thread, NULL, take_one, NULL), 0);
	assert_int_equal(pthread_join(thread, &theirs), 0);
	memset(theirs, 1, 100);
	scratch_give(theirs);
}

/* The leak sanitizer checks that the threads' memory is freed. */
static void threads_have_their_own(void **state)
{
	void *const mine = scratch_take(100);
	pthread_t thread;
	void *theirs;

	assert_int_equal(pthread_create(&thread, NULL, take_some, mine), 0);
	assert_int_equal(pthread_join(thread, &theirs), 0);
	assert_non_null(theirs);
	scratch_give(mine);
}

static void nothing_can_be_given_back(void **state)
{
	scratch_give(NULL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_was_given_back_is_taken_again),
		cmocka_unit_test(what_is_taken_within_is_apart_and_stays),
		cmocka_unit_test(threads_have_their_own),
		cmocka_unit_test(any_number_is_given_back_by_anybody),
		cmocka_unit_test(nothing_can_be_given_back),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
