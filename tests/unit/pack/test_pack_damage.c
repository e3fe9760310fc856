/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damaged bytes are never served: every bit of a pack is flipped, the pack is cut at every length,
 * and wrong indices with correct checksums are refused.
 */
#include "tests/support/context.h"
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
#include "ckpt/io/io.h"
#include "ckpt/pack/pack.h"
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
	return pack_open_source(test_context(), &src, p, err);
}

/* Read everything, and return the number of refused files; the others must be right. */
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

	/* Flipping every bit of the blocks would take too long. */
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
	/* Some bits of zstd frames have no meaning; flipping them changes nothing. */
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

	assert_int_equal(io_open_pack(test_context(), "text", &p, &err), -EBADMSG);
	assert_string_equal(err.text, "text: not a pack");
	assert_int_equal(io_open_pack(test_context(), "none", &p, &err), -ENOENT);
	assert_int_equal(io_open_pack(test_context(), "dir", &p, &err), -EBADMSG);
}

#define ENTRY(i) (24 + 64 * (i))
#define EXTENT(i) (24 + 64 * PACKED_FILES + 48 * (i))

/* Recompute the checksums. */
static void seal(uint8_t *v, size_t n)
{
	put_le64(v + 40, XXH3_64bits(v + index_at, n - index_at));
	put_le64(v + 48, XXH3_64bits(v, 48));
}

static void lies_are_refused(void **state)
{
	/* A field of the index and its wrong value.  Extents: of dir/copy 0 bytes, 1 copy, 2
	 * stored, 3 ... */
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
		{ ENTRY(1) + 8, 4, 2, "entry 2: no name" },
		{ ENTRY(1) + 8, 4, UINT32_MAX, "entry 1: no name" },
		{ ENTRY(1) + 12, 4, S_IFLNK | 0777, "neither a file" },
		{ ENTRY(1) + 12, 4, S_IFREG | 0644, "not in a directory" },
		{ ENTRY(1) + 24, 4, 1000000000, "neither a file" },
		{ ENTRY(1) + 32, 8, 5, "directory with content" },
		{ ENTRY(2) + 28, 4, 1000, "its extents are not there" },
		{ ENTRY(2) + 32, 8, UINT64_MAX, "more bytes than a pack" },
		{ 16, 8, UINT64_C(1) << 27, "names of 134217728 bytes" },
		{ ENTRY(2) + 32, 8, 1, "out of order" },
		{ ENTRY(2) + 40, 8, 1, "its extents are not there" },
		{ ENTRY(0) + 12, 4, S_IFREG | 0644, "not in a directory" },
		{ EXTENT(0), 8, 1, "extent 0: out of order" },
		{ EXTENT(1), 8, 0, "extent 1: out of order" },
		{ EXTENT(1), 8, UINT64_C(1) << 62, "extent 1: out of order" },
		{ EXTENT(0) + 8, 4, 3, "of no known kind" },
		{ EXTENT(0) + 12, 4, BLOCK_TYPES, "of no known kind" },
		{ EXTENT(0) + 12, 4, BLOCK_F32, "within an element" },
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

/* Names that lead elsewhere, as long as the original names. */
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

/* A pack of any size: parts that are written, and holes between them. */
struct holes {
	struct source src;
	struct bytebuf head; /* bytes at offset 0 */
	struct bytebuf end;  /* bytes at end_at */
	uint64_t end_at;
	uint64_t read; /* bytes read so far */
};

static int holes_read(const struct source *s, void *buf, size_t len, uint64_t off,
		      struct errmsg *err)
{
	struct holes *const h = s->ctx;

	(void)err;
	h->read += len;
	for (size_t i = 0; i < len; i++) {
		const uint64_t at = off + i, in_end = at - h->end_at;

		((uint8_t *)buf)[i] =
			at < h->head.len ? h->head.data[at]
			: at >= h->end_at && in_end < h->end.len
				? h->end.data[in_end]
				: 0;
	}
	return 0;
}

static void holes_close(struct source *s)
{
	(void)s;
}

static void holes_done(struct holes *h)
{
	bytebuf_done(&h->head);
	bytebuf_done(&h->end);
}

/* Make a pack of `size` bytes that ends with an index of `index_size`: `index`, then holes. */
static void holes_init(struct holes *h, uint64_t pack_size, uint64_t index_size,
		       const struct pack_index *index)
{
	static const struct source_ops ops = { .read = holes_read,
					       .close = holes_close };
	struct pack_header header = { .file_size = pack_size,
				      .index_at = pack_size - index_size,
				      .index_size = index_size };

	*h = (struct holes){ .end_at = header.index_at };
	pack_index_put(index, &h->end);
	header.index_hash = XXH3_64bits(h->end.data, h->end.len);
	pack_header_seal(&header);
	bytebuf_add(&h->head, &header, sizeof(header));
	h->src = (struct source){ .name = "pack", .fd = -1, .size = pack_size,
				  .ops = &ops, .ctx = h };
}

#define GIB (UINT64_C(1) << 30)

/* Memory is proportional to the bytes read before the pack is refused. */
#define STEPS_MAX (UINT64_C(32) << 20)

static void an_index_of_holes_takes_no_memory(void **state)
{
	/* As many records as the format allows in an index of that size. */
	static const struct {
		uint64_t entries, extents, names;
		const char *why;
	} cases[] = {
		{ PACK_ENTRIES_MAX, 0, PACK_NAMES_MAX, "entry 1: " },
		{ PACK_ENTRIES_MAX, PACK_EXTENTS_MAX, PACK_NAMES_MAX, "entry 1: " },
		{ 1, PACK_EXTENTS_MAX, 1, "belong to no file" },
		{ 1, 0, UINT64_C(6) * GIB, "names of 6442450944 bytes" },
	};
	struct pack_entry root = { .name = "", .mode = S_IFDIR | 0755 };
	const struct pack_index x = { .entries = &root, .nentries = 1 };

	for (size_t i = 0; i < COUNT(cases); i++) {
		const uint64_t n = 24 + 64 * cases[i].entries +
				   48 * cases[i].extents + cases[i].names;
		struct errmsg err = { "" };
		struct holes h;
		struct pack *p;

		holes_init(&h, PACK_HEADER_SIZE + n, n, &x);
		put_le64(h.end.data, cases[i].entries);
		put_le64(h.end.data + 8, cases[i].extents);
		put_le64(h.end.data + 16, cases[i].names);
		assert_true(pack_open_source(test_context(), &h.src, &p, &err) <
			    0);
		if (!strstr(err.text, cases[i].why))
			fail_msg("case %zu: '%s'", i, err.text);
		assert_true(h.read < STEPS_MAX);
		holes_done(&h);
	}
}

/* Open a file of one stored extent of `len` bytes, and one of `n` copies of it. */
static int open_copies(struct holes *h, uint64_t len, uint32_t n, struct pack **p,
		       struct errmsg *err)
{
	const uint64_t table = len / BLOCK_SIZE * PACK_TABLE_RECORD;
	struct pack_entry entries[3] = {
		{ .name = "", .mode = S_IFDIR | 0755 },
		{ .name = "a", .mode = S_IFREG | 0644, .size = n * len,
		  .n = n },
		{ .name = "b", .mode = S_IFREG | 0644, .size = len,
		  .first = n, .n = 1 },
	};
	struct pack_index x = { .entries = entries, .nentries = 3,
				.nextents = n + 1 };
	uint64_t index_size = 24 + 3 * 64 + (n + 1) * UINT64_C(48) + 5;

	x.extents = calloc(n + 1, sizeof(*x.extents));
	for (uint32_t i = 0; i < n; i++)
		x.extents[i] = (struct pack_extent){ .start = i * len,
						     .kind = PACK_COPY,
						     .target = n };
	x.extents[n] = (struct pack_extent){ .at = PACK_HEADER_SIZE,
					     .stored = len / BLOCK_SIZE,
					     .table = PACK_HEADER_SIZE +
						      len / BLOCK_SIZE };
	holes_init(h, x.extents[n].table + table + index_size, index_size, &x);
	free(x.extents);
	return pack_open_source(test_context(), &h->src, p, err);
}

static void a_table_of_holes_takes_no_memory(void **state)
{
	const struct pack_work o = { .name = "pack", .width = 1 };
	struct errmsg err = { "" };
	struct holes h;
	struct pack *p;
	uint8_t byte;

	/* 64 TiB of blocks, a table of 12 GiB. */
	assert_int_equal(open_copies(&h, UINT64_C(1) << 46, 1, &p, &err), 0);
	assert_int_equal(pack_read(p, 2, &byte, 1, 0, &err), -EBADMSG);
	assert_string_equal(err.text, "pack: table of extent 1 is damaged");
	assert_int_equal(pack_extract(p, -1, &o, &err), -EBADMSG);
	assert_true(h.read < STEPS_MAX);
	pack_close(p);
	holes_done(&h);
}

static void copies_of_too_much_are_refused(void **state)
{
	struct errmsg err = { "" };
	struct holes h;
	struct pack *p;

	assert_int_equal(open_copies(&h, BLOCK_SIZE, PACK_REFERENCES_MAX, &p, &err),
			 0);
	pack_close(p);
	holes_done(&h);
	/* 64 MiB would expand to 256 GiB. */
	assert_int_equal(open_copies(&h, 64 << 20, 4096, &p, &err), -E2BIG);
	assert_string_equal(err.text, "pack: claims copies of 274877906944 bytes,"
				      " but stores only 67108864 to copy");
	holes_done(&h);
}

static void another_version_is_named(void **state)
{
	struct errmsg err = { "" };
	struct pack *p;

	bytes[8] = 1;
	assert_int_equal(open_bytes(size, &p, &err), -ENOTSUP);
	assert_string_equal(err.text, "pack: a pack of version 1; this program"
				      " reads version 2: unpack it with the"
				      " ucckpt that packed it");
	bytes[8] = 2;
}

/* Right blocks, but the hash of the file is wrong. */
static void extraction_compares_files(void **state)
{
	const struct pack_work o = { .name = "pack", .width = 2 };
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
		cmocka_unit_test(an_index_of_holes_takes_no_memory),
		cmocka_unit_test(a_table_of_holes_takes_no_memory),
		cmocka_unit_test(copies_of_too_much_are_refused),
		cmocka_unit_test(another_version_is_named),
		cmocka_unit_test(extraction_compares_files),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}
