/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_OPS_H
#define UCTRAIN_CUDA_OPS_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Implementations of the backend_ops of the same names. */
void cuda_embed(struct backend *b, void *out, const void *wte, const void *wpe,
		const int32_t *tokens, size_t batch, size_t seq, size_t c);
void cuda_embed_grad(struct backend *b, float *dwte, float *dwpe,
		     const void *dout, const int32_t *tokens, size_t batch,
		     size_t seq, size_t c);
void cuda_norm(struct backend *b, void *out, float *stats, const void *in,
	       const void *weight, const void *bias, size_t rows, size_t c,
	       float eps);
void cuda_norm_grad(struct backend *b, void *din, float *dweight, float *dbias,
		    const void *dout, const void *in, const float *stats,
		    const void *weight, size_t rows, size_t c);
void cuda_linear(struct backend *b, void *out, void *pre, const void *in,
		 const void *w, const void *bias, const void *residual,
		 size_t rows, size_t ic, size_t oc);
void cuda_linear_grad(struct backend *b, void *din, float *dw, float *dbias,
		      const void *dout, const void *in, const void *pre,
		      const void *w, size_t rows, size_t ic, size_t oc);
void cuda_attention(struct backend *b, void *out, float *stats, const void *qkv,
		    size_t batch, size_t seq, size_t heads, size_t c,
		    float drop, uint64_t seed);
void cuda_attention_grad(struct backend *b, void *dqkv, const void *dout,
			 const void *out, const float *stats, const void *qkv,
			 size_t batch, size_t seq, size_t heads, size_t c,
			 float drop, uint64_t seed);
void cuda_dropout(struct backend *b, void *x, size_t n, float drop,
		  uint64_t seed);
void cuda_add(struct backend *b, void *dst, const void *src, size_t n);
void cuda_cross_entropy(struct backend *b, double *loss, void *din, float *dwte,
			const void *in, const void *wte, const int32_t *targets,
			size_t rows, size_t c, size_t vocab, float scale);
void cuda_sum_squares(struct backend *b, double *sum, const float *x, size_t n);
void cuda_scale(struct backend *b, float *x, float factor, size_t n);
void cuda_accumulate(struct backend *b, float *dst, const float *src, size_t n);
void cuda_round(struct backend *b, void *dst, const float *src, size_t n);
void cuda_widen(struct backend *b, float *dst, const void *src, size_t n);
void cuda_adam(struct backend *b, const struct backend_adam *a, float *p,
	       float *exp_avg, float *exp_avg_sq, const float *grad, size_t n);

#ifdef __cplusplus
}
#endif

#endif
