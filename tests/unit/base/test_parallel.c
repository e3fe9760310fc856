/* SPDX-License-Identifier: Apache-2.0 */
/* Work for several threads, and threads that join to help. */
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

static int call_in_team(void *ctx, size_t i, struct errmsg *err)
{
	const int rc = call(ctx, i);

	return rc ? errmsg_set(err, rc, "item %zu", i) : 0;
}

static void each_item_is_done_once(void **state)
{
	static const size_t items[] = { 0, 1, 2, 3, ITEMS };

	for (size_t k = 0; k < sizeof(items) / sizeof(*items); k++)
		for (unsigned width = 0; width <= 5; width++)
			for (int with = 0; with < 2; with++) {
				struct calls c = { .fails_from = ITEMS };
				struct team team;

				team_init(&team);
				assert_int_equal(
					with ? parallel_try(items[k], width,
							    &team, call_in_team,
							    &c, NULL)
					     : parallel_for(items[k], width,
							    call, &c),
					0);
				team_done(&team);
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

/* --- helpers ---------------------------------------------------------------- */

/* Two items, each of which waits until the other has begun: a single thread
 * would never finish. */
struct pair {
	struct team team;
	atomic_uint begun;
	atomic_uint over;
	pthread_t who[2];
	int rc;
};

static int meet(void *ctx, size_t i, struct errmsg *err)
{
	struct pair *const p = ctx;

	(void)err;
	p->who[i] = pthread_self();
	atomic_fetch_add(&p->begun, 1);
	while (atomic_load(&p->begun) < 2)
		sched_yield();
	for (unsigned k = 0; k < 1000; k++)
		sched_yield();
	atomic_fetch_add(&p->over, 1);
	return 0;
}

static void *work(void *arg)
{
	struct pair *const p = arg;

	p->rc = parallel_try(2, 1, &p->team, meet, p, NULL) ||
		atomic_load(&p->over) != 2; /* helpers are waited for */
	return NULL;
}

static void who_comes_by_helps(void **state)
{
	struct pair p = { 0 };
	pthread_t worker;

	team_init(&p.team);
	assert_int_equal(pthread_create(&worker, NULL, work, &p), 0);
	while (atomic_load(&p.begun) == 0)
		sched_yield();
	team_join(&p.team, 0); /* there are enough */
	assert_int_equal(atomic_load(&p.begun), 1);
	team_join(&p.team, 1);
	pthread_join(worker, NULL);
	assert_int_equal(p.rc, 0);
	assert_false(pthread_equal(p.who[0], p.who[1]));
	team_done(&p.team);
}

static void where_there_is_nothing_to_do_nobody_stays(void **state)
{
	struct calls c = { .fails_from = ITEMS };
	struct team team;

	team_init(&team);
	team_join(&team, 1);
	assert_int_equal(parallel_try(3, 1, &team, call_in_team, &c, NULL), 0);
	team_join(&team, 1);
	assert_int_equal(atomic_load(&c.of[2]), 1);
	team_done(&team);
}

static void the_message_is_that_of_the_result(void **state)
{
	for (unsigned width = 1; width <= 4; width++)
		for (int with = 0; with < 2; with++) {
			struct calls c = { .fails_from = 20 };
			struct errmsg err = { "" };
			struct team team;

			team_init(&team);
			assert_int_equal(parallel_try(ITEMS, width,
						      with ? &team : NULL,
						      call_in_team, &c, &err),
					 20);
			assert_string_equal(err.text, "item 20");
			team_done(&team);
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
		cmocka_unit_test(who_comes_by_helps),
		cmocka_unit_test(where_there_is_nothing_to_do_nobody_stays),
		cmocka_unit_test(who_waits_is_not_alone),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
