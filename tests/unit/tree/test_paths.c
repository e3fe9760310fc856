/* SPDX-License-Identifier: Apache-2.0 */
/* A path keeps its number, and all threads see the same one. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/tree/paths.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define PATHS 2000u
#define THREADS 4

static void path_name(char path[32], uint64_t i)
{
	snprintf(path, 32, "/run/%u", (unsigned)i);
}

static void a_path_keeps_its_number(void **state)
{
	struct paths *const t = paths_new(test_context());
	uint64_t index, parent;
	char path[32];

	(void)state;
	assert_null(paths_path(t, 0, NULL));
	for (unsigned pass = 0; pass < 2; pass++)
		for (uint64_t i = 0; i < PATHS; i++) {
			path_name(path, i);
			assert_int_equal(paths_add(t, path, i / 2, &index), 0);
			assert_int_equal(index, i);
		}
	for (uint64_t i = 0; i < PATHS; i++) {
		path_name(path, i);
		assert_string_equal(paths_path(t, i, &parent), path);
		assert_int_equal(parent, i / 2);
	}
	assert_null(paths_path(t, PATHS, NULL));
	paths_free(t);
}

struct adder {
	struct paths *t;
	unsigned first; /* index of this thread's first path */
	uint64_t index[PATHS];
	bool failed;
};

static void *add_all(void *arg)
{
	struct adder *const a = arg;
	char path[32];

	for (unsigned i = 0; i < PATHS; i++) {
		const unsigned k = (i + a->first) % PATHS;
		const char *got;

		path_name(path, k);
		if (paths_add(a->t, path, k, &a->index[k])) {
			a->failed = true;
			break;
		}
		got = paths_path(a->t, a->index[k], NULL);
		a->failed |= !got || strcmp(got, path) != 0;
	}
	return NULL;
}

static void threads_agree_on_numbers(void **state)
{
	struct paths *const t = paths_new(test_context());
	static struct adder adders[THREADS];
	pthread_t threads[THREADS];

	(void)state;
	for (unsigned i = 0; i < THREADS; i++) {
		adders[i].t = t;
		adders[i].first = i * 7;
		assert_int_equal(
			pthread_create(&threads[i], NULL, add_all, &adders[i]),
			0);
	}
	for (unsigned i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < THREADS; i++) {
		assert_false(adders[i].failed);
		assert_memory_equal(adders[i].index, adders[0].index,
				    sizeof(adders[0].index));
	}
	assert_null(paths_path(t, PATHS, NULL));
	paths_free(t);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_path_keeps_its_number),
		cmocka_unit_test(threads_agree_on_numbers),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
