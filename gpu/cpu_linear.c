/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Products of matrices: the BLAS, and what is done to a matrix on the way in
 * and out.
 */
#include <cblas.h>
#include <string.h>

#include "gpu/cpu.h"
#include "gpu/cpu_math.h"

/* What the product is added to: the bias, and the residual if there is one. */
CPU_CLONES static void begin_row(float *out, const float *bias,
				 const float *residual, size_t n)
{
	size_t i;

	if (residual)
		for (i = 0; i < n; i++)
			out[i] = residual[i] + bias[i];
	else
		for (i = 0; i < n; i++)
			out[i] = bias[i];
}

CPU_CLONES static void gelu_row(float *out, const float *pre, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		out[i] = cpu_gelu(pre[i]);
}

CPU_CLONES static void gelu_row_grad(float *d, const float *pre, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		d[i] *= cpu_gelu_slope(pre[i]);
}

static int dim(size_t n)
{
	return (int)n; /* sizes of a model are below 2^24, gpt2_init */
}

void cpu_linear(struct backend *b, void *out, void *pre, const void *in,
		const void *w, const void *bias, const void *residual,
		size_t rows, size_t ic, size_t oc)
{
	float *const y = out, *const product = pre ? pre : out;
	const float *const res = residual;
	size_t i;

#pragma omp parallel for schedule(static)
	for (i = 0; i < rows; i++)
		begin_row(product + i * oc, bias, res ? res + i * oc : NULL, oc);
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, dim(rows),
		    dim(oc), dim(ic), 1, in, dim(ic), w, dim(oc), 1, product,
		    dim(oc));
	if (!pre && b->dtype == DTYPE_F32)
		return;
#pragma omp parallel for schedule(static)
	for (i = 0; i < rows; i++) {
		cpu_round_to(b->dtype, product + i * oc, oc);
		if (!pre)
			continue;
		gelu_row(y + i * oc, product + i * oc, oc);
		cpu_round_to(b->dtype, y + i * oc, oc);
	}
}

CPU_CLONES static void add_row(float *sum, const float *x, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		sum[i] += x[i];
}

/* dbias += the sum of all rows; by columns, so that every one is summed in
 * the order of rows whatever the number of threads. */
static void add_rows(float *dbias, const float *dy, size_t rows, size_t oc)
{
	const size_t width = 256;
	size_t at;

#pragma omp parallel for schedule(static)
	for (at = 0; at < oc; at += width) {
		const size_t n = oc - at < width ? oc - at : width;
		size_t i;

		for (i = 0; i < rows; i++)
			add_row(dbias + at, dy + i * oc + at, n);
	}
}

void cpu_linear_grad(struct backend *b, void *din, float *dw, float *dbias,
		     const void *dout, const void *in, const void *pre,
		     const void *w, size_t rows, size_t ic, size_t oc)
{
	float *const dx = din;
	const float *const before = pre;
	size_t i;

	add_rows(dbias, dout, rows, oc);
	cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, dim(ic), dim(oc),
		    dim(rows), 1, in, dim(ic), dout, dim(oc), 1, dw, dim(oc));
	cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, dim(rows), dim(ic),
		    dim(oc), 1, dout, dim(oc), w, dim(oc), 0, din, dim(ic));
	if (!pre && b->dtype == DTYPE_F32)
		return;
#pragma omp parallel for schedule(static)
	for (i = 0; i < rows; i++) {
		cpu_round_to(b->dtype, dx + i * ic, ic);
		if (!pre)
			continue;
		gelu_row_grad(dx + i * ic, before + i * ic, ic);
		cpu_round_to(b->dtype, dx + i * ic, ic);
	}
}
