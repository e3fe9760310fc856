/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GEMMs by oneDNN: on the thin matrices of small models it reaches 0.9 to 1.1 of the speed on
 * large ones, OpenBLAS 0.6 to 0.9 (tests/bench/RESULTS.md). Inside a parallel region it uses only
 * the calling thread.
 */
#include <assert.h>
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>

#include "gpu/backend/cpu.h"

void cpu_gemm(struct cpu *c, enum cpu_transpose trans_a, enum cpu_transpose trans_b, size_t m,
	      size_t n, size_t inner, float alpha, const float *a, size_t lda, const float *b,
	      size_t ldb, float beta, float *out, size_t ldo)
{
	/* Sizes of a model are below 2^24 (gpt2_init), so that the only possible error is a lack
	 * of memory to rearrange the factors. */
	assert(ldo >= n);
	if (dnnl_sgemm((char)trans_a, (char)trans_b, (dnnl_dim_t)m, (dnnl_dim_t)n,
		       (dnnl_dim_t)inner, alpha, a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, out,
		       (dnnl_dim_t)ldo) != dnnl_success)
		c->failed = -ENOMEM;
}
