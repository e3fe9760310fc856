/* SPDX-License-Identifier: Apache-2.0 */
/* Headers of safetensors, as the library's 0.8 writes them. */
#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/safetensors.h"
#include "tests/support/unit.h"

static const uint64_t three[] = { 3 }, none[] = { 0, 3 }, matrix[] = { 2, 3 };

/* `expect` is everything after the length. */
#define TENSOR(n, d, dims, s, count)                                                      \
	{                                                                                 \
		.name = (n), .dtype = (d), .ndim = (dims), .shape = (s), .numel = (count) \
	}

static void check_header(const struct stored *v, size_t n, const char *expect)
{
	struct bytebuf out = { 0 };
	size_t order[32];

	assert_int_equal(safetensors_write_header(v, n, order, &out, NULL), 0);
	assert_int_equal(get_le64(out.data), strlen(expect));
	assert_int_equal(out.len, 8 + strlen(expect));
	assert_memory_equal(out.data + 8, expect, strlen(expect));
	bytebuf_done(&out);
}

static void nothing_is_a_file_too(void **state)
{
	check_header(NULL, 0, "{\"__metadata__\":{\"format\":\"pt\"}}");
}

static void blanks_fill_it_up_to_eight(void **state)
{
	const struct stored v = TENSOR("a", DTYPE_BOOL, 1, three, 3);

	check_header(&v, 1,
		     "{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":"
		     "\"BOOL\",\"shape\":[3],\"data_offsets\":[0,3]}}  ");
}

static void tensors_go_by_type_and_then_by_name(void **state)
{
	const struct stored v[] = {
		TENSOR("b", DTYPE_BF16, 1, three, 3), TENSOR("z", DTYPE_F32, 2, matrix, 6),
		TENSOR("e", DTYPE_F32, 2, none, 0),   TENSOR("Z", DTYPE_F32, 0, NULL, 1),
		TENSOR("i", DTYPE_I64, 1, three, 3),
	};
	struct bytebuf out = { 0 };
	size_t order[COUNT(v)];

	check_header(v, COUNT(v),
		     "{\"__metadata__\":{\"format\":\"pt\"},"
		     "\"i\":{\"dtype\":\"I64\",\"shape\":[3],"
		     "\"data_offsets\":[0,24]},"
		     "\"Z\":{\"dtype\":\"F32\",\"shape\":[],"
		     "\"data_offsets\":[24,28]},"
		     "\"e\":{\"dtype\":\"F32\",\"shape\":[0,3],"
		     "\"data_offsets\":[28,28]},"
		     "\"z\":{\"dtype\":\"F32\",\"shape\":[2,3],"
		     "\"data_offsets\":[28,52]},"
		     "\"b\":{\"dtype\":\"BF16\",\"shape\":[3],"
		     "\"data_offsets\":[52,58]}}  ");
	assert_int_equal(
		safetensors_write_header(v, COUNT(v), order, &out, NULL), 0);
	assert_int_equal(order[0], 4);
	assert_int_equal(order[1], 3);
	assert_int_equal(order[4], 0);
	bytebuf_done(&out);
}

/* Read the header, followed by `len` bytes of data, and compare with the input. */
static void check_read(struct bytebuf *out, size_t len, const struct stored *v, const size_t *order,
		       size_t n)
{
	struct errmsg err = { "" };
	struct safetensors s;
	struct source src;

	bytebuf_add_fill(out, 0, len);
	source_init_span(&src, "written", (struct span){ out->data, out->len });
	if (safetensors_read(&s, &src, &err))
		fail_msg("%s", err.text);
	assert_int_equal(s.n, n);
	for (size_t i = 0; i < n; i++) {
		assert_string_equal(s.v[i].name, v[order[i]].name);
		assert_int_equal(s.v[i].dtype, v[order[i]].dtype);
		assert_int_equal(s.v[i].numel, v[order[i]].numel);
	}
	safetensors_done(&s);
}

/* Tensors are sorted in the library's order of types, which the reader accepts. */
static void types_have_the_librarys_order(void **state)
{
	static const enum dtype types[] = {
		DTYPE_U64,  DTYPE_I64,	   DTYPE_F64,	      DTYPE_C64,
		DTYPE_F32,  DTYPE_U32,	   DTYPE_I32,	      DTYPE_BF16,
		DTYPE_F16,  DTYPE_U16,	   DTYPE_I16,	      DTYPE_F8_E5M2FNUZ,
		DTYPE_F8_E4M3FNUZ,	   DTYPE_F8_E8M0,     DTYPE_F8_E4M3,
		DTYPE_F8_E5M2, DTYPE_I8,   DTYPE_U8,	      DTYPE_F4_X2,
		DTYPE_BOOL,
	};
	struct stored v[COUNT(types)];
	char names[COUNT(types)][2];
	struct bytebuf out = { 0 };
	size_t order[COUNT(types)], len = 0;

	for (size_t i = 0; i < COUNT(types); i++) {
		const enum dtype type = types[COUNT(types) - 1 - i];

		names[i][0] = (char)('a' + i);
		names[i][1] = '\0';
		v[i] = (struct stored)TENSOR(names[i], type, 1, three, 3);
		len += 3 * dtype_size(type);
	}
	assert_int_equal(
		safetensors_write_header(v, COUNT(v), order, &out, NULL), 0);
	for (size_t i = 0; i < COUNT(types); i++)
		assert_int_equal(v[order[i]].dtype, types[i]);
	check_read(&out, len, v, order, COUNT(v));
	bytebuf_done(&out);
}

static void names_are_escaped_as_json_demands(void **state)
{
	const struct stored v = TENSOR("n\"\\\b\f\n\r\t\x01\x1f\x7f/\xc3\xa9\xf0\x9f\x98\x80",
				       DTYPE_F32, 0, NULL, 1);

	check_header(&v, 1,
		     "{\"__metadata__\":{\"format\":\"pt\"},"
		     "\"n\\\"\\\\\\b\\f\\n\\r\\t\\u0001\\u001f\x7f/\xc3\xa9"
		     "\xf0\x9f\x98\x80\":{\"dtype\":\"F32\",\"shape\":[],"
		     "\"data_offsets\":[0,4]}}  ");
}

static void what_the_format_has_not_is_refused(void **state)
{
	static const struct {
		struct stored t;
		const char *why;
	} cases[] = {
		{ TENSOR("c", DTYPE_C128, 1, three, 3), "complex128" },
		{ TENSOR("o", DTYPE_OTHER, 1, three, 3), "no type" },
		{ TENSOR("\xed\xa0\x80", DTYPE_F32, 1, three, 3), "UTF-8" },
		{ TENSOR("a\xff", DTYPE_F32, 1, three, 3), "UTF-8" },
		{ TENSOR("\xc0\x80", DTYPE_F32, 1, three, 3), "UTF-8" },
		{ TENSOR("\xc3", DTYPE_F32, 1, three, 3), "UTF-8" },
		{ TENSOR("\xf4\x90\x80\x80", DTYPE_F32, 1, three, 3), "UTF-8" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf out = { 0 };
		struct errmsg err = { "" };
		size_t order;

		assert_int_equal(safetensors_write_header(&cases[i].t, 1,
							  &order, &out, &err),
				 -ENOTSUP);
		assert_non_null(strstr(err.text, cases[i].why));
		bytebuf_done(&out);
	}
}

/* The reader, which checks the library's rules, accepts the written file. */
static void the_reader_takes_it(void **state)
{
	const struct stored v[] = {
		TENSOR("w", DTYPE_F16, 2, matrix, 6),
		TENSOR("none", DTYPE_F32, 2, none, 0),
		TENSOR("n\xc3\xa9\"", DTYPE_I64, 1, three, 3),
	};
	struct bytebuf out = { 0 };
	size_t order[COUNT(v)];

	assert_int_equal(
		safetensors_write_header(v, COUNT(v), order, &out, NULL), 0);
	check_read(&out, 24 + 12, v, order, COUNT(v));
	bytebuf_done(&out);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(nothing_is_a_file_too),
		cmocka_unit_test(blanks_fill_it_up_to_eight),
		cmocka_unit_test(tensors_go_by_type_and_then_by_name),
		cmocka_unit_test(types_have_the_librarys_order),
		cmocka_unit_test(names_are_escaped_as_json_demands),
		cmocka_unit_test(what_the_format_has_not_is_refused),
		cmocka_unit_test(the_reader_takes_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
