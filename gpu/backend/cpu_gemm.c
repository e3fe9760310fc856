/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices, by oneDNN: on the thin matrices of small models it
 * reaches 0.9 to 1.1 of the peak of large ones, where OpenBLAS has 0.6 to 0.9
 * (tests/bench/RESULTS.md).  Threads are ours: inside of a parallel region it
 * uses the one that called.
 */
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>

#include "gpu/backend/cpu.h"

void cpu_product(struct cpu *c, enum cpu_transpose turn_a,
		 enum cpu_transpose turn_b, size_t m, size_t n, size_t inner,
		 float alpha, const float *a, size_t lda, const float *b,
		 size_t ldb, float beta, float *out, size_t ldo)
{
	/* Sizes of a model are below 2^24, gpt2_init: the only thing that can
	 * be wrong is that there is no memory to arrange the factors in. */
	if (dnnl_sgemm((char)turn_a, (char)turn_b, (dnnl_dim_t)m, (dnnl_dim_t)n,
		       (dnnl_dim_t)inner, alpha, a, (dnnl_dim_t)lda, b,
		       (dnnl_dim_t)ldb, beta, out,
		       (dnnl_dim_t)ldo) != dnnl_success)
		c->failed = -ENOMEM;
}
