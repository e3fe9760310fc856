/* SPDX-License-Identifier: Apache-2.0 */
/* A file's object can be read from the beginning of the file, and damage there
 * causes only errors. */
#include <errno.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "gpu/read/pt_head.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

/* {"param": a tensor of 77 floats} as fp32.pt; *len bytes precede the
 * storage. */
static struct bytebuf make_file(uint64_t *len)
{
	static const uint64_t shape[] = { 11, 7 };
	float elements[77];
	struct bytebuf file = { 0 };
	struct mkpt m = { 0 };
	struct value *dict = mkpt_dict(&m);

	for (size_t i = 0; i < 77; i++)
		elements[i] = (float)i;
	mkpt_set(&m, dict, "param",
		 mkpt_tensor(&m, DTYPE_F32, shape, 2, elements));
	mkpt_emit(&m, dict, "fp32", &file);
	mkpt_done(&m);
	*len = (uint64_t)((const uint8_t *)memmem(file.data, file.len, elements,
						  sizeof(elements)) -
			  file.data);
	return file;
}

static int read_front(struct pt_head *f, const uint8_t *p, uint64_t len,
		      struct errmsg *err)
{
	return pt_head_read(f, (struct span){ .p = p, .len = len }, "fp32.pt",
			    err);
}

static void object_is_found(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct tensor t;
	struct pt_head f;

	assert_int_equal(len % 64, 0); /* torch's alignment of storages */
	assert_int_equal(read_front(&f, file.data, len, NULL), 0);
	assert_int_equal(
		tensor_from_value(value_find(f.root, "param"), "t", &t, NULL),
		0);
	assert_int_equal(t.shape[0], 11);
	assert_int_equal(t.storage_numel, 77);
	pt_head_done(&f);
	bytebuf_done(&file);
}

static void cut_off(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct errmsg err;
	struct pt_head f;
	int rc;

	for (uint64_t n = 0; n < len; n++) {
		rc = read_front(&f, file.data, n, &err);
		if (rc == 0)
			pt_head_done(&f); /* the pickle was complete */
		else
			assert_int_equal(rc, -ENOTSUP);
		assert_true(rc == 0 || n < 300);
	}
	bytebuf_done(&file);
}

/* Change one byte of the pickle or of its headers. */
static void damaged(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct errmsg err;
	struct pt_head f;

	for (size_t i = 64; i < 260; i++) {
		file.data[i] ^= 0x20;
		if (read_front(&f, file.data, len, &err) == 0) {
			/* behind the pickle, not read */
			assert_non_null(value_find(f.root, "param"));
			pt_head_done(&f);
			assert_true(i > 200);
		}
		file.data[i] ^= 0x20;
	}
	bytebuf_done(&file);
}

static void no_file(void **state)
{
	static const uint8_t nothing[64];
	struct errmsg err;
	struct pt_head f;

	assert_int_equal(read_front(&f, nothing, 64, &err), -ENOTSUP);
	assert_int_equal(read_front(&f, nothing, 0, &err), -ENOTSUP);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(object_is_found),
		cmocka_unit_test(cut_off),
		cmocka_unit_test(damaged),
		cmocka_unit_test(no_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
