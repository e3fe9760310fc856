/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDNN_IMPL_H
#define CUDAEMU_CUDNN_IMPL_H

/* Between the files of the emulated cuDNN. */
#include <stdbool.h>
#include <string.h>

#include "cudnn.h"

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

/* Is an operation one that can be done with its tensors? */
bool cudnn_ops_fit(desc d);

/* Do the operations of a graph on the tensors of a variant pack.  False: one has
 * no place, or none with its alignment. */
bool cudnn_ops_do(desc graph, desc pack);

#endif
