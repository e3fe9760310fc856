/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums of virtual files, computed while reading or on demand. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/io/shards.h"
#include "ckpt/vfile/gather.h"
#include "tests/support/context.h"
#include "tests/support/made.h"
#include "tests/support/random.h"
#include "tests/support/unit.h"

/* more bytes than the mapping that serves zeros */
#define ZEROS ((5u << 20) / 2 + 12)

/* The checksum of zeros is known when the file is created, without a shard. */
static void zeros_come_from_nowhere(void **state)
{
	const uint64_t len[] = { ZEROS, 0, 4 };
	struct extent_map maps[3] = { { 0 } };
	struct bytebuf pickle = { 0 };
	struct gathers none = { 0 };
	struct reply_pieces w = { 0 };
	uint8_t *bytes = calloc(1, ZEROS);
	vfile_crc crc[3] = { 0 };
	struct shards *c = shards_new(test_context());
	struct ptwrite layout;
	struct vfile *f;

	bytebuf_add(&pickle, "pickle", 6);
	assert_int_equal(ptwrite_init(&layout, "x", &pickle, len, 3, NULL), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_true(extent_add(&maps[i], EXTENT_ZERO, len[i] / 2, 0, 0, DTYPE_U8));
		assert_true(extent_add(&maps[i], EXTENT_ZERO, len[i] / 2, 0, 0, DTYPE_U8));
		assert_int_equal(maps[i].n, len[i] != 0);
	}
	const uint64_t at = layout.offset[0];

	f = vfile_new_pt(c, &layout, maps, &none, crc, NULL);
	assert_non_null(f);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(crc[i], VFILE_CRC_KNOWN | crc32_add(0, bytes, len[i]));
	assert_int_equal(vfile_check(f, NULL), 0);
	assert_int_equal(vfile_map(f, ZEROS, at, &w, NULL), 0);
	assert_int_equal(w.n, 3);
	for (int i = 0; i < w.n; i++)
		assert_memory_equal(w.iov[i].iov_base, bytes, w.iov[i].iov_len);
	vfile_unmap(f, &w, true);
	memset(bytes, 1, ZEROS);
	assert_int_equal(vfile_read(f, bytes, ZEROS, at, NULL), ZEROS);
	for (size_t i = 0; i < ZEROS; i++)
		assert_int_equal(bytes[i], 0);
	vfile_free(f);
	shards_free(c);
	for (size_t i = 0; i < 3; i++)
		extent_done(&maps[i]);
	free(bytes);
}

static void copying_by_map_makes_the_sum_known(void **state)
{
	static const size_t steps[] = { 100, 4096, 131072, 1 << 20 };
	struct made_shards f;

	made_shards_make(&f);
	for (size_t k = 0; k < COUNT(steps); k++) {
		struct made m;
		uint64_t end;

		made_file(&f, &m, 1, true, k + 1);
		end = made_trailer(&m);
		for (uint64_t at = 0; at < end; at += steps[k]) {
			const uint64_t left = end - at;

			assert_true(made_map_is_right(&m, left < steps[k] ? left : steps[k], at));
		}
		made_check_sums(&m);
		made_done(&m);
	}
	made_shards_done(&f);
}

static void copying_by_read_makes_all_sums_known(void **state)
{
	uint8_t *buf = malloc(1 << 20);
	struct made_shards f;

	made_shards_make(&f);
	for (size_t n = 1; n <= MADE_STORAGES; n++) {
		const size_t step = 1000 * n * n + 7;
		struct made m;
		uint64_t last;

		made_file(&f, &m, n, true, n);
		last = made_trailer(&m);
		for (uint64_t at = 0; at < last; at += step) {
			const uint64_t left = last - at;
			const size_t len = left < step ? left : step;

			assert_true(made_read_is_right(&m, buf, len, at));
		}
		made_check_sums(&m);
		made_done(&m);
	}
	free(buf);
	made_shards_done(&f);
}

/* Reads with gaps, repeats or backward seeks leave the checksum right. */
static void reading_out_of_order_makes_no_wrong_sum(void **state)
{
	uint8_t *buf = malloc(1 << 20);
	struct made_shards f;

	made_shards_make(&f);
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t s = seed * 2654435761 | 1;
		struct made m;

		made_file(&f, &m, 1 + seed % 3, true, seed);
		for (unsigned i = 0; i < 50; i++) {
			const uint64_t off = test_random(&s) % m.size;
			const size_t len = 1 + test_random(&s) % (m.size - off);

			assert_true(i % 2 ? made_read_is_right(&m, buf, len, off)
					  : made_map_is_right(&m, len, off));
			for (size_t k = 0; k < m.n; k++) {
				const uint64_t crc = atomic_load(&m.crc[k]);

				assert_true(crc == 0 || crc == (VFILE_CRC_KNOWN | m.sums[k]));
			}
		}
		assert_true(made_read_is_right(&m, buf, m.size, 0));
		made_check_sums(&m);
		made_done(&m);
	}
	free(buf);
	made_shards_done(&f);
}

/* A known checksum is not computed again: a wrong one proves this. */
static void known_sums_are_believed(void **state)
{
	struct made_shards f;
	struct made m;
	uint8_t *buf;

	made_shards_make(&f);
	made_file(&f, &m, 1, true, 5);
	atomic_store(&m.crc[0], VFILE_CRC_KNOWN | 0x11223344);
	buf = malloc(m.size);
	assert_int_equal(vfile_read(m.f, buf, m.size, 0, NULL), m.size);
	assert_non_null(memmem(buf, m.size, "PK\7\x8\x44\x33\x22\x11", 8));
	free(buf);
	made_done(&m);
	made_shards_done(&f);
}

struct opener {
	pthread_t thread;
	struct made m;
	bool right;
};

static void *read_trailer(void *arg)
{
	struct opener *o = arg;
	uint8_t *buf = malloc(o->m.size);
	const uint64_t at = made_trailer(&o->m);

	o->right = buf && made_read_is_right(&o->m, buf, (size_t)(o->m.size - at), at);
	free(buf);
	return NULL;
}

static void many_who_ask_at_once_are_told_the_same(void **state)
{
	struct opener o[8];
	struct made_shards f;
	struct made m;

	made_shards_make(&f);
	for (uint64_t seed = 1; seed <= 10; seed++) {
		made_file(&f, &m, 1 + seed % 3, true, seed);
		for (size_t i = 0; i < COUNT(o); i++)
			made_again(&f, &o[i].m, &m, seed);
		for (size_t i = 0; i < COUNT(o); i++)
			assert_int_equal(pthread_create(&o[i].thread, NULL, read_trailer, &o[i]),
					 0);
		for (size_t i = 0; i < COUNT(o); i++) {
			pthread_join(o[i].thread, NULL);
			assert_true(o[i].right);
			made_done(&o[i].m);
		}
		made_check_sums(&m);
		made_done(&m);
	}
	made_shards_done(&f);
}

/* A trailer fails while its data cannot be read, and succeeds afterwards. */
static void a_failed_sum_is_tried_again(void **state)
{
	struct errmsg err = { "" };
	char away[PATH_MAX + 8];
	struct made_shards f;
	struct made m;
	uint8_t buf[16];

	made_shards_make(&f);
	made_file(&f, &m, 1, true, 77);
	for (unsigned i = 0; i < SHARDS; i++) {
		snprintf(away, sizeof(away), "%s.away", f.path[i]);
		assert_int_equal(rename(f.path[i], away), 0);
	}
	assert_int_equal(vfile_read(m.f, buf, 1, m.size - 1, &err), -EIO);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), 0, &err), 16);
	for (unsigned i = 0; i < SHARDS; i++) {
		snprintf(away, sizeof(away), "%s.away", f.path[i]);
		assert_int_equal(rename(away, f.path[i]), 0);
		/* chmod changes the ctime but not the data. */
		assert_int_equal(chmod(f.path[i], 0640), 0);
	}
	assert_true(made_pieces_are_right(&m, 1, 20));
	made_done(&m);
	made_shards_done(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(zeros_come_from_nowhere),
		cmocka_unit_test(copying_by_map_makes_the_sum_known),
		cmocka_unit_test(copying_by_read_makes_all_sums_known),
		cmocka_unit_test(reading_out_of_order_makes_no_wrong_sum),
		cmocka_unit_test(known_sums_are_believed),
		cmocka_unit_test(many_who_ask_at_once_are_told_the_same),
		cmocka_unit_test(a_failed_sum_is_tried_again),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
