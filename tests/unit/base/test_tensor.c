/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors as pickles describe them: every valid form, and every inconsistency is refused. */
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/tensor.h"
#include "tests/make/mkpt.h"
#include "tests/support/unit.h"

#define DIMS 4

static struct value *storage(struct mkpt *m, const char *module,
			     const char *cls, int64_t numel)
{
	struct value *const v = value_new(&m->arena, VALUE_STORAGE);

	v->pid = mkpt_tuple(m, 5, mkpt_str(m, "storage"),
			    mkpt_global(m, module, cls), mkpt_str(m, "3"),
			    mkpt_str(m, "cuda:0"), mkpt_int(m, numel));
	return v;
}

static struct value *dims(struct mkpt *m, const int64_t *v, size_t n)
{
	struct value *const t = mkpt_tuple(m, 0);

	for (size_t i = 0; i < n; i++)
		mkpt_add(m, t, mkpt_int(m, v[i]));
	return t;
}

/* (storage, offset, size, stride, requires_grad, hooks) */
static struct value *arguments(struct mkpt *m, int64_t numel, int64_t offset,
			       const int64_t *shape, const int64_t *stride,
			       size_t n)
{
	return mkpt_tuple(m, 6, storage(m, "torch", "FloatStorage", numel),
			  mkpt_int(m, offset), dims(m, shape, n),
			  dims(m, stride, n), mkpt_bool(m, true),
			  mkpt_ordered_dict(m));
}

static struct value *call(struct mkpt *m, const char *module, const char *name,
			  struct value *args)
{
	return mkpt_reduce(m, mkpt_global(m, module, name), args);
}

static struct value *plain(struct mkpt *m)
{
	static const int64_t shape[] = { 2, 3 }, stride[] = { 3, 1 };

	return call(m, "torch._utils", "_rebuild_tensor_v2",
		    arguments(m, 10, 4, shape, stride, 2));
}

static struct value *form_v1(struct mkpt *m)
{
	struct value *const v = plain(m);

	v->obj->callable = mkpt_global(m, "torch._utils", "_rebuild_tensor");
	v->obj->args->seq.n = 4;
	return v;
}

static struct value *form_v3(struct mkpt *m)
{
	struct value *const v = plain(m);

	v->obj->callable = mkpt_global(m, "torch._utils", "_rebuild_tensor_v3");
	mkpt_add(m, v->obj->args, mkpt_global(m, "torch", "float32"));
	return v;
}

static struct value *form_with_metadata(struct mkpt *m)
{
	struct value *const v = plain(m);

	mkpt_add(m, v->obj->args, mkpt_dict(m));
	return v;
}

static struct value *form_from_type(struct mkpt *m)
{
	struct value *const v = plain(m);

	return call(m, "torch._tensor", "_rebuild_from_type_v2",
		    mkpt_tuple(m, 4, v->obj->callable,
			       mkpt_global(m, "torch", "Tensor"), v->obj->args,
			       mkpt_dict(m)));
}

static struct value *form_parameter(struct mkpt *m)
{
	return call(m, "torch._utils", "_rebuild_parameter",
		    mkpt_tuple(m, 3, plain(m), mkpt_bool(m, true),
			       mkpt_ordered_dict(m)));
}

static struct value *form_parameter_with_state(struct mkpt *m)
{
	return call(m, "torch._utils", "_rebuild_parameter_with_state",
		    mkpt_tuple(m, 4, plain(m), mkpt_bool(m, true),
			       mkpt_ordered_dict(m), mkpt_dict(m)));
}

static struct value *form_parameter_of_type(struct mkpt *m)
{
	return call(
		m, "torch._tensor", "_rebuild_from_type_v2",
		mkpt_tuple(m, 4,
			   mkpt_global(m, "torch._utils", "_rebuild_parameter"),
			   mkpt_global(m, "torch.nn.parameter", "Parameter"),
			   mkpt_tuple(m, 3, form_from_type(m),
				      mkpt_bool(m, true), mkpt_ordered_dict(m)),
			   mkpt_dict(m)));
}

static struct value *form_with_size(struct mkpt *m)
{
	static const uint64_t shape[] = { 2, 3 };
	struct value *const v = plain(m);

	v->obj->args->seq.v[2] = mkpt_size(m, shape, 2);
	return v;
}

static void every_form_is_understood(void **state)
{
	struct value *(*const forms[])(struct mkpt * m) = {
		plain,
		form_v1,
		form_v3,
		form_with_metadata,
		form_from_type,
		form_parameter,
		form_parameter_with_state,
		form_parameter_of_type,
		form_with_size,
	};

	for (size_t i = 0; i < COUNT(forms); i++) {
		struct mkpt m = { 0 };
		struct value *const v = forms[i](&m);
		struct errmsg err = { "" };
		struct tensor t;

		assert_true(tensor_is(v));
		if (tensor_from_value(v, "t", &t, &err))
			fail_msg("form %zu: %s", i, err.text);
		assert_int_equal(t.dtype, DTYPE_F32);
		assert_int_equal(t.ndim, 2);
		assert_int_equal(t.shape[1], 3);
		assert_int_equal(t.numel, 6);
		assert_int_equal(t.storage_offset, 4);
		assert_int_equal(t.storage_numel, 10);
		assert_string_equal(t.storage_key, "3");
		assert_int_equal(t.requires_grad, forms[i] != form_v1);
		mkpt_done(&m);
	}
}

static void other_values_are_no_tensors(void **state)
{
	struct mkpt m = { 0 };
	struct value *deep = plain(&m);
	struct value *const v[] = {
		NULL,
		mkpt_none(&m),
		mkpt_str(&m, "tensor"),
		mkpt_ordered_dict(&m),
		call(&m, "torch._utils", "_rebuild_qtensor", mkpt_tuple(&m, 0)),
		call(&m, "torch._utils", "_rebuild_sparse_tensor",
		     mkpt_tuple(&m, 0)),
		call(&m, "my._utils", "_rebuild_tensor_v2", mkpt_tuple(&m, 0)),
		call(&m, "torch._tensor", "_rebuild_from_type_v2",
		     mkpt_tuple(&m, 0)),
		call(&m, "torch._tensor", "_rebuild_from_type_v2",
		     mkpt_tuple(&m, 3, mkpt_none(&m), mkpt_none(&m),
				mkpt_tuple(&m, 0))),
		call(&m, "torch._utils", "_rebuild_parameter", mkpt_tuple(&m, 0)),
	};
	struct errmsg err = { "" };
	struct tensor t;

	for (size_t i = 0; i < COUNT(v); i++) {
		assert_false(tensor_is(v[i]));
		/* An object may be a tensor of another kind. */
		assert_int_equal(tensor_from_value(v[i], "t", &t, &err),
				 i < 3 ? -EBADMSG : -ENOTSUP);
		assert_non_null(strstr(err.text, "t: expected a tensor"));
	}
	/* Nested more deeply than torch ever does. */
	for (int i = 0; i < 100; i++)
		deep = call(&m, "torch._utils", "_rebuild_parameter",
			    mkpt_tuple(&m, 1, deep));
	assert_false(tensor_is(deep));
	mkpt_done(&m);
}

static void every_storage_class_is_known(void **state)
{
	static const struct {
		const char *cls;
		enum dtype dtype;
		size_t size;
		const char *name;
	} cases[] = {
		{ "DoubleStorage", DTYPE_F64, 8, "float64" },
		{ "FloatStorage", DTYPE_F32, 4, "float32" },
		{ "HalfStorage", DTYPE_F16, 2, "float16" },
		{ "BFloat16Storage", DTYPE_BF16, 2, "bfloat16" },
		{ "LongStorage", DTYPE_I64, 8, "int64" },
		{ "IntStorage", DTYPE_I32, 4, "int32" },
		{ "ShortStorage", DTYPE_I16, 2, "int16" },
		{ "CharStorage", DTYPE_I8, 1, "int8" },
		{ "ByteStorage", DTYPE_U8, 1, "uint8" },
		{ "BoolStorage", DTYPE_BOOL, 1, "bool" },
		{ "ComplexFloatStorage", DTYPE_C64, 8, "complex64" },
		{ "ComplexDoubleStorage", DTYPE_C128, 16, "complex128" },
		{ "UntypedStorage", DTYPE_OTHER, 1, "untyped" },
		/* storage classes of quantized tensors, with the type of their integers */
		{ "QInt8Storage", DTYPE_I8, 1, "int8" },
		{ "QUInt8Storage", DTYPE_U8, 1, "uint8" },
		{ "QInt32Storage", DTYPE_I32, 4, "int32" },
		{ "QUInt2x4Storage", DTYPE_U8, 1, "uint8" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		enum dtype dtype = DTYPE_OTHER;
		const char *key = NULL;
		uint64_t numel = 0;

		assert_int_equal(
			tensor_storage(storage(&m, "torch", cases[i].cls, 5),
				       "t", &dtype, &key, &numel, NULL),
			0);
		assert_int_equal(dtype, cases[i].dtype);
		assert_int_equal(numel, 5);
		assert_int_equal(dtype_size(dtype), cases[i].size);
		assert_string_equal(dtype_name(dtype), cases[i].name);
		mkpt_done(&m);
	}
}

/* Return a call of _rebuild_tensor_v3 for two elements of a storage of `bytes`. */
static struct value *typed_view(struct mkpt *m, const char *cls, int64_t numel,
				struct value *type)
{
	static const int64_t shape[] = { 2 }, stride[] = { 1 };
	struct value *const args = arguments(m, numel, 1, shape, stride, 1);

	args->seq.v[0] = storage(m, "torch.storage", cls, numel);
	mkpt_add(m, args, type);
	return call(m, "torch._utils", "_rebuild_tensor_v3", args);
}

static void types_without_a_storage_class_are_read(void **state)
{
	static const struct {
		const char *name, *cls;
		int64_t numel;
		enum dtype dtype;
		uint64_t has; /* elements in the storage */
	} cases[] = {
		{ "float8_e4m3fn", "UntypedStorage", 3, DTYPE_F8_E4M3, 3 },
		{ "float8_e8m0fnu", "UntypedStorage", 3, DTYPE_F8_E8M0, 3 },
		{ "uint16", "UntypedStorage", 7, DTYPE_U16, 3 },
		{ "uint64", "UntypedStorage", 24, DTYPE_U64, 3 },
		{ "complex32", "UntypedStorage", 12, DTYPE_C32, 3 },
		{ "uint16", "ByteStorage", 6, DTYPE_U16, 3 },
		{ "uint16", "FloatStorage", 3, DTYPE_U16, 6 },
	};
	struct mkpt m = { 0 };
	struct errmsg err = { "" };
	struct value *v;
	struct tensor t;

	for (size_t i = 0; i < COUNT(cases); i++) {
		v = typed_view(&m, cases[i].cls, cases[i].numel,
			       mkpt_global(&m, "torch", cases[i].name));
		if (tensor_from_value(v, "t", &t, &err))
			fail_msg("%s: %s", cases[i].name, err.text);
		assert_int_equal(t.dtype, cases[i].dtype);
		assert_string_equal(dtype_name(t.dtype), cases[i].name);
		assert_int_equal(t.storage_numel, cases[i].has);
	}
	v = typed_view(&m, "UntypedStorage", 5, mkpt_global(&m, "torch", "uint16"));
	assert_int_equal(tensor_from_value(v, "t", &t, &err), -EBADMSG);
	assert_string_equal(err.text, "t: tensor reaches element 2 of a storage of 2");
	v = typed_view(&m, "UntypedStorage", 9, mkpt_global(&m, "torch", "int4"));
	assert_int_equal(tensor_from_value(v, "t", &t, &err), -ENOTSUP);
	assert_string_equal(err.text, "t: elements of unknown type torch.int4");
	v = typed_view(&m, "UntypedStorage", 9, mkpt_int(&m, 1));
	assert_int_equal(tensor_from_value(v, "t", &t, &err), -EBADMSG);
	v->obj->args->seq.n = 6;
	assert_int_equal(tensor_from_value(v, "t", &t, &err), -EBADMSG);
	mkpt_done(&m);
}

/* torch computes the values of such views when they are read; the storage does not have them. */
static void lazy_views_are_refused(void **state)
{
	static const char *const words[] = { "conj", "neg", "else" };

	for (size_t i = 0; i < COUNT(words); i++)
		for (int v3 = 0; v3 < 2; v3++) {
			struct mkpt m = { 0 };
			struct value *const v = v3 ? form_v3(&m) : plain(&m);
			struct value *const d = mkpt_dict(&m);
			struct errmsg err = { "" };
			struct tensor t;
			int rc;

			mkpt_set(&m, d, words[i], mkpt_bool(&m, true));
			mkpt_add(&m, v->obj->args, d);
			rc = tensor_from_value(v, "t", &t, &err);
			assert_int_equal(rc, i < 2 ? -ENOTSUP : 0);
			assert_true(!rc || strstr(err.text, "conjugates"));
			mkpt_done(&m);
		}
}

static void other_storages_are_refused(void **state)
{
	struct mkpt m = { 0 };
	struct errmsg err = { "" };
	enum dtype dtype;
	const char *key;
	uint64_t numel;

	assert_int_equal(tensor_storage(storage(&m, "torch", "OddStorage", 1),
					"t", &dtype, &key, &numel, &err),
			 -ENOTSUP);
	assert_non_null(strstr(err.text, "torch.OddStorage"));
	assert_int_equal(tensor_storage(storage(&m, "mine", "FloatStorage", 1),
					"t", &dtype, &key, &numel, &err),
			 -ENOTSUP);
	assert_int_equal(
		tensor_storage(mkpt_none(&m), "t", &dtype, &key, &numel, &err),
		-EBADMSG);
	assert_int_equal(tensor_storage(NULL, "t", &dtype, &key, &numel, &err),
			 -EBADMSG);
	mkpt_done(&m);
}

static void views_must_lie_within_their_storage(void **state)
{
	static const struct {
		int64_t numel, offset;
		size_t n;
		int64_t shape[DIMS], stride[DIMS];
		const char *says; /* expected message; NULL: valid */
	} cases[] = {
		{ 6, 0, 2, { 2, 3 }, { 3, 1 }, NULL },
		{ 6, 1, 2, { 2, 3 }, { 3, 1 }, "element 6 of a storage of 6" },
		{ 5, 0, 2, { 2, 3 }, { 3, 1 }, "element 5 of a storage of 5" },
		{ 1, 0, 0, { 0 }, { 0 }, NULL },
		{ 0, 0, 0, { 0 }, { 0 }, "element 0 of a storage of 0" },
		{ 1, 1, 0, { 0 }, { 0 }, "element 1" },
		{ 0, 0, 1, { 0 }, { 1 }, NULL },
		/* torch accepts any offset of an empty view */
		{ 0, 99, 2, { 3, 0 }, { 1, 1 }, NULL },
		/* broadcast: one element, used many times */
		{ 1, 0, 2, { 100, 100 }, { 0, 0 }, NULL },
		{ 4, 0, 2, { 2, 2 }, { 1, 2 }, NULL },
		{ 4, 0, 2, { 2, 2 }, { 2, 2 }, "element 4" },
		{ 10, 0, 1, { 2 }, { INT64_MAX }, "element 9223372036854775807" },
		{ 10, 2, 1, { 3 }, { INT64_MAX }, "overflows" },
		{ 10, 0, 4, { INT64_MAX, INT64_MAX, 2, 2 }, { 0 }, "overflows" },
		{ INT64_MAX, INT64_MAX, 1, { 1 }, { 1 }, "element" },
		{ 10, -1, 1, { 1 }, { 1 }, "bad tensor storage offset" },
		{ 10, 0, 1, { -1 }, { 1 }, "stride 0 is not a count" },
		{ 10, 0, 2, { 1, 1 }, { 1, -1 }, "stride 1 is not a count" },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct mkpt m = { 0 };
		struct value *const v = call(
			&m, "torch._utils", "_rebuild_tensor_v2",
			arguments(&m, cases[i].numel, cases[i].offset,
				  cases[i].shape, cases[i].stride, cases[i].n));
		struct errmsg err = { "" };
		struct tensor t;
		const int rc = tensor_from_value(v, "w", &t, &err);

		if (cases[i].says
			    ? rc != -EBADMSG || !strstr(err.text, cases[i].says)
			    : rc != 0)
			fail_msg("case %zu: %d, \"%s\"", i, rc, err.text);
		mkpt_done(&m);
	}
}

static void malformed_calls_are_refused(void **state)
{
	struct mkpt m = { 0 };
	struct errmsg err = { "" };
	struct value *v;
	struct tensor t;

	v = plain(&m);
	v->obj->args->seq.n = 3;
	assert_int_equal(tensor_from_value(v, "w", &t, &err), -EBADMSG);
	assert_string_equal(err.text, "w: tensor with 3 arguments");
	v = plain(&m);
	v->obj->args->seq.v[0] = mkpt_int(&m, 1);
	assert_int_equal(tensor_from_value(v, "w", &t, &err), -EBADMSG);
	v = plain(&m);
	v->obj->args->seq.v[2] = mkpt_str(&m, "x");
	assert_int_equal(tensor_from_value(v, "w", &t, &err), -EBADMSG);
	v = plain(&m);
	v->obj->args->seq.v[3]->seq.n = 1;
	assert_int_equal(tensor_from_value(v, "w", &t, &err), -EBADMSG);
	assert_string_equal(err.text, "w: tensor with 2 sizes but 1 strides");
	v = plain(&m);
	for (int i = 0; i < TENSOR_DIMS_MAX; i++)
		mkpt_add(&m, v->obj->args->seq.v[2], mkpt_int(&m, 1));
	assert_int_equal(tensor_from_value(v, "w", &t, &err), -EBADMSG);
	mkpt_done(&m);
}

static void lists_of_sizes_are_shapes(void **state)
{
	static const struct {
		size_t n;
		int64_t sizes[DIMS];
		const char *wrong; /* NULL: it is a shape */
		uint64_t numel;
	} cases[] = {
		{ 0, { 0 }, NULL, 1 },
		{ 3, { 2, 3, 5 }, NULL, 30 },
		{ 3, { 2, 0, 5 }, NULL, 0 },
		{ 1, { INT64_MAX / 16 }, NULL, INT64_MAX / 16 },
		{ 1, { INT64_MAX / 16 + 1 }, "impossible dimension 0", 0 },
		{ 2, { 2, -1 }, "impossible dimension 1", 0 },
		{ 3, { INT32_MAX, INT32_MAX, INT32_MAX },
		  "impossible dimension 1", 0 },
	};
	struct mkpt m = { 0 };
	struct errmsg err;
	struct value *v;
	struct tensor t;

	(void)state;
	for (size_t i = 0; i < COUNT(cases); i++) {
		const int rc = tensor_set_shape(
			&t, dims(&m, cases[i].sizes, cases[i].n), &err);

		assert_int_equal(rc, cases[i].wrong ? -EBADMSG : 0);
		if (rc) {
			assert_string_equal(err.text, cases[i].wrong);
			continue;
		}
		assert_int_equal(t.numel, cases[i].numel);
		assert_int_equal(t.ndim, cases[i].n);
		for (size_t k = 0; k < cases[i].n; k++)
			assert_int_equal(t.shape[k], cases[i].sizes[k]);
	}
	assert_int_equal(tensor_set_shape(&t, mkpt_str(&m, "x"), &err), -EBADMSG);
	assert_string_equal(err.text, "expected a shape, found str");
	assert_int_equal(tensor_set_shape(&t, NULL, &err), -EBADMSG);
	v = mkpt_tuple(&m, 0);
	for (int i = 0; i <= TENSOR_DIMS_MAX; i++)
		mkpt_add(&m, v, mkpt_int(&m, 1));
	assert_int_equal(tensor_set_shape(&t, v, &err), -EBADMSG);
	mkpt_done(&m);
}

static void contiguous_and_dense_are_told_apart(void **state)
{
	static const struct {
		unsigned n;
		uint64_t shape[DIMS], stride[DIMS];
		bool contiguous, dense;
	} cases[] = {
		{ 0, { 0 }, { 0 }, true, true },
		{ 1, { 5 }, { 1 }, true, true },
		{ 1, { 5 }, { 2 }, false, false },
		{ 1, { 1 }, { 99 }, true, true },
		{ 1, { 0 }, { 99 }, true, true },
		{ 2, { 2, 3 }, { 3, 1 }, true, true },
		{ 2, { 2, 3 }, { 1, 2 }, false, true },
		{ 2, { 2, 3 }, { 4, 1 }, false, false },
		{ 2, { 2, 3 }, { 0, 1 }, false, false },
		{ 2, { 2, 2 }, { 1, 1 }, false, false },
		{ 3, { 2, 1, 3 }, { 3, 77, 1 }, true, true },
		{ 3, { 4, 2, 3 }, { 1, 12, 4 }, false, true },
		{ 4, { 1, 2, 3, 4 }, { 5, 12, 1, 3 }, false, true },
		{ 4, { 2, 2, 2, 2 }, { 1, 2, 4, 8 }, false, true },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		struct tensor t = { .ndim = cases[i].n, .numel = 1 };

		for (unsigned k = 0; k < cases[i].n; k++) {
			t.shape[k] = cases[i].shape[k];
			t.stride[k] = cases[i].stride[k];
			t.numel *= t.shape[k];
		}
		assert_int_equal(tensor_is_contiguous(&t), cases[i].contiguous);
		assert_int_equal(tensor_is_dense(&t), cases[i].dense);
	}
}

static void own_tensors_survive_a_round_trip(void **state)
{
	static const struct {
		unsigned n;
		uint64_t shape[DIMS], stride[DIMS];
	} cases[] = {
		{ 0, { 0 }, { 0 } },
		{ 1, { 7 }, { 1 } },
		{ 3, { 2, 3, 5 }, { 15, 5, 1 } },
		{ 3, { 2, 0, 5 }, { 5, 5, 1 } },
		{ 2, { 0, 0 }, { 1, 1 } },
	};

	static const enum dtype types[] = { DTYPE_F16, DTYPE_U16, DTYPE_F8_E8M0,
					    DTYPE_BC32 };

	for (size_t k = 0; k < COUNT(cases) * COUNT(types); k++) {
		const enum dtype type = types[k / COUNT(cases)];
		const size_t i = k % COUNT(cases);
		struct mkpt m = { 0 };
		struct tensor t, again;

		tensor_init(&t, type, cases[i].shape, cases[i].n, true);
		assert_memory_equal(t.stride, cases[i].stride,
				    cases[i].n * sizeof(*t.stride));
		assert_true(tensor_is_contiguous(&t));
		assert_int_equal(tensor_from_value(tensor_to_value(&m.arena, &t),
						   "t", &again, NULL),
				 0);
		assert_int_equal(again.dtype, type);
		assert_int_equal(again.numel, t.numel);
		assert_int_equal(again.storage_numel, t.numel);
		assert_true(again.requires_grad);
		assert_memory_equal(again.shape, t.shape, sizeof(t.shape));
		assert_memory_equal(again.stride, t.stride, sizeof(t.stride));
		mkpt_done(&m);
	}
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_form_is_understood),
		cmocka_unit_test(other_values_are_no_tensors),
		cmocka_unit_test(every_storage_class_is_known),
		cmocka_unit_test(types_without_a_storage_class_are_read),
		cmocka_unit_test(lazy_views_are_refused),
		cmocka_unit_test(other_storages_are_refused),
		cmocka_unit_test(views_must_lie_within_their_storage),
		cmocka_unit_test(malformed_calls_are_refused),
		cmocka_unit_test(lists_of_sizes_are_shapes),
		cmocka_unit_test(contiguous_and_dense_are_told_apart),
		cmocka_unit_test(own_tensors_survive_a_round_trip),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
