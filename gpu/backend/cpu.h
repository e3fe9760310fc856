/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CPU_H
#define UCTRAIN_CPU_H

#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

/* The CPU backend's internals. act_t buffers are float32; results stored in them are rounded to
 * values of the model's type. */
struct cpu {
	struct backend base;
	unsigned threads;
	/* Scratch memory of operations, grown on demand and kept. */
	void *scratch;
	size_t scratch_len;
	_Atomic int failed; /* reported by sync; -ENOMEM, or 0 */
};

/* Return at least `bytes` of scratch memory; NULL on failure, which sync reports. */
void *cpu_scratch(struct cpu *c, size_t bytes);

/*
 * out = alpha * a * b + beta * out, computed by the calling thread: `out` is m x n with rows
 * `ldo` apart, `inner` products are summed.  `a` is m x inner, or inner x m if transposed; `b`
 * likewise.  With beta 0, `out` need not be initialised.
 */
enum cpu_transpose { NO_TRANS = 'N', TRANS = 'T' };
void cpu_gemm(struct cpu *c, enum cpu_transpose trans_a, enum cpu_transpose trans_b, size_t m,
	      size_t n, size_t inner, float alpha, const float *a, size_t lda, const float *b,
	      size_t ldb, float beta, float *out, size_t ldo);

/* Round n elements to values of the model's type, on the calling thread. */
void cpu_round_to(enum dtype dtype, float *x, size_t n);

/* sum += x, and x *= factor, on the calling thread. */
void cpu_add_row(float *sum, const float *x, size_t n);
void cpu_scale_row(float *x, float factor, size_t n);

/* Find the largest of n elements; and compute out = e^(x - top) and return the sum.  `out` may be
 * `x`. */
float cpu_largest(const float *x, size_t n);
float cpu_exponentials(float *out, const float *x, size_t n, float top);

/* Apply dropout to n elements of a row (dropout.h), starting with its element `first`, on the
 * calling thread. */
void cpu_drop(float *x, size_t n, float drop, uint64_t row, size_t first);

/* Implementations of the backend_ops of the same names. */
BACKEND_OP(norm) cpu_norm;
BACKEND_OP(norm_grad) cpu_norm_grad;
BACKEND_OP(linear) cpu_linear;
BACKEND_OP(linear_grad) cpu_linear_grad;
BACKEND_OP(attention) cpu_attention;
BACKEND_OP(attention_grad) cpu_attention_grad;
BACKEND_OP(cross_entropy) cpu_cross_entropy;
BACKEND_OP(sum_squares) cpu_sum_squares;
BACKEND_OP(accumulate) cpu_accumulate;
BACKEND_OP(clip) cpu_clip;
BACKEND_OP(adam) cpu_adam;

#endif
