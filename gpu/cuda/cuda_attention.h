/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_ATTENTION_H
#define UCTRAIN_CUDA_ATTENTION_H

#include <stdbool.h>

#include "gpu/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The arguments of backend_ops' `attention` and `attention_grad`.  `stats` is the logarithm of
 * the sum of each query's exponentials, `delta` the dot product of its output and the output's
 * gradient.
 */
struct cuda_heads {
	const void *qkv;
	void *out;
	float *stats;
	/* for the backward pass */
	const void *dout;
	void *dqkv;
	const float *delta;
	size_t batch, seq, heads, width;
	float scale;
	struct backend_dropout drop;
	bool chunked; /* heads begin and end at multiples of 16 bytes */
};

/* Fill in the arguments that both directions share; c = heads * width. */
struct cuda_heads cuda_heads_of(const void *qkv, size_t batch, size_t seq, size_t heads, size_t c,
				struct backend_dropout drop);

/* Set `chunked`.  False if a head is wider than the kernels support, which sync reports. */
bool cuda_heads_fit(struct cuda *c, struct cuda_heads *a);

#ifdef __cplusplus
}
#endif

#endif
