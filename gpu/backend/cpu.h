/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CPU_H
#define UCTRAIN_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

/* The CPU backend's internals. act_t buffers are float32; results stored in
 * them are rounded to values of the model's type. */
struct cpu {
	struct backend base;
	unsigned threads;
	/* Scratch memory of operations, grown on demand and kept. */
	void *scratch;
	size_t scratch_len;
	_Atomic int failed; /* reported by sync; -ENOMEM, or 0 */
};

/* Return at least `bytes` of scratch memory, or NULL, which sync reports. */
void *cpu_scratch(struct cpu *c, size_t bytes);

/*
 * out = alpha * a * b + beta * out, computed by the calling thread: `out` is m
 * x n with rows `ldo` apart, `inner` products are summed.  `a` is m x inner, or
 * inner x m if transposed; `b` likewise.  With beta 0, `out` need not be
 * initialised.
 */
enum cpu_transpose { NO_TRANS = 'N', TRANS = 'T' };
void cpu_gemm(struct cpu *c, enum cpu_transpose trans_a,
	      enum cpu_transpose trans_b, size_t m, size_t n, size_t inner,
	      float alpha, const float *a, size_t lda, const float *b,
	      size_t ldb, float beta, float *out, size_t ldo);

/* Round n elements to values of the model's type, on the calling thread. */
void cpu_round_to(enum dtype dtype, float *x, size_t n);

/* Apply dropout to n elements of a row (dropout.h), starting with its element
 * `first`, on the calling thread. */
void cpu_drop(float *x, size_t n, float drop, uint64_t row, size_t first);

/* Implementations of the backend_ops of the same names. */
void cpu_norm(struct backend *b, void *out, float *stats, const void *in,
	      const void *weight, const void *bias, size_t rows, size_t c,
	      float eps);
void cpu_norm_grad(struct backend *b, void *din, float *dweight, float *dbias,
		   const void *dout, const void *in, const float *stats,
		   const void *weight, size_t rows, size_t c);
void cpu_linear(struct backend *b, void *out, void *pre, const void *in,
		const void *w, const void *bias, const void *residual,
		size_t rows, size_t ic, size_t oc);
void cpu_linear_grad(struct backend *b, void *din, float *dw, float *dbias,
		     const void *dout, const void *in, const void *pre,
		     const void *w, size_t rows, size_t ic, size_t oc);
void cpu_attention(struct backend *b, void *out, float *stats, const void *qkv,
		   size_t batch, size_t seq, size_t heads, size_t c, float drop,
		   uint64_t seed);
void cpu_attention_grad(struct backend *b, void *dqkv, const void *dout,
			const void *out, const float *stats, const void *qkv,
			size_t batch, size_t seq, size_t heads, size_t c,
			float drop, uint64_t seed);
void cpu_cross_entropy(struct backend *b, double *loss, void *din, float *dwte,
		       const void *in, const void *wte, const int32_t *targets,
		       size_t rows, size_t c, size_t vocab, float scale);
void cpu_sum_squares(struct backend *b, double *sum, const float *x, size_t n);
void cpu_scale(struct backend *b, float *x, float factor, size_t n);
void cpu_accumulate(struct backend *b, float *dst, const float *src, size_t n);
void cpu_adam(struct backend *b, const struct backend_adam *a, float *p,
	      float *exp_avg, float *exp_avg_sq, const float *grad, size_t n);

#endif
