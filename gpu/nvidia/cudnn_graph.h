/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_GRAPH_H
#define UCTRAIN_CUDNN_GRAPH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/nvidia/cudnn_api.h"

/*
 * Operations on tensors that cuDNN makes a kernel of: described one after the
 * other, then planned for a device, then run as often as wanted, as NVIDIA's
 * documentation of its graphs ("backend API") says.
 *
 * What fails leaves the graph failed, and what comes after does nothing;
 * cudnn_graph_plan tells.
 */
struct cudnn_graph;

/* Of four dimensions; strides count elements. */
struct cudnn_shape {
	int64_t dims[4], strides[4];
};

/* One after the other in memory. */
struct cudnn_shape cudnn_packed(int64_t a, int64_t b, int64_t c, int64_t d);
/* The last two dimensions are exchanged: the same memory, read by columns. */
struct cudnn_shape cudnn_transposed(struct cudnn_shape s);

/* A tensor of a graph; never freed by who got it. */
typedef cudnnBackendDescriptor_t cudnn_tensor;

/* NULL: out of memory. */
struct cudnn_graph *cudnn_graph_new(const struct cudnn_api *api);
void cudnn_graph_free(struct cudnn_graph *g);

/* A tensor in the device's memory, aligned to 16 bytes; slot i of those that
 * cudnn_graph_run gets is where. */
cudnn_tensor cudnn_graph_memory(struct cudnn_graph *g, unsigned slot,
				cudnnDataType_t type, struct cudnn_shape s);
/* A number, a float of the host's memory, likewise. */
cudnn_tensor cudnn_graph_number(struct cudnn_graph *g, unsigned slot);
/* What one operation leaves to another, and no memory ever has. */
cudnn_tensor cudnn_graph_between(struct cudnn_graph *g, cudnnDataType_t type,
				 struct cudnn_shape s);

/* c = a * b, of the last two dimensions. */
void cudnn_graph_multiply(struct cudnn_graph *g, cudnn_tensor c, cudnn_tensor a,
			  cudnn_tensor b);
/* y = mode(x, b); b is NULL for those of one operand. */
void cudnn_graph_each(struct cudnn_graph *g, cudnnPointwiseMode_t mode,
		      cudnn_tensor y, cudnn_tensor x, cudnn_tensor b);
/* y = where the booleans t are true x, else b */
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

/* What a graph is planned for. */
struct cudnn_target {
	cudnnHandle_t handle;            /* whose device; or NULL: */
	cudnnBackendDescriptor_t device; /* one that is only described */
};

/* Find out how to do it.  -ENOTSUP if cuDNN cannot; cudnn_graph_why tells. */
int cudnn_graph_plan(struct cudnn_graph *g, const struct cudnn_target *t);
/* The call that failed and its reason, or "". */
const char *cudnn_graph_why(const struct cudnn_graph *g);
/* Bytes of device memory that a planned graph needs beside its tensors. */
size_t cudnn_graph_workspace(const struct cudnn_graph *g);
/* Queue what was planned for a handle on its stream; `slots` are the addresses
 * of the graph's tensors and numbers. */
cudnnStatus_t cudnn_graph_run(const struct cudnn_graph *g, void *const slots[],
			      void *workspace);

#endif
