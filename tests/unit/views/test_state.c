/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A state is read in row-major order, whatever the form of its file; other contents are no state.
 */
#include <errno.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "ckpt/format/state.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

struct file {
	struct mkpt m;
	struct bytebuf bytes;
};

static int open_root(struct file *f, const struct value *root, struct state *s, struct errmsg *err)
{
	struct source src;

	mkpt_emit(&f->m, root, "fp32", &f->bytes);
	source_init_span(&src, "fp32.pt", (struct span){ .p = f->bytes.data, .len = f->bytes.len });
	return state_open_source(s, &src, err);
}

static void file_done(struct file *f)
{
	bytebuf_done(&f->bytes);
	mkpt_done(&f->m);
}

/* Return a view of a storage of the numbers 0, 1, 2, ... */
static struct value *view(struct mkpt *m, unsigned ndim, const uint64_t *shape,
			  const uint64_t *stride, uint64_t offset)
{
	int16_t numbers[60];
	struct tensor t = { .dtype = DTYPE_I16,
			    .ndim = ndim,
			    .storage_numel = COUNT(numbers),
			    .storage_offset = offset };

	for (size_t i = 0; i < COUNT(numbers); i++)
		numbers[i] = (int16_t)i;
	memcpy(t.shape, shape, ndim * sizeof(*shape));
	memcpy(t.stride, stride, ndim * sizeof(*stride));
	t.storage_key = mkpt_add_storage(m, numbers, sizeof(numbers));
	return tensor_to_value(&m->arena, &t);
}

static void elements_of_a_view_are_in_row_major_order(void **state)
{
	static const struct {
		unsigned ndim;
		uint64_t shape[3], stride[3], offset;
	} cases[] = {
		{ 3, { 2, 3, 5 }, { 15, 5, 1 }, 0 },
		{ 3, { 2, 3, 5 }, { 15, 5, 1 }, 7 },
		{ 2, { 4, 6 }, { 1, 4 }, 0 },        /* transposed */
		{ 3, { 2, 3, 4 }, { 24, 4, 1 }, 3 }, /* every other matrix */
		{ 3, { 4, 2, 3 }, { 3, 12, 1 }, 0 }, /* permuted */
		{ 2, { 3, 7 }, { 0, 1 }, 2 },        /* expanded */
		{ 1, { 9 }, { 5 }, 4 },
		{ 2, { 1, 4 }, { 40, 1 }, 1 },
		{ 0, { 0 }, { 0 }, 59 },
	};

	for (size_t c = 0; c < COUNT(cases); c++) {
		struct file f = { 0 };
		int16_t got[60];
		uint64_t n = 0;
		struct state s;

		assert_int_equal(open_root(&f,
					   view(&f.m, cases[c].ndim, cases[c].shape,
						cases[c].stride, cases[c].offset),
					   &s, NULL),
				 0);
		/* In pieces of 1, 2, 3, ... elements. */
		for (uint64_t some = 1; n < s.t.numel; n += some++) {
			if (some > s.t.numel - n)
				some = s.t.numel - n;
			assert_int_equal(state_read(&s, n, some, got + n, NULL), 0);
		}
		for (uint64_t i = 0; i < s.t.numel; i++) {
			uint64_t want = cases[c].offset, rest = i;

			for (unsigned d = cases[c].ndim; d-- > 0;) {
				want += rest % cases[c].shape[d] * cases[c].stride[d];
				rest /= cases[c].shape[d];
			}
			assert_int_equal(got[i], want);
		}
		state_close(&s);
		file_done(&f);
	}
}

static void only_a_bare_vector_is_flat(void **state)
{
	static const uint64_t shape[] = { 2, 3 }, six[] = { 6 };
	static const float numbers[6] = { 1, 2, 3, 4, 5, 6 };

	for (unsigned ndim = 0; ndim < 3; ndim++)
		for (int bare = 0; bare < 2; bare++) {
			struct file f = { 0 };
			struct value *root = mkpt_tensor(&f.m, DTYPE_F32, ndim == 1 ? six : shape,
							 ndim, numbers);
			struct state s;

			if (!bare) {
				struct value *dict = mkpt_dict(&f.m);

				mkpt_set(&f.m, dict, "param", root);
				root = dict;
			}
			assert_int_equal(open_root(&f, root, &s, NULL), 0);
			assert_int_equal(s.flat, bare && ndim == 1);
			assert_int_equal(s.t.ndim, ndim);
			state_close(&s);
			file_done(&f);
		}
}

static void numbers_are_tensors_without_dimensions(void **state)
{
	struct file f = { 0 }, g = { 0 };
	struct state s;
	int64_t i;
	double d;

	assert_int_equal(open_root(&f, mkpt_int(&f.m, -4), &s, NULL), 0);
	assert_int_equal(s.t.dtype, DTYPE_I64);
	assert_int_equal(s.t.ndim, 0);
	assert_int_equal(s.t.numel, 1);
	assert_int_equal(state_read(&s, 0, 1, &i, NULL), 0);
	assert_int_equal(i, -4);
	state_close(&s);
	file_done(&f);

	assert_int_equal(open_root(&g, mkpt_float(&g.m, 0.5), &s, NULL), 0);
	assert_int_equal(s.t.dtype, DTYPE_F64);
	assert_int_equal(state_read(&s, 0, 1, &d, NULL), 0);
	assert_true(d == 0.5);
	state_close(&s);
	file_done(&g);
}

static void other_objects_are_refused(void **state)
{
	struct file f = { 0 };
	struct errmsg err;
	struct state s;

	assert_int_equal(open_root(&f, mkpt_dict(&f.m), &s, &err), -EBADMSG);
	assert_string_equal(err.text, "fp32.pt: holds a dict, expected a tensor or a number");
	file_done(&f);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(elements_of_a_view_are_in_row_major_order),
		cmocka_unit_test(only_a_bare_vector_is_flat),
		cmocka_unit_test(numbers_are_tensors_without_dimensions),
		cmocka_unit_test(other_objects_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
