/* SPDX-License-Identifier: Apache-2.0 */
/* A file's object can be read from the file's beginning; damage there causes only errors. */
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/value.h"
#include "gpu/load/load_mount.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

/* Make fp32.pt with {"param": a tensor of 77 floats}; *len bytes precede the storage. */
static struct bytebuf make_file(uint64_t *len)
{
	static const uint64_t shape[] = { 11, 7 };
	float elements[77];
	struct bytebuf file = { 0 };
	struct mkpt m = { 0 };
	struct value *dict = mkpt_dict(&m);

	for (size_t i = 0; i < 77; i++)
		elements[i] = (float)i;
	mkpt_set(&m, dict, "param", mkpt_tensor(&m, DTYPE_F32, shape, 2, elements));
	mkpt_emit(&m, dict, "fp32", &file);
	mkpt_done(&m);
	*len = (uint64_t)((const uint8_t *)memmem(file.data, file.len, elements, sizeof(elements)) -
			  file.data);
	return file;
}

static bool read_front(struct arena *a, struct value **root, const uint8_t *p, uint64_t len)
{
	*a = (struct arena){ 0 };
	return mount_head_object((struct span){ .p = p, .len = len }, "fp32.pt", a, root);
}

static void object_is_found(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct value *root;
	struct tensor t;
	struct arena a;

	assert_int_equal(len % 64, 0); /* torch's alignment of storages */
	assert_true(read_front(&a, &root, file.data, len));
	assert_int_equal(tensor_from_value(value_find(root, "param"), "t", &t, NULL), 0);
	assert_int_equal(t.shape[0], 11);
	assert_int_equal(t.storage_numel, 77);
	arena_done(&a);
	bytebuf_done(&file);
}

static void cut_off(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct value *root;
	struct arena a;
	uint64_t whole = 0;

	for (uint64_t n = 0; n < len; n++) {
		/* Further bytes do not change a complete pickle. */
		if (read_front(&a, &root, file.data, n))
			whole++;
		else
			assert_int_equal(whole, 0);
		arena_done(&a);
	}
	assert_true(whole >= 1 && whole <= len - 200);
	bytebuf_done(&file);
}

/* Change one byte of the pickle or of its headers: the object changes, or the read fails. */
static void damaged(void **state)
{
	uint64_t len;
	struct bytebuf file = make_file(&len);
	struct value *root;
	struct arena a;
	size_t refused = 0;

	for (size_t i = 0; i < 260; i++) {
		file.data[i] ^= 0x20;
		refused += !read_front(&a, &root, file.data, len);
		arena_done(&a);
		file.data[i] ^= 0x20;
	}
	assert_true(refused >= 30 && refused <= 259);
	bytebuf_done(&file);
}

static void no_file(void **state)
{
	static const uint8_t nothing[64];
	struct value *root;
	struct arena a;

	assert_false(read_front(&a, &root, nothing, 64));
	assert_false(read_front(&a, &root, nothing, 0));
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
