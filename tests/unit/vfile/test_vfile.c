/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every kind of read of a virtual file, by one thread or several, returns the bytes assembled in
 * memory.
 */
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/io/shards.h"
#include "tests/support/made.h"
#include "tests/support/unit.h"

static void pieces_equal_the_whole(void **state)
{
	struct made_shards f;

	made_shards_make(&f);
	for (size_t n = 0; n <= MADE_STORAGES; n++)
		for (int sums = 0; sums <= 1; sums++)
			for (uint64_t seed = 1; seed <= 4; seed++) {
				struct made m;

				made_file(&f, &m, n, sums, seed);
				assert_true(made_pieces_are_right(&m, seed, 60));
				made_done(&m);
			}
	made_shards_done(&f);
}

static void the_end_of_the_file_is_its_end(void **state)
{
	struct made_shards f;
	struct made m;
	uint8_t buf[64];

	made_shards_make(&f);
	made_file(&f, &m, 1, true, 9);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), m.size, NULL), 0);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), UINT64_MAX, NULL), 0);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), m.size - 3, NULL), 3);
	assert_int_equal(vfile_read(m.f, buf, 0, 5, NULL), 0);
	assert_true(made_map_is_right(&m, 10, m.size));
	assert_true(made_map_is_right(&m, 10, m.size - 3));
	made_done(&m);
	made_shards_done(&f);
}

static void copies_are_their_shards(void **state)
{
	struct made m = { 0 };
	struct made_shards f;

	made_shards_make(&f);
	m.whole = f.bytes[1];
	m.size = SHARD_LEN;
	m.f = vfile_new_copy(f.c, 1, NULL);
	assert_int_equal(vfile_size(m.f), SHARD_LEN);
	assert_int_equal(vfile_check(m.f, NULL), 0);
	assert_true(made_pieces_are_right(&m, 3, 50));
	vfile_free(m.f);
	made_shards_done(&f);
}

static void bytes_are_bytes(void **state)
{
	struct bytebuf b = { 0 };
	struct made m = { .size = 5, .whole = (uint8_t *)"hello" };

	bytebuf_add(&b, "hello", 5);
	m.f = vfile_new_bytes(&b, NULL);
	assert_null(b.data);
	assert_true(made_pieces_are_right(&m, 3, 50));
	vfile_free(m.f);
}

/* Under `ulimit -v`, shards that cannot be mapped are read by pread. */
static void reads_need_no_mapping(void **state)
{
	struct rlimit limit, low;
	struct made_shards f;

#ifdef __SANITIZE_ADDRESS__
	skip(); /* AddressSanitizer reserves more address space than the limit allows */
#endif
	made_shards_make(&f);
	assert_int_equal(getrlimit(RLIMIT_AS, &limit), 0);
	low = limit;
	low.rlim_cur = 4096;
	assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
	for (uint32_t i = 0; i < shards_count(f.c); i++) {
		struct shard_map map;

		assert_int_equal(shards_use(f.c, i, &map, NULL), 0);
		assert_null(map.p);
		shards_unuse(f.c, i);
	}
	assert_int_equal(setrlimit(RLIMIT_AS, &limit), 0);
	for (uint64_t seed = 1; seed <= 4; seed++) {
		struct made m;

		made_file(&f, &m, MADE_STORAGES, true, seed);
		assert_true(made_pieces_are_right(&m, seed, 60));
		made_done(&m);
	}
	made_shards_done(&f);
}

static void a_shard_that_shrinks_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct made_shards f;
	struct vfile *v;
	uint8_t buf[16];

	made_shards_make(&f);
	v = vfile_new_copy(f.c, 2, NULL);
	assert_int_equal(vfile_read(v, buf, sizeof(buf), SHARD_LEN - 16, &err), 16);
	assert_int_equal(truncate(f.path[2], 100), 0);
	assert_int_equal(vfile_read(v, buf, sizeof(buf), SHARD_LEN - 16, &err), -EIO);
	assert_non_null(strstr(err.text, "was truncated since"));
	assert_int_equal(vfile_check(v, &err), -EIO);
	vfile_free(v);
	made_shards_done(&f);
}

struct reader {
	struct made *m;
	uint64_t seed;
	bool ok;
	pthread_t thread;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;

	r->ok = made_pieces_are_right(r->m, r->seed, 60);
	return NULL;
}

static void *copy_on(void *arg)
{
	struct reader *r = arg;

	r->ok = true;
	for (uint64_t at = 0; r->ok && at < r->m->size; at += 8192)
		r->ok = made_map_is_right(r->m, 8192, at);
	return NULL;
}

/* Run this under a thread sanitizer, too. */
static void threads_read_the_same_file(void **state)
{
	struct reader readers[6];
	struct made_shards f;

	made_shards_make(&f);
	for (size_t n = 0; n <= 3; n++) {
		struct made m;

		made_file(&f, &m, n, true, n + 100);
		for (size_t i = 0; i < COUNT(readers); i++) {
			readers[i] = (struct reader){ .m = &m, .seed = i + 1 };
			assert_int_equal(pthread_create(&readers[i].thread, NULL,
							i % 2 ? copy_on : read_on, &readers[i]),
					 0);
		}
		for (size_t i = 0; i < COUNT(readers); i++)
			pthread_join(readers[i].thread, NULL);
		for (size_t i = 0; i < COUNT(readers); i++)
			assert_true(readers[i].ok);
		made_check_sums(&m);
		made_done(&m);
	}
	made_shards_done(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_equal_the_whole),
		cmocka_unit_test(the_end_of_the_file_is_its_end),
		cmocka_unit_test(copies_are_their_shards),
		cmocka_unit_test(bytes_are_bytes),
		cmocka_unit_test(reads_need_no_mapping),
		cmocka_unit_test(a_shard_that_shrinks_is_an_error),
		cmocka_unit_test(threads_read_the_same_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
