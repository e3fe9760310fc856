/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual files assembled in memory, with their checksums, from shards that may
 * be truncated meanwhile. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/sys/crc32.h"
#include "ckpt/sys/sigbus.h"
#include "ckpt/vfile/gather.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/made.h"
#include "tests/support/unit.h"

/* Bytes and sums from one pass. */
static void a_whole_file_is_filled_in(void **state)
{
	struct shards f;

	shards_make(&f);
	for (size_t n = 0; n <= MADE_STORAGES; n++)
		for (unsigned width = 0; width <= 3; width++) {
			uint8_t *buf;
			struct made m;

			made_file(&f, &m, n, width != 0, n + 50);
			buf = malloc(m.size);
			assert_int_equal(
				vfile_read_all(m.f, buf, width, NULL, NULL), 0);
			assert_memory_equal(buf, m.whole, m.size);
			if (width)
				made_check_sums(&m);
			free(buf);
			made_done(&m);
		}
	shards_done(&f);
}

static void a_changed_shard_fills_nothing(void **state)
{
	struct errmsg err = { "" };
	struct shards f;
	struct made m;
	uint8_t *buf;

	shards_make(&f);
	made_file(&f, &m, 2, true, 8);
	buf = malloc(m.size);
	for (unsigned i = 0; i < SHARDS; i++)
		assert_int_equal(truncate(f.path[i], 100), 0);
	assert_int_equal(vfile_read_all(m.f, buf, 2, NULL, &err), -EIO);
	assert_non_null(strstr(err.text, "was truncated since"));
	free(buf);
	made_done(&m);
	shards_done(&f);
}

/* --- one shard as a file --------------------------------------------------- */

struct single {
	char *dir;
	char path[PATH_MAX];
	size_t len;
	uint8_t *bytes; /* of the shard, all of them one storage */
	struct shardcache *c;
	vfile_crc crc;
	struct vfile *f;
};

static void single_make(struct single *x, size_t len)
{
	const struct timespec long_ago[2] = { { .tv_sec = 1 }, { .tv_sec = 1 } };
	const uint64_t storage = len;
	struct bytebuf pickle = { 0 };
	struct extent_map map = { 0 };
	struct ptwrite w;
	struct fileid id;
	struct stat st;

	*x = (struct single){ .dir = mkckpt_new_dir(),
			      .len = len,
			      .bytes = malloc(len),
			      .c = shardcache_new() };
	for (size_t i = 0; i < len; i++)
		x->bytes[i] = (uint8_t)(i * i >> 7 | 1); /* no zeros */
	snprintf(x->path, sizeof(x->path), "%s/shard", x->dir);
	mkpt_save(x->path, x->bytes, len);
	/* Time stamps of files are coarse: it must not look just written. */
	assert_int_equal(utimensat(AT_FDCWD, x->path, long_ago, 0), 0);
	assert_int_equal(stat(x->path, &st), 0);
	fileid_from_stat(&st, &id);
	shardcache_add(x->c, x->path, &id);
	extent_add(&map, EXTENT_SHARD, len, 0, 0, DTYPE_F32);
	bytebuf_add(&pickle, "N.", 2);
	assert_int_equal(ptwrite_init(&w, "x", &pickle, &storage, 1, NULL), 0);
	x->f = vfile_new_pt(x->c, &w, &map, &(struct gathers){ 0 }, &x->crc,
			    NULL);
	assert_non_null(x->f);
	extent_done(&map);
}

static void single_done(struct single *x)
{
	vfile_free(x->f);
	shardcache_free(x->c);
	free(x->bytes);
	mkckpt_free_dir(x->dir);
}

static bool sum_is_right(const struct single *x)
{
	return atomic_load(&x->crc) ==
	       (VFILE_CRC_KNOWN | crc32_add(0, x->bytes, x->len));
}

/* Storages large enough to be summed in parallel. */
static void large_storages_are_summed_in_parallel(void **state)
{
	uint8_t last, *whole;
	struct single x;

	single_make(&x, 9 << 20);
	assert_int_equal(vfile_read(x.f, &last, 1, vfile_size(x.f) - 1, NULL),
			 1);
	assert_true(sum_is_right(&x));
	whole = malloc(vfile_size(x.f));
	for (unsigned width = 1; width <= 3; width++) {
		atomic_store(&x.crc, 0);
		assert_int_equal(vfile_read_all(x.f, whole, width, NULL, NULL),
				 0);
		assert_true(sum_is_right(&x));
		assert_non_null(memmem(whole, vfile_size(x.f), x.bytes, x.len));
	}
	free(whole);
	single_done(&x);
}

/* --- a shard that is cut short meanwhile ----------------------------------- */

/* Half of the buffer is write-protected; the first write to it makes it
 * writable and truncates the shard. */
static struct {
	const struct single *x;
	off_t left;    /* of the shard */
	bool restored; /* its length; what was cut off is now zero */
	uint8_t *memory;
	size_t size;
	unsigned cuts;
} cut;

static void cut_shard(int signal)
{
	int rc = truncate(cut.x->path, cut.left);

	(void)signal;
	if (!rc && cut.restored)
		rc = truncate(cut.x->path, (off_t)cut.x->len);
	if (!rc)
		rc = mprotect(cut.memory, cut.size, PROT_READ | PROT_WRITE);
	if (rc)
		_exit(2);
	cut.cuts++;
}

static void fill_and_cut(struct single *x, off_t left, bool restored,
			 unsigned width)
{
	const struct sigaction on_write = { .sa_handler = cut_shard };
	const size_t page = (size_t)sysconf(_SC_PAGESIZE);
	struct errmsg err = { "" };
	struct sigaction before;

	cut.x = x;
	cut.left = left;
	cut.restored = restored;
	cut.cuts = 0;
	cut.size = (vfile_size(x->f) + page - 1) / page * page;
	cut.memory = mmap(NULL, cut.size, PROT_NONE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(cut.memory != MAP_FAILED);
	assert_int_equal(mprotect(cut.memory, cut.size / page / 2 * page,
				  PROT_READ | PROT_WRITE),
			 0);
	sigaction(SIGSEGV, &on_write, &before);
	assert_int_equal(vfile_read_all(x->f, cut.memory, width, NULL, &err),
			 -EIO);
	sigaction(SIGSEGV, &before, NULL);
	assert_true(cut.cuts > 0);
	assert_non_null(strstr(err.text, x->path));
	munmap(cut.memory, cut.size);
}

static void a_shard_cut_in_the_middle_fills_nothing(void **state)
{
	static const struct {
		double left; /* of its length */
		size_t less; /* bytes: few enough that no page is missing */
		bool restored;
	} cuts[] = {
		{ 0, 0, false }, { 0.5, 0, false }, { 0.75, 1, false },
		{ 1, 1, false }, { 0, 0, true },    { 0.75, 0, true },
	};

	/* In one piece, and in several. */
	static const size_t lengths[] = { 200100, (3u << 20) + 100 };

	sigbus_install(); /* cmocka takes the signal for each test */
	for (size_t i = 0; i < 2 * COUNT(cuts) * COUNT(lengths); i++) {
		const size_t len = lengths[i % 2];
		const unsigned width = 1 + i / 2 % 2;
		const size_t k = i / 4;
		struct single x;

		single_make(&x, len);
		fill_and_cut(&x,
			     (off_t)(cuts[k].left * (double)len) -
				     (off_t)cuts[k].less,
			     cuts[k].restored, width);
		single_done(&x);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_file_is_filled_in),
		cmocka_unit_test(a_changed_shard_fills_nothing),
		cmocka_unit_test(a_shard_cut_in_the_middle_fills_nothing),
		cmocka_unit_test(large_storages_are_summed_in_parallel),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
