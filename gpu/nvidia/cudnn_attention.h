/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_ATTENTION_H
#define UCTRAIN_CUDNN_ATTENTION_H

#include "gpu/nvidia/cudnn_graph.h"

/* Causal attention of qkv[batch][seq][3][heads][width] as a graph, forward and
 * backward.  See backend_ops for the meaning of the tensors. */
struct cudnn_attention {
	cudnnDataType_t type; /* of all tensors that are not float */
	int64_t batch, seq, heads, width;
};

/* Slots of forward graphs. */
enum {
	ATTENTION_Q,
	ATTENTION_K,
	ATTENTION_V,
	ATTENTION_OUT,
	ATTENTION_STATS,
	ATTENTION_SCALE,          /* the factor of scores */
	ATTENTION_MINUS_INFINITY, /* the constant -INFINITY */
	ATTENTION_SLOTS
};

/* Further slots of backward graphs. */
enum {
	ATTENTION_DOUT = ATTENTION_SLOTS,
	ATTENTION_DQ,
	ATTENTION_DK,
	ATTENTION_DV,
	ATTENTION_ONE,    /* the constant 1.0 */
	ATTENTION_DELTA,  /* float[batch][heads][seq], scratch */
	ATTENTION_DQ_SUM, /* float[batch][heads][seq][width], scratch */
	ATTENTION_GRAD_SLOTS
};

/* An unplanned graph, to be freed by the caller.  NULL: out of memory. */
struct cudnn_graph *cudnn_attention_graph(const struct cudnn_api *api,
					  const struct cudnn_attention *a);
struct cudnn_graph *cudnn_attention_grad_graph(const struct cudnn_api *api,
					       const struct cudnn_attention *a);

#endif
