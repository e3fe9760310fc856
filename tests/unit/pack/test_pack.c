/* SPDX-License-Identifier: Apache-2.0 */
/* Packed files read back whole and in parts, by one thread and by several, within the cache's
 * limit, and unpack unchanged. */
#include "tests/support/context.h"
#include "tests/support/unit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/io/io.h"
#include "ckpt/pack/pack.h"
#include "ckpt/remote/cache.h"
#include "tests/make/mkckpt.h"
#include "tests/unit/pack/packed.h"

static struct packed small, large;

static int set_up(void **state)
{
	*state = mkckpt_new_dir();
	return chdir(*state);
}

static int tear_down(void **state)
{
	mkckpt_free_dir(*state);
	return 0;
}

static struct pack *open_pack(void)
{
	struct errmsg err = { "" };
	struct pack *p;

	if (io_open_pack(test_context(), "pack", &p, &err))
		fail_msg("%s", err.text);
	return p;
}

static void read_matches(struct pack *p, const struct packed *want, uint32_t i,
			 size_t len, uint64_t off, uint8_t *buf)
{
	struct errmsg err = { "" };

	if (pack_read(p, i, buf, len, off, &err))
		fail_msg("%s", err.text);
	assert_memory_equal(buf, want->bytes[i] + off, len);
}

static void the_index_has_all(void **state)
{
	const struct pack_index *x;
	struct pack *p;

	packed_make(&small, false, 1);
	p = open_pack();
	x = pack_index_of(p);
	assert_int_equal(x->nentries, PACKED_FILES);
	for (uint32_t i = 0; i < x->nentries; i++) {
		const struct pack_input *const in = &small.in[i];

		assert_string_equal(x->entries[i].name, in->name);
		assert_int_equal(x->entries[i].mode, in->mode & ~07000u);
		assert_int_equal(x->entries[i].mtime_s, in->mtime_s);
		assert_int_equal(x->entries[i].mtime_ns, in->mtime_ns);
		assert_int_equal(x->entries[i].size,
				 S_ISREG(in->mode) ? in->id.size : 0);
		assert_int_equal(pack_index_find(x, in->name), i);
	}
	assert_int_equal(pack_index_find(x, "dir/"), -1);
	assert_int_equal(pack_index_find(x, "maste"), -1);
	pack_close(p);
	packed_done(&small);
}

static void what_follows_is_left_out(void **state)
{
	uint64_t masters = 0, others = 0;
	const struct pack_index *x;
	struct pack *p;

	packed_make(&large, true, 2);
	p = open_pack();
	x = pack_index_of(p);
	for (uint32_t i = 0; i < x->nentries; i++)
		for (uint32_t k = 0; k < x->entries[i].n; k++) {
			const struct pack_extent *const e =
				&x->extents[x->entries[i].first + k];

			if (e->kind == PACK_STORED)
				*(strcmp(x->entries[i].name, "master") == 0
					  ? &masters
					  : &others) += e->stored;
		}
	assert_true(masters > 4 << 20);
	/* Count the blocks that differ. */
	assert_true(others >= 2 * BLOCK_SIZE && others <= 5 * BLOCK_SIZE);
	pack_close(p);
	packed_done(&large);
}

static void threads_make_no_difference(void **state)
{
	uint8_t *v[2];
	size_t n[2];

	for (unsigned i = 0; i < 2; i++) {
		packed_make(&large, true, 1 + 3 * i);
		v[i] = packed_load(&n[i]);
		/* The index records mtimes, which differ. */
		n[i] = 0;
		memcpy(&n[i], v[i] + 24, 8);
		packed_done(&large);
	}
	assert_int_equal(n[0], n[1]);
	assert_memory_equal(v[0] + 56, v[1] + 56, n[0] - 56);
	free(v[0]);
	free(v[1]);
}

static void any_range_is_read(void **state)
{
	uint64_t seed = 7;
	struct pack *p;
	uint8_t *buf;

	packed_make(&large, true, 2);
	p = open_pack();
	buf = malloc(large.in[4].id.size + 1);
	for (uint32_t i = 2; i < PACKED_FILES; i++) {
		const uint64_t size = large.in[i].id.size;

		read_matches(p, &large, i, size, 0, buf);
		read_matches(p, &large, i, 0, size, buf);
		for (int k = 0; k < 300 && size; k++) {
			uint64_t off, len;

			seed = seed * UINT64_C(6364136223846793005) + 1;
			off = (seed >> 20) % size;
			seed = seed * UINT64_C(6364136223846793005) + 1;
			len = (seed >> 20) % (k % 2 ? 300 : 700000);
			len = len < size - off ? len : size - off;
			read_matches(p, &large, i, len, off, buf);
		}
	}
	free(buf);
	pack_close(p);
	packed_done(&large);
}

static int read_in_sequence(void *ctx, size_t i, struct errmsg *err)
{
	struct pack *const p = ctx;
	const uint32_t file = 2 + (uint32_t)i % (PACKED_FILES - 2);
	const uint64_t size = large.in[file].id.size;
	uint8_t *const buf = malloc(200000);
	int rc = 0;

	for (uint64_t off = 0, n; !rc && off < size; off += n) {
		n = size - off < 200000 ? size - off : 200000;
		rc = pack_read(p, file, buf, n, off, err);
		if (!rc && memcmp(buf, large.bytes[file] + off, n) != 0)
			rc = -EILSEQ;
	}
	free(buf);
	return rc;
}

static void many_readers_share_a_small_cache(void **state)
{
	struct pack *p;

	packed_make(&large, true, 2);
	cache_set_limit(test_context(), 0, 0, false);
	p = open_pack();
	assert_int_equal(parallel_for(40, 8, read_in_sequence, p, NULL), 0);
	assert_true(cache_bytes(test_context()) <= CACHE_MIN);
	assert_int_equal(parallel_for(10, 3, read_in_sequence, p, NULL), 0);
	pack_close(p);
	assert_int_equal(cache_bytes(test_context()), 0);
	cache_set_limit(test_context(), CACHE_DEFAULT, 0, false);
	packed_done(&large);
}

static void everything_is_extracted(void **state)
{
	const struct pack_work o = { .width = 3 };
	struct errmsg err = { "" };
	struct pack *p;
	int dir;

	packed_make(&large, true, 2);
	p = open_pack();
	assert_int_equal(mkdir("back", 0700), 0);
	dir = open("back", O_RDONLY | O_DIRECTORY);
	if (pack_extract(p, dir, &o, &err))
		fail_msg("%s", err.text);
	for (int i = 1; i < PACKED_FILES; i++) {
		const struct pack_input *const in = &large.in[i];
		uint8_t *const bytes = malloc(in->id.size + 1);
		struct stat st;
		int fd;

		assert_int_equal(fstatat(dir, in->name, &st, 0), 0);
		assert_int_equal(st.st_mode, in->mode & ~07000u);
		assert_int_equal(st.st_mtim.tv_sec, in->mtime_s);
		assert_int_equal(st.st_mtim.tv_nsec, in->mtime_ns);
		if (S_ISREG(st.st_mode)) {
			fd = openat(dir, in->name, O_RDONLY);
			assert_int_equal(st.st_size, in->id.size);
			assert_int_equal(read(fd, bytes, in->id.size),
					 in->id.size);
			assert_memory_equal(bytes, large.bytes[i], in->id.size);
			close(fd);
		}
		free(bytes);
	}
	/* Extraction overwrites nothing. */
	assert_int_equal(pack_extract(p, dir, &o, &err), -EEXIST);
	close(dir);
	pack_close(p);
	packed_done(&large);
}

static int stop_at_once(void *arg, uint64_t done, uint64_t total)
{
	(void)arg, (void)done, (void)total;
	return 1;
}

static void work_can_be_stopped(void **state)
{
	const struct uckpt u = { .calls.progress = stop_at_once };
	struct progress progress = { .u = &u };
	const struct pack_work o = { .width = 2, .progress = &progress };
	const struct pack_work w = { .name = "other",
				     .width = 2,
				     .progress = &progress };
	struct pack *p;
	int fd;

	packed_make(&small, false, 1);
	p = open_pack();
	assert_int_equal(pack_extract(p, -1, &o, NULL), -EINTR);
	pack_close(p);
	fd = open("other", O_RDWR | O_CREAT, 0600);
	assert_int_equal(pack_write(fd, small.in, PACKED_FILES, &w, NULL),
			 -EINTR);
	close(fd);
	packed_done(&small);
}

static void a_file_that_changed_is_not_packed(void **state)
{
	const struct pack_work w = { .name = "other", .width = 2 };
	struct errmsg err = { "" };
	int fd;

	packed_make(&small, false, 1);
	assert_int_equal(truncate("text", 100), 0);
	fd = open("other", O_RDWR | O_CREAT, 0600);
	assert_int_equal(
		pack_write(fd, small.in, PACKED_FILES, &w, &err), -EIO);
	assert_non_null(strstr(err.text, "text: was truncated"));
	close(fd);
	packed_done(&small);
}

/* A source without a file, like a remote store. */
struct ranges {
	const uint8_t *bytes;
	_Atomic uint64_t read; /* bytes read so far */
	unsigned delay;        /* delay of a read, in microseconds */
	bool broken;
};

static int ranges_read(const struct source *s, void *buf, size_t len,
		       uint64_t off, struct errmsg *err)
{
	struct ranges *const r = s->ctx;

	if (r->broken)
		return errmsg_set(err, -EIO, "%s: no answer", s->name);
	usleep(r->delay);
	memcpy(buf, r->bytes + off, len);
	r->read += len;
	return 0;
}

static void ranges_close(struct source *s)
{
	struct ranges *const r = s->ctx;

	r->bytes = NULL;
}

/* A pack of the large files that is read in ranges. */
struct far_pack {
	struct ranges ranges;
	uint8_t *bytes;
	struct pack *p;
	uint32_t master; /* index of the file with this name */
};

static void far_open(struct far_pack *f, unsigned delay)
{
	static const struct source_ops ops = { .read = ranges_read,
					       .close = ranges_close };
	struct source src = {
		.name = "far", .fd = -1, .ops = &ops, .ctx = &f->ranges
	};
	struct errmsg err = { "" };
	size_t size;

	packed_make(&large, true, 2);
	f->bytes = packed_load(&size);
	f->ranges = (struct ranges){ .bytes = f->bytes, .delay = delay };
	src.size = size;
	assert_int_equal(pack_open_source(test_context(), &src, &f->p, &err), 0);
	f->master = (uint32_t)pack_index_find(pack_index_of(f->p), "master");
}

static void far_close(struct far_pack *f)
{
	pack_close(f->p);
	assert_null(f->ranges.bytes);
	free(f->bytes);
	packed_done(&large);
}

static void ranges_of_any_source_do(void **state)
{
	uint8_t *const buf = malloc(100000);
	struct errmsg err = { "" };
	struct far_pack f;

	far_open(&f, 0);
	read_matches(f.p, &large, f.master, 100000, 3000001, buf);
	/* The index, a table and three of some hundred blocks. */
	assert_true(f.ranges.read < 300000);
	f.ranges.broken = true;
	assert_int_equal(pack_read(f.p, f.master, buf, 100000, 7000001, &err),
			 -EIO);
	assert_string_equal(err.text, "far: no answer");
	far_close(&f);
	free(buf);
}

/* Not a multiple of a block, so pieces meet inside blocks. */
#define PIECE 300001

static int read_piece(void *ctx, size_t i, struct errmsg *err)
{
	const struct far_pack *const f = ctx;
	const uint64_t off = (uint64_t)i * PIECE;
	const uint64_t left = large.in[f->master].id.size - off;
	const size_t n = left < PIECE ? (size_t)left : PIECE;
	uint8_t *const buf = malloc(n);
	int rc = pack_read(f->p, f->master, buf, n, off, err);

	if (!rc && memcmp(buf, large.bytes[f->master] + off, n) != 0)
		rc = -EILSEQ;
	free(buf);
	return rc;
}

static int read_pieces(struct far_pack *f)
{
	const uint64_t size = large.in[f->master].id.size;

	return parallel_for((size_t)((size + PIECE - 1) / PIECE), 8, read_piece,
			    f, NULL);
}

static void readers_that_meet_in_a_block_fetch_it_once(void **state)
{
	const struct pack_index *x;
	const struct pack_extent *e;
	struct far_pack f;
	uint64_t before, stored = 0;

	far_open(&f, 2000);
	x = pack_index_of(f.p);
	e = &x->extents[x->entries[f.master].first];
	for (uint32_t i = 0; i < x->entries[f.master].n; i++)
		stored += e[i].stored;
	before = f.ranges.read;
	assert_int_equal(read_pieces(&f), 0);
	/* Tables are read as well as blocks. */
	assert_true(f.ranges.read - before >= stored && f.ranges.read - before <= stored + stored / 50);
	far_close(&f);
}

static void a_block_that_cannot_be_fetched_fails_for_all(void **state)
{
	struct far_pack f;

	far_open(&f, 2000);
	assert_int_equal(read_piece(&f, 0, NULL), 0); /* the table has been read */
	f.ranges.broken = true;
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(read_pieces(&f), -EIO);
	f.ranges.broken = false;
	assert_int_equal(read_pieces(&f), 0);
	far_close(&f);
	cache_trim(test_context());
	assert_int_equal(cache_bytes(test_context()), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_index_has_all),
		cmocka_unit_test(what_follows_is_left_out),
		cmocka_unit_test(threads_make_no_difference),
		cmocka_unit_test(any_range_is_read),
		cmocka_unit_test(many_readers_share_a_small_cache),
		cmocka_unit_test(everything_is_extracted),
		cmocka_unit_test(work_can_be_stopped),
		cmocka_unit_test(a_file_that_changed_is_not_packed),
		cmocka_unit_test(ranges_of_any_source_do),
		cmocka_unit_test(readers_that_meet_in_a_block_fetch_it_once),
		cmocka_unit_test(a_block_that_cannot_be_fetched_fails_for_all),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
