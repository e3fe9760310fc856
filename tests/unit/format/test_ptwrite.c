/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The container writer: real files are reproduced byte for byte, and layouts
 * that no test can afford to write (5 GiB) obey the arithmetic of torch's
 * writer.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/crc32.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/ptwrite.h"
#include "ckpt/io/io.h"
#include "tests/make/mkckpt.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/realfiles.h"
#include "tests/support/unit.h"

#define GIB (UINT64_C(1) << 30)

static struct bytebuf pickle_of(size_t len)
{
	struct bytebuf b = { 0 };

	bytebuf_add_fill(&b, 'N', len - 1);
	bytebuf_add_u8(&b, '.');
	return b;
}

static void lay_out(struct ptwrite *w, const char *prefix, size_t pickle_len,
		    const uint64_t *len, size_t n)
{
	struct bytebuf pickle = pickle_of(pickle_len);
	struct errmsg err = { "" };

	if (ptwrite_init(w, prefix, &pickle, len, n, &err))
		fail_msg("%s", err.text);
	assert_null(pickle.data);
}

/* torch 2.15 saved {'a': 5 floats, 'b': 6 bf16, 'n': 3} as a.pt. */
static void small_file_has_torchs_offsets(void **state)
{
	static const uint64_t len[] = { 20, 12 };
	static const uint64_t header[] = { 0, 340, 465, 594, 662, 740, 860, 978 };
	struct ptwrite w;

	lay_out(&w, "a", 260, len, 2);
	assert_memory_equal(w.header, header, sizeof(header));
	assert_int_equal(w.offset[0], 704);
	assert_int_equal(w.offset[1], 832);
	assert_int_equal(w.directory, 1144);
	assert_int_equal(w.size, 1717);
	ptwrite_done(&w);
}

/* The universal file has an 11 x 7 float tensor. */
static void universal_files_have_torchs_sizes(void **state)
{
	static const struct {
		const char *prefix;
		uint64_t size;
	} cases[] = { { "fp32", 1876 },
		      { "exp_avg", 1897 },
		      { "exp_avg_sq", 1918 } };
	static const uint64_t len = 308;

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ptwrite w;

		lay_out(&w, cases[i].prefix, 187, &len, 1);
		assert_int_equal(w.offset[0], 768);
		assert_int_equal(w.size, cases[i].size);
		ptwrite_done(&w);
	}
}

struct expected {
	uint64_t at;        /* end of the last record */
	uint64_t directory; /* bytes of directory entries so far */
	uint64_t data;      /* data offset of the last record */
};

/* Add one record, padded as torch's writer pads it. */
static void step(struct expected *e, const char *prefix, const char *name,
		 uint64_t len)
{
	const uint64_t n = strlen(prefix) + 1 + strlen(name);
	const bool big_len = len >= 0xffffffff, big_at = e->at >= 0xffffffff;
	uint64_t start = e->at + 30 + n + 4;

	if (big_len || big_at)
		start += 4 + (big_len ? 16 : 0) + (big_at ? 8 : 0);
	e->data = start + (64 - start % 64) % 64;
	e->directory += 46 + n;
	if (big_len || big_at)
		e->directory += 4 + (big_len ? 16 : 0) + (big_at ? 8 : 0);
	e->at = e->data + len;
	if (len)
		e->at += big_len || big_at ? 24 : 16;
}

static void check_layout(const uint64_t *len, size_t n)
{
	static const char prefix[] = "exp_avg_sq";
	struct expected e = { 0 };
	struct ptwrite w;
	uint64_t at = 0;

	lay_out(&w, prefix, 321, len, n);
	step(&e, prefix, "data.pkl", 321);
	step(&e, prefix, ".format_version", 1);
	step(&e, prefix, ".storage_alignment", 2);
	step(&e, prefix, "byteorder", 6);
	for (size_t i = 0; i < n; i++) {
		char name[32];

		snprintf(name, sizeof(name), "data/%zu", i);
		step(&e, prefix, name, len[i]);
		assert_true(w.offset[i] == e.data);
		assert_int_equal(w.offset[i] % 64, 0);
	}
	step(&e, prefix, "version", 2);
	step(&e, prefix, ".data/serialization_id", 40);
	assert_true(w.directory == e.at);
	assert_true(w.size == e.at + e.directory + 56 + 20 + 22);
	/* Literals and storages fill the file without gaps. */
	for (size_t i = 0; i <= n; i++) {
		assert_true(ptwrite_literal_offset(&w, i) == at);
		at += ptwrite_literal_len(&w, i);
		at += i < n ? len[i] : 0;
	}
	assert_true(at == w.size);
	ptwrite_done(&w);
}

static void layout_obeys_the_arithmetic(void **state)
{
	static const struct {
		uint64_t len[5];
		size_t n;
	} cases[] = {
		{ { 0 }, 0 },
		{ { 0 }, 1 },
		{ { 1 }, 1 },
		{ { 64, 0, 63, 0, 65 }, 5 },
		/* Sizes near 2^32. */
		{ { 0xfffffffe, 1 }, 2 },
		{ { 0xffffffff, 1 }, 2 },
		{ { 0x100000000, 1, 0, 7 }, 4 },
		{ { 5 * GIB }, 1 },
		{ { 5 * GIB, 3, 0, 5 * GIB, 4 }, 5 },
		{ { 2 * GIB, 2 * GIB - 2000, 100, 2000, 9 }, 5 },
		{ { 0xffffffff - 900, 1, 1, 1, 1 }, 5 },
		{ { 0xffffffff - 800, 1, 1, 1, 1 }, 5 },
		{ { UINT64_C(1) << 40, UINT64_C(1) << 50 }, 2 },
	};

	for (size_t i = 0; i < COUNT(cases); i++)
		check_layout(cases[i].len, cases[i].n);
	/* The header starts before, at and after 2^32 - 1. */
	for (uint64_t d = 0; d < 200; d++)
		check_layout((const uint64_t[]){ 0xffffffff - 1000 + d * 4, 5 },
			     2);
}

static void big_records_have_zip64_fields(void **state)
{
	static const uint64_t len[] = { 8, 0x100000190, 3, 0 };
	static const uint32_t crc[] = { 1, 2, 3, 0 };
	struct bytebuf b = { 0 };
	struct ptwrite w;
	const uint8_t *p;

	lay_out(&w, "b", 100, len, 4);

	/* Before data/1: 16-byte field, compressed size left zero. */
	assert_int_equal(ptwrite_literal(&w, 1, crc, &b, NULL), 0);
	p = b.data + 16 + 30 + strlen("b/data/1");
	assert_memory_equal(p, "\1\0\x10\0\x90\1\0\0\1\0\0\0\0\0\0\0\0\0\0\0FB",
			    22);
	/* After it: a 24-byte descriptor; data/2 gets its offset. */
	b.len = 0;
	assert_int_equal(ptwrite_literal(&w, 2, crc, &b, NULL), 0);
	assert_memory_equal(b.data, "PK\7\x8\2\0\0\0", 8);
	assert_true(get_le64(b.data + 8) == len[1]);
	assert_true(get_le64(b.data + 16) == len[1]);
	p = b.data + 24 + 30 + strlen("b/data/2");
	assert_memory_equal(p, "\1\0\x8\0", 4);
	assert_true(get_le64(p + 4) == w.header[6]);
	assert_memory_equal(p + 12, "FB", 2);
	/* data/3 is empty: other flags, no descriptor. */
	b.len = 0;
	assert_int_equal(ptwrite_literal(&w, 3, crc, &b, NULL), 0);
	assert_int_equal(get_le16(b.data + 24 + 6), 0x0800);
	b.len = 0;
	assert_int_equal(ptwrite_literal(&w, 4, crc, &b, NULL), 0);
	assert_memory_equal(b.data, "PK\3\4", 4);
	bytebuf_done(&b);
	ptwrite_done(&w);
}

/* A sparse file, in which a reader looks up offsets. */
static void a_file_of_5_gib_can_be_read(void **state)
{
	static const uint64_t len[] = { 5 * GIB, 12, 0, GIB };
	static const uint32_t crc[4] = { 0 };
	char *const dir = mkckpt_new_dir();
	char path[PATH_MAX];
	struct errmsg err = { "" };
	struct ptwrite w;
	struct ptfile pt;
	int fd;

	snprintf(path, sizeof(path), "%s/big.pt", dir);
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_true(fd >= 0);
	lay_out(&w, "big", 2, len, 4);
	if (ftruncate(fd, (off_t)w.size) < 0) {
		ptwrite_done(&w);
		close(fd);
		mkckpt_free_dir(dir);
		print_message("skipped: no sparse file of 6 GiB here\n");
		skip();
	}
	for (size_t i = 0; i <= 4; i++) {
		struct bytebuf b = { 0 };

		assert_int_equal(ptwrite_literal(&w, i, crc, &b, NULL), 0);
		assert_int_equal(pwrite(fd, b.data, b.len,
					(off_t)ptwrite_literal_offset(&w, i)),
				 b.len);
		bytebuf_done(&b);
	}
	close(fd);
	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		fail_msg("%s", err.text);
	for (size_t i = 0; i < 4; i++) {
		uint64_t at = 0;
		char key[8];

		snprintf(key, sizeof(key), "%zu", i);
		if (ptfile_storage(&pt, key, len[i], &at, &err))
			fail_msg("%s", err.text);
		assert_true(at == w.offset[i]);
		assert_int_equal(ptfile_storage(&pt, key, len[i] + 1, &at, &err),
				 -EBADMSG);
	}
	ptfile_close(&pt);
	ptwrite_done(&w);
	mkckpt_free_dir(dir);
}

static void sizes_that_overflow_are_refused(void **state)
{
	static const uint64_t lens[][2] = {
		{ UINT64_MAX, 0 },
		{ INT64_MAX, INT64_MAX },
		{ UINT64_C(1) << 62, UINT64_C(1) << 62 },
		{ 8, UINT64_MAX - 600 },
	};

	for (size_t i = 0; i < COUNT(lens); i++) {
		struct bytebuf pickle = pickle_of(2);
		struct errmsg err = { "" };
		struct ptwrite w;

		assert_int_equal(ptwrite_init(&w, "x", &pickle, lens[i], 2, &err),
				 -EFBIG);
		assert_string_equal(err.text, "x.pt: too large");
		assert_non_null(pickle.data); /* the file still owns it */
		bytebuf_done(&pickle);
	}
}

/* Every checksum field of a small file, zero or not. */
static void without_sums_all_fields_are_zero(void **state)
{
	static const uint64_t len = 4;
	struct bytebuf with = { 0 }, without = { 0 };
	const uint32_t crc = crc32_add(0, "abcd", 4);
	struct ptwrite w;
	struct source src;
	struct zip zip;

	lay_out(&w, "x", 2, &len, 1);
	for (size_t i = 0; i <= 1; i++) {
		assert_int_equal(ptwrite_literal(&w, i, &crc, &with, NULL), 0);
		assert_int_equal(ptwrite_literal(&w, i, NULL, &without, NULL),
				 0);
		bytebuf_add(&with, "abcd", i ? 0 : 4);
		bytebuf_add(&without, "abcd", i ? 0 : 4);
	}
	assert_int_equal(with.len, w.size);
	assert_int_equal(without.len, w.size);
	source_init_span(&src, "x", (struct span){ with.data, with.len });
	assert_int_equal(zip_open(&zip, &src, NULL), 0);
	for (size_t i = 0; i < zip.n; i++) {
		const struct zip_entry *const e = &zip.entries[i];
		uint64_t at;

		assert_int_equal(zip_locate(&zip, e, &at, NULL), 0);
		assert_int_equal(e->crc, crc32_add(0, with.data + at, e->size));
		/* and the descriptor after it */
		assert_memory_equal(with.data + at + e->size, "PK\7\x8", 4);
		assert_int_equal(get_le32(with.data + at + e->size + 4), e->crc);
		assert_int_equal(get_le32(without.data + at + e->size + 4), 0);
	}
	zip_close(&zip);
	source_init_span(&src, "x", (struct span){ without.data, without.len });
	assert_int_equal(zip_open(&zip, &src, NULL), 0);
	for (size_t i = 0; i < zip.n; i++)
		assert_int_equal(zip.entries[i].crc, 0);
	zip_close(&zip);
	bytebuf_done(&with);
	bytebuf_done(&without);
	ptwrite_done(&w);
}

static struct span member(const struct ptfile *pt, const struct bytebuf *file,
			  const char *name)
{
	const struct zip_entry *const e = zip_find(&pt->zip, name);
	uint64_t at;

	if (!e)
		return (struct span){ 0 };
	assert_int_equal(zip_locate(&pt->zip, e, &at, NULL), 0);
	return (struct span){ file->data + at, e->size };
}

/* Lay out the same records with our writer. */
static struct bytebuf write_again(const struct ptfile *pt,
				  const struct bytebuf *file)
{
	const struct span from = member(pt, file, "data.pkl");
	struct bytebuf pickle = { 0 }, out = { 0 };
	struct span data[1024];
	uint64_t len[1024];
	uint32_t crc[1024];
	char prefix[256], name[32];
	struct ptwrite w;
	size_t n = 0;

	bytebuf_add(&pickle, from.p, from.len);
	for (; n < COUNT(data); n++) {
		snprintf(name, sizeof(name), "data/%zu", n);
		if (!zip_find(&pt->zip, name))
			break;
		data[n] = member(pt, file, name);
		len[n] = data[n].len;
		crc[n] = crc32_add(0, data[n].p, data[n].len);
	}
	snprintf(prefix, sizeof(prefix), "%.*s",
		 (int)strlen(pt->zip.prefix) - 1, pt->zip.prefix);
	assert_int_equal(ptwrite_init(&w, prefix, &pickle, len, n, NULL), 0);
	for (size_t i = 0; i <= n; i++) {
		assert_int_equal(ptwrite_literal(&w, i, crc, &out, NULL), 0);
		if (i < n)
			bytebuf_add(&out, data[i].p, data[i].len);
	}
	ptwrite_done(&w);
	return out;
}

/* Return 1 if torch 2.7 or later wrote the file, whose layout our writer must give. */
static unsigned check_real_file(const char *path)
{
	struct bytebuf file = mkpt_load(path), again = { 0 };
	unsigned checked = 0;
	struct source src;
	struct ptfile pt;

	source_init_span(&src, path, (struct span){ file.data, file.len });
	if (ptfile_open_source(&pt, &src, NULL) == 0) {
		if (zip_find(&pt.zip, ".format_version")) {
			again = write_again(&pt, &file);
			if (again.len != file.len ||
			    memcmp(again.data, file.data, file.len) != 0)
				fail_msg("%s: written differently", path);
			checked = 1;
		}
		ptfile_close(&pt);
	}
	bytebuf_done(&again);
	bytebuf_done(&file);
	return checked;
}

static void real_files_come_out_unchanged(void **state)
{
	unsigned checked = 0;
	glob_t g;

	realfiles_glob(&g, REALFILES_PT);
	for (size_t i = 0; i < g.gl_pathc; i++)
		checked += check_real_file(g.gl_pathv[i]);
	globfree(&g);
	assert_true(checked >= 10);
	print_message("%u files\n", checked);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(small_file_has_torchs_offsets),
		cmocka_unit_test(universal_files_have_torchs_sizes),
		cmocka_unit_test(layout_obeys_the_arithmetic),
		cmocka_unit_test(big_records_have_zip64_fields),
		cmocka_unit_test(a_file_of_5_gib_can_be_read),
		cmocka_unit_test(sizes_that_overflow_are_refused),
		cmocka_unit_test(without_sums_all_fields_are_zero),
		cmocka_unit_test(real_files_come_out_unchanged),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
