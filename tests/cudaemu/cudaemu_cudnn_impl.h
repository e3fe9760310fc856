/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDNN_IMPL_H
#define CUDAEMU_CUDNN_IMPL_H

/* Shared by the files of the emulated cuDNN. */
#include <stdbool.h>
#include <string.h>

#include "cudnn.h"

/* Attributes are copied; a descriptor has few. */
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

typedef cudnnBackendDescriptor_t desc;

static inline const void *values(desc d, cudnnBackendAttributeName_t name)
{
	return d->attributes[name].values;
}

static inline desc child(desc d, cudnnBackendAttributeName_t name)
{
	const desc *const c = values(d, name);

	return c ? *c : NULL;
}

static inline int integer(desc d, cudnnBackendAttributeName_t name)
{
	int x;

	memcpy(&x, values(d, name), sizeof(x));
	return x;
}

static inline int64_t integer64(desc d, cudnnBackendAttributeName_t name)
{
	int64_t x;

	memcpy(&x, values(d, name), sizeof(x));
	return x;
}

/* Is the operation supported for its tensors? */
bool cudnn_ops_fit(desc d);

/* Execute a graph's operations on the tensors of a variant pack.  False if a
 * tensor has no address, or a misaligned one. */
bool cudnn_ops_do(desc graph, desc pack);

#endif
