/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/cudnn_graph.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* More than the backward pass of attention has. */
#define SLOTS_MAX 16
#define OPERATIONS_MAX 40
#define DESCRIPTORS_MAX 160

/* Engine configurations to request.  The first ones are those that cuDNN
 * prefers. */
#define WAYS_MAX 8

struct cudnn_graph {
	const struct cudnn_api *api;
	/* All descriptors, freed with the graph. */
	cudnnBackendDescriptor_t made[DESCRIPTORS_MAX];
	size_t nmade;
	cudnnBackendDescriptor_t operations[OPERATIONS_MAX];
	size_t noperations;
	unsigned nslots;
	int64_t between; /* id of the last tensor without a slot */
	struct cudnn_target target;
	cudnnBackendDescriptor_t plan;
	int64_t workspace;
	bool failed;
	char why[128];
};

static void cudnn_graph_fail(struct cudnn_graph *g, const char *call,
			     const char *reason)
{
	if (!g->failed)
		snprintf(g->why, sizeof(g->why), "%s: %s", call, reason);
	g->failed = true;
}

static bool cudnn_graph_ok(struct cudnn_graph *g, cudnnStatus_t s,
			   const char *call)
{
	if (s != CUDNN_STATUS_SUCCESS)
		cudnn_graph_fail(g, call, g->api->cudnnGetErrorString(s));
	return s == CUDNN_STATUS_SUCCESS;
}
#define CUDNN_CALL(g, function, ...) \
	cudnn_graph_ok(g, (g)->api->function(__VA_ARGS__), #function)

static cudnnBackendDescriptor_t
cudnn_graph_make(struct cudnn_graph *g, cudnnBackendDescriptorType_t type)
{
	cudnnBackendDescriptor_t d = NULL;

	if (g->failed)
		return NULL;
	if (g->nmade == DESCRIPTORS_MAX) {
		cudnn_graph_fail(g, "cudnnBackendCreateDescriptor", "too many");
		return NULL;
	}
	if (CUDNN_CALL(g, cudnnBackendCreateDescriptor, type, &d))
		g->made[g->nmade++] = d;
	return d;
}

static void cudnn_graph_set(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
			    cudnnBackendAttributeName_t name,
			    cudnnBackendAttributeType_t type, int64_t n,
			    const void *values)
{
	if (!g->failed)
		CUDNN_CALL(g, cudnnBackendSetAttribute, d, name, type, n,
			   values);
}

static void set_descriptor(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
			   cudnnBackendAttributeName_t name,
			   cudnnBackendDescriptor_t value)
{
	cudnn_graph_set(g, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void set_type(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
		     cudnnBackendAttributeName_t name, cudnnDataType_t type)
{
	cudnn_graph_set(g, d, name, CUDNN_TYPE_DATA_TYPE, 1, &type);
}

static void finalize(struct cudnn_graph *g, cudnnBackendDescriptor_t d)
{
	if (!g->failed)
		CUDNN_CALL(g, cudnnBackendFinalize, d);
}

struct cudnn_graph *cudnn_graph_new(const struct cudnn_api *api)
{
	struct cudnn_graph *const g = calloc(1, sizeof(*g));

	if (g) {
		g->api = api;
		g->between = SLOTS_MAX;
	}
	return g;
}

void cudnn_graph_free(struct cudnn_graph *g)
{
	if (!g)
		return;
	while (g->nmade)
		g->api->cudnnBackendDestroyDescriptor(g->made[--g->nmade]);
	free(g);
}

struct cudnn_shape cudnn_packed(int64_t a, int64_t b, int64_t c, int64_t d)
{
	return (struct cudnn_shape){
		.dims = { a, b, c, d },
		.strides = { b * c * d, c * d, d, 1 },
	};
}

static void swap(int64_t *a, int64_t *b)
{
	const int64_t was = *a;

	*a = *b;
	*b = was;
}

struct cudnn_shape cudnn_transposed(struct cudnn_shape s)
{
	swap(&s.dims[2], &s.dims[3]);
	swap(&s.strides[2], &s.strides[3]);
	return s;
}

static cudnn_tensor tensor(struct cudnn_graph *g, int64_t name,
			   cudnnDataType_t type, const struct cudnn_shape *s,
			   cudnnBackendAttributeName_t kind)
{
	const cudnn_tensor t =
		cudnn_graph_make(g, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
	const int64_t alignment = 16;
	const bool yes = true;

	cudnn_graph_set(g, t, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1,
			&name);
	set_type(g, t, CUDNN_ATTR_TENSOR_DATA_TYPE, type);
	cudnn_graph_set(g, t, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4,
			s->dims);
	cudnn_graph_set(g, t, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4,
			s->strides);
	cudnn_graph_set(g, t, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT,
			CUDNN_TYPE_INT64, 1, &alignment);
	if (kind != CUDNN_ATTR_TENSOR_UNIQUE_ID)
		cudnn_graph_set(g, t, kind, CUDNN_TYPE_BOOLEAN, 1, &yes);
	finalize(g, t);
	return t;
}

/* Slot i has tensor id i + 1; 0 means no tensor. */
static int64_t name_slot(struct cudnn_graph *g, unsigned slot)
{
	if (slot >= SLOTS_MAX)
		cudnn_graph_fail(g, "a graph", "too many tensors");
	else if (slot >= g->nslots)
		g->nslots = slot + 1;
	return slot + 1;
}

cudnn_tensor cudnn_graph_memory(struct cudnn_graph *g, unsigned slot,
				cudnnDataType_t type, struct cudnn_shape s)
{
	return tensor(g, name_slot(g, slot), type, &s,
		      CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

cudnn_tensor cudnn_graph_number(struct cudnn_graph *g, unsigned slot)
{
	const struct cudnn_shape one = cudnn_packed(1, 1, 1, 1);

	return tensor(g, name_slot(g, slot), CUDNN_DATA_FLOAT, &one,
		      CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

cudnn_tensor cudnn_graph_between(struct cudnn_graph *g, cudnnDataType_t type,
				 struct cudnn_shape s)
{
	return tensor(g, ++g->between, type, &s, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

static void add_operation(struct cudnn_graph *g, cudnnBackendDescriptor_t d)
{
	finalize(g, d);
	if (g->noperations == OPERATIONS_MAX)
		cudnn_graph_fail(g, "a graph", "too many operations");
	if (!g->failed)
		g->operations[g->noperations++] = d;
}

void cudnn_graph_multiply(struct cudnn_graph *g, cudnn_tensor c, cudnn_tensor a,
			  cudnn_tensor b)
{
	const cudnnBackendDescriptor_t how =
		cudnn_graph_make(g, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
	const cudnnBackendDescriptor_t d =
		cudnn_graph_make(g, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);

	set_type(g, how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_DATA_FLOAT);
	finalize(g, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c);
	add_operation(g, d);
}

/* A pointwise operation; axis -1: it has none. */
static cudnnBackendDescriptor_t
pointwise(struct cudnn_graph *g, cudnnPointwiseMode_t mode, int64_t axis)
{
	const cudnnBackendDescriptor_t how =
		cudnn_graph_make(g, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
	const cudnnBackendDescriptor_t d = cudnn_graph_make(
		g, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);

	cudnn_graph_set(g, how, CUDNN_ATTR_POINTWISE_MODE,
			CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
	set_type(g, how, CUDNN_ATTR_POINTWISE_MATH_PREC,
		 mode == CUDNN_POINTWISE_CMP_GE ? CUDNN_DATA_BOOLEAN
						: CUDNN_DATA_FLOAT);
	if (axis >= 0)
		cudnn_graph_set(g, how, CUDNN_ATTR_POINTWISE_AXIS,
				CUDNN_TYPE_INT64, 1, &axis);
	finalize(g, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
	return d;
}

static void add_pointwise(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
			  cudnn_tensor y, cudnn_tensor x, cudnn_tensor b,
			  cudnn_tensor t)
{
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
	if (b)
		set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
	if (t)
		set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
	add_operation(g, d);
}

void cudnn_graph_each(struct cudnn_graph *g, cudnnPointwiseMode_t mode,
		      cudnn_tensor y, cudnn_tensor x, cudnn_tensor b)
{
	add_pointwise(g, pointwise(g, mode, -1), y, x, b, NULL);
}

void cudnn_graph_select(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x,
			cudnn_tensor b, cudnn_tensor t)
{
	add_pointwise(g, pointwise(g, CUDNN_POINTWISE_BINARY_SELECT, -1), y, x,
		      b, t);
}

void cudnn_graph_index(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x,
		       int64_t axis)
{
	add_pointwise(g, pointwise(g, CUDNN_POINTWISE_GEN_INDEX, axis), y, x,
		      NULL, NULL);
}

void cudnn_graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t op,
			cudnn_tensor y, cudnn_tensor x)
{
	const cudnnBackendDescriptor_t how =
		cudnn_graph_make(g, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
	const cudnnBackendDescriptor_t d = cudnn_graph_make(
		g, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);

	cudnn_graph_set(g, how, CUDNN_ATTR_REDUCTION_OPERATOR,
			CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
	set_type(g, how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_DATA_FLOAT);
	finalize(g, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y);
	add_operation(g, d);
}

void cudnn_graph_reshape(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x)
{
	const cudnnBackendDescriptor_t d =
		cudnn_graph_make(g, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);

	set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x);
	set_descriptor(g, d, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y);
	add_operation(g, d);
}

/* Handles and described devices are set by different attributes. */
static void set_handle(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
		       cudnnBackendAttributeName_t name)
{
	if (g->target.handle)
		cudnn_graph_set(g, d, name, CUDNN_TYPE_HANDLE, 1,
				&g->target.handle);
}

static void set_device(struct cudnn_graph *g, cudnnBackendDescriptor_t d,
		       cudnnBackendAttributeName_t name)
{
	if (!g->target.handle)
		set_descriptor(g, d, name, g->target.device);
}

static cudnnBackendDescriptor_t all_operations(struct cudnn_graph *g)
{
	const cudnnBackendDescriptor_t d =
		cudnn_graph_make(g, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);

	set_handle(g, d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
	cudnn_graph_set(g, d, CUDNN_ATTR_OPERATIONGRAPH_OPS,
			CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)g->noperations,
			g->operations);
	finalize(g, d);
	return d;
}

/* Get cuDNN's engine configurations, best first.  Returns their number. */
static int64_t ask_for_ways(struct cudnn_graph *g,
			    cudnnBackendDescriptor_t plans[WAYS_MAX])
{
	const cudnnBackendDescriptor_t operations = all_operations(g);
	const cudnnBackendDescriptor_t d =
		cudnn_graph_make(g, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
	const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
	int64_t n = 0;

	set_descriptor(g, d, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, operations);
	cudnn_graph_set(g, d, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE,
			1, &mode);
	set_device(g, d, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
	finalize(g, d);
	for (int i = 0; i < WAYS_MAX; i++)
		plans[i] =
			cudnn_graph_make(g, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
	if (!g->failed)
		CUDNN_CALL(g, cudnnBackendGetAttribute, d,
			   CUDNN_ATTR_ENGINEHEUR_RESULTS,
			   CUDNN_TYPE_BACKEND_DESCRIPTOR, WAYS_MAX, &n, plans);
	return g->failed ? 0 : n;
}

/* Finalise an execution plan, which compiles its kernel.  Not every proposed
 * configuration can be finalised. */
static void take_plan(struct cudnn_graph *g, cudnnBackendDescriptor_t plan)
{
	const struct cudnn_api *const api = g->api;
	const cudnnBackendDescriptor_t d =
		cudnn_graph_make(g, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
	int64_t n;

	set_descriptor(g, d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, plan);
	set_handle(g, d, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
	set_device(g, d, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
	if (g->failed || api->cudnnBackendFinalize(d) != CUDNN_STATUS_SUCCESS)
		return;
	g->plan = d;
	CUDNN_CALL(g, cudnnBackendGetAttribute, d,
		   CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
		   1, &n, &g->workspace);
}

int cudnn_graph_plan(struct cudnn_graph *g, const struct cudnn_target *t)
{
	cudnnBackendDescriptor_t plans[WAYS_MAX];
	int64_t n;

	g->target = *t;
	n = ask_for_ways(g, plans);
	for (int64_t i = 0; i < n && !g->plan; i++)
		take_plan(g, plans[i]);
	if (!g->plan)
		cudnn_graph_fail(g, "cuDNN", "none of its ways can be taken");
	return g->failed ? -ENOTSUP : 0;
}

const char *cudnn_graph_why(const struct cudnn_graph *g)
{
	return g->why;
}

size_t cudnn_graph_workspace(const struct cudnn_graph *g)
{
	return (size_t)g->workspace;
}

cudnnStatus_t cudnn_graph_run(const struct cudnn_graph *g, void *const slots[],
			      void *workspace)
{
	const struct cudnn_api *const api = g->api;
	cudnnBackendDescriptor_t pack;
	int64_t names[SLOTS_MAX];
	cudnnStatus_t s;

	assert(g->nslots <= SLOTS_MAX);
	for (unsigned i = 0; i < g->nslots; i++)
		names[i] = i + 1;
	s = api->cudnnBackendCreateDescriptor(
		CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &pack);
	if (s)
		return s;
	s = api->cudnnBackendSetAttribute(pack,
					  CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS,
					  CUDNN_TYPE_INT64, g->nslots, names);
	if (!s)
		s = api->cudnnBackendSetAttribute(
			pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
			CUDNN_TYPE_VOID_PTR, g->nslots, slots);
	if (!s)
		s = api->cudnnBackendSetAttribute(
			pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
			CUDNN_TYPE_VOID_PTR, 1, &workspace);
	if (!s)
		s = api->cudnnBackendFinalize(pack);
	if (!s)
		s = api->cudnnBackendExecute(g->target.handle, g->plan, pack);
	api->cudnnBackendDestroyDescriptor(pack);
	return s;
}
