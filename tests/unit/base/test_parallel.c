/* SPDX-License-Identifier: Apache-2.0 */
/* Work for several threads. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/parallel.h"
#include "tests/support/unit.h"

#define ITEMS 100

struct calls {
	atomic_uint of[ITEMS];
	size_t fails_from; /* with its own number */
};

static int call(void *ctx, size_t i)
{
	struct calls *const c = ctx;

	atomic_fetch_add(&c->of[i], 1);
	return i >= c->fails_from ? (int)i : 0;
}

static int call_and_say(void *ctx, size_t i, struct errmsg *err)
{
	const int rc = call(ctx, i);

	return rc ? errmsg_set(err, rc, "item %zu", i) : 0;
}

static void each_item_is_done_once(void **state)
{
	static const size_t items[] = { 0, 1, 2, 3, ITEMS };

	for (size_t k = 0; k < COUNT(items); k++)
		for (unsigned width = 0; width <= 5; width++)
			for (int says = 0; says < 2; says++) {
				struct calls c = { .fails_from = ITEMS };

				assert_int_equal(
					says ? parallel_try(items[k], width,
							    call_and_say, &c,
							    NULL)
					     : parallel_for(items[k], width,
							    call, &c),
					0);
				for (size_t i = 0; i < ITEMS; i++)
					assert_int_equal(atomic_load(&c.of[i]),
							 i < items[k]);
			}
}

static void after_a_failure_nothing_is_begun(void **state)
{
	for (unsigned width = 1; width <= 4; width++) {
		struct calls c = { .fails_from = 20 };
		unsigned begun = 0;

		assert_int_equal(parallel_for(ITEMS, width, call, &c), 20);
		for (size_t i = 20; i < ITEMS; i++)
			begun += atomic_load(&c.of[i]);
		assert_in_range(begun, 1, width);
	}
}

static void the_message_is_that_of_the_result(void **state)
{
	for (unsigned width = 1; width <= 4; width++) {
		struct calls c = { .fails_from = 20 };
		struct errmsg err = { "" };

		assert_int_equal(parallel_try(ITEMS, width, call_and_say, &c,
					      &err),
				 20);
		assert_string_equal(err.text, "item 20");
	}
}

static int wait_a_little(void *ctx, size_t i, struct errmsg *err)
{
	struct counts {
		atomic_uint under_way, most, done;
	} *const c = ctx;
	unsigned now = atomic_fetch_add(&c->under_way, 1) + 1;
	unsigned was = atomic_load(&c->most);

	while (now > was && !atomic_compare_exchange_weak(&c->most, &was, now))
		;
	usleep(i == 500 ? 0 : 3000);
	atomic_fetch_sub(&c->under_way, 1);
	atomic_fetch_add(&c->done, 1);
	return i == 500 ? errmsg_set(err, -EIO, "item 500") : 0;
}

/* Work that waits for something else than a processor gets more threads. */
static void who_waits_is_not_alone(void **state)
{
	struct {
		atomic_uint under_way, most, done;
	} c = { 0 };
	struct errmsg err = { "" };

	assert_int_equal(parallel_far(400, 1, wait_a_little, &c, &err), 0);
	assert_int_equal(c.done, 400);
	assert_in_range(c.most, 2, PARALLEL_FAR);
	assert_int_equal(parallel_far(600, 1, wait_a_little, &c, &err), -EIO);
	assert_string_equal(err.text, "item 500");
	assert_int_equal(parallel_far(0, 1, wait_a_little, &c, &err), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_item_is_done_once),
		cmocka_unit_test(after_a_failure_nothing_is_begun),
		cmocka_unit_test(the_message_is_that_of_the_result),
		cmocka_unit_test(who_waits_is_not_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
