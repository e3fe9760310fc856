/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers.  Each thread makes a rectangle of the result, and does itself
 * what is to be done to the matrix on the way in and out, while it is in its
 * cache.  Threads meet once in an operation: they do not have to wait for each
 * other within a product.
 */
#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

/* Rectangles begin at multiples of this: a cache line, and what kernels of
 * products take at once. */
#define GRAIN ((size_t)16)

/* Rows [row, row + rows) and columns [col, col + cols) of a matrix. */
struct piece {
	size_t row, rows, col, cols;
};

/* Where part i of n begins. */
static size_t cut(size_t n, size_t i, size_t parts)
{
	return i == parts ? n : n * i / parts / GRAIN * GRAIN;
}

/* Part `i` of `parts` of a matrix.  A thread reads what belongs to its rows
 * and to its columns: the shape with the least of both. */
static struct piece piece_of(size_t m, size_t n, size_t i, size_t parts)
{
	size_t down = parts, d, row, col;

	for (d = 1; d < parts; d++)
		if (parts % d == 0 &&
		    m / d + n / (parts / d) < m / down + n / (parts / down))
			down = d;
	row = i % down;
	col = i / down;
	return (struct piece){
		.row = cut(m, row, down),
		.rows = cut(m, row + 1, down) - cut(m, row, down),
		.col = cut(n, col, parts / down),
		.cols = cut(n, col + 1, parts / down) - cut(n, col, parts / down),
	};
}

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

CPU_CLONES static void add_row(float *sum, const float *x, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		sum[i] += x[i];
}

/* An operation: what backend_ops says of `linear` or of `linear_grad`. */
struct linear {
	struct cpu *cpu;
	size_t rows, ic, oc;
	const float *in, *w;
	/* forwards */
	const float *bias, *residual;
	float *out, *pre;
	/* backwards */
	const float *dout, *in_pre;
	float *din, *dw, *dbias;
};

static void forward(const struct linear *l, struct piece p)
{
	float *const product = l->pre ? l->pre : l->out;
	const size_t ic = l->ic, oc = l->oc;
	size_t i;

	for (i = p.row; i < p.row + p.rows; i++)
		begin_row(product + i * oc + p.col, l->bias + p.col,
			  l->residual ? l->residual + i * oc + p.col : NULL,
			  p.cols);
	cpu_product(l->cpu, AS_IT_IS, AS_IT_IS, p.rows, p.cols, ic, 1,
		    l->in + p.row * ic, ic, l->w + p.col, oc, 1,
		    product + p.row * oc + p.col, oc);
	for (i = p.row; i < p.row + p.rows; i++) {
		const size_t at = i * oc + p.col;

		cpu_round_to(l->cpu->base.dtype, product + at, p.cols);
		if (!l->pre)
			continue;
		gelu_row(l->out + at, product + at, p.cols);
		cpu_round_to(l->cpu->base.dtype, l->out + at, p.cols);
	}
}

void cpu_linear(struct backend *b, void *out, void *pre, const void *in,
		const void *w, const void *bias, const void *residual,
		size_t rows, size_t ic, size_t oc)
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
	size_t t;

#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < parts; t++)
		forward(&l, piece_of(rows, oc, t, parts));
}

/* Part of the gradient of `in`. */
static void backward_in(const struct linear *l, struct piece p)
{
	const size_t ic = l->ic, oc = l->oc;
	size_t i;

	cpu_product(l->cpu, AS_IT_IS, TRANSPOSED, p.rows, p.cols, oc, 1,
		    l->dout + p.row * oc, oc, l->w + p.col * oc, oc, 0,
		    l->din + p.row * ic + p.col, ic);
	for (i = p.row; i < p.row + p.rows; i++) {
		const size_t at = i * ic + p.col;

		cpu_round_to(l->cpu->base.dtype, l->din + at, p.cols);
		if (!l->in_pre)
			continue;
		gelu_row_grad(l->din + at, l->in_pre + at, p.cols);
		cpu_round_to(l->cpu->base.dtype, l->din + at, p.cols);
	}
}

/* Part of the weights' gradient, and of the bias'. */
static void backward_weights(const struct linear *l, struct piece p)
{
	const size_t ic = l->ic, oc = l->oc;
	size_t i;

	cpu_product(l->cpu, TRANSPOSED, AS_IT_IS, p.rows, p.cols, l->rows, 1,
		    l->in + p.row, ic, l->dout + p.col, oc, 1,
		    l->dw + p.row * oc + p.col, oc);
	/* The columns of the bias are those of whoever has the last row. */
	if (p.row + p.rows == ic)
		for (i = 0; i < l->rows; i++)
			add_row(l->dbias + p.col, l->dout + i * oc + p.col,
				p.cols);
}

void cpu_linear_grad(struct backend *b, void *din, float *dw, float *dbias,
		     const void *dout, const void *in, const void *pre,
		     const void *w, size_t rows, size_t ic, size_t oc)
{
	const struct linear l = {
		.cpu = (struct cpu *)b,
		.rows = rows,
		.ic = ic,
		.oc = oc,
		.in = in,
		.w = w,
		.dout = dout,
		.in_pre = pre,
		.din = din,
		.dw = dw,
		.dbias = dbias,
	};
	const size_t parts = ((struct cpu *)b)->threads;
	size_t t;

#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < parts; t++) {
		backward_weights(&l, piece_of(ic, oc, t, parts));
		backward_in(&l, piece_of(rows, ic, t, parts));
	}
}
