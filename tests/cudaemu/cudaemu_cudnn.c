/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated cuDNN: descriptors, plans and their execution.
 * cudaemu_cudnn_ops.c has the operations. */
#include "cudaemu_cudnn.h"

#include <assert.h>
#include <stdlib.h>

#include "cudaemu.h"
#include "cudaemu_cudnn_impl.h"
#include "gpu/nvidia/cudnn_api.h"

/* The workspace that plans claim to need; all of it is overwritten. */
#define WORKSPACE 300

struct cudaemu_dnn {
	cudaStream_t stream;
};

struct cudaemu_cudnn cudaemu_cudnn;

/* --- descriptors ------------------------------------------------------------ */

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

/* Descriptors must be finalized before others refer to them. */
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

/* Propose two configurations, the first of which cannot be finalized. */
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

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d)
{
	cudnnStatus_t s;

	if (d->final)
		return CUDNN_STATUS_BAD_PARAM;
	s = cudnn_ops_fit(d) ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM;
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

/* --- the library ------------------------------------------------------------ */

/* Numbers that a pack has the addresses of; cuDNN reads them when it is called. */
#define NUMBERS 8
#define TENSORS 16 /* in memory */

struct execution {
	cudnnBackendDescriptor_t graph;
	struct cudaemu_dnn_descriptor pack;
	int64_t ids[TENSORS];
	char *at[TENSORS];
	char *workspace;
	float numbers[NUMBERS];
	unsigned of[NUMBERS], n; /* indices in `at` */
};

static void execute(void *arg)
{
	struct execution *const e = arg;

	for (unsigned i = 0; i < e->n; i++)
		e->at[e->of[i]] = (char *)&e->numbers[i];
	e->pack.attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].values =
		(char *)e->ids;
	e->pack.attributes[CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS].values =
		(char *)e->at;
	memset(e->workspace, 0xff, WORKSPACE);
	if (!cudnn_ops_do(e->graph, &e->pack))
		abort();
}

/* Execute later what can be executed now. */
static bool execute_later(cudaStream_t stream, desc graph, desc pack,
			  char *workspace)
{
	const int64_t n = pack->attributes[CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS].n;
	struct execution e = { .graph = graph,
			       .pack = *pack,
			       .workspace = workspace };

	assert(n <= TENSORS);
	memcpy(e.ids, values(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS),
	       (size_t)n * sizeof(*e.ids));
	memcpy(e.at, values(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS),
	       (size_t)n * sizeof(*e.at));
	for (unsigned i = 0; i < n; i++)
		if (!cudaemu_is_on_device(e.at[i])) {
			assert(e.n < NUMBERS);
			memcpy(&e.numbers[e.n], e.at[i], sizeof(float));
			e.of[e.n++] = i;
		}
	return cudaemu_record(stream, execute, &e, sizeof(e));
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle,
				  cudnnBackendDescriptor_t plan,
				  cudnnBackendDescriptor_t pack)
{
	char *const *const workspace =
		values(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
	const bool can = handle->stream && plan->final && pack->final &&
			 !cudaemu_cudnn.fails;

	cudaemu_cudnn.runs++;
	if (can && execute_later(handle->stream, plan->graph, pack, *workspace))
		return CUDNN_STATUS_SUCCESS;
	memset(*workspace, 0xff, WORKSPACE);
	return can && cudnn_ops_do(plan->graph, pack)
		       ? CUDNN_STATUS_SUCCESS
		       : CUDNN_STATUS_EXECUTION_FAILED;
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
	handle->stream = stream;
	return CUDNN_STATUS_SUCCESS;
}

const struct cudnn_api *cudnn_api(void)
{
	static struct cudnn_api api = {
		.cudnnCreate = cudnnCreate,
		.cudnnDestroy = cudnnDestroy,
		.cudnnSetStream = cudnnSetStream,
		.cudnnGetErrorString = cudnnGetErrorString,
		.cudnnBackendCreateDescriptor = cudnnBackendCreateDescriptor,
		.cudnnBackendDestroyDescriptor = cudnnBackendDestroyDescriptor,
		.cudnnBackendSetAttribute = cudnnBackendSetAttribute,
		.cudnnBackendGetAttribute = cudnnBackendGetAttribute,
		.cudnnBackendFinalize = cudnnBackendFinalize,
		.cudnnBackendExecute = cudnnBackendExecute,
	};

	api.version = cudaemu_cudnn.version ? cudaemu_cudnn.version : 92600;
	return cudaemu_cudnn.absent ? NULL : &api;
}
