/* SPDX-License-Identifier: Apache-2.0 */
/* A table finds exactly the added numbers. */
#include "ckpt/base/array.h"
#include "tests/support/unit.h"

#define N 5000

static void each_number_is_found_by_its_hash(void **state)
{
	struct hashtab t = { 0 };

	for (uint32_t i = 0; i < N; i++)
		assert_true(hashtab_add(&t, hash_number(i), i));
	for (uint32_t i = 0; i < 2 * N; i++) {
		uint32_t number = UINT32_MAX;
		size_t pos = 0;

		assert_int_equal(
			hashtab_next(&t, hash_number(i), &pos, &number), i < N);
		assert_int_equal(number, i < N ? i : UINT32_MAX);
	}
	hashtab_done(&t);
}

static void a_hash_may_have_several_numbers(void **state)
{
	struct hashtab t = { 0 };
	uint32_t number, seen = 0;
	size_t pos = 0;

	assert_false(hashtab_next(&t, 7, &pos, &number));
	for (uint32_t i = 0; i < 300; i++) {
		assert_true(hashtab_add(&t, 7, i));
		assert_true(hashtab_add(&t, 8, i)); /* collides with the others */
	}
	for (pos = 0; hashtab_next(&t, 7, &pos, &number); seen++)
		assert_true(number < 300);
	assert_int_equal(seen, 300);
	hashtab_done(&t);
}

/* Test vectors of 64-bit FNV-1a, from http://www.isthe.com/chongo/tech/comp/fnv/. */
static void bytes_have_the_hash_of_fnv(void **state)
{
	assert_true(hash_bytes(0, "", 0) == UINT64_C(0xcbf29ce484222325));
	assert_true(hash_bytes(0, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
	assert_true(hash_bytes(0, "foobar", 6) == UINT64_C(0x85944171f73967e8));
	assert_true(hash_bytes(hash_bytes(0, "a", 1), "b", 1) !=
		    hash_bytes(hash_bytes(0, "b", 1), "a", 1));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_number_is_found_by_its_hash),
		cmocka_unit_test(a_hash_may_have_several_numbers),
		cmocka_unit_test(bytes_have_the_hash_of_fnv),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
