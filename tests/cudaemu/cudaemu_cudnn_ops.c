/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDNN's operations, executed one after the other, element by element, as
 * documented by NVIDIA. Intermediate tensors are stored as float, rounded to
 * their types.
 */
#include <math.h>
#include <stdlib.h>

#include "cudaemu.h"
#include "cudaemu_cudnn_impl.h"

#define DIMS 4
#define TENSORS_MAX 64

/* --- tensors ---------------------------------------------------------------- */

static const int64_t *dims_of(desc t)
{
	return values(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}

static const int64_t *strides_of(desc t)
{
	return values(t, CUDNN_ATTR_TENSOR_STRIDES);
}

/* The number of elements that a tensor spans in memory. */
static size_t extent_of(desc t)
{
	int64_t last = 0;

	for (int i = 0; i < DIMS; i++)
		last += (dims_of(t)[i] - 1) * strides_of(t)[i];
	return (size_t)last + 1;
}

/* The storage of each tensor while a graph is executed. */
struct places {
	size_t n;
	struct {
		desc tensor;
		char *given;    /* of a tensor in memory, or a number */
		float *between; /* of an intermediate tensor */
	} of[TENSORS_MAX];
	desc pack;
};

static char *given_place(const struct places *p, desc t)
{
	const int64_t name = integer64(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
	const int64_t *const names =
		values(p->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
	char *const *const at =
		values(p->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
	const int64_t n =
		p->pack->attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].n;

	for (int64_t i = 0; i < n; i++)
		if (names[i] == name)
			return at[i];
	return NULL;
}

static float *new_between(desc t)
{
	const size_t n = extent_of(t);
	float *const p = malloc(n * sizeof(*p));

	for (size_t i = 0; p && i < n; i++)
		p[i] = NAN; /* shows reads of unwritten elements */
	return p;
}

/* Find or create the storage of a tensor; -1: there is none. */
static int place_of(struct places *p, desc t)
{
	const int64_t name = integer64(t, CUDNN_ATTR_TENSOR_UNIQUE_ID);
	const bool is_between = values(t, CUDNN_ATTR_TENSOR_IS_VIRTUAL) != NULL;
	const bool is_number = values(t, CUDNN_ATTR_TENSOR_IS_BY_VALUE) != NULL;
	size_t i;

	for (i = 0; i < p->n; i++)
		if (integer64(p->of[i].tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID) ==
		    name)
			return p->of[i].tensor == t ? (int)i : -1;
	if (i == TENSORS_MAX)
		return -1;
	p->of[i].tensor = t;
	p->of[i].given = is_between ? NULL : given_place(p, t);
	p->of[i].between = is_between ? new_between(t) : NULL;
	p->n++;
	if (!p->of[i].given && !p->of[i].between)
		return -1;
	if (!is_number &&
	    (uintptr_t)p->of[i].given %
		    (uint64_t)integer64(t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT))
		return -1;
	return (int)i;
}

static float rounded(cudnnDataType_t type, float x)
{
	switch (type) {
	case CUDNN_DATA_BFLOAT16:
		return cudaemu_from_bf16(cudaemu_to_bf16(x));
	case CUDNN_DATA_HALF:
		return cudaemu_from_f16(cudaemu_to_f16(x));
	case CUDNN_DATA_INT32:
		return truncf(x);
	case CUDNN_DATA_BOOLEAN:
		return x != 0;
	default:
		return x;
	}
}

/* Element `at` of a tensor; dimensions of size 1 are broadcast. */
static size_t offset_of(desc t, const int64_t at[DIMS])
{
	int64_t offset = 0;

	for (int i = 0; i < DIMS; i++)
		offset += dims_of(t)[i] == 1 ? 0 : at[i] * strides_of(t)[i];
	return (size_t)offset;
}

static float load(const struct places *p, int place, const int64_t at[DIMS])
{
	const desc t = p->of[place].tensor;
	const size_t i = offset_of(t, at);
	const void *const from = p->of[place].given;

	if (!from)
		return p->of[place].between[i];
	switch (integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE)) {
	case CUDNN_DATA_BFLOAT16:
		return cudaemu_from_bf16(((const uint16_t *)from)[i]);
	case CUDNN_DATA_HALF:
		return cudaemu_from_f16(((const uint16_t *)from)[i]);
	default:
		return ((const float *)from)[i];
	}
}

static void store(struct places *p, int place, const int64_t at[DIMS], float x)
{
	const desc t = p->of[place].tensor;
	const size_t i = offset_of(t, at);
	const cudnnDataType_t type =
		(cudnnDataType_t)integer(t, CUDNN_ATTR_TENSOR_DATA_TYPE);
	void *const to = p->of[place].given;

	if (!to)
		p->of[place].between[i] = rounded(type, x);
	else if (type == CUDNN_DATA_BFLOAT16)
		((uint16_t *)to)[i] = cudaemu_to_bf16(x);
	else if (type == CUDNN_DATA_HALF)
		((uint16_t *)to)[i] = cudaemu_to_f16(x);
	else
		((float *)to)[i] = x;
}

/* Advance to the next element of a tensor; false after the last. */
static bool next(desc t, int64_t at[DIMS])
{
	for (int i = DIMS; i-- > 0; at[i] = 0)
		if (++at[i] < dims_of(t)[i])
			return true;
	return false;
}

/* --- operations ------------------------------------------------------------- */

/* Can x be broadcast to y? */
static bool stripes(desc y, desc x)
{
	for (int i = 0; i < DIMS; i++)
		if (dims_of(x)[i] != dims_of(y)[i] && dims_of(x)[i] != 1)
			return false;
	return true;
}

static bool is_product(desc c, desc a, desc b)
{
	const int64_t *const m = dims_of(c), *const l = dims_of(a);
	const int64_t *const r = dims_of(b);

	return l[0] == m[0] && l[1] == m[1] && r[0] == m[0] && r[1] == m[1] &&
	       l[2] == m[2] && r[3] == m[3] && l[3] == r[2];
}

bool cudnn_ops_fit(desc d)
{
	const desc x = child(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
	const desc b = child(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
	const desc y = child(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
	bool fits = true;

	switch (d->type) {
	case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
		fits = is_product(child(d, CUDNN_ATTR_OPERATION_MATMUL_CDESC),
				  child(d, CUDNN_ATTR_OPERATION_MATMUL_ADESC),
				  child(d, CUDNN_ATTR_OPERATION_MATMUL_BDESC));
		break;
	case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
		fits = stripes(y, x) && (!b || stripes(y, b));
		break;
	case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
		fits = stripes(child(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
			       child(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
		break;
	case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
		fits = extent_of(child(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)) ==
		       extent_of(child(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
		break;
	default:
		break;
	}
	return fits;
}

static void multiply(struct places *p, int c, int a, int b)
{
	const int64_t n = dims_of(p->of[a].tensor)[3];
	int64_t at[DIMS] = { 0 };

	do {
		int64_t left[DIMS] = { at[0], at[1], at[2], 0 };
		int64_t right[DIMS] = { at[0], at[1], 0, at[3] };
		float sum = 0;

		for (int64_t i = 0; i < n; i++) {
			left[3] = right[2] = i;
			sum += load(p, a, left) * load(p, b, right);
		}
		store(p, c, at, sum);
	} while (next(p->of[c].tensor, at));
}

static float apply(cudnnPointwiseMode_t mode, float x, float b, float t,
		   float index)
{
	switch (mode) {
	case CUDNN_POINTWISE_ADD:
		return x + b;
	case CUDNN_POINTWISE_SUB:
		return x - b;
	case CUDNN_POINTWISE_MUL:
		return x * b;
	case CUDNN_POINTWISE_DIV:
		return x / b;
	case CUDNN_POINTWISE_EXP:
		return expf(x);
	case CUDNN_POINTWISE_LOG:
		return logf(x);
	case CUDNN_POINTWISE_CMP_GE:
		return x >= b;
	case CUDNN_POINTWISE_GEN_INDEX:
		return index;
	case CUDNN_POINTWISE_BINARY_SELECT:
		return t != 0 ? x : b;
	default:
		return x;
	}
}

/* b and t are -1 for operations without them. */
static void each(struct places *p, desc how, int y, int x, int b, int t)
{
	const cudnnPointwiseMode_t mode =
		(cudnnPointwiseMode_t)integer(how, CUDNN_ATTR_POINTWISE_MODE);
	const int64_t axis = values(how, CUDNN_ATTR_POINTWISE_AXIS)
				     ? integer64(how, CUDNN_ATTR_POINTWISE_AXIS)
				     : 0;
	int64_t at[DIMS] = { 0 };

	do
		store(p, y, at,
		      apply(mode, load(p, x, at), b < 0 ? 0 : load(p, b, at),
			    t < 0 ? 0 : load(p, t, at), (float)at[axis]));
	while (next(p->of[y].tensor, at));
}

static void reduce(struct places *p, desc how, int y, int x)
{
	const bool sums = integer(how, CUDNN_ATTR_REDUCTION_OPERATOR) ==
			  CUDNN_REDUCE_TENSOR_ADD;
	const desc to = p->of[y].tensor;
	int64_t at[DIMS] = { 0 };

	do
		store(p, y, at, sums ? 0 : -INFINITY);
	while (next(to, at));
	do {
		const float was = load(p, y, at), is = load(p, x, at);

		store(p, y, at, sums ? was + is : fmaxf(was, is));
	} while (next(p->of[x].tensor, at));
}

/* Copy to other dimensions, in memory order. */
static void reshape(struct places *p, int y, int x)
{
	const desc from = p->of[x].tensor;
	int64_t at[DIMS] = { 0 };

	do
		p->of[y].between[offset_of(from, at)] = rounded(
			(cudnnDataType_t)integer(p->of[y].tensor,
						 CUDNN_ATTR_TENSOR_DATA_TYPE),
			load(p, x, at));
	while (next(from, at));
}

/* The storage of an operation's tensor; -1: there is none. */
static int operand(struct places *p, desc d, cudnnBackendAttributeName_t name)
{
	const desc t = child(d, name);

	return t ? place_of(p, t) : -1;
}

static bool do_operation(struct places *p, desc d)
{
	int y, x, b, t;

	switch (d->type) {
	case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
		y = operand(p, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
		x = operand(p, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
		b = operand(p, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
		if (y < 0 || x < 0 || b < 0)
			return false;
		multiply(p, y, x, b);
		return true;
	case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
		y = operand(p, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
		x = operand(p, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
		b = operand(p, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
		t = operand(p, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
		if (y < 0 || x < 0)
			return false;
		each(p, child(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR),
		     y, x, b, t);
		return true;
	case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
		y = operand(p, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
		x = operand(p, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
		if (y < 0 || x < 0)
			return false;
		reduce(p, child(d, CUDNN_ATTR_OPERATION_REDUCTION_DESC), y, x);
		return true;
	default:
		y = operand(p, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
		x = operand(p, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
		if (y < 0 || x < 0 || !p->of[y].between)
			return false;
		reshape(p, y, x);
		return true;
	}
}

bool cudnn_ops_do(desc graph, desc pack)
{
	const desc *const operations =
		values(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	const int64_t n = graph->attributes[CUDNN_ATTR_OPERATIONGRAPH_OPS].n;
	struct places p = { .pack = pack };
	bool ok = true;

	for (int64_t i = 0; i < n && ok; i++)
		ok = do_operation(&p, operations[i]);
	for (size_t i = 0; i < p.n; i++)
		free(p.of[i].between);
	return ok;
}
