/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDNN_ATTENTION_H
#define UCTRAIN_CUDNN_ATTENTION_H

#include "gpu/nvidia/cudnn_graph.h"

/* Causal attention of qkv[batch][seq][3][heads][width] as a graph, and the way
 * back; what the tensors are is said at backend_ops. */
struct cudnn_attention {
	cudnnDataType_t type; /* of all that is not float */
	int64_t batch, seq, heads, width;
};

/* Slots of forward graphs. */
enum {
	ATTENTION_Q,
	ATTENTION_K,
	ATTENTION_V,
	ATTENTION_OUT,
	ATTENTION_STATS,
	ATTENTION_SCALE,          /* of scores */
	ATTENTION_MINUS_INFINITY, /* -INFINITY */
	ATTENTION_SLOTS
};

/* Further ones of those of the way back. */
enum {
	ATTENTION_DOUT = ATTENTION_SLOTS,
	ATTENTION_DQ,
	ATTENTION_DK,
	ATTENTION_DV,
	ATTENTION_ONE,    /* 1.0 */
	ATTENTION_DELTA,  /* float[batch][heads][seq], scratch */
	ATTENTION_DQ_SUM, /* float[batch][heads][seq][width], scratch */
	ATTENTION_GRAD_SLOTS
};

/* To be planned and freed; NULL: out of memory. */
struct cudnn_graph *cudnn_attention_graph(const struct cudnn_api *api,
					  const struct cudnn_attention *a);
struct cudnn_graph *cudnn_attention_grad_graph(const struct cudnn_api *api,
					       const struct cudnn_attention *a);

#endif
