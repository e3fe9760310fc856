/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_ATTENTION_H
#define UCTRAIN_CUDA_ATTENTION_H

#include <stdbool.h>

#include "gpu/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * What backend_ops say of `attention` and of `attention_grad`, for the kernels
 * that can do them: those for tensor cores, and those that any shape goes
 * through.  `stats` has the logarithm of the sum of each query's exponentials,
 * `delta` the products of its output and the gradient of that.
 */
struct cuda_heads {
	const void *qkv;
	void *out;
	float *stats;
	/* the way back */
	const void *dout;
	void *dqkv;
	const float *delta;
	size_t batch, seq, heads, width;
	float scale, drop;
	uint64_t seed;
};

/* Can tensor cores do it?  16-bit types, heads of up to 128 elements. */
bool cuda_attention_fits_mma(const struct cuda *c, const struct cuda_heads *a);
void cuda_attention_mma(struct cuda *c, const struct cuda_heads *a);
void cuda_attention_mma_grad(struct cuda *c, const struct cuda_heads *a);

/* By cuDNN.  False if it cannot, with nothing done. */
bool cuda_attention_cudnn(struct cuda *c, const struct cuda_heads *a);
bool cuda_attention_cudnn_grad(struct cuda *c, const struct cuda_heads *a);
void cuda_attention_cudnn_done(struct cuda *c);

#ifdef __cplusplus
}
#endif

#endif
