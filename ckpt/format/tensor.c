/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors as torch pickles them.  torch/_tensor.py __reduce_ex__ writes
 * REDUCE nodes of a few rebuild functions:
 *
 *   _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks)
 *   _rebuild_tensor_v3(... same ..., dtype)       dtypes without a storage class;
 *                                     the storage's elements are bytes, and the
 *                                     view's have that type
 *   _rebuild_from_type_v2(func, type, args, state)  tensors with attributes:
 *                                     every fp32_flat_groups entry of ZeRO-3
 *   _rebuild_parameter(tensor, requires_grad, hooks)
 */
#include "ckpt/format/tensor.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/array.h"
#include "ckpt/base/checked.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"

/* torch nests at most three deep: a tensor with attributes around a parameter
 * around a tensor. */
#define TENSOR_WRAP_MAX 4

/* Limit of the elements of a tensor: their bytes fit an int64_t. */
#define NUMEL_MAX (INT64_MAX / 16)

static const struct {
	const char *name;
	const char *storage;
	size_t size;
} dtypes[] = {
	[DTYPE_F64] = { "float64", "DoubleStorage", 8 },
	[DTYPE_F32] = { "float32", "FloatStorage", 4 },
	[DTYPE_F16] = { "float16", "HalfStorage", 2 },
	[DTYPE_BF16] = { "bfloat16", "BFloat16Storage", 2 },
	[DTYPE_I64] = { "int64", "LongStorage", 8 },
	[DTYPE_I32] = { "int32", "IntStorage", 4 },
	[DTYPE_I16] = { "int16", "ShortStorage", 2 },
	[DTYPE_I8] = { "int8", "CharStorage", 1 },
	[DTYPE_U8] = { "uint8", "ByteStorage", 1 },
	[DTYPE_BOOL] = { "bool", "BoolStorage", 1 },
	[DTYPE_C64] = { "complex64", "ComplexFloatStorage", 8 },
	[DTYPE_C128] = { "complex128", "ComplexDoubleStorage", 16 },
	[DTYPE_OTHER] = { "untyped", "UntypedStorage", 1 },
	[DTYPE_U16] = { "uint16", NULL, 2 },
	[DTYPE_U32] = { "uint32", NULL, 4 },
	[DTYPE_U64] = { "uint64", NULL, 8 },
	[DTYPE_F8_E4M3] = { "float8_e4m3fn", NULL, 1 },
	[DTYPE_F8_E5M2] = { "float8_e5m2", NULL, 1 },
	[DTYPE_F8_E4M3FNUZ] = { "float8_e4m3fnuz", NULL, 1 },
	[DTYPE_F8_E5M2FNUZ] = { "float8_e5m2fnuz", NULL, 1 },
	[DTYPE_F8_E8M0] = { "float8_e8m0fnu", NULL, 1 },
	[DTYPE_F4_X2] = { "float4_e2m1fn_x2", NULL, 1 },
	[DTYPE_C32] = { "complex32", NULL, 4 },
	[DTYPE_BC32] = { "bcomplex32", NULL, 4 },
	[DTYPE_BITS8] = { "bits8", NULL, 1 },
	[DTYPE_BITS16] = { "bits16", NULL, 2 },
	[DTYPE_BITS1X8] = { "bits1x8", NULL, 1 },
	[DTYPE_BITS2X4] = { "bits2x4", NULL, 1 },
	[DTYPE_BITS4X2] = { "bits4x2", NULL, 1 },
};

size_t dtype_size(enum dtype d)
{
	return dtypes[d].size;
}

const char *dtype_name(enum dtype d)
{
	return dtypes[d].name;
}

const char *dtype_storage(enum dtype d)
{
	return dtypes[d].storage;
}

enum dtype dtype_from_value(const struct value *v)
{
	for (enum dtype d = 0; d < DTYPES; d++)
		if (d != DTYPE_OTHER && value_is_global(v, "torch", dtypes[d].name))
			return d;
	return DTYPE_OTHER;
}

/* Storages of quantized tensors, with the integer types of their elements. */
static const struct {
	const char *storage;
	enum dtype dtype;
} quantized[] = {
	{ "QInt8Storage", DTYPE_I8 },	  { "QUInt8Storage", DTYPE_U8 },
	{ "QInt32Storage", DTYPE_I32 },	  { "QUInt4x2Storage", DTYPE_U8 },
	{ "QUInt2x4Storage", DTYPE_U8 },
};

/* The element type of a storage class; DTYPES if it is unknown. */
static enum dtype find_storage(const char *class)
{
	for (enum dtype d = 0; d < DTYPES; d++)
		if (dtypes[d].storage && strcmp(class, dtypes[d].storage) == 0)
			return d;
	for (size_t i = 0; i < COUNT(quantized); i++)
		if (strcmp(class, quantized[i].storage) == 0)
			return quantized[i].dtype;
	return DTYPES;
}

static bool is_from_type(const struct value *v)
{
	return v && v->kind == VALUE_REDUCE &&
	       value_is_global(v->obj->callable, "torch._tensor",
			       "_rebuild_from_type_v2") &&
	       v->obj->args->kind == VALUE_TUPLE;
}

/* Return the arguments of a call; `*function` becomes the function that is finally called with
 * them.  NULL if `v` is not a call. */
static const struct value_seq *call_args(const struct value *v,
					 const struct value **function)
{
	const struct value *args;

	if (!v || v->kind != VALUE_REDUCE)
		return NULL;
	*function = v->obj->callable;
	args = v->obj->args;
	if (is_from_type(v)) { /* (function, type, its arguments, attributes) */
		if (args->seq.n < 3)
			return NULL;
		*function = args->seq.v[0];
		args = args->seq.v[2];
	}
	return args->kind == VALUE_TUPLE ? &args->seq : NULL;
}

static bool is_v3(const struct value *f)
{
	return value_is_global(f, "torch._utils", "_rebuild_tensor_v3");
}

static bool is_rebuild(const struct value *f)
{
	return value_is_global(f, "torch._utils", "_rebuild_tensor") ||
	       value_is_global(f, "torch._utils", "_rebuild_tensor_v2") || is_v3(f);
}

static bool is_wrapper(const struct value *f)
{
	return value_is_global(f, "torch._utils", "_rebuild_parameter") ||
	       value_is_global(f, "torch._utils",
			       "_rebuild_parameter_with_state");
}

/* Strip wrappers: the arguments of the innermost rebuild call, or NULL if
 * `v` is not a tensor.  `*f` becomes the function that is called last. */
static const struct value_seq *rebuild_args(const struct value *v,
					    const struct value **f)
{
	for (int depth = 0; depth < TENSOR_WRAP_MAX; depth++) {
		const struct value_seq *a = call_args(v, f);

		if (!a || is_rebuild(*f))
			return a;
		if (!is_wrapper(*f) || a->n < 1)
			return NULL;
		v = a->v[0];
	}
	return NULL;
}

bool tensor_is(const struct value *v)
{
	const struct value *f;

	return rebuild_args(v, &f) != NULL;
}

bool tensor_is_any(const struct value *v)
{
	const struct value *f = NULL;

	call_args(v, &f);
	return f && f->kind == VALUE_GLOBAL &&
	       (strcmp(f->global.module, "torch._utils") == 0 ||
		strcmp(f->global.module, "torch._tensor") == 0) &&
	       strncmp(f->global.name, "_rebuild_", 9) == 0;
}

const struct value *tensor_attribute(const struct value *v, const char *name)
{
	return is_from_type(v) ? value_find(value_item(v->obj->args, 3), name)
			       : NULL;
}

int tensor_storage(const struct value *pid, const char *name,
		   enum dtype *dtype, const char **key, uint64_t *numel,
		   struct errmsg *err)
{
	if (!pid || pid->kind != VALUE_STORAGE)
		return errmsg_set(err, -EBADMSG,
				  "%s: a tensor without a storage", name);

	/* pickle_read.c accepts only this shape of persistent id. */
	const struct value_seq *id = &pid->pid->seq;
	const struct value *cls = id->v[1];
	const char *module = cls->global.module;
	const bool torch = strcmp(module, "torch") == 0 ||
			   strcmp(module, "torch.storage") == 0;
	const enum dtype d = torch ? find_storage(cls->global.name) : DTYPES;

	if (d == DTYPES)
		return errmsg_set(err, -ENOTSUP, "%s: storage of unknown type %s.%s",
				  name, module, cls->global.name);
	*dtype = d;
	*key = id->v[2]->str.p;
	*numel = (uint64_t)id->v[4]->i;
	return 0;
}

static int get_dims(const struct value *v, const char *name, uint64_t *out,
		    size_t *n, struct errmsg *err)
{
	const struct value_seq *dims = value_items(v);

	if (!dims || dims->n > TENSOR_DIMS_MAX)
		return errmsg_set(err, -EBADMSG,
				  "%s: malformed tensor size or stride", name);
	for (size_t i = 0; i < dims->n; i++)
		if (!value_get_count(dims->v[i], &out[i]))
			return errmsg_set(err, -EBADMSG,
					  "%s: tensor size or stride %zu is not a count", name, i);
	*n = dims->n;
	return 0;
}

/* Set numel, and check that the view that the other fields describe lies within its
 * storage. */
static int check_view(struct tensor *t, const char *name, struct errmsg *err)
{
	uint64_t last = t->storage_offset;
	bool empty = false;

	t->numel = 1;
	for (unsigned i = 0; i < t->ndim; i++)
		empty |= t->shape[i] == 0;
	if (empty) {
		t->numel = 0;
		return 0;
	}
	for (unsigned i = 0; i < t->ndim; i++) {
		uint64_t reach;

		if (!checked_mul(t->numel, t->shape[i], &t->numel) ||
		    t->numel > NUMEL_MAX ||
		    !checked_mul(t->shape[i] - 1, t->stride[i], &reach) ||
		    !checked_add(last, reach, &last))
			return errmsg_set(err, -EBADMSG,
					  "%s: tensor size overflows", name);
	}
	if (last >= t->storage_numel)
		return errmsg_set(err, -EBADMSG,
				  "%s: tensor reaches element %llu of a storage of %llu", name,
				  (unsigned long long)last, (unsigned long long)t->storage_numel);
	return 0;
}

/* Report that `v` is not a known kind of tensor; `f` is the function that makes the object. */
static int fail_no_tensor(const struct value *v, const struct value *f,
			  const char *name, struct errmsg *err)
{
	if (f && f->kind == VALUE_GLOBAL)
		return errmsg_set(err, -ENOTSUP,
				  "%s: expected a tensor, found a call of %s", name,
				  f->global.name);
	return errmsg_set(err, v && v->kind == VALUE_REDUCE ? -ENOTSUP : -EBADMSG,
			  "%s: expected a tensor, found %s", name,
			  value_kind_name(v));
}

/* Read the storage and, for a call of _rebuild_tensor_v3, the type of the view. */
static int read_storage(struct tensor *t, const struct value_seq *a, bool v3,
			const char *name, struct errmsg *err)
{
	const int rc = tensor_storage(a->v[0], name, &t->dtype, &t->storage_key,
				      &t->storage_numel, err);
	uint64_t bytes;

	if (rc || !v3)
		return rc;
	if (a->n < 7 || a->v[6]->kind != VALUE_GLOBAL)
		return errmsg_set(err, -EBADMSG, "%s: tensor without a type", name);
	if (!checked_mul(t->storage_numel, dtype_size(t->dtype), &bytes))
		return errmsg_set(err, -EBADMSG, "%s: tensor size overflows", name);
	t->dtype = dtype_from_value(a->v[6]);
	if (t->dtype == DTYPE_OTHER)
		return errmsg_set(err, -ENOTSUP, "%s: elements of unknown type %s.%s",
				  name, a->v[6]->global.module,
				  a->v[6]->global.name);
	t->storage_numel = bytes / dtype_size(t->dtype);
	return 0;
}

/* Does the last argument require values to be conjugated or negated when they are read? */
static bool is_lazy(const struct value_seq *a, bool v3)
{
	const size_t i = v3 ? 7 : 6;

	return a->n > i && (value_is_true(value_find(a->v[i], "conj")) ||
			    value_is_true(value_find(a->v[i], "neg")));
}

int tensor_from_value(const struct value *v, const char *name,
		      struct tensor *out, struct errmsg *err)
{
	const struct value *f = NULL;
	const struct value_seq *a = rebuild_args(v, &f);
	struct tensor t = { 0 };
	size_t nshape, nstride;
	int rc;

	if (!a)
		return fail_no_tensor(v, f, name, err);
	if (a->n < 4)
		return errmsg_set(err, -EBADMSG,
				  "%s: tensor with %zu arguments", name, a->n);
	rc = read_storage(&t, a, is_v3(f), name, err);
	if (rc)
		return rc;
	if (is_lazy(a, is_v3(f)))
		return errmsg_set(err, -ENOTSUP,
				  "%s: a view that conjugates or negates its storage's values",
				  name);
	if (!value_get_count(a->v[1], &t.storage_offset))
		return errmsg_set(err, -EBADMSG,
				  "%s: bad tensor storage offset", name);
	rc = get_dims(a->v[2], name, t.shape, &nshape, err) ?:
	     get_dims(a->v[3], name, t.stride, &nstride, err);
	if (rc)
		return rc;
	if (nshape != nstride)
		return errmsg_set(err, -EBADMSG,
				  "%s: tensor with %zu sizes but %zu strides",
				  name, nshape, nstride);
	t.ndim = (unsigned)nshape;
	t.requires_grad = a->n > 4 && value_is_true(a->v[4]);
	rc = check_view(&t, name, err);
	if (!rc)
		*out = t;
	return rc;
}

int tensor_from_any(const struct value *v, const char *name, struct tensor *out,
		    struct errmsg *why)
{
	int rc = tensor_from_value(v, name, out, why);

	if (!rc && out->dtype == DTYPE_OTHER)
		rc = errmsg_set(why, -ENOTSUP, "%s: elements of unknown type", name);
	return rc == -ENOTSUP || (rc && !tensor_is_any(v)) ? 1 : rc;
}

int tensor_set_shape(struct tensor *t, const struct value *sizes,
		     struct errmsg *err)
{
	const struct value_seq *dims = value_items(sizes);

	if (!dims || dims->n > TENSOR_DIMS_MAX)
		return errmsg_set(err, -EBADMSG, "expected a shape, found %s",
				  value_kind_name(sizes));
	t->ndim = (unsigned)dims->n;
	t->numel = 1;
	for (size_t i = 0; i < dims->n; i++)
		if (!value_get_count(dims->v[i], &t->shape[i]) ||
		    !checked_mul(t->numel, t->shape[i], &t->numel) ||
		    t->numel > NUMEL_MAX)
			return errmsg_set(err, -EBADMSG,
					  "impossible dimension %zu", i);
	return 0;
}

void tensor_init(struct tensor *t, enum dtype dtype, const uint64_t *shape,
		 unsigned ndim, bool requires_grad)
{
	*t = (struct tensor){
		.dtype = dtype, .ndim = ndim, .numel = 1, .storage_key = "0",
		.requires_grad = requires_grad,
	};
	/* torch keeps the strides of an empty tensor as if its zero sizes
	 * were ones. */
	for (unsigned i = ndim, step = 0; i-- > 0; step++) {
		t->shape[i] = shape[i];
		t->stride[i] = step == 0 ? 1 :
			       t->stride[i + 1] *
				       (shape[i + 1] ? shape[i + 1] : 1);
		t->numel *= shape[i];
	}
	t->storage_numel = t->numel;
}

bool stored_init(struct stored *s, struct arena *a, const struct tensor *t,
		 uint64_t storage)
{
	*s = (struct stored){
		.dtype = t->dtype,
		.requires_grad = t->requires_grad,
		.ndim = t->ndim,
		.shape = arena_copy(a, t->shape, t->ndim * sizeof(*t->shape)),
		.stride = arena_copy(a, t->stride, t->ndim * sizeof(*t->stride)),
		.numel = t->numel,
		.storage = storage,
		.storage_offset = t->storage_offset,
		.storage_numel = t->storage_numel,
	};
	return s->shape && s->stride;
}

void stored_describe(const struct stored *s, struct tensor *out)
{
	tensor_init(out, s->dtype, s->shape, s->ndim, s->requires_grad);
	if (s->stride)
		memcpy(out->stride, s->stride, s->ndim * sizeof(*s->stride));
	out->storage_offset = s->storage_offset;
	out->storage_numel = s->storage_numel;
}

static struct value *dims_to_value(struct arena *a, const uint64_t *dims,
				   unsigned n)
{
	struct value *v = value_new(a, VALUE_TUPLE);

	for (unsigned i = 0; i < n; i++)
		value_append(a, v, dims[i]);
	return a->failed ? NULL : v;
}

static struct value *tuple_of(struct arena *a, struct value **v, size_t n)
{
	struct value *t = value_new(a, VALUE_TUPLE);

	for (size_t i = 0; i < n; i++)
		value_append(a, t, v[i]);
	return a->failed ? NULL : t;
}

/* Make the persistent id of the storage of `t`. */
static struct value *storage_to_value(struct arena *a, const struct tensor *t)
{
	struct value *storage = value_new(a, VALUE_STORAGE);
	const char *typed = dtypes[t->dtype].storage;
	const uint64_t unit = typed ? 1 : dtypes[t->dtype].size;

	if (!storage)
		return NULL;
	storage->pid = tuple_of(a, (struct value *[]){
		value_new_str(a, "storage"),
		typed ? value_new_global(a, "torch", typed)
		      : value_new_global(a, "torch.storage", "UntypedStorage"),
		value_new_str(a, t->storage_key),
		value_new_str(a, "cpu"),
		value_new_int(a, (int64_t)(t->storage_numel * unit)),
	}, 5);
	return storage->pid ? storage : NULL;
}

struct value *tensor_size_to_value(struct arena *a, const uint64_t *shape,
				   unsigned ndim)
{
	struct value *dims = dims_to_value(a, shape, ndim);

	return value_new_reduce(a, value_new_global(a, "torch", "Size"),
				tuple_of(a, &(struct value *){ dims }, 1));
}

struct value *tensor_to_value(struct arena *a, const struct tensor *t)
{
	const bool v3 = !dtypes[t->dtype].storage;
	struct value *args[] = {
		storage_to_value(a, t),
		value_new_int(a, (int64_t)t->storage_offset),
		dims_to_value(a, t->shape, t->ndim),
		dims_to_value(a, t->stride, t->ndim),
		value_new_bool(a, t->requires_grad),
		value_new_ordered(a), /* the tensor's own hooks */
		v3 ? value_new_global(a, "torch", dtypes[t->dtype].name) : NULL,
	};

	return value_new_reduce(a,
				value_new_global(a, "torch._utils",
						 v3 ? "_rebuild_tensor_v3"
						    : "_rebuild_tensor_v2"),
				tuple_of(a, args, v3 ? 7 : 6));
}

bool tensor_is_contiguous(const struct tensor *t)
{
	uint64_t expect = 1;

	if (t->numel == 0)
		return true;
	for (unsigned i = t->ndim; i-- > 0;) {
		if (t->shape[i] == 1)
			continue;
		if (t->stride[i] != expect)
			return false;
		expect *= t->shape[i];
	}
	return true;
}

uint64_t tensor_run(const struct tensor *t)
{
	uint64_t run = 1;

	for (unsigned i = t->ndim;
	     i-- > 0 && (t->shape[i] == 1 || t->stride[i] == run);)
		run *= t->shape[i];
	return run;
}

uint64_t tensor_place(const struct tensor *t, uint64_t element)
{
	uint64_t at = t->storage_offset;

	for (unsigned i = t->ndim; i-- > 0; element /= t->shape[i])
		at += element % t->shape[i] * t->stride[i];
	return at;
}

int shape_order(const uint64_t *a, unsigned na, const uint64_t *b, unsigned nb)
{
	int order = ORDER(na, nb);

	for (unsigned d = 0; !order && d < na; d++)
		order = ORDER(a[d], b[d]);
	return order;
}

bool tensor_is_dense(const struct tensor *t)
{
	bool used[TENSOR_DIMS_MAX] = { false };
	uint64_t expect = 1;

	if (t->numel == 0)
		return true;
	/* Pick the dimensions from the innermost outwards by their strides. */
	for (unsigned n = 0; n < t->ndim; n++) {
		unsigned pick = t->ndim;

		for (unsigned i = 0; i < t->ndim; i++)
			if (!used[i] && (t->shape[i] == 1 ||
					 t->stride[i] == expect)) {
				pick = i;
				break;
			}
		if (pick == t->ndim)
			return false;
		used[pick] = true;
		expect *= t->shape[pick];
	}
	return true;
}
