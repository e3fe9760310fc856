/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Torch's container before zip: the contents of good files are found. test_good
 * shows that torch's own files are read and give the same tree as zip files;
 * bad ones are in test_legacy_bad.c.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/pickle.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/io/io.h"
#include "tests/make/mklegacy.h"
#include "tests/make/mkpt.h"
#include "tests/support/context.h"
#include "tests/support/unit.h"

/* Return the bytes of the tensor under `key` as a string. */
static void tensor_text(const struct ptfile *pt, const char *key, char *out)
{
	struct errmsg err = { "" };
	struct tensor t;
	uint64_t at;

	if (ptfile_tensor(pt, value_find(pt->root, key), key, &t, &at, &err))
		fail_msg("%s", err.text);
	assert_true(t.numel < 16);

	const size_t elem = dtype_size(t.dtype);

	assert_int_equal(source_read(&pt->src, out, t.numel * elem,
				     at + t.storage_offset * elem, NULL),
			 0);
	out[t.numel * elem] = '\0';
}

static void tensors_are_found(void **state)
{
	static const struct {
		const char *name;
		const char *a, *b;
		struct legacy_replaced r[3];
	} cases[] = {
		{ "as torch writes it", "bbbbccccdddd", "eeffgghhii", { { 0 } } },
		{ "protocol 4",
		  "bbbbccccdddd",
		  "eeffgghhii",
		  { { PART_MAGIC,
		      BYTES("\200\4\225\15\0\0\0\0\0\0\0\212\12\154\374\234F"
			    "\371 j\250P\31.") } } },
		{ "keys in another order",
		  "bbbbccccdddd",
		  "eeffgghhii",
		  { { PART_KEYS, BYTES(KEYS(KEY("22") KEY("11"))) },
		    { PART_DATA, BYTES(DATA_22 DATA_11) } } },
		{ "one storage of two tensors",
		  "bbbbccccdddd",
		  "aaaabbbb",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, TENSOR(STORAGE("FloatStorage", "11",
							  "K\4", ROOT),
						  "K\0", "K\2"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		/* The first reference decides the unit in which elements are counted. */
		{ "one storage of two types",
		  "bbbbccccdddd",
		  "aaaabbbb",
		  { { PART_OBJECT,
		      BYTES(OBJECT(FLOATS, TENSOR(STORAGE("ByteStorage", "11",
							  "K\20", ROOT),
						  "K\0", "K\10"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "one tuple twice",
		  "bbbb",
		  "cccc",
		  { { PART_OBJECT,
		      BYTES(OBJECT(
			      TENSOR(STORAGE_ID("FloatStorage", "11", "K\4",
						ROOT) "q\1Q",
				     "K\1", "K\1"),
			      TENSOR("h\1Q", "K\2", "K\1"))) },
		    { PART_KEYS, BYTES(KEYS(KEY("11"))) },
		    { PART_DATA, BYTES(DATA_11) } } },
		{ "an empty storage",
		  "",
		  "eeffgghhii",
		  { { PART_OBJECT, BYTES(OBJECT(TENSOR(STORAGE("FloatStorage",
							       "11", "K\0", ROOT),
						       "K\0", "K\0"),
						HALVES)) },
		    { PART_DATA, BYTES(U64("\0") DATA_22) } } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = legacy_make(cases[i].r, COUNT(cases[i].r));
		struct errmsg err = { "" };
		struct ptfile pt;
		uint8_t *copy;
		char text[256];

		if (legacy_open_copy(&b, b.len, &pt, &copy, &err))
			fail_msg("%s: %s", cases[i].name, err.text);
		assert_false(pt.is_zip);
		tensor_text(&pt, "a", text);
		assert_string_equal(text, cases[i].a);
		tensor_text(&pt, "b", text);
		assert_string_equal(text, cases[i].b);
		ptfile_close(&pt);
		free(copy);
		bytebuf_done(&b);
	}
}

static void a_file_without_tensors_is_read(void **state)
{
	static const struct legacy_replaced r[] = {
		{ PART_OBJECT, BYTES("\200\2K\7.") },
		{ PART_KEYS, BYTES("\200\2].") },
		{ PART_DATA, BYTES("") },
	};
	struct bytebuf b = legacy_make(r, COUNT(r));
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;
	uint64_t at;

	assert_int_equal(legacy_open_copy(&b, b.len, &pt, &copy, &err), 0);
	assert_int_equal(pt.root->i, 7);
	assert_int_equal(ptfile_storage(&pt, "0", 0, &at, &err), -EBADMSG);
	assert_string_equal(err.text, "model.pt: storage 0 is missing");
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* Lengths of storages without tensors are checked, too. */
static void storages_know_their_lengths(void **state)
{
	struct bytebuf b = legacy_make(NULL, 0);
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;
	uint64_t at = 0;

	assert_int_equal(legacy_open_copy(&b, b.len, &pt, &copy, &err), 0);
	assert_int_equal(ptfile_storage(&pt, "22", 10, &at, &err), 0);
	assert_int_equal(at, b.len - 10);
	assert_int_equal(ptfile_storage(&pt, "22", 11, &at, &err), -EBADMSG);
	assert_string_equal(err.text, "model.pt: storage 22 has 10 bytes, its"
				      " tensors need 11");
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* ('module', class, file, source) is the class. */
static void a_class_with_its_source_is_the_class(void **state)
{
	static const struct legacy_replaced r = {
		PART_OBJECT,
		BYTES(OBJECT(FLOATS,
			     HALVES "X\1\0\0\0c(X\6\0\0\0modulecmy.net\n"
				    "Net\nX\6\0\0\0net.pyX\4\0\0\0passtQ")),
	};
	struct bytebuf b = legacy_make(&r, 1);
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;

	if (legacy_open_copy(&b, b.len, &pt, &copy, &err))
		fail_msg("%s", err.text);
	assert_true(value_is_global(value_find(pt.root, "c"), "my.net", "Net"));
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&b);
}

/* Rewriting numbers the storages. */
static void what_is_read_can_be_written(void **state)
{
	static const struct span first =
		BYTES("X\1\0\0\0"
		      "0q\5X\3\0\0\0cpuq\6K\4tq\7Q");
	struct bytebuf b = legacy_make(NULL, 0), out = { 0 };
	struct pickle_storages s = { 0 };
	struct errmsg err = { "" };
	struct ptfile pt;
	uint8_t *copy;

	if (legacy_open_copy(&b, b.len, &pt, &copy, &err) ||
	    pickle_dump(pt.root, &out, &s, &err))
		fail_msg("%s", err.text);
	assert_int_equal(s.n, 2);
	assert_non_null(memmem(out.data, out.len, first.p, first.len));
	pickle_storages_done(&s);
	ptfile_close(&pt);
	free(copy);
	bytebuf_done(&out);
	bytebuf_done(&b);
}

static void a_tensor_that_is_written_is_read(void **state)
{
	static const struct {
		enum dtype dtype;
		unsigned ndim;
		uint64_t shape[2];
	} cases[] = {
		{ DTYPE_F32, 0, { 0 } },     { DTYPE_F32, 1, { 5 } },
		{ DTYPE_BF16, 2, { 2, 3 } }, { DTYPE_I64, 2, { 0, 7 } },
		{ DTYPE_U8, 2, { 3, 70000 } },
		{ DTYPE_F8_E4M3, 2, { 4, 3 } }, { DTYPE_U16, 1, { 5 } },
		{ DTYPE_U64, 0, { 0 } },	{ DTYPE_C32, 2, { 2, 0 } },
		{ DTYPE_C128, 1, { 3 } },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = { 0 };
		struct errmsg err = { "" };
		struct tensor want, t;
		struct ptfile pt;
		uint8_t *copy;
		uint64_t at;
		size_t head;

		tensor_init(&want, cases[i].dtype, cases[i].shape, cases[i].ndim,
			    false);
		legacy_add_tensor(&b, cases[i].dtype, cases[i].shape,
				  cases[i].ndim);
		head = b.len;
		bytebuf_add_fill(&b, 'x', want.numel * dtype_size(want.dtype));
		if (legacy_open_copy(&b, b.len, &pt, &copy, &err) ||
		    ptfile_run(&pt, pt.root, "it", &t, &at, &err))
			fail_msg("%zu: %s", i, err.text);
		assert_int_equal(at, head);
		assert_int_equal(t.dtype, want.dtype);
		assert_int_equal(t.ndim, want.ndim);
		assert_memory_equal(t.shape, want.shape, sizeof(t.shape));
		ptfile_close(&pt);
		free(copy);
		bytebuf_done(&b);
	}
}

static void an_object_that_is_written_is_read(void **state)
{
	struct arena a = { 0 };
	struct value *const v = value_new(&a, VALUE_DICT);
	struct bytebuf b = { 0 };
	struct errmsg err = { "" };
	struct tensor t;
	struct ptfile pt;
	uint8_t *copy;
	int64_t i = 0;

	value_put(&a, v, "step", value_new_int(&a, 4711));
	if (legacy_add_object(&b, v, &err) ||
	    legacy_open_copy(&b, b.len, &pt, &copy, &err))
		fail_msg("%s", err.text);
	assert_true(value_get_int(value_find(pt.root, "step"), &i));
	assert_int_equal(i, 4711);
	ptfile_close(&pt);
	free(copy);
	tensor_init(&t, DTYPE_F32, NULL, 0, false);
	value_put(&a, v, "t", tensor_to_value(&a, &t));
	assert_int_equal(legacy_add_object(&b, v, &err), -ENOTSUP);
	assert_string_equal(err.text, "contains a tensor");
	bytebuf_done(&b);
	arena_done(&a);
}

static char path[] = "/tmp/ucfs-legacy-XXXXXX";

/* Put a string of `len` bytes in front of the tensors. */
static struct bytebuf make_long(uint32_t len)
{
	const uint8_t size[] = { (uint8_t)len, (uint8_t)(len >> 8),
				 (uint8_t)(len >> 16), (uint8_t)(len >> 24) };
	const struct span object = legacy_good[PART_OBJECT];
	struct bytebuf o = { 0 }, b;

	bytebuf_add(&o, object.p, 4);
	bytebuf_add(&o, "X\1\0\0\0sX", 7);
	bytebuf_add(&o, size, 4);
	bytebuf_add_fill(&o, 's', len);
	bytebuf_add(&o, object.p + 4, object.len - 4);
	b = legacy_make(
		&(struct legacy_replaced){ PART_OBJECT, { o.data, o.len } }, 1);
	bytebuf_done(&o);
	return b;
}

static void check_long(uint32_t len)
{
	struct bytebuf b = make_long(len);
	struct errmsg err = { "" };
	struct ptfile pt;
	char text[256];

	mkpt_save(path, b.data, b.len);
	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		fail_msg("%u: %s", len, err.text);
	assert_int_equal(value_find(pt.root, "s")->str.len, len);
	tensor_text(&pt, "b", text);
	assert_string_equal(text, "eeffgghhii");
	ptfile_close(&pt);
	bytebuf_done(&b);
}

/* The pickles end near the sizes at which the window grows. */
static void long_pickles_are_read_whole(void **state)
{
	struct bytebuf short_one = legacy_make(NULL, 0);
	const size_t rest = short_one.len + 11;

	bytebuf_done(&short_one);
	for (uint32_t d = 0; d < 2 * rest; d += 7)
		check_long((16 << 10) - d);
	check_long((1 << 22) - 300);
	check_long(5000000);
}

/* The elements of a storage are not read: nearly all of this file is a hole that would take long to
 * read. */
static void storages_are_stepped_over(void **state)
{
	static const uint64_t numel = UINT64_C(1) << 33;
	static const struct legacy_replaced r[] = {
		{ PART_OBJECT,
		  BYTES(OBJECT(TENSOR(STORAGE("FloatStorage", "11",
					      "\212\5\0\0\0\0\2", ROOT),
				      "K\1", "K\3"),
			       HALVES)) },
		{ PART_DATA, BYTES("\0\0\0\0\2\0\0\0") },
	};
	struct bytebuf b = legacy_make(r, COUNT(r)), last = { 0 };
	struct errmsg err = { "" };
	struct ptfile pt;
	char text[256];
	int fd;

	mkpt_save(path, b.data, b.len);
	bytebuf_add(&last, DATA_22, sizeof(DATA_22) - 1);
	fd = open(path, O_WRONLY);
	if (pwrite(fd, last.data, last.len, (off_t)(b.len + 4 * numel)) !=
	    (ssize_t)last.len) {
		print_message("skipped: no file of 32 GiB here\n");
		close(fd);
		bytebuf_done(&last);
		bytebuf_done(&b);
		skip();
	}
	close(fd);
	if (io_open_pt(test_context(), path, NULL, &pt, &err))
		fail_msg("%s", err.text);
	tensor_text(&pt, "b", text);
	assert_string_equal(text, "eeffgghhii");
	ptfile_close(&pt);
	bytebuf_done(&last);
	bytebuf_done(&b);
}

static int make_path(void **state)
{
	const int fd = mkstemp(path);

	if (fd >= 0)
		close(fd);
	return fd < 0 ? -1 : 0;
}

static int remove_path(void **state)
{
	return unlink(path);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensors_are_found),
		cmocka_unit_test(a_file_without_tensors_is_read),
		cmocka_unit_test(storages_know_their_lengths),
		cmocka_unit_test(a_class_with_its_source_is_the_class),
		cmocka_unit_test(what_is_read_can_be_written),
		cmocka_unit_test(a_tensor_that_is_written_is_read),
		cmocka_unit_test(an_object_that_is_written_is_read),
		cmocka_unit_test(long_pickles_are_read_whole),
		cmocka_unit_test(storages_are_stepped_over),
	};

	return cmocka_run_group_tests(tests, make_path, remove_path);
}
