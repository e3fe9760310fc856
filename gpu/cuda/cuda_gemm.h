/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_GEMM_H
#define UCTRAIN_CUDA_GEMM_H

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

#include "gpu/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The operation that cuBLASLt applies to a product before storing it. */
enum cuda_epilogue {
	CUDA_EPILOGUE_NONE,
	CUDA_EPILOGUE_BIAS,      /* add vector[n] to each row */
	CUDA_EPILOGUE_BIAS_GELU, /* like BIAS, also stored in `aux`, then gelu_new */
	CUDA_EPILOGUE_GELU_GRAD, /* multiply by the slope of gelu_new at
				  * `aux` */
	CUDA_EPILOGUE_SUMS,      /* vector[n] = the sums of b's columns */
};

/* A row-major matrix with rows `pitch` elements apart, used transposed if so marked. */
struct cuda_operand {
	const void *p;
	size_t pitch;
	bool transposed;
};

/* out[m][n] = a[m][k] * b[k][n] + add, where `add` may be NULL. `a`, `b` and `aux` are act_t
 * buffers; the others are float if `wide`, else act_t. */
struct cuda_gemm {
	size_t m, n, k;
	struct cuda_operand a, b;
	void *out;
	const void *add; /* of `out`'s type; may be `out` */
	size_t out_pitch;
	bool wide;
	enum cuda_epilogue epilogue;
	void *vector, *aux; /* `aux` has `out`'s shape */
};

/* out[m][n] = a[m][k] * b[k][n], all in the model's type, `out` without gaps; the caller may set
 * the other fields. */
static inline struct cuda_gemm cuda_gemm_of(size_t m, size_t n, size_t k, struct cuda_operand a,
					    struct cuda_operand b, void *out)
{
	struct cuda_gemm p;

	memset(&p, 0, sizeof(p));
	p.m = m;
	p.n = p.out_pitch = n;
	p.k = k;
	p.a = a;
	p.b = b;
	p.out = out;
	return p;
}

/* Create the plan cache. -ENOMEM; CUDA's errors are reported by sync. */
int cuda_gemm_init(struct cuda *c);
void cuda_gemm_done(struct cuda *c);

/* Queue a GEMM. False with nothing queued if cuBLASLt does not support it with this epilogue;
 * other failures are reported by sync. */
bool cuda_gemm_run(struct cuda *c, const struct cuda_gemm *p);

#ifdef __cplusplus
}
#endif

#endif
