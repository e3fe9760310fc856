/* SPDX-License-Identifier: Apache-2.0 */
/* Loops on several threads of one pool. */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "tests/support/unit.h"

#define ITEMS 100

struct calls {
	atomic_uint of[ITEMS];
	size_t fails_from; /* items from this number on fail with their number */
};

static int call(void *ctx, size_t i, struct errmsg *err)
{
	struct calls *const c = ctx;

	atomic_fetch_add(&c->of[i], 1);
	return i >= c->fails_from ? errmsg_set(err, (int)i, "item %zu", i) : 0;
}

static void each_item_is_done_once(void **state)
{
	static const size_t items[] = { 0, 1, 2, 3, ITEMS };

	for (size_t k = 0; k < sizeof(items) / sizeof(*items); k++)
		for (unsigned width = 0; width <= 5; width++) {
			struct calls c = { .fails_from = ITEMS };

			assert_int_equal(parallel_for(items[k], width, call, &c, NULL),
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

		assert_int_equal(parallel_for(ITEMS, width, call, &c, NULL), 20);
		for (size_t i = 20; i < ITEMS; i++)
			begun += atomic_load(&c.of[i]);
		assert_true(begun >= 1 && begun <= width);
	}
}

/* Two items, each of which waits until the other has begun: a single thread
 * would never finish. */
static int meet(void *ctx, size_t i, struct errmsg *err)
{
	atomic_uint *const begun = ctx;

	(void)i;
	(void)err;
	atomic_fetch_add(begun, 1);
	while (atomic_load(begun) < 2)
		sched_yield();
	return 0;
}

static void two_threads_work_at_once(void **state)
{
	for (unsigned k = 0; k < 100; k++) {
		atomic_uint begun = 0;

		assert_int_equal(parallel_for(2, 2, meet, &begun, NULL), 0);
		assert_int_equal(atomic_load(&begun), 2);
	}
}

static int run_inner(void *ctx, size_t i, struct errmsg *err)
{
	struct calls *const c = ctx;

	(void)i;
	(void)err;
	return parallel_for(ITEMS, 3, call, c, NULL);
}

/* All threads of the pool may be in a loop that waits for another. */
static void loops_within_loops_end(void **state)
{
	struct calls c = { .fails_from = ITEMS };

	assert_int_equal(parallel_for(50, 4, run_inner, &c, NULL), 0);
	for (size_t i = 0; i < ITEMS; i++)
		assert_int_equal(atomic_load(&c.of[i]), 50);
}

/* A program that uses the library may fork between two loops. */
static void a_forked_child_has_threads_of_its_own(void **state)
{
	atomic_uint begun = 0;
	int status = -1;
	pid_t child;

	assert_int_equal(parallel_for(2, 2, meet, &begun, NULL), 0);
	child = fork();
	if (child == 0) {
		atomic_store(&begun, 0);
		alarm(20);
		_exit(parallel_for(2, 2, meet, &begun, NULL));
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
}

static int note_thread(void *ctx, size_t i, struct errmsg *err)
{
	struct {
		pthread_mutex_t lock;
		pid_t seen[64];
		size_t n;
	} *const s = ctx;
	const pid_t me = gettid();
	size_t k = 0;

	(void)i;
	(void)err;
	usleep(200);
	pthread_mutex_lock(&s->lock);
	while (k < s->n && s->seen[k] != me)
		k++;
	if (k == s->n && k < 64)
		s->seen[s->n++] = me;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

/* Many short loops reuse threads of earlier loops. */
static void threads_are_used_again(void **state)
{
	struct {
		pthread_mutex_t lock;
		pid_t seen[64];
		size_t n;
	} s = { .lock = PTHREAD_MUTEX_INITIALIZER };

	for (unsigned k = 0; k < 100; k++)
		assert_int_equal(parallel_for(4, 2, note_thread, &s, NULL), 0);
	assert_true(s.n >= 1 && s.n <= 50);
}

static void the_message_is_that_of_the_result(void **state)
{
	for (unsigned width = 1; width <= 4; width++) {
		struct calls c = { .fails_from = 20 };
		struct errmsg err = { "" };

		assert_int_equal(parallel_for(ITEMS, width, call, &c,
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

/* Work that waits for I/O gets more threads. */
static void who_waits_is_not_alone(void **state)
{
	struct {
		atomic_uint under_way, most, done;
	} c = { 0 };
	struct errmsg err = { "" };

	assert_int_equal(parallel_far(400, 1, wait_a_little, &c, &err), 0);
	assert_int_equal(c.done, 400);
	assert_true(c.most >= 2 && c.most <= PARALLEL_FAR);
	assert_int_equal(parallel_far(600, 1, wait_a_little, &c, &err), -EIO);
	assert_string_equal(err.text, "item 500");
	assert_int_equal(parallel_far(0, 1, wait_a_little, &c, &err), 0);
}

/* The items' middle steps must run in order. */
struct seen {
	struct turns turns;
	atomic_uint worked[ITEMS], finished[ITEMS];
	size_t committed; /* written by one thread at a time, without a lock */
	size_t fail_at;   /* item that fails; ITEMS: none */
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
	if (i > s->fail_at)
		usleep(1000); /* on a loaded machine, let the thread of the failing item run */
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
		struct seen s = { .turns = TURNS_INIT, .fail_at = ITEMS };

		assert_int_equal(
			parallel_for(ITEMS, widths[w], seen_item, &s, NULL), 0);
		assert_int_equal(s.committed, ITEMS);
		for (size_t i = 0; i < ITEMS; i++) {
			assert_int_equal(s.worked[i], 1);
			assert_int_equal(s.finished[i], 1);
		}
	}
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
				parallel_for(ITEMS, width, seen_item, &s, &err),
				-EIO);
			assert_string_equal(err.text, "item 50");
			assert_true(s.committed >= 50);
			assert_true(s.committed < ITEMS);
		}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_item_is_done_once),
		cmocka_unit_test(after_a_failure_nothing_is_begun),
		cmocka_unit_test(the_message_is_that_of_the_result),
		cmocka_unit_test(two_threads_work_at_once),
		cmocka_unit_test(loops_within_loops_end),
		cmocka_unit_test(threads_are_used_again),
		cmocka_unit_test(a_forked_child_has_threads_of_its_own),
		cmocka_unit_test(who_waits_is_not_alone),
		cmocka_unit_test(every_item_goes_through_all_steps),
		cmocka_unit_test(an_error_ends_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
