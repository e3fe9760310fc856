/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: created in the background within the bound, reused, and never while
 * a mapping still shows them. */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "fs/backing/hugefs.h"
#include "fs/backing/passthrough.h"
#include "fs/backing/pool.h"
#include "fs/log/stats.h"
#include "tests/support/fakekernel.h"
#include "tests/support/unit.h"

#define MIB (UINT64_C(1) << 20)

struct fixture {
	struct passthrough passthrough;
	struct stats stats;
	struct pool *pool;
};

static void set_up(struct fixture *f, uint64_t bound)
{
	memset(f, 0, sizeof(*f));
	atomic_init(&f->passthrough.on, true);
	f->pool = pool_new(hugefs_mount(), bound, &f->passthrough, &f->stats);
	assert_non_null(f->pool);
}

static void tear_down(struct fixture *f)
{
	pool_stop(f->pool);
	pool_free(f->pool);
	assert_int_equal(f->stats.level[STATS_CACHE_BYTES], 0);
	assert_int_equal(fakekernel_ids(), 0);
}

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* A buffer, requested until it is there; NULL after ten seconds. */
static struct pool_buffer *take_new(struct pool *p, uint64_t size)
{
	struct pool_buffer *s = NULL;

	for (int i = 0; i < 10000 && !(s = pool_take(p, size)); i++) {
		pool_request(p, size);
		nap();
	}
	return s;
}

static void a_buffer_is_created_on_request(void **state)
{
	struct pool_buffer *s;
	struct fixture f;

	(void)state;
	set_up(&f, 16 * MIB);
	assert_null(pool_take(f.pool, 3 * MIB + 5));
	s = take_new(f.pool, 3 * MIB + 5);
	assert_non_null(s);
	assert_int_equal(s->size, 3 * MIB + 5);
	assert_int_equal(lseek(s->fd, 0, SEEK_END), 3 * MIB + 5);
	s->p[s->size - 1] = 7;
	assert_true(s->id > 0);
	pool_put(f.pool, s);
	tear_down(&f);
}

/* What is written to a buffer is what a handle of its id reads. */
static void a_buffer_is_its_file(void **state)
{
	struct pool_buffer *s;
	struct fixture f;
	char read[4];
	int fd;

	(void)state;
	set_up(&f, 16 * MIB);
	s = take_new(f.pool, MIB);
	memcpy(s->p + 1000, "abcd", 4);
	fd = fakekernel_open(s->id);
	assert_int_equal(pread(fd, read, 4, 1000), 4);
	assert_memory_equal(read, "abcd", 4);
	close(fd);
	assert_true(pool_put(f.pool, s));
	tear_down(&f);
}

static void an_unused_buffer_fits_files_of_half_its_size(void **state)
{
	static const struct {
		uint64_t size;
		bool fits;
	} cases[] = {
		{ 8 * MIB, true },  { 7 * MIB, true },
		{ 4 * MIB, true },  { 3 * MIB + 1, true },
		{ 2 * MIB, false }, { 8 * MIB + 1, false },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct pool_buffer *s, *again;
		struct fixture f;

		set_up(&f, 16 * MIB);
		s = take_new(f.pool, 8 * MIB);
		assert_int_equal(pool_fits(s, cases[i].size), cases[i].fits);
		pool_put(f.pool, s);
		again = pool_take(f.pool, cases[i].size);
		assert_int_equal(again != NULL, cases[i].fits);
		if (again) {
			assert_int_equal(lseek(again->fd, 0, SEEK_END),
					 cases[i].size);
			pool_put(f.pool, again);
		}
		tear_down(&f);
	}
}

static void the_bound_holds(void **state)
{
	struct pool_buffer *a, *b;
	struct fixture f;

	(void)state;
	set_up(&f, 8 * MIB);
	a = take_new(f.pool, 4 * MIB);
	b = take_new(f.pool, 4 * MIB);
	assert_non_null(b);
	assert_false(pool_has_room(f.pool, 1, 8 * MIB));
	pool_request(f.pool, 2 * MIB);
	for (int i = 0; i < 20; i++)
		nap();
	assert_null(pool_take(f.pool, 2 * MIB));
	assert_int_equal(f.stats.level[STATS_CACHE_BYTES], 8 * MIB);
	/* An unused buffer gives way to a request that needs its memory. */
	pool_put(f.pool, a);
	assert_true(pool_has_room(f.pool, 2 * MIB, 8 * MIB));
	a = take_new(f.pool, 1 * MIB);
	assert_non_null(a);
	pool_put(f.pool, a);
	pool_put(f.pool, b);
	pool_trim(f.pool);
	assert_int_equal(f.stats.level[STATS_CACHE_BYTES], 0);
	tear_down(&f);
}

static void a_mapped_buffer_is_not_reused(void **state)
{
	struct pool_buffer *s;
	struct fixture f;
	uint8_t *map;
	int fd;

	(void)state;
	set_up(&f, 4 * MIB);
	s = take_new(f.pool, 4 * MIB);
	s->p[0] = 42;
	fd = fakekernel_open(s->id);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	close(fd);
	assert_false(pool_put(f.pool, s));
	assert_null(pool_take(f.pool, 4 * MIB));
	assert_false(pool_has_room(f.pool, 1, 4 * MIB));
	assert_int_equal(map[0], 42);
	munmap(map, 4096);
	assert_ptr_equal(pool_take(f.pool, 4 * MIB), s);
	assert_true(pool_put(f.pool, s));
	tear_down(&f);
}

static void a_stop_ends_the_creation(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f, 1024 * MIB);
	pool_request(f.pool, 1024 * MIB);
	pool_stop(f.pool);
	pool_request(f.pool, MIB); /* ignored */
	tear_down(&f);
}

static void no_buffer_without_passthrough(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f, 8 * MIB);
	atomic_store(&f.passthrough.on, false);
	pool_request(f.pool, MIB);
	pool_stop(f.pool);
	assert_null(pool_take(f.pool, MIB));
	tear_down(&f);
	assert_null(pool_new(-1, 8 * MIB, &f.passthrough, &f.stats));
}

/* --- threads ----------------------------------------------------------------- */

#define THREADS 6

/* Each thread marks the buffer it has; nobody else may change the mark. */
static void *use_buffers(void *arg)
{
	struct fixture *const f = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;

	for (unsigned i = 0; i < 300; i++) {
		const uint64_t size = MIB * (1 + (unsigned)rand_r(&seed) % 4);
		struct pool_buffer *const s = pool_take(f->pool, size);
		const uint8_t mark = (uint8_t)rand_r(&seed);

		if (!s) {
			pool_request(f->pool, size);
			nap();
			continue;
		}
		s->p[0] = s->p[size - 1] = mark;
		if (i % 100 == 0)
			pool_trim(f->pool);
		if (s->size != size || s->p[0] != mark ||
		    s->p[size - 1] != mark ||
		    f->stats.level[STATS_CACHE_BYTES] > 16 * MIB)
			return "not alone";
		pool_put(f->pool, s);
	}
	return NULL;
}

static void threads_never_share_a_buffer(void **state)
{
	pthread_t threads[THREADS];
	struct fixture f;
	void *failed;

	(void)state;
	set_up(&f, 16 * MIB);
	for (size_t i = 0; i < THREADS; i++)
		assert_int_equal(
			pthread_create(&threads[i], NULL, use_buffers, &f), 0);
	for (size_t i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &failed);
		assert_null(failed);
	}
	tear_down(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_buffer_is_created_on_request),
		cmocka_unit_test(a_buffer_is_its_file),
		cmocka_unit_test(an_unused_buffer_fits_files_of_half_its_size),
		cmocka_unit_test(the_bound_holds),
		cmocka_unit_test(a_mapped_buffer_is_not_reused),
		cmocka_unit_test(a_stop_ends_the_creation),
		cmocka_unit_test(no_buffer_without_passthrough),
		cmocka_unit_test(threads_never_share_a_buffer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
