/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDNN's graphs, an operation after the other, element by element, as NVIDIA's
 * documentation describes them.  What tensors between operations have is kept
 * as float, rounded to their types.
 */
#include "cudaemu_cudnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cudaemu.h"
#include "gpu/cudnn_api.h"

#define DIMS 4
#define TENSORS_MAX 64

/* What plans say that they need; all of it is written. */
#define WORKSPACE 300

/* Attributes are copied; each descriptor has few. */
struct cudaemu_dnn_descriptor {
	cudnnBackendDescriptorType_t type;
	bool final;
	struct {
		int64_t n; /* 0: not set */
		size_t size;
		char *values;
	} attributes[CUDNN_ATTR_COUNT];
	/* of engine configurations and plans */
	cudnnBackendDescriptor_t graph;
	bool is_refused;
};

struct cudaemu_dnn {
	bool has_stream;
};

struct cudaemu_cudnn cudaemu_cudnn;

/* --- descriptors ------------------------------------------------------------ */

typedef cudnnBackendDescriptor_t desc;

static const void *values(desc d, cudnnBackendAttributeName_t name)
{
	return d->attributes[name].values;
}

static desc child(desc d, cudnnBackendAttributeName_t name)
{
	const desc *const c = values(d, name);

	return c ? *c : NULL;
}

static int integer(desc d, cudnnBackendAttributeName_t name)
{
	int x;

	memcpy(&x, values(d, name), sizeof(x));
	return x;
}

static int64_t integer64(desc d, cudnnBackendAttributeName_t name)
{
	int64_t x;

	memcpy(&x, values(d, name), sizeof(x));
	return x;
}

static size_t size_of(cudnnBackendAttributeType_t type)
{
	switch (type) {
	case CUDNN_TYPE_BOOLEAN:
		return sizeof(bool);
	case CUDNN_TYPE_DATA_TYPE:
	case CUDNN_TYPE_HEUR_MODE:
	case CUDNN_TYPE_POINTWISE_MODE:
	case CUDNN_TYPE_REDUCTION_OPERATOR_TYPE:
		return sizeof(int);
	default:
		return sizeof(void *);
	}
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
					   cudnnBackendDescriptor_t *d)
{
	*d = calloc(1, sizeof(**d));
	if (!*d)
		return CUDNN_STATUS_EXECUTION_FAILED;
	(*d)->type = type;
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d)
{
	for (size_t i = 0; i < CUDNN_ATTR_COUNT; i++)
		free(d->attributes[i].values);
	free(d);
	return CUDNN_STATUS_SUCCESS;
}

/* Descriptors that others are made of have been finalized. */
static bool are_final(const desc *children, int64_t n)
{
	for (int64_t i = 0; i < n; i++)
		if (!children[i] || !children[i]->final)
			return false;
	return true;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
				       cudnnBackendAttributeName_t name,
				       cudnnBackendAttributeType_t type,
				       int64_t n, const void *from)
{
	const size_t size = size_of(type);
	char *to;

	if (d->final || n < 1 || d->attributes[name].n ||
	    (type == CUDNN_TYPE_BACKEND_DESCRIPTOR && !are_final(from, n)))
		return CUDNN_STATUS_BAD_PARAM;
	to = malloc((size_t)n * size);
	if (!to)
		return CUDNN_STATUS_EXECUTION_FAILED;
	memcpy(to, from, (size_t)n * size);
	d->attributes[name].values = to;
	d->attributes[name].size = size;
	d->attributes[name].n = n;
	return CUDNN_STATUS_SUCCESS;
}

/* Two ways, of which the first cannot be taken. */
static cudnnStatus_t give_ways(desc d, int64_t room, int64_t *n, desc *ways)
{
	*n = room < 2 ? room : 2;
	for (int64_t i = 0; i < *n; i++) {
		if (ways[i]->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
			return CUDNN_STATUS_BAD_PARAM;
		ways[i]->graph = child(d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
		ways[i]->is_refused = i == 0 || cudaemu_cudnn.refuses;
		ways[i]->final = true;
	}
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(const cudnnBackendDescriptor_t d,
				       cudnnBackendAttributeName_t name,
				       cudnnBackendAttributeType_t type,
				       int64_t room, int64_t *n, void *to)
{
	const int64_t workspace = WORKSPACE;

	if (!d->final)
		return CUDNN_STATUS_BAD_PARAM;
	if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS)
		return give_ways(d, room, n, to);
	if (name != CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE ||
	    type != CUDNN_TYPE_INT64)
		return CUDNN_STATUS_BAD_PARAM;
	*n = 1;
	memcpy(to, &workspace, sizeof(workspace));
	return CUDNN_STATUS_SUCCESS;
}

/* --- tensors ---------------------------------------------------------------- */

static const int64_t *dims_of(desc t)
{
	return values(t, CUDNN_ATTR_TENSOR_DIMENSIONS);
}

static const int64_t *strides_of(desc t)
{
	return values(t, CUDNN_ATTR_TENSOR_STRIDES);
}

/* Elements from the first to the last. */
static size_t extent_of(desc t)
{
	int64_t last = 0;

	for (int i = 0; i < DIMS; i++)
		last += (dims_of(t)[i] - 1) * strides_of(t)[i];
	return (size_t)last + 1;
}

/* Where each tensor is while a graph runs. */
struct places {
	size_t n;
	struct {
		desc tensor;
		char *given;    /* of a tensor in memory, or a number */
		float *between; /* of others */
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
		p[i] = NAN; /* nothing was written there */
	return p;
}

/* The place of a tensor, found on first use; -1: there is none. */
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

/* Element `at` of a tensor; dimensions of one element have it everywhere. */
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

/* The next element of a tensor; false: that was the last. */
static bool next(desc t, int64_t at[DIMS])
{
	for (int i = DIMS; i-- > 0; at[i] = 0)
		if (++at[i] < dims_of(t)[i])
			return true;
	return false;
}

/* --- operations ------------------------------------------------------------- */

/* Is y what comes of x, whose dimensions may be 1 instead? */
static bool spreads(desc y, desc x)
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

static cudnnStatus_t check_operation(desc d)
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
		fits = spreads(y, x) && (!b || spreads(y, b));
		break;
	case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
		fits = spreads(child(d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC),
			       child(d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
		break;
	case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
		fits = extent_of(child(d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC)) ==
		       extent_of(child(d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC));
		break;
	default:
		break;
	}
	return fits ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
	cudnnStatus_t s;

	if (d->final)
		return CUDNN_STATUS_BAD_PARAM;
	s = check_operation(d);
	if (!s && d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
		const desc way =
			child(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);

		if (way->is_refused ||
		    !values(d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE) ||
		    !values(way->graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE))
			return CUDNN_STATUS_NOT_SUPPORTED;
		d->graph = way->graph;
	}
	d->final = !s;
	return s;
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

/* b and t are -1 where there are none. */
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

/* The same memory in other dimensions. */
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

/* The place of a tensor of an operation; -1: there is none. */
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

/* --- the library ------------------------------------------------------------ */

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
				  cudnnBackendDescriptor_t plan,
				  cudnnBackendDescriptor_t pack)
{
	const desc *const operations =
		values(plan->graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
	const int64_t n =
		plan->graph->attributes[CUDNN_ATTR_OPERATIONGRAPH_OPS].n;
	char *const *const workspace =
		values(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
	struct places p = { .pack = pack };
	bool ok = handle->has_stream && plan->final && pack->final &&
		  !cudaemu_cudnn.fails;

	cudaemu_cudnn.runs++;
	memset(*workspace, 0xff, WORKSPACE);
	for (int64_t i = 0; i < n && ok; i++)
		ok = do_operation(&p, operations[i]);
	for (size_t i = 0; i < p.n; i++)
		free(p.of[i].between);
	return ok ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

const char *cudnnGetErrorString(cudnnStatus_t s)
{
	return s == CUDNN_STATUS_EXECUTION_FAILED ? "execution failed"
						  : "some error of cuDNN";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *handle)
{
	if (cudaemu_cudnn.broken)
		return CUDNN_STATUS_NOT_SUPPORTED;
	*handle = calloc(1, sizeof(**handle));
	return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_EXECUTION_FAILED;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
	free(handle);
	return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
	handle->has_stream = stream != NULL;
	return CUDNN_STATUS_SUCCESS;
}

const struct cudnn_api *cudnn_api(void)
{
	static struct cudnn_api api = {
		.create = cudnnCreate,
		.destroy = cudnnDestroy,
		.set_stream = cudnnSetStream,
		.get_error_string = cudnnGetErrorString,
		.descriptor_create = cudnnBackendCreateDescriptor,
		.descriptor_destroy = cudnnBackendDestroyDescriptor,
		.set = cudnnBackendSetAttribute,
		.get = cudnnBackendGetAttribute,
		.finalize = cudnnBackendFinalize,
		.execute = cudnnBackendExecute,
	};

	api.version = cudaemu_cudnn.version ? cudaemu_cudnn.version : 92600;
	return cudaemu_cudnn.absent ? NULL : &api;
}
