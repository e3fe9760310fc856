/* SPDX-License-Identifier: Apache-2.0 */
/* An array that grows keeps its elements, and survives a failure to grow. */
#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "ckpt/base/arena.h"
#include "tests/support/unit.h"

struct big {
	char bytes[300];
};

static void elements_keep_their_values(void **state)
{
	uint64_t *v = NULL;
	size_t cap = 0, moves = 0;

	for (size_t i = 0; i < 10000; i++) {
		const size_t before = cap;

		assert_true(array_reserve(&v, &cap, i + 1, sizeof(*v)));
		moves += cap != before;
		v[i] = i * i;
	}
	for (size_t i = 0; i < 10000; i++)
		assert_int_equal(v[i], i * i);
	assert_true(moves >= 2 && moves <= 14); /* capacity doubles */
	free(v);
}

static void there_is_room_for_all_that_is_wanted(void **state)
{
	static const size_t wants[] = { 1, 2, 3, 1000, 999 };
	struct big *v = NULL;
	size_t cap = 0;

	for (size_t i = 0; i < COUNT(wants); i++) {
		assert_true(array_reserve(&v, &cap, wants[i], sizeof(*v)));
		assert_true(cap >= wants[i]);
		memset(v, 0, wants[i] * sizeof(*v));
	}
	free(v);
}

static void what_cannot_be_had_changes_nothing(void **state)
{
	uint64_t *v = NULL, *before;
	size_t cap = 0;

	assert_true(array_reserve(&v, &cap, 1, sizeof(*v)));
	before = v;
	assert_false(array_reserve(&v, &cap, SIZE_MAX, sizeof(*v)));
	assert_false(array_reserve(&v, &cap, SIZE_MAX / 16, sizeof(*v)));
	assert_ptr_equal(v, before);
	assert_true(cap < 1000);
	free(v);
}

/* AddressSanitizer notices writes past the end of each allocation. */
static void arenas_are_exact_where_overflows_are_seen(void **state)
{
	struct arena a = { 0 };

	for (size_t size = 0; size < 100; size += 7) {
		char *const p = arena_alloc(&a, size);

		assert_non_null(p);
#ifdef __SANITIZE_ADDRESS__
		assert_true(__asan_address_is_poisoned(p + size));
#endif
	}
	arena_done(&a);
}

static void records_are_found_by_their_first_member(void **state)
{
	struct {
		const char *name;
		int number;
	} v[] = { { "b", 1 }, { "\xc3\xa9", 2 }, { "a", 3 } }, *found;

	qsort(v, COUNT(v), sizeof(*v), array_by_text);
	for (size_t i = 0; i < COUNT(v); i++) {
		found = array_find(v, COUNT(v), sizeof(*v), v[i].name);
		assert_ptr_equal(found, &v[i]);
	}
	assert_int_equal(v[0].number, 3);
	assert_null(array_find(v, COUNT(v), sizeof(*v), "aa"));
	assert_null(array_find(NULL, 0, sizeof(*v), "a"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements_keep_their_values),
		cmocka_unit_test(there_is_room_for_all_that_is_wanted),
		cmocka_unit_test(what_cannot_be_had_changes_nothing),
		cmocka_unit_test(arenas_are_exact_where_overflows_are_seen),
		cmocka_unit_test(records_are_found_by_their_first_member),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
