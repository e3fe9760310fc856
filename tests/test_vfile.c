/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual files read in every way, by one thread and by many, against the
 * same bytes put together in memory.
 */
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "ckpt/cast.h"
#include "ckpt/checksum.h"
#include "ckpt/errmsg.h"
#include "ckpt/gather.h"
#include "ckpt/shardcache.h"
#include "ckpt/vfile.h"
#include "tests/mkckpt.h"
#include "tests/mkpt.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))
#define SHARDS 3
#define SHARD_LEN 300000
#define STORAGES_MAX 5

static uint64_t next_random(uint64_t *s)
{
	*s ^= *s << 13;
	*s ^= *s >> 7;
	*s ^= *s << 17;
	return *s;
}

/* --- shards, and files made of them -------------------------------------- */

struct fixture {
	char *dir;
	char path[SHARDS][PATH_MAX];
	uint8_t *bytes[SHARDS];
	struct shardcache *c;
};

static void set_up(struct fixture *f)
{
	uint64_t s = 42;

	f->dir = mkckpt_new_dir();
	f->c = shardcache_new();
	for (unsigned i = 0; i < SHARDS; i++) {
		struct fileid id;
		struct stat st;

		f->bytes[i] = malloc(SHARD_LEN);
		for (size_t k = 0; k < SHARD_LEN; k++)
			f->bytes[i][k] = (uint8_t)(next_random(&s) >> 32);
		snprintf(f->path[i], sizeof(f->path[i]), "%s/%u", f->dir, i);
		mkpt_save(f->path[i], f->bytes[i], SHARD_LEN);
		assert_int_equal(stat(f->path[i], &st), 0);
		fileid_from_stat(&st, &id);
		assert_int_equal(shardcache_add(f->c, f->path[i], &id), i);
	}
}

static void tear_down(struct fixture *f)
{
	shardcache_free(f->c);
	for (unsigned i = 0; i < SHARDS; i++)
		free(f->bytes[i]);
	mkckpt_free_dir(f->dir);
}

/* A file as it should be, and as it is. */
struct made {
	uint8_t *whole;
	uint64_t size;
	uint32_t sums[STORAGES_MAX];
	vfile_crc crc[STORAGES_MAX];
	size_t n;
	struct vfile *f;
};

/* One run of a shard at the end of a storage. */
static void add_run(const struct fixture *f, struct extent_map *m,
		    struct bytebuf *data, uint64_t *s, uint64_t most)
{
	const uint32_t shard = (uint32_t)(next_random(s) % SHARDS);
	const uint64_t n = 1 + next_random(s) % (most / 4);
	const uint64_t from = next_random(s) % (SHARD_LEN - 4 * n);

	if (next_random(s) % 8 == 0) {
		assert_true(extent_add(m, EXTENT_ZERO, 4 * n, 0, 0, DTYPE_U8));
		bytebuf_add_fill(data, 0, 4 * n);
		return;
	}
	if (next_random(s) % 4 == 0) { /* n elements that are converted */
		static const enum dtype types[][2] = {
			{ DTYPE_BF16, DTYPE_F32 },
			{ DTYPE_F32, DTYPE_BF16 },
			{ DTYPE_F32, DTYPE_F16 },
			{ DTYPE_BF16, DTYPE_F16 },
		};
		const enum dtype *const t = types[next_random(s) % 4];
		uint8_t *const out = malloc(n * sizeof(float));

		cast(t[0], f->bytes[shard] + from, t[1], out, n);
		assert_true(extent_add_cast(m, n, shard, from, t[0], t[1]));
		bytebuf_add(data, out, n * dtype_size(t[1]));
		free(out);
		return;
	}
	assert_true(extent_add(m, EXTENT_SHARD, 4 * n, shard, from, DTYPE_F32));
	bytebuf_add(data, f->bytes[shard] + from, 4 * n);
}

static void put_together(struct made *m, const struct ptwrite *w,
			 const struct bytebuf *data, bool sums)
{
	struct bytebuf b = { 0 };

	for (size_t i = 0; i <= w->n; i++) {
		assert_int_equal(
			ptwrite_literal(w, i, sums ? m->sums : NULL, &b, NULL),
			0);
		if (i < w->n)
			bytebuf_add(&b, data[i].data, data[i].len);
	}
	m->whole = b.data;
	m->size = b.len;
}

/* `n` storages of several random runs each; the third is empty. */
static void make(const struct fixture *f, struct made *m, size_t n, bool sums,
		 uint64_t seed)
{
	struct extent_map maps[STORAGES_MAX] = { 0 };
	struct bytebuf data[STORAGES_MAX] = { 0 }, pickle = { 0 };
	uint64_t len[STORAGES_MAX], s = seed * 2654435761 | 1;
	struct ptwrite w;

	*m = (struct made){ .n = n };
	for (size_t i = 0; i < n; i++) {
		const unsigned runs = i == 2 ? 0 : 1 + next_random(&s) % 40;

		for (unsigned k = 0; k < runs; k++)
			add_run(f, &maps[i], &data[i], &s, k % 2 ? 400 : 20000);
		len[i] = data[i].len;
		m->sums[i] = checksum_add(0, data[i].data, data[i].len);
	}
	bytebuf_add(&pickle, "N.", 2);
	assert_int_equal(ptwrite_init(&w, "x", &pickle, len, n, NULL), 0);
	put_together(m, &w, data, sums);
	m->f = vfile_new_pt(f->c, &w, maps, &(struct gathers){ 0 },
			    sums ? m->crc : NULL, NULL);
	assert_non_null(m->f);
	assert_int_equal(vfile_size(m->f), m->size);
	for (size_t i = 0; i < n; i++) {
		extent_done(&maps[i]);
		bytebuf_done(&data[i]);
	}
}

static void made_done(struct made *m)
{
	vfile_free(m->f);
	free(m->whole);
}

/* --- reading ------------------------------------------------------------- */

static bool read_is_right(struct made *m, uint8_t *buf, size_t len, uint64_t off)
{
	const size_t left = off < m->size ? (size_t)(m->size - off) : 0;
	const size_t expect = len < left ? len : left;
	const int64_t got = vfile_read(m->f, buf, len, off, NULL);

	return got == (int64_t)expect &&
	       (!expect || memcmp(buf, m->whole + off, expect) == 0);
}

static bool map_is_right(struct made *m, size_t len, uint64_t off)
{
	struct vfile_window *const w = malloc(sizeof(*w));
	const size_t left = off < m->size ? (size_t)(m->size - off) : 0;
	const size_t expect = len < left ? len : left;
	size_t at = 0;
	bool ok = w && vfile_map(m->f, len, off, w, NULL) == 0 &&
		  w->len == expect;

	for (int i = 0; ok && i < w->n; i++) {
		ok = at + w->iov[i].iov_len <= expect &&
		     memcmp(w->iov[i].iov_base, m->whole + off + at,
			    w->iov[i].iov_len) == 0;
		at += w->iov[i].iov_len;
	}
	ok = ok && at == expect;
	if (w)
		vfile_unmap(m->f, w);
	free(w);
	return ok;
}

static bool random_pieces_are_right(struct made *m, uint64_t seed, unsigned n)
{
	uint8_t *const buf = malloc(m->size + 16);
	uint64_t s = seed * 2654435761 | 1;
	bool ok = buf != NULL;

	for (unsigned i = 0; ok && i < n; i++) {
		const uint64_t off = next_random(&s) % (m->size + 4);
		const size_t len =
			next_random(&s) % (i % 2 ? 300 : m->size / 2 + 4);

		ok = i % 3 ? read_is_right(m, buf, len, off)
			   : map_is_right(m, len, off);
		if (i % 5 == 0)
			vfile_sum_behind(m->f);
	}
	ok = ok && read_is_right(m, buf, m->size + 16, 0);
	free(buf);
	return ok;
}

static void pieces_equal_the_whole(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	for (size_t n = 0; n <= STORAGES_MAX; n++)
		for (int sums = 0; sums <= 1; sums++)
			for (uint64_t seed = 1; seed <= 4; seed++) {
				struct made m;

				make(&f, &m, n, sums, seed);
				assert_true(
					random_pieces_are_right(&m, seed, 60));
				made_done(&m);
			}
	tear_down(&f);
}

static void the_end_of_the_file_is_its_end(void **state)
{
	struct fixture f;
	struct made m;
	uint8_t buf[64];

	(void)state;
	set_up(&f);
	make(&f, &m, 1, true, 9);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), m.size, NULL), 0);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), UINT64_MAX, NULL), 0);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), m.size - 3, NULL), 3);
	assert_int_equal(vfile_read(m.f, buf, 0, 5, NULL), 0);
	assert_true(map_is_right(&m, 10, m.size));
	assert_true(map_is_right(&m, 10, m.size - 3));
	made_done(&m);
	tear_down(&f);
}

static void verbatim_files_are_their_shards(void **state)
{
	struct made m = { 0 };
	struct fixture f;

	(void)state;
	set_up(&f);
	m.whole = f.bytes[1];
	m.size = SHARD_LEN;
	m.f = vfile_new_verbatim(f.c, 1, NULL);
	assert_int_equal(vfile_size(m.f), SHARD_LEN);
	assert_int_equal(vfile_check(m.f, NULL), 0);
	assert_true(random_pieces_are_right(&m, 3, 50));
	vfile_free(m.f);
	tear_down(&f);
}

static void bytes_are_bytes(void **state)
{
	struct bytebuf b = { 0 };
	struct made m = { .size = 5, .whole = (uint8_t *)"hello" };

	(void)state;
	bytebuf_add(&b, "hello", 5);
	m.f = vfile_new_bytes(&b, NULL);
	assert_null(b.data);
	assert_true(random_pieces_are_right(&m, 3, 50));
	vfile_free(m.f);
}

/* --- checksums ----------------------------------------------------------- */

/* Is the sum of each storage known, and right? */
/* Longer than what zeros are mapped to. */
#define ZEROS ((5u << 20) / 2 + 12)

/* Their sum is known as soon as the file is there; no shard is. */
static void zeros_come_from_nowhere(void **state)
{
	const uint64_t len[] = { ZEROS, 0, 4 };
	struct extent_map maps[3] = { { 0 } };
	struct bytebuf pickle = { 0 };
	struct gathers none = { 0 };
	struct vfile_window w = { 0 };
	uint8_t *const bytes = calloc(1, ZEROS);
	vfile_crc crc[3] = { 0 };
	struct ptwrite layout;
	struct vfile *f;

	(void)state;
	bytebuf_add(&pickle, "pickle", 6);
	assert_int_equal(ptwrite_init(&layout, "x", &pickle, len, 3, NULL), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_true(extent_add(&maps[i], EXTENT_ZERO, len[i] / 2, 0, 0,
				       DTYPE_U8));
		assert_true(extent_add(&maps[i], EXTENT_ZERO, len[i] / 2, 0, 0,
				       DTYPE_U8));
		assert_int_equal(maps[i].n, len[i] != 0);
	}
	const uint64_t at = layout.offset[0];

	f = vfile_new_pt(NULL, &layout, maps, &none, crc, NULL);
	assert_non_null(f);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(crc[i],
				 VFILE_CRC_KNOWN |
					 checksum_add(0, bytes, len[i]));
	assert_int_equal(vfile_check(f, NULL), 0);
	assert_int_equal(vfile_map(f, ZEROS, at, &w, NULL), 0);
	assert_int_equal(w.n, 3);
	for (int i = 0; i < w.n; i++)
		assert_memory_equal(w.iov[i].iov_base, bytes, w.iov[i].iov_len);
	vfile_unmap(f, &w);
	memset(bytes, 1, ZEROS);
	assert_int_equal(vfile_read(f, bytes, ZEROS, at, NULL), ZEROS);
	for (size_t i = 0; i < ZEROS; i++)
		assert_int_equal(bytes[i], 0);
	vfile_free(f);
	for (size_t i = 0; i < 3; i++)
		extent_done(&maps[i]);
	free(bytes);
}

static void check_known(const struct made *m)
{
	for (size_t i = 0; i < m->n; i++)
		assert_true(atomic_load(&m->crc[i]) ==
			    (VFILE_CRC_KNOWN | m->sums[i]));
}

/* Where the trailer begins: reading that would have sums computed. */
static uint64_t trailer_of(const struct made *m)
{
	const struct extent_map *const map = vfile_extents(m->f);

	return map->v[map->n - 1].start;
}

static void copying_by_map_makes_the_sum_known(void **state)
{
	static const size_t steps[] = { 100, 4096, 131072, 1 << 20 };
	struct fixture f;

	(void)state;
	set_up(&f);
	for (size_t k = 0; k < COUNT(steps); k++) {
		struct made m;
		uint64_t end;

		make(&f, &m, 1, true, k + 1);
		end = trailer_of(&m);
		for (uint64_t at = 0; at < end; at += steps[k]) {
			const uint64_t left = end - at;

			assert_true(map_is_right(
				&m, left < steps[k] ? left : steps[k], at));
			vfile_sum_behind(m.f);
		}
		check_known(&m);
		made_done(&m);
	}
	tear_down(&f);
}

static void copying_by_read_makes_all_sums_known(void **state)
{
	uint8_t *const buf = malloc(1 << 20);
	struct fixture f;

	(void)state;
	set_up(&f);
	for (size_t n = 1; n <= STORAGES_MAX; n++) {
		const size_t step = 1000 * n * n + 7;
		struct made m;
		uint64_t last;

		make(&f, &m, n, true, n);
		last = trailer_of(&m);
		for (uint64_t at = 0; at < last; at += step) {
			const uint64_t left = last - at;
			const size_t len = left < step ? left : step;

			assert_true(read_is_right(&m, buf, len, at));
			vfile_sum(m.f, buf, len, at);
		}
		check_known(&m);
		made_done(&m);
	}
	free(buf);
	tear_down(&f);
}

/* Gaps, repetitions and steps back do not make a wrong sum. */
static void reading_out_of_order_makes_no_wrong_sum(void **state)
{
	uint8_t *const buf = malloc(1 << 20);
	struct fixture f;

	(void)state;
	set_up(&f);
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t s = seed * 2654435761 | 1;
		struct made m;

		make(&f, &m, 1 + seed % 3, true, seed);
		for (unsigned i = 0; i < 50; i++) {
			const uint64_t off = next_random(&s) % m.size;
			const size_t len = 1 + next_random(&s) % (m.size - off);

			if (i % 2) {
				assert_true(read_is_right(&m, buf, len, off));
				vfile_sum(m.f, buf, len, off);
			} else {
				assert_true(map_is_right(&m, len, off));
				vfile_sum_behind(m.f);
			}
			for (size_t k = 0; k < m.n; k++) {
				const uint64_t crc = atomic_load(&m.crc[k]);

				assert_true(crc == 0 || crc == (VFILE_CRC_KNOWN |
								m.sums[k]));
			}
		}
		assert_true(read_is_right(&m, buf, m.size, 0));
		check_known(&m);
		made_done(&m);
	}
	free(buf);
	tear_down(&f);
}

/* Bytes and sums from one pass. */
static void a_whole_file_is_filled_in(void **state)
{
	struct fixture f;

	(void)state;
	set_up(&f);
	for (size_t n = 0; n <= STORAGES_MAX; n++)
		for (unsigned width = 0; width <= 3; width++) {
			uint8_t *buf;
			struct made m;

			make(&f, &m, n, width != 0, n + 50);
			buf = malloc(m.size);
			assert_int_equal(vfile_fill(m.f, buf, width, NULL), 0);
			assert_memory_equal(buf, m.whole, m.size);
			if (width)
				check_known(&m);
			free(buf);
			made_done(&m);
		}
	tear_down(&f);
}

static void a_changed_shard_fills_nothing(void **state)
{
	struct errmsg err = { "" };
	struct fixture f;
	struct made m;
	uint8_t *buf;

	(void)state;
	set_up(&f);
	make(&f, &m, 2, true, 8);
	buf = malloc(m.size);
	for (unsigned i = 0; i < SHARDS; i++)
		assert_int_equal(truncate(f.path[i], 100), 0);
	assert_int_equal(vfile_fill(m.f, buf, 2, &err), -EIO);
	assert_non_null(strstr(err.text, "was truncated since"));
	free(buf);
	made_done(&m);
	tear_down(&f);
}

/* A sum that is known is not computed: shown by one that is wrong. */
static void known_sums_are_believed(void **state)
{
	struct fixture f;
	struct made m;
	uint8_t *buf;

	(void)state;
	set_up(&f);
	make(&f, &m, 1, true, 5);
	atomic_store(&m.crc[0], VFILE_CRC_KNOWN | 0x11223344);
	buf = malloc(m.size);
	assert_int_equal(vfile_read(m.f, buf, m.size, 0, NULL), m.size);
	assert_non_null(memmem(buf, m.size, "PK\7\x8\x44\x33\x22\x11", 8));
	free(buf);
	made_done(&m);
	tear_down(&f);
}

/* --- shards that change -------------------------------------------------- */

static void a_shard_that_shrinks_is_an_error(void **state)
{
	struct errmsg err = { "" };
	struct fixture f;
	struct vfile *v;
	uint8_t buf[16];

	(void)state;
	set_up(&f);
	v = vfile_new_verbatim(f.c, 2, NULL);
	assert_int_equal(vfile_read(v, buf, sizeof(buf), SHARD_LEN - 16, &err),
			 16);
	assert_int_equal(truncate(f.path[2], 100), 0);
	assert_int_equal(vfile_read(v, buf, sizeof(buf), SHARD_LEN - 16, &err),
			 -EIO);
	assert_non_null(strstr(err.text, "was truncated since"));
	assert_int_equal(vfile_check(v, &err), -EIO);
	vfile_free(v);
	tear_down(&f);
}

/* A trailer cannot be made when its data cannot be read; when it can be
 * again, it can. */
static void a_failed_sum_is_tried_again(void **state)
{
	struct errmsg err = { "" };
	char away[PATH_MAX + 8];
	struct fixture f;
	struct made m;
	uint8_t buf[16];

	(void)state;
	set_up(&f);
	make(&f, &m, 1, true, 77);
	for (unsigned i = 0; i < SHARDS; i++) {
		snprintf(away, sizeof(away), "%s.away", f.path[i]);
		assert_int_equal(rename(f.path[i], away), 0);
	}
	assert_int_equal(vfile_read(m.f, buf, 1, m.size - 1, &err), -EIO);
	assert_int_equal(vfile_read(m.f, buf, sizeof(buf), 0, &err), 16);
	for (unsigned i = 0; i < SHARDS; i++) {
		snprintf(away, sizeof(away), "%s.away", f.path[i]);
		assert_int_equal(rename(away, f.path[i]), 0);
	}
	assert_true(random_pieces_are_right(&m, 1, 20));
	made_done(&m);
	tear_down(&f);
}

/* --- threads ------------------------------------------------------------- */

struct reader {
	struct made *m;
	uint64_t seed;
	bool ok;
	pthread_t thread;
};

static void *read_on(void *arg)
{
	struct reader *const r = arg;

	r->ok = random_pieces_are_right(r->m, r->seed, 60);
	return NULL;
}

static void *copy_on(void *arg)
{
	struct reader *const r = arg;

	r->ok = true;
	for (uint64_t at = 0; r->ok && at < r->m->size; at += 8192) {
		r->ok = map_is_right(r->m, 8192, at);
		vfile_sum_behind(r->m->f);
	}
	return NULL;
}

/* Meant to be run under a thread sanitizer, too. */
static void threads_read_the_same_file(void **state)
{
	struct reader readers[6];
	struct fixture f;

	(void)state;
	set_up(&f);
	for (size_t n = 0; n <= 3; n++) {
		struct made m;

		make(&f, &m, n, true, n + 100);
		for (size_t i = 0; i < COUNT(readers); i++) {
			readers[i] = (struct reader){ .m = &m, .seed = i + 1 };
			assert_int_equal(
				pthread_create(&readers[i].thread, NULL,
					       i % 2 ? copy_on : read_on,
					       &readers[i]),
				0);
		}
		for (size_t i = 0; i < COUNT(readers); i++)
			pthread_join(readers[i].thread, NULL);
		for (size_t i = 0; i < COUNT(readers); i++)
			assert_true(readers[i].ok);
		check_known(&m);
		made_done(&m);
	}
	tear_down(&f);
}

/* Storages large enough to be summed in parallel. */
static void large_storages_are_summed_in_parallel(void **state)
{
	const size_t len = 9 << 20;
	uint8_t *const bytes = malloc(len);
	char *const dir = mkckpt_new_dir();
	struct shardcache *const c = shardcache_new();
	struct bytebuf pickle = { 0 };
	struct extent_map map = { 0 };
	const uint64_t storage = len;
	vfile_crc crc = 0;
	char path[PATH_MAX];
	struct ptwrite w;
	struct fileid id;
	struct vfile *f;
	struct stat st;
	uint8_t last, *whole;

	(void)state;
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * i >> 7);
	snprintf(path, sizeof(path), "%s/shard", dir);
	mkpt_save(path, bytes, len);
	assert_int_equal(stat(path, &st), 0);
	fileid_from_stat(&st, &id);
	shardcache_add(c, path, &id);
	extent_add(&map, EXTENT_SHARD, len, 0, 0, DTYPE_F32);
	bytebuf_add(&pickle, "N.", 2);
	assert_int_equal(ptwrite_init(&w, "x", &pickle, &storage, 1, NULL), 0);
	f = vfile_new_pt(c, &w, &map, &(struct gathers){ 0 }, &crc, NULL);
	assert_int_equal(vfile_read(f, &last, 1, vfile_size(f) - 1, NULL), 1);
	assert_true(atomic_load(&crc) ==
		    (VFILE_CRC_KNOWN | checksum_add(0, bytes, len)));
	whole = malloc(vfile_size(f));
	for (unsigned width = 1; width <= 3; width++) {
		atomic_store(&crc, 0);
		assert_int_equal(vfile_fill(f, whole, width, NULL), 0);
		assert_true(atomic_load(&crc) ==
			    (VFILE_CRC_KNOWN | checksum_add(0, bytes, len)));
		assert_non_null(memmem(whole, vfile_size(f), bytes, len));
	}
	free(whole);
	vfile_free(f);
	extent_done(&map);
	shardcache_free(c);
	free(bytes);
	mkckpt_free_dir(dir);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_equal_the_whole),
		cmocka_unit_test(the_end_of_the_file_is_its_end),
		cmocka_unit_test(verbatim_files_are_their_shards),
		cmocka_unit_test(bytes_are_bytes),
		cmocka_unit_test(zeros_come_from_nowhere),
		cmocka_unit_test(copying_by_map_makes_the_sum_known),
		cmocka_unit_test(copying_by_read_makes_all_sums_known),
		cmocka_unit_test(reading_out_of_order_makes_no_wrong_sum),
		cmocka_unit_test(a_whole_file_is_filled_in),
		cmocka_unit_test(a_changed_shard_fills_nothing),
		cmocka_unit_test(known_sums_are_believed),
		cmocka_unit_test(a_shard_that_shrinks_is_an_error),
		cmocka_unit_test(a_failed_sum_is_tried_again),
		cmocka_unit_test(threads_read_the_same_file),
		cmocka_unit_test(large_storages_are_summed_in_parallel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
