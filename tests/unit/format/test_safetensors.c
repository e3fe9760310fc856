/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Headers of safetensors files, and indices of sharded ones: good ones are read, and each defect is
 * reported.  Files that the real library wrote are in test_hfdir.c.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/table/hfdir.h"
#include "ckpt/format/safetensors.h"
#include "tests/support/unit.h"

/* Build a file with this header, in which ' stands for ", and this much data. */
static struct bytebuf file_of(const char *header, size_t data)
{
	struct bytebuf b = { 0 };

	bytebuf_add_le64(&b, strlen(header));
	for (const char *p = header; *p; p++)
		bytebuf_add_u8(&b, *p == '\'' ? '"' : (uint8_t)*p);
	bytebuf_add_fill(&b, 0, data);
	assert_false(b.failed);
	return b;
}

static int read_bytes(const struct bytebuf *b, struct safetensors *s,
		      struct errmsg *err)
{
	struct source src;

	source_init_span(&src, "x.safetensors",
			 (struct span){ b->data, b->len });
	return safetensors_read(s, &src, err);
}

static void check_refused(int rc, const struct errmsg *err, int expect_rc,
			  const char *expect, const char *text)
{
	if (rc != expect_rc || !strstr(err->text, expect))
		fail_msg("%s\nexpected \"%s\" (%s), got \"%s\" (%s)", text,
			 expect, strerror(-expect_rc), err->text, strerror(-rc));
}

static void tensors_come_in_the_order_of_their_bytes(void **state)
{
	static const char header[] =
		"{'b':{'dtype':'BF16','shape':[2,3],'data_offsets':[8,20]},"
		"'__metadata__':{'format':'pt','by':'h\303\251'},"
		"'none':{'dtype':'F32','shape':[4,0],'data_offsets':[8,8]},"
		"'a':{'data_offsets':[0,8],'shape':[],'dtype':'I64','more':1},"
		"'h\303\251\\u00e9':{'dtype':'BOOL','shape':[1],"
		"'data_offsets':[20,21]}}   ";
	static const struct {
		const char *name;
		enum dtype dtype;
		unsigned ndim;
		uint64_t shape[2], numel, offset;
	} expect[] = {
		{ "a", DTYPE_I64, 0, { 0 }, 1, 0 },
		{ "none", DTYPE_F32, 2, { 4, 0 }, 0, 8 },
		{ "b", DTYPE_BF16, 2, { 2, 3 }, 6, 8 },
		{ "h\303\251\303\251", DTYPE_BOOL, 1, { 1 }, 1, 20 },
	};
	struct bytebuf b = file_of(header, 21);
	struct errmsg err = { "" };
	struct safetensors s;

	if (read_bytes(&b, &s, &err))
		fail_msg("%s", err.text);
	assert_int_equal(s.n, COUNT(expect));
	for (size_t i = 0; i < s.n; i++) {
		const struct stored *const t = &s.v[i];

		assert_string_equal(t->name, expect[i].name);
		assert_int_equal(t->dtype, expect[i].dtype);
		assert_int_equal(t->ndim, expect[i].ndim);
		assert_memory_equal(t->shape, expect[i].shape,
				    t->ndim * sizeof(*t->shape));
		assert_int_equal(t->numel, expect[i].numel);
		assert_int_equal(t->storage, 8 + strlen(header) + expect[i].offset);
	}
	safetensors_done(&s);
	bytebuf_done(&b);
}

static void a_file_may_have_no_tensors(void **state)
{
	struct bytebuf b = file_of("{}", 0);
	struct safetensors s;

	assert_int_equal(read_bytes(&b, &s, NULL), 0);
	assert_int_equal(s.n, 0);
	safetensors_done(&s);
	bytebuf_done(&b);
}

#define T "{'t':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}"
#define OF(dtype, shape, offsets) \
	"{'t':{'dtype':" dtype ",'shape':" shape ",'data_offsets':" offsets "}}"

static void defects_of_headers_are_told(void **state)
{
	static const struct {
		const char *header;
		size_t data;
		int rc;
		const char *expect;
	} cases[] = {
		/* malformed text */
		{ "{", 0, -EBADMSG, "no valid JSON" },
		{ "{}{}", 0, -EBADMSG, "no valid JSON" },
		{ "{}\1", 0, -EBADMSG, "a control character" },
		{ " {}", 0, -EBADMSG, "no safetensors file" },
		{ "[]", 0, -EBADMSG, "no safetensors file" },
		{ "{'a\nb':{}}", 0, -EBADMSG, "control character in a string" },
		{ "{'a\\u0000b':{}}", 0, -EBADMSG, "a NUL in a string" },
		{ "{'\300\257':{}}", 0, -EBADMSG, "not UTF-8" },
		{ "{'\355\240\200':{}}", 0, -EBADMSG, "not UTF-8" },
		{ "{'\364\220\200\200':{}}", 0, -EBADMSG, "not UTF-8" },
		{ "{'\360\200\200\200':{}}", 0, -EBADMSG, "not UTF-8" },
		{ "{'\342\202':{}}", 0, -EBADMSG, "not UTF-8" },
		{ "{'a\\ud800':{}}", 0, -EBADMSG, "no valid JSON" },
		{ "{'a':[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]}", 0, -E2BIG,
		  "nested too deeply" },
		/* invalid names */
		{ T ",'t':{'dtype':'F32','shape':[2],'data_offsets':[8,16]}}",
		  16, -EBADMSG, "t is there twice" },
		{ T ",'\\u0074':{'dtype':'F32','shape':[2],"
		    "'data_offsets':[8,16]}}",
		  16, -EBADMSG, "t is there twice" },
		{ "{'t':{'dtype':'F32','dtype':'F32','shape':[2],"
		  "'data_offsets':[0,8]}}",
		  8, -EBADMSG, "dtype is there twice" },
		{ "{'__metadata__':{'a':'1','a':'1'}}", 0, -EBADMSG,
		  "a is there twice" },
		{ "{'__metadata__':[]}", 0, -EBADMSG,
		  "__metadata__ is not an object" },
		{ "{'__metadata__':{'a':1}}", 0, -EBADMSG,
		  "__metadata__: a is not a string" },
		/* an invalid tensor */
		{ "{'t':[]}", 0, -EBADMSG, "tensor t: is no object" },
		{ "{'t':{}}", 0, -EBADMSG, "dtype is missing" },
		{ OF("4", "[2]", "[0,8]"), 8, -EBADMSG, "dtype is missing" },
		{ OF("'F9'", "[2]", "[0,8]"), 8, -ENOTSUP,
		  "tensor t: dtype F9 is not supported" },
		{ OF("'F4'", "[2,3]", "[0,3]"), 3, -EBADMSG,
		  "shape ends within an element" },
		{ OF("'F4'", "[]", "[0,1]"), 1, -EBADMSG,
		  "shape ends within an element" },
		{ OF("'F32'", "2", "[0,8]"), 8, -EBADMSG, "shape is missing" },
		{ OF("'F32'", "[-2]", "[0,8]"), 8, -EBADMSG, "no size" },
		{ OF("'F32'", "[2.5]", "[0,10]"), 10, -EBADMSG, "no size" },
		{ OF("'F32'", "['2']", "[0,8]"), 8, -EBADMSG, "no size" },
		{ OF("'F32'", "[9007199254740993]", "[0,8]"), 8, -EBADMSG,
		  "no size" },
		{ OF("'F32'", "[4294967296,4294967296,2]", "[0,8]"), 8,
		  -EBADMSG, "shape overflows" },
		{ OF("'F32'", "[4294967296,4294967296,0]", "[0,0]"), 0,
		  -EBADMSG, "shape overflows" },
		{ OF("'F32'", "[2]", "[0]"), 8, -EBADMSG, "no pair" },
		{ OF("'F32'", "[2]", "[0,8,8]"), 8, -EBADMSG, "no pair" },
		{ OF("'F32'", "[2]", "{'a':0,'b':8}"), 8, -EBADMSG, "no pair" },
		{ OF("'F32'", "[2]", "[0,null]"), 8, -EBADMSG, "no pair" },
		{ OF("'F32'", "[2]", "[8,0]"), 8, -EBADMSG,
		  "end before they begin" },
		{ OF("'F32'", "[2]", "[0,8]"), 7, -EBADMSG, "behind the file" },
		{ OF("'F32'", "[2]", "[0,9007199254740991]"), 8, -EBADMSG,
		  "behind the file" },
		{ OF("'F32'", "[3]", "[0,8]"), 8, -EBADMSG,
		  "do not fit dtype and shape" },
		{ OF("'F64'", "[2]", "[0,8]"), 8, -EBADMSG,
		  "do not fit dtype and shape" },
		/* tensors that contradict each other */
		{ T ",'u':{'dtype':'F32','shape':[2],'data_offsets':[4,12]}}",
		  12, -EBADMSG, "tensor u overlaps another" },
		{ T ",'u':{'dtype':'F32','shape':[2],'data_offsets':[0,8]}}", 8,
		  -EBADMSG, "overlaps another" },
		{ T ",'u':{'dtype':'F32','shape':[1],'data_offsets':[12,16]}}",
		  16, -EBADMSG, "tensor u does not follow another" },
		{ OF("'F32'", "[1]", "[4,8]"), 8, -EBADMSG,
		  "tensor t does not follow" },
		{ T "}", 12, -EBADMSG, "4 bytes behind the last tensor" },
		{ "{}", 1, -EBADMSG, "1 bytes behind the last tensor" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = file_of(cases[i].header, cases[i].data);
		struct errmsg err = { "" };
		struct safetensors s;

		check_refused(read_bytes(&b, &s, &err), &err, cases[i].rc,
			      cases[i].expect, cases[i].header);
		assert_memory_equal(err.text, "x.safetensors: ", 15);
		bytebuf_done(&b);
	}
}

static void lengths_of_headers_are_checked(void **state)
{
	static const struct {
		uint64_t len;
		size_t bytes;
		int rc;
		const char *expect;
	} cases[] = {
		{ 2, 8, -EBADMSG, "8 bytes are too few for a safetensors file" },
		{ 3, 10, -EBADMSG, "or truncated" },
		{ UINT64_MAX, 10, -EBADMSG, "or truncated" },
		{ UINT64_MAX - 7, 10, -EBADMSG, "or truncated" },
		{ 0, 10, -EBADMSG, "no valid JSON" },
		{ SAFETENSORS_HEADER_MAX + 1, SAFETENSORS_HEADER_MAX + 9,
		  -E2BIG, "header of 100000001 bytes" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct bytebuf b = { 0 };
		struct errmsg err = { "" };
		struct safetensors s;

		bytebuf_add_le64(&b, cases[i].len);
		bytebuf_add(&b, "{}", 2);
		bytebuf_add_fill(&b, ' ', cases[i].bytes);
		b.len = cases[i].bytes;
		check_refused(read_bytes(&b, &s, &err), &err, cases[i].rc,
			      cases[i].expect, "length");
		bytebuf_done(&b);
	}
}

/* cJSON would take 80 bytes for each. */
static void values_are_counted_before_they_are_made(void **state)
{
	const size_t n = JSON_VALUES_MAX;
	struct bytebuf b = { 0 };
	struct errmsg err = { "" };
	struct safetensors s;

	bytebuf_add_le64(&b, 2 * n + 6);
	bytebuf_add(&b, "{\"a\":[", 6);
	for (size_t i = 0; i < n; i++)
		bytebuf_add(&b, "0,", 2);
	check_refused(read_bytes(&b, &s, &err), &err, -E2BIG, "too many values",
		      "[0,0,...");
	bytebuf_done(&b);
}

static int read_index(const char *text, struct hfindex *x, struct errmsg *err)
{
	struct bytebuf b = file_of(text, 0);
	struct source src;
	int rc;

	source_init_span(&src, "i.json", (struct span){ b.data + 8, b.len - 8 });
	rc = hfindex_read(x, &src, err);
	bytebuf_done(&b);
	return rc;
}

static const char *file_in(const struct hfindex *x, const char *tensor)
{
	return cJSON_GetObjectItemCaseSensitive(x->map, tensor)->valuestring;
}

static void indices_tell_the_file_of_a_tensor(void **state)
{
	struct errmsg err = { "" };
	struct hfindex x;

	if (read_index("{'metadata':{'total_size':12,'x':[{}]},\n 'weight_map':"
		       "{'w':'b','v':'c','a..b':'..b','u':'b'}}\n",
		       &x, &err))
		fail_msg("%s", err.text);
	assert_int_equal(x.nfiles, 3);
	assert_string_equal(x.files[0], "..b");
	assert_string_equal(x.files[1], "b");
	assert_string_equal(x.files[2], "c");
	assert_int_equal(cJSON_GetArraySize(x.map), 4);
	assert_string_equal(file_in(&x, "a..b"), "..b");
	assert_string_equal(file_in(&x, "u"), "b");
	assert_string_equal(file_in(&x, "v"), "c");
	assert_string_equal(file_in(&x, "w"), "b");
	hfindex_done(&x);
}

static void defects_of_indices_are_told(void **state)
{
	static const struct {
		const char *text;
		const char *expect;
	} cases[] = {
		{ "", "no valid JSON" },
		{ "[]", "weight_map is missing" },
		{ "{}", "weight_map is missing" },
		{ "{'weight_map':{}}", "weight_map is missing, or empty" },
		{ "{'weight_map':['a']}", "weight_map is missing" },
		{ "{'WEIGHT_MAP':{'a':'b'}}", "weight_map is missing" },
		{ "{'weight_map':{'a':1}}", "file of a is no name" },
		{ "{'weight_map':{'a':''}}", "file of a is no name" },
		{ "{'weight_map':{'a':'.'}}", "file of a is no name" },
		{ "{'weight_map':{'a':'..'}}", "file of a is no name" },
		{ "{'weight_map':{'a':'../b'}}", "file of a is no name" },
		{ "{'weight_map':{'a':'b','c':'/etc/passwd'}}",
		  "file of c is no name" },
		{ "{'weight_map':{'a':'b\\u002fc'}}", "file of a is no name" },
		{ "{'weight_map':{'a':'b'},'weight_map':{'a':'c'}}",
		  "weight_map is there twice" },
		{ "{'weight_map':{'a':'b','a':'c'}}", "a is there twice" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct errmsg err = { "" };
		struct hfindex x;

		check_refused(read_index(cases[i].text, &x, &err), &err,
			      -EBADMSG, cases[i].expect, cases[i].text);
		assert_memory_equal(err.text, "i.json: ", 8);
	}
}

static void names_of_files_have_a_limit(void **state)
{
	struct errmsg err = { "" };
	char text[400];
	struct hfindex x;

	for (unsigned n = 255; n <= 256; n++) {
		snprintf(text, sizeof(text), "{'weight_map':{'a':'%0*d'}}", n,
			 0);
		if (n == 256) {
			check_refused(read_index(text, &x, &err), &err,
				      -EBADMSG, "file of a is no name", text);
			return;
		}
		assert_int_equal(read_index(text, &x, &err), 0);
		hfindex_done(&x);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(tensors_come_in_the_order_of_their_bytes),
		cmocka_unit_test(a_file_may_have_no_tensors),
		cmocka_unit_test(defects_of_headers_are_told),
		cmocka_unit_test(lengths_of_headers_are_checked),
		cmocka_unit_test(values_are_counted_before_they_are_made),
		cmocka_unit_test(indices_tell_the_file_of_a_tensor),
		cmocka_unit_test(defects_of_indices_are_told),
		cmocka_unit_test(names_of_files_have_a_limit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
