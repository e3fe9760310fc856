/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_GRAPH_H
#define UCTRAIN_CUDNN_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/nvidia/cudnn_api.h"

/*
 * A graph of tensor operations for which cuDNN generates a kernel: it is
 * described, planned once for a device, and run any number of times, by
 * NVIDIA's graph API ("backend API").
 *
 * After an error the graph is failed and further calls do nothing;
 * cudnn_graph_plan returns the error.
 */
struct cudnn_graph;

/* Four dimensions; strides in elements. */
struct cudnn_shape {
	int64_t dims[4], strides[4];
};

/* Row-major without gaps. */
struct cudnn_shape cudnn_packed(int64_t a, int64_t b, int64_t c, int64_t d);
/* Exchange the last two dimensions: the same memory, by columns. */
struct cudnn_shape cudnn_transposed(struct cudnn_shape s);

/* A tensor of a graph, owned by the graph. */
typedef cudnnBackendDescriptor_t cudnn_tensor;

/* NULL: out of memory. */
struct cudnn_graph *cudnn_graph_new(const struct cudnn_api *api);
void cudnn_graph_free(struct cudnn_graph *g);

/* A tensor in device memory, aligned to 16 bytes, at the address in slot i of
 * cudnn_graph_run. */
cudnn_tensor cudnn_graph_memory(struct cudnn_graph *g, unsigned slot,
				cudnnDataType_t type, struct cudnn_shape s);
/* A float in host memory, likewise. */
cudnn_tensor cudnn_graph_number(struct cudnn_graph *g, unsigned slot);
/* The intermediate result of an operation, which is never stored. */
cudnn_tensor cudnn_graph_between(struct cudnn_graph *g, cudnnDataType_t type,
				 struct cudnn_shape s);

/* c = a * b, matrix products over the last two dimensions. */
void cudnn_graph_multiply(struct cudnn_graph *g, cudnn_tensor c, cudnn_tensor a,
			  cudnn_tensor b);
/* y = mode(x, b); b is NULL for unary modes. */
void cudnn_graph_each(struct cudnn_graph *g, cudnnPointwiseMode_t mode,
		      cudnn_tensor y, cudnn_tensor x, cudnn_tensor b);
/* y = t ? x : b, for each element of the booleans t */
void cudnn_graph_select(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x,
			cudnn_tensor b, cudnn_tensor t);
/* y = the index of each element of x in dimension `axis`. */
void cudnn_graph_index(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x,
		       int64_t axis);
/* y = x reduced to the dimensions of y. */
void cudnn_graph_reduce(struct cudnn_graph *g, cudnnReduceTensorOp_t op,
			cudnn_tensor y, cudnn_tensor x);
/* y = x in y's dimensions and strides. */
void cudnn_graph_reshape(struct cudnn_graph *g, cudnn_tensor y, cudnn_tensor x);

/* The device to plan for. */
struct cudnn_target {
	cudnnHandle_t handle;            /* of the device, or NULL */
	cudnnBackendDescriptor_t device; /* a described device, if there is no
					  * handle */
};

/* Find an executable plan. -ENOTSUP if cuDNN has none; see cudnn_graph_why. */
int cudnn_graph_plan(struct cudnn_graph *g, const struct cudnn_target *t);
/* The call that failed and its reason, or "". */
const char *cudnn_graph_why(const struct cudnn_graph *g);
/* Bytes of device memory that a planned graph needs besides its tensors. */
size_t cudnn_graph_workspace(const struct cudnn_graph *g);
/* Queue a planned graph on its handle's stream.  `slots` are the addresses of
 * its tensors and numbers. */
cudnnStatus_t cudnn_graph_run(const struct cudnn_graph *g, void *const slots[],
			      void *workspace);

#endif
