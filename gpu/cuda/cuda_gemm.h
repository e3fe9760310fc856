/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_PRODUCT_H
#define UCTRAIN_CUDA_PRODUCT_H

#include <stdbool.h>
#include <stddef.h>

#include "gpu/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What cuBLASLt does to a product before it is written. */
enum cuda_epilogue {
	CUDA_EPILOGUE_NONE,
	CUDA_EPILOGUE_BIAS,      /* adds vector[n] to each row */
	CUDA_EPILOGUE_BIAS_GELU, /* the same, kept in `aux`, then gelu_new */
	CUDA_EPILOGUE_GELU_GRAD, /* times the slope of gelu_new at `aux` */
	CUDA_EPILOGUE_SUMS,      /* vector[n] becomes the sums of b's columns */
};

/* A matrix by rows, `pitch` elements apart; transposed on the way in. */
struct cuda_operand {
	const void *p;
	size_t pitch;
	bool transposed;
};

/* out[m][n] = a[m][k] * b[k][n], and what was in `add`, if that is not NULL.
 * `a`, `b`, `aux` are lp buffers, and so are the others unless `wide`: then
 * they are float. */
struct cuda_product {
	size_t m, n, k;
	struct cuda_operand a, b;
	void *out;
	const void *add; /* as `out`, which it may be */
	size_t out_pitch;
	bool wide;
	enum cuda_epilogue epilogue;
	void *vector, *aux; /* `aux` is as `out` */
};

/* -ENOMEM; what CUDA says is told by sync. */
int cuda_products_init(struct cuda *c);
void cuda_products_done(struct cuda *c);

/* Queue it.  False if cuBLASLt cannot do it with this epilogue, with nothing
 * done; other failures are told by sync. */
bool cuda_multiply(struct cuda *c, const struct cuda_product *p);

#ifdef __cplusplus
}
#endif

#endif
