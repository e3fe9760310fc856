/* SPDX-License-Identifier: Apache-2.0 */
/* Items are worked on in parallel, and committed in order, once each; the first
 * error ends it. */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"

#define N 200

struct seen {
	atomic_uint worked[N], finished[N];
	size_t committed; /* by one at a time: no lock */
	size_t fail_at;   /* N: never */
	int fail_step;
};

static atomic_uint slots;
static unsigned slots_max;

static void *seen_begin(void)
{
	assert_true(atomic_fetch_add(&slots, 1) < slots_max);
	return malloc(sizeof(size_t));
}

static void seen_end(void *slot)
{
	atomic_fetch_sub(&slots, 1);
	free(slot);
}

static int seen_fail(const struct seen *s, size_t i, int step,
		     struct errmsg *err)
{
	return i == s->fail_at && s->fail_step == step
		       ? errmsg_set(err, -EIO, "item %zu", i)
		       : 0;
}

static int seen_work(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct seen *const s = ctx;

	*(size_t *)slot = i;
	atomic_fetch_add(&s->worked[i], 1);
	return seen_fail(s, i, 0, err);
}

static int seen_commit(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct seen *const s = ctx;

	assert_int_equal(*(size_t *)slot, i);
	assert_int_equal(s->committed, i);
	s->committed++;
	return seen_fail(s, i, 1, err);
}

static int seen_finish(void *ctx, void *slot, size_t i, struct errmsg *err)
{
	struct seen *const s = ctx;

	assert_int_equal(*(size_t *)slot, i);
	atomic_fetch_add(&s->finished[i], 1);
	return seen_fail(s, i, 2, err);
}

static const struct parallel_steps steps = {
	.begin = seen_begin,
	.end = seen_end,
	.work = seen_work,
	.commit = seen_commit,
	.finish = seen_finish,
};

static void every_item_goes_through_all_steps(void **state)
{
	static const unsigned widths[] = { 1, 2, 7 };

	for (size_t w = 0; w < sizeof(widths) / sizeof(*widths); w++) {
		struct seen s = { .fail_at = N };

		slots_max = widths[w];
		assert_int_equal(
			parallel_in_order(N, widths[w], &steps, &s, NULL), 0);
		assert_int_equal(slots, 0);
		assert_int_equal(s.committed, N);
		for (size_t i = 0; i < N; i++) {
			assert_int_equal(s.worked[i], 1);
			assert_int_equal(s.finished[i], 1);
		}
	}
}

static void nothing_to_do_is_done(void **state)
{
	struct seen s = { .fail_at = N };

	assert_int_equal(parallel_in_order(0, 3, &steps, &s, NULL), 0);
	assert_int_equal(s.committed, 0);
}

static void an_error_ends_it(void **state)
{
	for (int step = 0; step < 3; step++)
		for (unsigned width = 1; width < 4; width++) {
			struct seen s = { .fail_at = 50, .fail_step = step };

			struct errmsg err = { "" };

			slots_max = width;
			assert_int_equal(
				parallel_in_order(N, width, &steps, &s, &err),
				-EIO);
			assert_string_equal(err.text, "item 50");
			assert_int_equal(slots, 0);
			assert_true(s.committed >= 50);
			assert_true(s.committed < N);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_item_goes_through_all_steps),
		cmocka_unit_test(nothing_to_do_is_done),
		cmocka_unit_test(an_error_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
