/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TENSOR_H
#define UCKPT_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arena;
struct errmsg;
struct value;

#define TENSOR_DIMS_MAX 64 /* torch's own limit */

enum dtype {
	DTYPE_F64,
	DTYPE_F32,
	DTYPE_F16,
	DTYPE_BF16,
	DTYPE_I64,
	DTYPE_I32,
	DTYPE_I16,
	DTYPE_I8,
	DTYPE_U8,
	DTYPE_BOOL,
	DTYPE_C64,
	DTYPE_C128,
	DTYPE_OTHER, /* a type that we can carry but not name: 1-byte items */
	/* torch has no storage class for these: their tensors are views of bytes. */
	DTYPE_U16,
	DTYPE_U32,
	DTYPE_U64,
	DTYPE_F8_E4M3, /* float8_e4m3fn: no infinities */
	DTYPE_F8_E5M2,
	DTYPE_F8_E4M3FNUZ, /* these two: no infinities, no -0 */
	DTYPE_F8_E5M2FNUZ,
	DTYPE_F8_E8M0, /* float8_e8m0fnu: powers of two */
	DTYPE_F4_X2,   /* float4_e2m1fn_x2: two numbers per element */
	DTYPE_C32,
	DTYPE_BC32,
	DTYPE_BITS8,
	DTYPE_BITS16,
	DTYPE_BITS1X8,
	DTYPE_BITS2X4,
	DTYPE_BITS4X2,
	DTYPES, /* number of types */
};

size_t dtype_size(enum dtype d);
const char *dtype_name(enum dtype d); /* torch's spelling: "bfloat16" */

/* The storage class in torch, such as "BFloat16Storage"; NULL if there is none. */
const char *dtype_storage(enum dtype d);

static inline bool dtype_is_floating(enum dtype d)
{
	return d <= DTYPE_BF16 || (d >= DTYPE_F8_E4M3 && d <= DTYPE_F8_E8M0);
}

/* The type that a global names, such as torch.float32; DTYPE_OTHER if it is unknown. */
enum dtype dtype_from_value(const struct value *v);

/*
 * A torch tensor as its pickle describes it: a strided view of a storage.
 * Offsets, sizes and strides count elements.
 */
struct tensor {
	enum dtype dtype;
	unsigned ndim;
	uint64_t shape[TENSOR_DIMS_MAX];
	uint64_t stride[TENSOR_DIMS_MAX];
	uint64_t numel;
	uint64_t storage_offset;
	uint64_t storage_numel;
	const char *storage_key; /* of member data/<key>; borrowed */
	bool requires_grad;
};

/* A tensor as a file of a checkpoint has it. */
struct stored {
	const char *name; /* must be first: array_by_text; NULL: the owner of the struct knows the
			   * name */
	uint32_t file; /* in the numbering of extents */
	enum dtype dtype;
	bool requires_grad;
	unsigned ndim;
	const uint64_t *shape;
	const uint64_t *stride; /* NULL: row-major, as torch makes it */
	uint64_t numel;
	uint64_t storage; /* file offset of the storage's element 0 */
	uint64_t storage_offset, storage_numel; /* elements */
};

/* Compare the shapes of two tensors, or of structures that describe tensors: -1, 0 or 1. */
#define SHAPE_ORDER(x, y) shape_order((x)->shape, (x)->ndim, (y)->shape, (y)->ndim)
int shape_order(const uint64_t *a, unsigned na, const uint64_t *b, unsigned nb);

/* Describe a tensor whose storage begins at `storage`; sets all fields except the file.  False when
 * the arena is exhausted. */
bool stored_init(struct stored *s, struct arena *a, const struct tensor *t,
		 uint64_t storage);
void stored_describe(const struct stored *s, struct tensor *out);

/* Is `v` (may be NULL) any of the forms in which torch pickles a tensor? */
bool tensor_is(const struct value *v);

/* Is it a tensor of any kind, such as a sparse or a quantized one, or of a subclass? */
bool tensor_is_any(const struct value *v);

/* Return an attribute that a tensor was pickled with, or NULL. */
const struct value *tensor_attribute(const struct value *v, const char *name);

/*
 * Read the description out of `v` and check that the view lies within its storage.  `name` names
 * the tensor in messages.  -ENOTSUP for tensors that have no plain strided form (quantised, sparse,
 * distributed, lazily conjugated), -EBADMSG for malformed ones.
 */
int tensor_from_value(const struct value *v, const char *name,
		      struct tensor *out, struct errmsg *err);

/* As tensor_from_value, for any entry of a module.  Returns 1, with the reason, for a tensor
 * without a plain form or of an unknown type, and for any other object. */
int tensor_from_any(const struct value *v, const char *name, struct tensor *out,
		    struct errmsg *why);

/*
 * Set the shape and numel from a list of sizes, as in param_shapes; other fields stay.
 * -EBADMSG if `v` is not such a list, or has more elements than a tensor can have.  The message
 * names no file.
 */
int tensor_set_shape(struct tensor *t, const struct value *sizes,
		     struct errmsg *err);

/*
 * The storage type behind a persistent id `('storage', type, key, location,
 * numel)`.  Errors as tensor_from_value.  The elements of a storage without a type are bytes.
 */
int tensor_storage(const struct value *pid, const char *name,
		   enum dtype *dtype, const char **key, uint64_t *numel,
		   struct errmsg *err);

/* The value that torch pickles for `t`, its storage under t->storage_key; NULL
 * when the arena is exhausted. */
struct value *tensor_to_value(struct arena *a, const struct tensor *t);

/* The torch.Size that torch pickles for a shape; NULL as tensor_to_value. */
struct value *tensor_size_to_value(struct arena *a, const uint64_t *shape,
				   unsigned ndim);

/* Fill in a contiguous tensor that owns its storage. */
void tensor_init(struct tensor *t, enum dtype dtype, const uint64_t *shape,
		 unsigned ndim, bool requires_grad);

/* Is the tensor row-major without gaps? Strides of empty tensors, and of dimensions of size 1, do
 * not matter. */
bool tensor_is_contiguous(const struct tensor *t);

/* The length of the contiguous runs of the view, in elements: a run begins at each multiple of
 * it, in row-major order. */
uint64_t tensor_run(const struct tensor *t);

/* Return the index in the storage of an element, given by its number in row-major order, which must
 * be below numel. */
uint64_t tensor_place(const struct tensor *t, uint64_t element);

/* Does the view cover [storage_offset, storage_offset + numel) of its storage
 * exactly, each element once, in whatever order of dimensions? */
bool tensor_is_dense(const struct tensor *t);

#endif
