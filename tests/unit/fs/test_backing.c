/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How opens are answered.  The tree is tests/support/faketree, the kernel
 * tests/support/fakekernel.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/shardcache.h"
#include "fs/backing/backing.h"
#include "fs/backing/passthrough.h"
#include "fs/log/stats.h"
#include "tests/make/mkckpt.h"
#include "tests/support/fakekernel.h"
#include "tests/support/faketree.h"
#include "tests/support/unit.h"

static void nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
}

/* --- handles ------------------------------------------------------------------ */

struct fixture {
	struct tree tree;
	struct passthrough passthrough;
	struct stats stats;
	struct backing *b;
};

static void set_up(struct fixture *f, uint64_t cache_size)
{
	const struct backing_options o = { .no_cache = cache_size == 0,
					   .cache_size = cache_size };

	memset(f, 0, sizeof(*f));
	faketree_make(&f->tree);
	atomic_init(&f->passthrough.on, true);
	f->b = backing_new(&o, &f->tree, &f->passthrough, &f->stats);
	assert_non_null(f->b);
}

static void tear_down(struct fixture *f)
{
	backing_stop(f->b);
	backing_free(f->b);
	faketree_done(&f->tree);
	assert_int_equal(f->stats.level[STATS_CACHE_BYTES], 0);
	assert_int_equal(fakekernel_ids(), 0);
}

static uint64_t count(const struct fixture *f, enum stats_count what)
{
	return f->stats.count[what];
}

struct handle {
	struct backing_use use;
	struct tree_file file;
	pthread_mutex_t lock; /* protects the rest */
	pthread_cond_t answered;
	unsigned answers;
	int rc;
	struct errmsg err;
};

static void take_answer(struct backing_use *use, int rc,
			const struct errmsg *err)
{
	struct handle *const h = (struct handle *)use;

	pthread_mutex_lock(&h->lock);
	h->answers++;
	h->rc = rc;
	if (rc < 0)
		h->err = *err;
	pthread_cond_signal(&h->answered);
	pthread_mutex_unlock(&h->lock);
}

/* Open, and wait for the answer. */
static int open_handle(struct fixture *f, struct handle *h, uint64_t ino,
		       bool nonblock)
{
	int rc;

	memset(h, 0, sizeof(*h));
	pthread_mutex_init(&h->lock, NULL);
	pthread_cond_init(&h->answered, NULL);
	h->use.answer = take_answer;
	tree_file_open(&f->tree, ino, &h->file, NULL);
	backing_open(f->b, ino, &h->file, nonblock, &h->use);
	pthread_mutex_lock(&h->lock);
	while (!h->answers)
		pthread_cond_wait(&h->answered, &h->lock);
	rc = h->rc;
	pthread_mutex_unlock(&h->lock);
	return rc;
}

static void close_handle(struct fixture *f, struct handle *h)
{
	if (h->rc >= 0)
		backing_release(f->b, &h->use);
	pthread_cond_destroy(&h->answered);
	pthread_mutex_destroy(&h->lock);
}

static int open_and_close(struct fixture *f, uint64_t ino)
{
	struct handle h;
	const int rc = open_handle(f, &h, ino, false);

	close_handle(f, &h);
	return rc;
}

/* Open and close until the file is in the cache: its buffer is created in the
 * background. */
static void bring_into_cache(struct fixture *f, uint64_t ino)
{
	for (int i = 0; open_and_close(f, ino) != BACKING_PASS; i++) {
		assert_true(i < 10000);
		nap();
	}
}

static bool is_cached(struct fixture *f, uint64_t ino)
{
	struct handle h;
	const int rc = open_handle(f, &h, ino, true);

	close_handle(f, &h);
	return rc == BACKING_PASS;
}

/* Are these the file's bytes, at both ends and its right size? */
static bool has_bytes(int id, uint64_t ino)
{
	const int fd = fakekernel_open(id);
	const uint64_t size = faketree_size(ino);
	uint8_t first = 0, last = 0, beyond;
	const bool good = pread(fd, &first, 1, 0) == 1 &&
			  pread(fd, &last, 1, (off_t)size - 1) == 1 &&
			  pread(fd, &beyond, 1, (off_t)size) == 0 &&
			  first == ino && last == ino;

	close(fd);
	return good;
}

/* --- one opener ------------------------------------------------------------------ */

static void files_that_cannot_be_cached_are_streamed(void **state)
{
	static const struct {
		const char *what;
		uint64_t cache_size, ino;
	} cases[] = {
		{ "less than 1 MiB", 64 * MIB, SMALL },
		{ "more than half the cache", 7 * MIB, LARGE },
		{ "no cache", 0, 1 },
	};

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct fixture f;

		set_up(&f, cases[i].cache_size);
		for (int k = 0; k < 5; k++)
			if (open_and_close(&f, cases[i].ino) != BACKING_STREAM)
				fail_msg("%s", cases[i].what);
		assert_int_equal(count(&f, STATS_OPENS_STREAMED), 5);
		assert_int_equal(count(&f, STATS_CACHE_MISSES), 0);
		tear_down(&f);
	}
}

static void a_file_is_streamed_until_there_is_a_buffer(void **state)
{
	struct handle a, b;
	struct fixture f;

	(void)state;
	set_up(&f, 64 * MIB);
	assert_int_equal(open_handle(&f, &a, 1, false), BACKING_STREAM);
	assert_int_equal(count(&f, STATS_NO_BUFFER), 1);
	/* While one handle is streamed, all are. */
	nanosleep(&(struct timespec){ .tv_nsec = 100000000 }, NULL);
	assert_int_equal(open_handle(&f, &b, 1, false), BACKING_STREAM);
	close_handle(&f, &a);
	close_handle(&f, &b);
	bring_into_cache(&f, 1);
	assert_int_equal(count(&f, STATS_ASSEMBLED), 1);
	tear_down(&f);
}

static void handles_of_a_cached_file_share_its_id(void **state)
{
	struct handle a, b, c;
	struct fixture f;

	(void)state;
	set_up(&f, 64 * MIB);
	bring_into_cache(&f, 1);
	assert_int_equal(open_handle(&f, &a, 1, false), BACKING_PASS);
	assert_int_equal(open_handle(&f, &b, 1, true), BACKING_PASS);
	assert_int_equal(a.use.id, b.use.id);
	assert_true(has_bytes(a.use.id, 1));
	close_handle(&f, &a);
	close_handle(&f, &b);
	assert_int_equal(open_handle(&f, &c, 1, false), BACKING_PASS);
	assert_int_equal(c.use.id, a.use.id);
	close_handle(&f, &c);
	assert_int_equal(count(&f, STATS_ASSEMBLED), 1);
	assert_int_equal(count(&f, STATS_CACHE_HITS), 3);
	tear_down(&f);
}

static void a_nonblocking_open_assembles_nothing(void **state)
{
	struct handle a;
	struct fixture f;

	(void)state;
	set_up(&f, 64 * MIB);
	bring_into_cache(&f, 1); /* so that there is a buffer to evict */
	assert_int_equal(open_handle(&f, &a, 2, true), BACKING_STREAM);
	close_handle(&f, &a);
	assert_int_equal(count(&f, STATS_ASSEMBLED), 1);
	assert_true(is_cached(&f, 1));
	tear_down(&f);
}

static void a_shard_is_passed_through(void **state)
{
	struct handle a, b;
	struct fixture f;

	(void)state;
	set_up(&f, 0);
	assert_int_equal(open_handle(&f, &a, SHARD, true), BACKING_PASS);
	assert_int_equal(open_handle(&f, &b, SHARD, false), BACKING_PASS);
	assert_int_equal(a.use.id, b.use.id);
	close_handle(&f, &a);
	assert_int_equal(fakekernel_ids(), 1);
	close_handle(&f, &b);
	assert_int_equal(fakekernel_ids(), 0);
	assert_int_equal(count(&f, STATS_OPENS_PASSTHROUGH), 2);
	tear_down(&f);
}

static void a_shard_is_streamed_if_the_kernel_refuses(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f, 0);
	atomic_store(&f.passthrough.on, false);
	assert_int_equal(open_and_close(&f, SHARD), BACKING_STREAM);
	tear_down(&f);
}

static void an_error_reaches_the_opener(void **state)
{
	struct fixture f;
	struct handle h;

	(void)state;
	set_up(&f, 64 * MIB);
	bring_into_cache(&f, 1);
	for (int i = 0; i < 3; i++) {
		assert_int_equal(open_handle(&f, &h, BROKEN, false), -EIO);
		assert_non_null(strstr(h.err.text, "broken"));
		close_handle(&f, &h);
	}
	assert_int_equal(count(&f, STATS_ASSEMBLED), 1);
	/* Its buffer is free again. */
	assert_int_equal(open_and_close(&f, 2), BACKING_PASS);
	tear_down(&f);
}

/* --- eviction ---------------------------------------------------------------------- */

/* Buffers take whole huge pages of 2 MiB: three files fit. */
static void the_least_recently_used_file_is_evicted(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f, 6 * MIB);
	do
		for (uint64_t i = 1; i <= 3; i++)
			bring_into_cache(&f, i);
	while (!is_cached(&f, 1) || !is_cached(&f, 2) || !is_cached(&f, 3));
	assert_int_equal(open_and_close(&f, 1), BACKING_PASS);
	bring_into_cache(&f, 4);
	assert_true(is_cached(&f, 1));
	assert_false(is_cached(&f, 2));
	assert_true(is_cached(&f, 3));
	assert_true(is_cached(&f, 4));
	tear_down(&f);
}

/* Have so much memory filled with what was read ahead, until the files are closed. */
static struct shardcache *read_ahead(const char *dir, uint64_t size)
{
	struct shardcache *const c = shardcache_new();
	char path[PATH_MAX];
	struct fileid id;
	struct stat st;
	int fd;

	snprintf(path, sizeof(path), "%s/shard", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(ftruncate(fd, (off_t)size), 0);
	assert_int_equal(fstat(fd, &st), 0);
	close(fd);
	fileid_from_stat(&st, &id);
	assert_int_equal(shardcache_add(c, path, &id), 0);
	assert_int_equal(shardcache_want(c, 0, 0, size, READAHEAD_NEXT), size);
	return c;
}

/* It leaves too little for another buffer, for which the file to evict would go first. */
static void what_is_read_ahead_takes_memory_from_files(void **state)
{
	char *const dir = mkckpt_new_dir();
	struct shardcache *c;
	struct fixture f;

	(void)state;
	set_up(&f, 6 * MIB);
	bring_into_cache(&f, 1);
	c = read_ahead(dir, 5 * MIB);
	assert_int_equal(open_and_close(&f, 2), BACKING_PASS);
	assert_false(is_cached(&f, 1));
	assert_true(is_cached(&f, 2));
	shardcache_free(c);
	readahead_trim(); /* memory for the next test */
	mkckpt_free_dir(dir);
	tear_down(&f);
}

static void an_open_file_is_not_evicted(void **state)
{
	struct handle h[3], more;
	struct fixture f;

	(void)state;
	set_up(&f, 6 * MIB);
	for (unsigned i = 0; i < 3; i++) {
		bring_into_cache(&f, i + 1);
		assert_int_equal(open_handle(&f, &h[i], i + 1, false),
				 BACKING_PASS);
	}
	assert_int_equal(open_handle(&f, &more, 4, false), BACKING_STREAM);
	close_handle(&f, &more);
	for (unsigned i = 0; i < 3; i++) {
		assert_true(has_bytes(h[i].use.id, i + 1));
		close_handle(&f, &h[i]);
	}
	tear_down(&f);
}

/* The kernel keeps a mapping after the last close. */
static void a_mapping_keeps_its_bytes_after_eviction(void **state)
{
	const uint8_t *map;
	struct fixture f;
	struct handle h;
	int fd;

	(void)state;
	set_up(&f, 6 * MIB);
	bring_into_cache(&f, 1);
	assert_int_equal(open_handle(&f, &h, 1, false), BACKING_PASS);
	fd = fakekernel_open(h.use.id);
	map = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	assert_true(map != MAP_FAILED);
	close(fd);
	close_handle(&f, &h);
	for (uint64_t i = 2; i <= FILES; i++)
		bring_into_cache(&f, i);
	assert_false(is_cached(&f, 1));
	assert_int_equal(map[0], 1);
	assert_true(count(&f, STATS_STILL_MAPPED) > 0);
	munmap((void *)map, 4096);
	tear_down(&f);
}

/* --- prefetching ------------------------------------------------------------------- */

static void files_of_a_loader_in_order_are_prefetched(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f, 12 * MIB); /* not enough for all files */
	backing_start(f.b);
	for (int pass = 0; pass < 1000 && (!count(&f, STATS_PREFETCHED) ||
					   !count(&f, STATS_CACHE_HITS));
	     pass++)
		for (uint64_t i = 1; i <= FILES; i++) {
			assert_true(open_and_close(&f, i) >= 0);
			nap();
		}
	assert_true(count(&f, STATS_PREFETCHED) > 0);
	assert_true(count(&f, STATS_CACHE_HITS) > 0);
	tear_down(&f);
}

/* --- threads ----------------------------------------------------------------------- */

#define THREADS 8
#define OPENS 400

struct crowd {
	struct fixture f;
	/* Handles by inode that their openers hold. */
	atomic_int streamed[INODES], passed[INODES];
};

/* What the kernel would refuse, or a reader would notice. */
static const char *defect_of(struct crowd *c, const struct handle *h,
			     uint64_t ino)
{
	if (ino == BROKEN)
		return h->rc == -EIO || h->rc == BACKING_STREAM
			       ? NULL
			       : "a broken file was passed through";
	if (h->rc < 0)
		return "a good file failed";
	if (h->rc == BACKING_STREAM)
		return atomic_load(&c->passed[ino]) ? "a mixture" : NULL;
	if (atomic_load(&c->streamed[ino]))
		return "a mixture";
	return ino == SHARD || has_bytes(h->use.id, ino) ? NULL : "other bytes";
}

static void *open_at_random(void *arg)
{
	struct crowd *const c = arg;
	unsigned seed = (unsigned)(uintptr_t)&seed;
	const char *defect = NULL;

	for (unsigned i = 0; i < OPENS && !defect; i++) {
		const uint64_t ino = 1 + (unsigned)rand_r(&seed) % (INODES - 1);
		atomic_int *held;
		struct handle h;

		open_handle(&c->f, &h, ino, rand_r(&seed) % 8 == 0);
		held = h.rc == BACKING_PASS ? &c->passed[ino]
					    : &c->streamed[ino];
		if (h.rc >= 0)
			atomic_fetch_add(held, 1);
		defect = defect_of(c, &h, ino);
		if (h.answers != 1)
			defect = "answered twice";
		if (rand_r(&seed) % 4 == 0)
			nap();
		if (h.rc >= 0)
			atomic_fetch_sub(held, 1);
		close_handle(&c->f, &h);
	}
	return (void *)defect;
}

static void concurrent_opens_agree(void **state)
{
	static const uint64_t sizes[] = { 9 * MIB, 64 * MIB };

	(void)state;
	for (size_t k = 0; k < COUNT(sizes); k++) {
		static struct crowd c;
		pthread_t threads[THREADS];
		void *defect;

		memset(&c, 0, sizeof(c));
		set_up(&c.f, sizes[k]);
		backing_start(c.f.b);
		/* Buffers are created while processors are idle, and a crowd
		 * on a busy machine leaves no such moment. */
		bring_into_cache(&c.f, 1);
		for (size_t i = 0; i < THREADS; i++)
			assert_int_equal(pthread_create(&threads[i], NULL,
							open_at_random, &c),
					 0);
		for (size_t i = 0; i < THREADS; i++) {
			pthread_join(threads[i], &defect);
			if (defect)
				fail_msg("%s", (const char *)defect);
		}
		assert_true(count(&c.f, STATS_CACHE_HITS) > 0);
		tear_down(&c.f);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(files_that_cannot_be_cached_are_streamed),
		cmocka_unit_test(a_file_is_streamed_until_there_is_a_buffer),
		cmocka_unit_test(handles_of_a_cached_file_share_its_id),
		cmocka_unit_test(a_nonblocking_open_assembles_nothing),
		cmocka_unit_test(a_shard_is_passed_through),
		cmocka_unit_test(a_shard_is_streamed_if_the_kernel_refuses),
		cmocka_unit_test(an_error_reaches_the_opener),
		cmocka_unit_test(the_least_recently_used_file_is_evicted),
		cmocka_unit_test(what_is_read_ahead_takes_memory_from_files),
		cmocka_unit_test(an_open_file_is_not_evicted),
		cmocka_unit_test(a_mapping_keeps_its_bytes_after_eviction),
		cmocka_unit_test(files_of_a_loader_in_order_are_prefetched),
		cmocka_unit_test(concurrent_opens_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
