/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage is found before its bytes are served: every bit of a pack is turned, the
 * pack is cut at every length, and indices that lie are refused although their
 * checksums are right.
 */
#include "tests/support/unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/pack/pack.h"
#include "ckpt/pack/pack_extract.h"
#include "tests/make/mkckpt.h"
#include "tests/unit/pack/packed.h"

static struct packed made;
static uint8_t *bytes;
static size_t size, index_at;

static int set_up(void **state)
{
	*state = mkckpt_new_dir();
	if (chdir(*state))
		return -1;
	packed_make(&made, false, 1);
	bytes = packed_load(&size);
	index_at = (size_t)get_le64(bytes + 24);
	return 0;
}

static int tear_down(void **state)
{
	packed_done(&made);
	free(bytes);
	mkckpt_free_dir(*state);
	return 0;
}

static int open_bytes(size_t n, struct pack **p, struct errmsg *err)
{
	struct source src;

	source_init_span(&src, "pack", (struct span){ bytes, n });
	return pack_open_source(&src, p, err);
}

/* Read everything: how many files were refused.  The others must be right. */
static unsigned read_all(struct pack *p)
{
	unsigned refused = 0;

	for (uint32_t i = 0; i < PACKED_FILES; i++) {
		const uint64_t n = pack_index_of(p)->entries[i].size;
		uint8_t *const buf = malloc(n + 1);
		struct errmsg err = { "" };
		const int rc = pack_read(p, i, buf, n, 0, &err);

		if (rc) {
			assert_int_equal(rc, -EBADMSG);
			assert_non_null(strstr(err.text, "pack: "));
			assert_non_null(strstr(err.text, "damaged"));
			refused++;
		} else if (n) {
			assert_memory_equal(buf, made.bytes[i], n);
		}
		free(buf);
	}
	return refused;
}

static void turned_bits_are_found(void **state)
{
	unsigned harmless = 0;

#ifdef __SANITIZE_ADDRESS__
	const unsigned step = 23;
#else
	const unsigned step = 5;
#endif

	/* Blocks have more bits than there is time for. */
	for (size_t bit = 0; bit < 8 * size;
	     bit += bit / 8 >= 56 && bit / 8 < index_at ? step : 1) {
		struct errmsg err = { "" };
		struct pack *p;

		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
		if (bit / 8 < 56 || bit / 8 >= index_at) {
			assert_int_not_equal(open_bytes(size, &p, &err), 0);
			assert_non_null(strstr(err.text, "pack: "));
		} else {
			assert_int_equal(open_bytes(size, &p, &err), 0);
			harmless += read_all(p) == 0;
			pack_close(p);
		}
		bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
	}
	/* zstd's frames have bits without a meaning: the content was right. */
	assert_true(harmless < 40);
}

static void cut_packs_are_refused(void **state)
{
	for (size_t n = 0; n < size; n += n < 100 ? 1 : 97) {
		struct errmsg err = { "" };
		struct pack *p;

		assert_int_equal(open_bytes(n, &p, &err), -EBADMSG);
		assert_non_null(strstr(err.text, "pack: "));
	}
}

static void no_pack_is_none(void **state)
{
	struct errmsg err = { "" };
	struct pack *p;

	assert_int_equal(pack_open("text", &p, &err), -EBADMSG);
	assert_string_equal(err.text, "text: not a pack");
	assert_int_equal(pack_open("none", &p, &err), -ENOENT);
	assert_int_equal(pack_open("dir", &p, &err), -EBADMSG);
}

/* --- indices that lie ------------------------------------------------------ */

#define ENTRY(i) (24 + 64 * (i))
#define EXTENT(i) (24 + 64 * PACKED_FILES + 48 * (i))

/* Bring the checksums in order. */
static void seal(uint8_t *v, size_t n)
{
	put_le64(v + 40, XXH3_64bits(v + index_at, n - index_at));
	put_le64(v + 48, XXH3_64bits(v, 48));
}

static void lies_are_refused(void **state)
{
	/* A field of the index, and what it says instead.  Extents: of dir/copy 0
	 * bytes, 1 copy, 2 stored, 3 ... */
	static const struct {
		size_t at;
		unsigned width;
		uint64_t value;
		const char *why;
	} cases[] = {
		{ 0, 8, 0, "damaged index" },
		{ 0, 8, UINT64_C(1) << 40, "files and" },
		{ 8, 8, UINT64_C(1) << 60, "files and" },
		{ 0, 8, PACKED_FILES + 1, "damaged index" },
		{ 16, 8, 3, "damaged index" },
		{ ENTRY(1), 8, 2, "entry 1: no name" },
		{ ENTRY(1) + 8, 4, 2, "entry 1: no name" },
		{ ENTRY(1) + 8, 4, UINT32_MAX, "entry 1: no name" },
		{ ENTRY(1) + 12, 4, S_IFLNK | 0777, "neither a file" },
		{ ENTRY(1) + 12, 4, S_IFREG | 0644, "not in a directory" },
		{ ENTRY(1) + 24, 4, 1000000000, "neither a file" },
		{ ENTRY(1) + 32, 8, 5, "directory with content" },
		{ ENTRY(2) + 28, 4, 1000, "its extents are not there" },
		{ ENTRY(2) + 32, 8, UINT64_MAX, "not its size" },
		{ ENTRY(2) + 32, 8, 1, "out of order" },
		{ ENTRY(2) + 40, 8, 1, "its extents are not there" },
		{ ENTRY(0) + 12, 4, S_IFREG | 0644, "not in a directory" },
		{ EXTENT(0), 8, 1, "extent 0: out of order" },
		{ EXTENT(1), 8, 0, "extent 0: out of order" },
		{ EXTENT(1), 8, UINT64_C(1) << 62, "extent 0: out of order" },
		{ EXTENT(0) + 8, 4, 3, "of no known kind" },
		{ EXTENT(0) + 12, 4, BLOCK_TYPES, "of no known kind" },
		{ EXTENT(0) + 12, 4, BLOCK_F64, "within an element" },
		{ EXTENT(0) + 16, 8, 57, "its blocks are not there" },
		{ EXTENT(0) + 24, 8, 0, "its blocks are not there" },
		{ EXTENT(0) + 24, 8, UINT64_MAX, "its blocks are not there" },
		{ EXTENT(0) + 32, 8, 56, "its table is not there" },
		{ EXTENT(1) + 16, 8, 1, "refers to nothing" },
		{ EXTENT(1) + 16, 8, 100000, "refers to nothing" },
		{ EXTENT(1) + 24, 8, UINT64_MAX, "refers to nothing" },
		{ EXTENT(1) + 32, 8, 1, "refers to nothing" },
		{ EXTENT(1) + 8, 4, PACK_ROUNDED, "refers to nothing" },
		{ EXTENT(1) + 8, 4, PACK_STORED, "not there" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint8_t *const kept = bytes, *const at = malloc(size);
		struct errmsg err = { "" };
		struct pack *p;

		memcpy(at, kept, size);
		for (unsigned k = 0; k < cases[i].width; k++)
			at[index_at + cases[i].at + k] =
				(uint8_t)(cases[i].value >> 8 * k);
		seal(at, size);
		bytes = at;
		if (open_bytes(size, &p, &err) == 0)
			fail_msg("case %zu was believed", i);
		if (!strstr(err.text, cases[i].why))
			fail_msg("case %zu: '%s', expected '%s'", i, err.text,
				 cases[i].why);
		bytes = kept;
		free(at);
	}
}

/* Names that lead elsewhere; of the same length as what they stand for. */
static void names_stay_below(void **state)
{
	static const struct {
		const char *was, *is;
	} cases[] = {
		{ "empty", "../ab" },       { "empty", "em/.." },
		{ "empty", "/etc." },       { "empty", "em//y" },
		{ "empty", "empt/" },       { "dir/copy", "./x/copy" },
		{ "dir/copy", "dir/../x" }, { "empty", "zmpty" },
		{ "empty", "dx/ty" },       { "text", "t\0xt" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint8_t *const kept = bytes, *const at = malloc(size);
		const size_t n = strlen(cases[i].was) + 1;
		struct errmsg err = { "" };
		struct pack *p;
		uint8_t *name;

		memcpy(at, kept, size);
		name = memmem(at + index_at, size - index_at, cases[i].was, n);
		assert_non_null(name);
		memcpy(name, cases[i].is, n - 1);
		seal(at, size);
		bytes = at;
		if (open_bytes(size, &p, &err) == 0)
			fail_msg("'%s' was believed", cases[i].is);
		assert_non_null(strstr(err.text, "damaged index: entry"));
		bytes = kept;
		free(at);
	}
}

static void another_version_is_named(void **state)
{
	struct errmsg err = { "" };
	struct pack *p;

	bytes[8] = 2;
	assert_int_equal(open_bytes(size, &p, &err), -ENOTSUP);
	assert_string_equal(err.text, "pack: a pack of version 2; this program"
				      " reads version 1");
	bytes[8] = 1;
}

/* A block that is right, in a file whose hash is not. */
static void extraction_compares_files(void **state)
{
	const struct pack_extract_options o = { .width = 2 };
	uint8_t *const at = bytes + index_at + ENTRY(4) + 48;
	struct errmsg err = { "" };
	struct pack *p;

	*at ^= 1;
	seal(bytes, size);
	assert_int_equal(open_bytes(size, &p, &err), 0);
	assert_int_equal(pack_extract(p, -1, &o, &err), -EBADMSG);
	assert_string_equal(err.text, "pack: master: its content is not what was"
				      " packed");
	pack_close(p);
	*at ^= 1;
	seal(bytes, size);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(turned_bits_are_found),
		cmocka_unit_test(cut_packs_are_refused),
		cmocka_unit_test(no_pack_is_none),
		cmocka_unit_test(lies_are_refused),
		cmocka_unit_test(names_stay_below),
		cmocka_unit_test(another_version_is_named),
		cmocka_unit_test(extraction_compares_files),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
