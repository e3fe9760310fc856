/* SPDX-License-Identifier: Apache-2.0 */
/* Items are worked on in parallel, and committed in order, once each; the first
 * error ends it. */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdatomic.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"

#define N 200

struct seen {
	struct turns turns;
	atomic_uint worked[N], finished[N];
	size_t committed; /* by one at a time: no lock */
	size_t fail_at;   /* N: never */
	int fail_step;
};

static int seen_fail(const struct seen *s, size_t i, int step,
		     struct errmsg *err)
{
	return i == s->fail_at && s->fail_step == step
		       ? errmsg_set(err, -EIO, "item %zu", i)
		       : 0;
}

static int seen_commit(void *ctx, size_t i, struct errmsg *err)
{
	struct seen *const s = ctx;

	assert_int_equal(s->committed, i);
	s->committed++;
	return seen_fail(s, i, 1, err);
}

static int seen_item(void *ctx, size_t i, struct errmsg *err)
{
	struct seen *const s = ctx;
	int rc;

	atomic_fetch_add(&s->worked[i], 1);
	rc = turns_take(&s->turns, i, seen_fail(s, i, 0, err), seen_commit, s,
			err);
	if (rc)
		return rc;
	atomic_fetch_add(&s->finished[i], 1);
	return seen_fail(s, i, 2, err);
}

static void every_item_goes_through_all_steps(void **state)
{
	static const unsigned widths[] = { 1, 2, 7 };

	for (size_t w = 0; w < sizeof(widths) / sizeof(*widths); w++) {
		struct seen s = { .turns = TURNS_INIT, .fail_at = N };

		assert_int_equal(
			parallel_for(N, widths[w], seen_item, &s, NULL), 0);
		assert_int_equal(s.committed, N);
		for (size_t i = 0; i < N; i++) {
			assert_int_equal(s.worked[i], 1);
			assert_int_equal(s.finished[i], 1);
		}
	}
}

static void nothing_to_do_is_done(void **state)
{
	struct seen s = { .turns = TURNS_INIT, .fail_at = N };

	assert_int_equal(parallel_for(0, 3, seen_item, &s, NULL), 0);
	assert_int_equal(s.committed, 0);
}

static void an_error_ends_it(void **state)
{
	for (int step = 0; step < 3; step++)
		for (unsigned width = 1; width < 4; width++) {
			struct seen s = { .turns = TURNS_INIT,
					  .fail_at = 50,
					  .fail_step = step };
			struct errmsg err = { "" };

			assert_int_equal(
				parallel_for(N, width, seen_item, &s, &err),
				-EIO);
			assert_string_equal(err.text, "item 50");
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
