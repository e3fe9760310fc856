/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers, with GEMMs by oneDNN: on the thin matrices of small models it reaches 0.9 to 1.1
 * times its speed on large ones; OpenBLAS reaches 0.6 to 0.9 (tests/bench/RESULTS.md).  Inside a
 * parallel region it uses only the calling thread.
 *
 * Each thread computes a rectangle of the result and also does the element-wise
 * work on it, while it is in the thread's cache.  Threads synchronise once per operation, not
 * within a product.
 */
#include "gpu/backend/cpu.h"

#include <assert.h>
#include <errno.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "gpu/backend/cpu_math.h"

void cpu_gemm(struct cpu *c, enum cpu_transpose trans_a, enum cpu_transpose trans_b, size_t m,
	      size_t n, size_t inner, float alpha, const float *a, size_t lda, const float *b,
	      size_t ldb, float beta, float *out, size_t ldo)
{
	/* gpt2_init limits a model's sizes to less than 2^24, so the GEMM can only fail for lack of
	 * memory to rearrange the factors. */
	assert(ldo >= n);
	if (dnnl_sgemm((char)trans_a, (char)trans_b, (dnnl_dim_t)m, (dnnl_dim_t)n,
		       (dnnl_dim_t)inner, alpha, a, (dnnl_dim_t)lda, b, (dnnl_dim_t)ldb, beta, out,
		       (dnnl_dim_t)ldo) != dnnl_success)
		c->failed = -ENOMEM;
}

/* Rectangles start at multiples of this: a cache line, and the granularity of GEMM kernels. */
#define GRAIN ((size_t)16)

/* Rows [row, row + rows) and columns [col, col + cols) of a matrix. */
struct piece {
	size_t row, rows, col, cols;
};

/* The start of part i of n. */
static size_t cpu_linear_cut(size_t n, size_t i, size_t parts)
{
	return i == parts ? n : n * i / parts / GRAIN * GRAIN;
}

/* Part `i` of `parts` of a matrix.  A thread reads all data of its rows and columns: choose the
 * shape that minimises their sum. */
static struct piece piece_of(size_t m, size_t n, size_t i, size_t parts)
{
	size_t down = parts, d, row, col;

	assert(i < parts);
	for (d = 1; d < parts; d++)
		if (parts % d == 0 && m / d + n / (parts / d) < m / down + n / (parts / down))
			down = d;
	row = i % down;
	col = i / down;
	return (struct piece){
		.row = cpu_linear_cut(m, row, down),
		.rows = cpu_linear_cut(m, row + 1, down) - cpu_linear_cut(m, row, down),
		.col = cpu_linear_cut(n, col, parts / down),
		.cols = cpu_linear_cut(n, col + 1, parts / down) -
			cpu_linear_cut(n, col, parts / down),
	};
}

/* Initialise a row to the bias, plus the residual if there is one. */
CPU_CLONES static void begin_row(float *out, const float *bias, const float *residual, size_t n)
{
	if (residual)
		for (size_t i = 0; i < n; i++)
			out[i] = residual[i] + bias[i];
	else
		for (size_t i = 0; i < n; i++)
			out[i] = bias[i];
}

CPU_CLONES static void gelu_row(float *out, const float *pre, size_t n)
{
	for (size_t i = 0; i < n; i++)
		out[i] = cpu_gelu(pre[i]);
}

CPU_CLONES static void gelu_row_grad(float *d, const float *pre, size_t n)
{
	for (size_t i = 0; i < n; i++)
		d[i] *= cpu_gelu_slope(pre[i]);
}

/* The arguments of `linear` or `linear_grad` (backend.h). */
struct linear {
	struct cpu *cpu;
	size_t rows, ic, oc;
	const float *in, *w;
	/* for the forward pass */
	const float *bias, *residual;
	float *out, *pre;
	/* for the backward pass */
	const float *dout, *in_pre;
	float *din, *dw, *dbias;
	bool fresh;
};

static void cpu_linear_forward(const struct linear *l, struct piece p)
{
	float *const product = l->pre ? l->pre : l->out;
	const size_t ic = l->ic, oc = l->oc;

	for (size_t i = p.row; i < p.row + p.rows; i++)
		begin_row(product + i * oc + p.col, l->bias + p.col,
			  l->residual ? l->residual + i * oc + p.col : NULL, p.cols);
	cpu_gemm(l->cpu, NO_TRANS, NO_TRANS, p.rows, p.cols, ic, 1, l->in + p.row * ic, ic,
		 l->w + p.col, oc, 1, product + p.row * oc + p.col, oc);
	for (size_t i = p.row; i < p.row + p.rows; i++) {
		const size_t at = i * oc + p.col;

		cpu_round_to(l->cpu->base.dtype, product + at, p.cols);
		if (!l->pre)
			continue;
		gelu_row(l->out + at, product + at, p.cols);
		cpu_round_to(l->cpu->base.dtype, l->out + at, p.cols);
	}
}

void cpu_linear(struct backend *b, void *out, void *pre, const void *in, const void *w,
		const void *bias, const void *residual, size_t rows, size_t ic, size_t oc)
{
	const struct linear l = {
		.cpu = (struct cpu *)b,
		.rows = rows,
		.ic = ic,
		.oc = oc,
		.in = in,
		.w = w,
		.bias = bias,
		.residual = residual,
		.out = out,
		.pre = pre,
	};
	const size_t parts = ((struct cpu *)b)->threads;

#pragma omp parallel for schedule(static, 1)
	for (size_t t = 0; t < parts; t++)
		cpu_linear_forward(&l, piece_of(rows, oc, t, parts));
}

/* A part of the gradient of `in`. */
static void backward_in(const struct linear *l, struct piece p)
{
	const size_t ic = l->ic, oc = l->oc;

	cpu_gemm(l->cpu, NO_TRANS, TRANS, p.rows, p.cols, oc, 1, l->dout + p.row * oc, oc,
		 l->w + p.col * oc, oc, 0, l->din + p.row * ic + p.col, ic);
	for (size_t i = p.row; i < p.row + p.rows; i++) {
		const size_t at = i * ic + p.col;

		cpu_round_to(l->cpu->base.dtype, l->din + at, p.cols);
		if (!l->in_pre)
			continue;
		gelu_row_grad(l->din + at, l->in_pre + at, p.cols);
		cpu_round_to(l->cpu->base.dtype, l->din + at, p.cols);
	}
}

/* A part of the gradients of the weights and the bias. */
static void backward_weights(const struct linear *l, struct piece p)
{
	const size_t ic = l->ic, oc = l->oc;

	cpu_gemm(l->cpu, TRANS, NO_TRANS, p.rows, p.cols, l->rows, 1, l->in + p.row, ic,
		 l->dout + p.col, oc, l->fresh ? 0 : 1, l->dw + p.row * oc + p.col, oc);
	/* The thread with the last row also sums the bias gradient of its columns. */
	if (!l->dbias || p.row + p.rows != ic)
		return;
	if (l->fresh)
		memset(l->dbias + p.col, 0, p.cols * sizeof(*l->dbias));
	for (size_t i = 0; i < l->rows; i++)
		cpu_add_row(l->dbias + p.col, l->dout + i * oc + p.col, p.cols);
}

void cpu_linear_grad(struct backend *b, void *din, float *dw, float *dbias, const void *dout,
		     const void *in, const void *pre, const void *w, size_t rows, size_t ic,
		     size_t oc, bool fresh)
{
	const struct linear l = {
		.cpu = (struct cpu *)b,
		.rows = rows,
		.ic = ic,
		.oc = oc,
		.in = in,
		.w = w,
		.fresh = fresh,
		.dout = dout,
		.in_pre = pre,
		.din = din,
		.dw = dw,
		.dbias = dbias,
	};
	const size_t parts = ((struct cpu *)b)->threads;

#pragma omp parallel for schedule(static, 1)
	for (size_t t = 0; t < parts; t++) {
		if (dw)
			backward_weights(&l, piece_of(ic, oc, t, parts));
		if (din)
			backward_in(&l, piece_of(rows, ic, t, parts));
	}
}
