/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Read-ahead: bytes are right, each is read at most once and only for a reader, memory stays within
 * its limit, and readers get errors.
 */
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/remote/cache.h"
#include "ckpt/remote/latency.h"
#include "gpu/backend/splitmix.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

#define MIB (UINT64_C(1) << 20)

/* A store that returns a known byte i for each file f. */
struct store {
	atomic_ullong bytes; /* bytes read so far */
	atomic_int calls, under_way;
	atomic_bool failing, stopped;
	const pthread_t *spared; /* thread that is never blocked */
	useconds_t delay;
};

static uint8_t byte_at(uint32_t file, uint64_t i)
{
	return (uint8_t)((i * 31 + (i >> 11) + file * 7) & 0xff);
}

static int fill(void *ctx, uint32_t file, void *buf, size_t len, uint64_t off, struct errmsg *err)
{
	struct store *s = ctx;
	uint8_t *p = buf;

	atomic_fetch_add(&s->under_way, 1);
	while (atomic_load(&s->stopped) &&
	       !(s->spared && pthread_equal(*s->spared, pthread_self())))
		usleep(100);
	usleep(s->delay);
	atomic_fetch_add(&s->calls, 1);
	atomic_fetch_add(&s->bytes, len);
	for (size_t i = 0; i < len; i++)
		p[i] = byte_at(file, off + i);
	atomic_fetch_sub(&s->under_way, 1);
	return atomic_load(&s->failing) ? errmsg_set(err, -EIO, "file %u: gone", file) : 0;
}

static void assert_reads(struct cache *c, uint32_t file, uint64_t off, size_t len)
{
	uint8_t *buf = malloc(len + 1);
	struct errmsg err = { "" };

	assert_int_equal(cache_read(c, file, buf, len, off, &err), 0);
	for (size_t i = 0; i < len; i++)
		if (buf[i] != byte_at(file, off + i))
			fail_msg("byte %llu is wrong", (unsigned long long)(off + i));
	free(buf);
}

static struct cache *new_cache(cache_check *check, struct store *s)
{
	return cache_new(test_context(),
			 &(struct cache_config){ .fill = fill, .check = check, .ctx = s });
}

static void a_reader_does_not_wait_for_threads_that_hang(void **state)
{
	const pthread_t self = pthread_self();
	struct store s = { .stopped = true, .spared = &self };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 256 * MIB, 0, false);
	/* Queue more bytes than all threads together take. */
	assert_int_equal(cache_prefetch(c, 1, 0, 200 * MIB, WANT_NEXT), 200 * MIB);
	assert_reads(c, 1, 199 * MIB, MIB);
	atomic_store(&s.stopped, false);
	cache_free(c);
	cache_trim(test_context());
}

static void each_byte_is_read_once(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 64 * MIB, 0, false);
	assert_int_equal(cache_prefetch(c, 1, 1000, 5 * MIB, WANT_NEXT), 5 * MIB);
	/* Queued bytes are not queued again. */
	assert_int_equal(cache_prefetch(c, 1, 0, 6 * MIB, WANT_NEXT), 6 * MIB);
	for (uint64_t at = 0; at < 6 * MIB; at += 12345)
		assert_reads(c, 1, at, at + 12345 < 6 * MIB ? 12345 : (size_t)(6 * MIB - at));
	assert_int_equal(s.bytes, 6 * MIB);
	cache_trim(test_context());
	assert_int_equal(cache_bytes(test_context()), 0);
	cache_free(c);
}

static void only_what_is_wanted_is_read(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 64 * MIB, 0, false);
	for (uint64_t i = 0; i < 100; i++)
		assert_int_equal(cache_prefetch(c, 0, i * 9999, 77, WANT_LATER), 77);
	for (uint64_t i = 0; i < 100; i++)
		assert_reads(c, 0, i * 9999, 77);
	assert_int_equal(s.bytes, 7700);
	/* The reader also gets the bytes between both ranges. */
	assert_int_equal(cache_prefetch(c, 0, 5000, 1000, WANT_NEXT), 1000);
	assert_reads(c, 0, 4000, 3000);
	assert_int_equal(s.bytes, 7700 + 3000);
	cache_free(c);
}

static void two_readers_share_what_is_wanted_twice(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 64 * MIB, 0, false);
	for (int i = 0; i < 2; i++)
		assert_int_equal(cache_prefetch(c, 0, 0, 3 * MIB, WANT_LATER), 3 * MIB);
	for (int i = 0; i < 2; i++)
		assert_reads(c, 0, 0, 3 * MIB);
	assert_int_equal(s.bytes, 3 * MIB);
	assert_reads(c, 0, 0, 10);
	assert_int_equal(s.bytes, 3 * MIB + 10);
	cache_free(c);
}

static void kept_bytes_are_there_for_others(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 8 * MIB, 0, true);
	assert_int_equal(cache_prefetch(c, 0, 0, 3 * MIB, WANT_NEXT), 3 * MIB);
	for (int i = 0; i < 3; i++)
		assert_reads(c, 0, 0, 3 * MIB);
	assert_int_equal(s.bytes, 3 * MIB);
	/* until the memory is needed */
	assert_int_equal(cache_prefetch(c, 1, 0, 8 * MIB, WANT_NEXT), 8 * MIB);
	assert_reads(c, 1, 0, 8 * MIB);
	assert_true(cache_bytes(test_context()) <= 8 * MIB);
	cache_free(c);
}

static void memory_is_bounded(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 8 * MIB, 0, false);
	assert_int_equal(cache_prefetch(c, 0, 0, 100 * MIB, WANT_LATER), 5 * MIB);
	assert_int_equal(cache_prefetch(c, 0, 0, 100 * MIB, WANT_NEXT), 8 * MIB);
	assert_int_equal(cache_prefetch(c, 1, 0, 1, WANT_NEXT), 0);
	assert_reads(c, 0, 0, 2 * MIB);
	assert_int_equal(cache_prefetch(c, 1, 0, 100 * MIB, WANT_NEXT), 2 * MIB);
	assert_true(cache_bytes(test_context()) <= 8 * MIB);
	/* Without cache memory a read still succeeds. */
	assert_reads(c, 2, 123, 3 * MIB);
	cache_free(c);
	cache_trim(test_context());
	assert_int_equal(cache_bytes(test_context()), 0);
}

/* Prefetches of other files do not evict a file that is being read. */
static void what_was_read_last_is_there_again(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 32 * MIB, 0, true);
	assert_int_equal(cache_prefetch(c, 0, 0, 100 * MIB, WANT_NEXT), 30 * MIB);
	assert_int_equal(cache_prefetch(c, 1, 0, MIB, WANT_NEXT), 0);
	assert_int_equal(cache_prefetch(c, 1, 0, MIB, WANT_NOW), MIB);
	for (int i = 0; i < 3; i++)
		assert_reads(c, 1, 0, MIB);
	assert_reads(c, 0, 0, 30 * MIB);
	assert_int_equal(s.bytes, 31 * MIB);
	assert_true(cache_bytes(test_context()) <= 32 * MIB);
	cache_free(c);
}

static void nothing_is_read_ahead_without_memory(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), CACHE_MIN - 1, 0, false);
	assert_int_equal(cache_limit(test_context()), 0);
	assert_int_equal(cache_prefetch(c, 0, 0, 100, WANT_NEXT), 0);
	assert_reads(c, 0, 0, 3 * MIB);
	cache_free(c);
}

static void errors_reach_the_reader(void **state)
{
	struct store s = { .failing = true };
	struct cache *c = new_cache(NULL, &s);
	struct errmsg err = { "" };
	char buf[100];

	cache_set_limit(test_context(), 8 * MIB, 0, false);
	cache_prefetch(c, 3, 0, MIB, WANT_NEXT);
	assert_int_equal(cache_read(c, 3, buf, 100, 50, &err), -EIO);
	assert_string_equal(err.text, "file 3: gone");
	/* The store may have recovered. */
	atomic_store(&s.failing, false);
	assert_reads(c, 3, 50, 100);
	cache_free(c);
}

static void ends_while_requests_are_under_way(void **state)
{
	struct store s = { .stopped = true };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 64 * MIB, 0, false);
	cache_prefetch(c, 0, 0, 60 * MIB, WANT_NEXT);
	while (atomic_load(&s.under_way) == 0)
		usleep(100);
	atomic_store(&s.stopped, false);
	cache_free(c);
	assert_int_equal(s.under_way, 0);
}

/* A checksum and then the file's reader do this. */
static void a_forked_child_has_threads_of_its_own(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);
	int status = -1;
	pid_t child;

	cache_set_limit(test_context(), 64 * MIB, 0, false);
	cache_prefetch(c, 1, 0, 8 * MIB, WANT_NEXT);
	assert_reads(c, 1, 0, 8 * MIB);
	child = fork();
	if (child == 0) {
		alarm(20);
		cache_prefetch(c, 1, 8 * MIB, 8 * MIB, WANT_NEXT);
		assert_reads(c, 1, 8 * MIB, 8 * MIB);
		cache_free(c);
		context_free(test_context());
		_exit(0);
	}
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	cache_free(c);
}

static void a_file_that_is_read_again_has_memory_of_its_own(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	cache_set_limit(test_context(), 8 * MIB, 16 * MIB, true);
	for (uint64_t at = 0; at < 20 * MIB; at += MIB) {
		assert_int_equal(cache_prefetch(c, 0, at, MIB, WANT_NEXT), MIB);
		assert_int_equal(cache_prefetch(c, 0, at, MIB, WANT_LATER), MIB);
		assert_reads(c, 0, at, MIB);
	}
	/* Other bytes can be prefetched meanwhile, but only a part of them fits. */
	assert_int_equal(cache_prefetch(c, 1, 0, 4 * MIB, WANT_NEXT), 4 * MIB);
	assert_int_equal(cache_prefetch(c, 2, 0, 20 * MIB, WANT_LATER), 0);
	assert_true(cache_bytes(test_context()) <= 28 * MIB);
	for (uint64_t at = 0; at < 20 * MIB; at += MIB)
		assert_reads(c, 0, at, MIB);
	assert_reads(c, 1, 0, 4 * MIB);
	assert_int_equal(s.bytes, 24 * MIB);
	assert_true(cache_bytes(test_context()) <= 8 * MIB);
	cache_free(c);
	cache_trim(test_context());
}

#define BLOCK (UINT64_C(64) << 10)

/* Keep a block and read a part of it. */
static void use_block(struct cache *c, uint64_t i)
{
	assert_int_equal(cache_prefetch(c, 0, i * BLOCK, BLOCK, WANT_NOW), BLOCK);
	assert_reads(c, 0, i * BLOCK + 100, 5000);
}

static void the_least_recently_used_of_kept_blocks_goes(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);

	/* Blocks are cached without read-ahead, too; each takes slightly more memory than its
	 * bytes. */
	cache_set_limit(test_context(), 0, 0, false);
	for (uint64_t i = 0; i < 63; i++)
		use_block(c, i);
	use_block(c, 0);
	assert_int_equal(s.bytes, 63 * BLOCK);
	use_block(c, 63); /* evicts block 1 */
	use_block(c, 0);
	use_block(c, 2);
	assert_int_equal(s.bytes, 64 * BLOCK);
	use_block(c, 1);
	assert_int_equal(s.bytes, 65 * BLOCK);
	assert_true(cache_bytes(test_context()) <= CACHE_MIN);
	cache_free(c);
	assert_int_equal(cache_bytes(test_context()), 0);
}

static void caches_do_not_mix(void **state)
{
	struct store s = { 0 }, other = { 0 };
	struct cache *c = new_cache(NULL, &s);
	struct cache *d = new_cache(NULL, &other);

	use_block(c, 0);
	use_block(d, 0);
	assert_int_equal(s.bytes, BLOCK);
	assert_int_equal(other.bytes, BLOCK);
	cache_free(c);
	use_block(d, 0);
	assert_int_equal(other.bytes, BLOCK);
	cache_free(d);
}

static void lent_blocks_stay(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);
	struct cache_pin l;

	cache_set_limit(test_context(), 0, 0, false);
	use_block(c, 0);
	assert_true(cache_pin(c, 0, 7, 20, &l));
	for (uint64_t i = 1; i < 100; i++)
		use_block(c, i);
	assert_int_equal(l.len, 20);
	for (uint64_t i = 0; i < 20; i++)
		assert_int_equal(l.p[i], byte_at(0, 7 + i));
	cache_unpin(&l, true);
	assert_true(cache_bytes(test_context()) <= CACHE_MIN);
	cache_free(c);
}

static int use_one(void *ctx, size_t i, struct errmsg *err)
{
	char buf[10];

	cache_prefetch(ctx, 0, 0, BLOCK, WANT_NOW);
	return cache_read(ctx, 0, buf, sizeof(buf), i, err);
}

static void one_of_many_readers_fetches(void **state)
{
	struct store s = { .delay = 20000 };
	struct cache *c = new_cache(NULL, &s);
	struct errmsg err = { "" };

	cache_set_limit(test_context(), 8 * MIB, 0, false);
	assert_int_equal(parallel_for(8, 8, use_one, c, &err), 0);
	assert_int_equal(s.bytes, BLOCK);
	cache_free(c);
}

static void *use_in_thread(void *c)
{
	struct errmsg err = { "" };

	assert_int_equal(use_one(c, 0, &err), 0);
	return NULL;
}

/* A reader that waits for another reader's block is woken even if threads were started
 * meanwhile. */
static void the_first_threads_begin_while_readers_wait(void **state)
{
	struct store s = { .stopped = true };
	struct uckpt *u = context_new();
	struct cache *c = cache_new(u, &(struct cache_config){ .fill = fill, .ctx = &s });
	pthread_t readers[2];

	alarm(20);
	cache_set_limit(u, 8 * MIB, 0, false);
	for (size_t i = 0; i < COUNT(readers); i++)
		assert_int_equal(pthread_create(&readers[i], NULL, use_in_thread, c), 0);
	while (!s.under_way)
		usleep(100);
	usleep(20000);
	cache_prefetch(c, 1, 0, 2 * MIB, WANT_NEXT);
	s.stopped = false;
	for (size_t i = 0; i < COUNT(readers); i++)
		pthread_join(readers[i], NULL);
	alarm(0);
	cache_free(c);
	context_free(u);
}

/* A waiting reader does not retry an unresponsive store. */
static void what_a_reader_cannot_fetch_fails_at_once(void **state)
{
	struct store s = { .failing = true };
	struct cache *c = new_cache(NULL, &s);
	struct errmsg err = { "" };

	assert_int_equal(use_one(c, 0, &err), -EIO);
	assert_string_equal(err.text, "file 0: gone");
	assert_int_equal(s.calls, 1);
	assert_false(cache_has_blocks(c));
	cache_free(c);
}

/* Runs of a pack's blocks may begin at any offset. */
static void blocks_may_cross_pieces(void **state)
{
	struct store s = { 0 };
	struct cache *c = cache_new(
		test_context(), &(struct cache_config){ .fill = fill, .ctx = &s, .crosses = true });

	cache_set_limit(test_context(), 8 * MIB, 0, false);
	for (uint64_t i = 0; i < 5; i++) {
		const uint64_t off = i * MIB + 3 * BLOCK;

		assert_int_equal(cache_prefetch(c, 0, off, MIB + BLOCK, WANT_NOW), MIB + BLOCK);
		assert_reads(c, 0, off + 10, MIB);
	}
	assert_int_equal(s.bytes, 5 * MIB + BLOCK);
	cache_free(c);
}

static _Atomic int checked;

static int check_changed(void *ctx, uint32_t file, struct errmsg *err)
{
	checked++;
	return file == 1 ? errmsg_set(err, -EIO, "file 1 has changed") : 0;
}

static void bytes_of_a_file_that_has_changed_are_not_given(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(check_changed, &s);
	struct errmsg err = { "" };
	uint8_t byte;

	cache_set_limit(test_context(), 8 * MIB, 0, false);
	cache_prefetch(c, 0, 0, MIB, WANT_NEXT);
	cache_prefetch(c, 1, 0, MIB, WANT_NEXT);
	assert_reads(c, 0, 0, MIB);
	assert_int_equal(cache_read(c, 1, &byte, 1, 0, &err), -EIO);
	assert_string_equal(err.text, "file 1 has changed");
	assert_int_equal(checked, 3);
	cache_free(c);
}

/* Threads prefetch and read random ranges. */
struct mind {
	struct cache *c;
	uint64_t seed;
};

static void *want_and_read(void *arg)
{
	struct mind *m = arg;

	for (int i = 0; i < 300; i++) {
		const uint32_t file = splitmix64_next(&m->seed) % 3;
		const uint64_t off = splitmix64_next(&m->seed) % (8 * MIB);
		const uint64_t len = splitmix64_next(&m->seed) % (200u << 10);
		const enum want when = splitmix64_next(&m->seed) % 3;

		if (splitmix64_next(&m->seed) % 3)
			cache_prefetch(m->c, file, off, len, when);
		else
			assert_reads(m->c, file, off, (size_t)len);
	}
	return NULL;
}

static void many_readers_at_once(void **state)
{
	struct store s = { 0 };
	struct cache *c = new_cache(NULL, &s);
	struct mind minds[4];
	pthread_t threads[4];

	for (int keep = 0; keep < 2; keep++) {
		cache_set_limit(test_context(), 6 * MIB, 0, keep);
		for (unsigned i = 0; i < 4; i++) {
			minds[i] = (struct mind){ c, i + 1 };
			pthread_create(&threads[i], NULL, want_and_read, &minds[i]);
		}
		for (int i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
		assert_true(cache_bytes(test_context()) <= 6 * MIB);
	}
	cache_free(c);
}

/* The store has a constant latency per request and serves `most` requests in parallel. */
static void the_width_finds_what_the_store_has(void **state)
{
	static const struct {
		unsigned most, atleast, atmost;
	} cases[] = {
		{ 8, 4, 32 },
		{ 64, 64, 128 },
		{ 1000, 128, 128 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct request_width w;
		uint64_t now = 1;

		request_width_init(&w, 32);
		for (int n = 0; n < 200000; n++) {
			const unsigned at_once = w.width < cases[i].most ? w.width : cases[i].most;

			now += 2000000 / at_once;
			request_width_done(&w, MIB, true, now);
		}
		assert_true(w.settled >= cases[i].atleast && w.settled <= cases[i].atmost);
	}
}

static void a_store_is_slow_if_it_lets_us_sleep(void **state)
{
	struct latency f = { 0 };
	struct latency_request q;

	assert_false(latency_maybe_high(&f));
	/* On a busy machine the interval may end before the thread sleeps. */
	for (int i = 0; i < 20 && !latency_maybe_high(&f); i++) {
		latency_begin(&f, &q, SIZE_MAX);
		usleep(2000);
		latency_end(&f, &q);
	}
	/* A fast store may have one slow request. */
	assert_true(latency_is_high(&f));
	latency_begin(&f, &q, MIB);
	latency_end(&f, &q);
	assert_false(latency_is_high(&f));
	for (int i = 0; i < 5; i++) {
		latency_begin(&f, &q, 10);
		usleep(2000);
		latency_end(&f, &q);
	}
	assert_true(latency_is_high(&f));
	for (int i = 0; i < 50; i++) {
		latency_begin(&f, &q, MIB);
		latency_end(&f, &q);
	}
	assert_false(latency_maybe_high(&f));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_byte_is_read_once),
		cmocka_unit_test(a_reader_does_not_wait_for_threads_that_hang),
		cmocka_unit_test(only_what_is_wanted_is_read),
		cmocka_unit_test(two_readers_share_what_is_wanted_twice),
		cmocka_unit_test(kept_bytes_are_there_for_others),
		cmocka_unit_test(memory_is_bounded),
		cmocka_unit_test(what_was_read_last_is_there_again),
		cmocka_unit_test(a_forked_child_has_threads_of_its_own),
		cmocka_unit_test(a_file_that_is_read_again_has_memory_of_its_own),
		cmocka_unit_test(the_least_recently_used_of_kept_blocks_goes),
		cmocka_unit_test(caches_do_not_mix),
		cmocka_unit_test(lent_blocks_stay),
		cmocka_unit_test(one_of_many_readers_fetches),
		cmocka_unit_test(the_first_threads_begin_while_readers_wait),
		cmocka_unit_test(what_a_reader_cannot_fetch_fails_at_once),
		cmocka_unit_test(blocks_may_cross_pieces),
		cmocka_unit_test(bytes_of_a_file_that_has_changed_are_not_given),
		cmocka_unit_test(nothing_is_read_ahead_without_memory),
		cmocka_unit_test(errors_reach_the_reader),
		cmocka_unit_test(ends_while_requests_are_under_way),
		cmocka_unit_test(many_readers_at_once),
		cmocka_unit_test(the_width_finds_what_the_store_has),
		cmocka_unit_test(a_store_is_slow_if_it_lets_us_sleep),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
