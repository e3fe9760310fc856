/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head and loss.  The logits of a whole batch would be the largest thing in
 * memory by far; there are those of a tile of rows, in blocks of columns that
 * fit a core's cache.  A block's exponentials are taken as soon as its logits
 * are there, against the largest of the block, and they alone are kept; when
 * all blocks are known, each is scaled to what it is in the gradient, and used
 * up.  Blocks are threads' own.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

/* Rows of a tile, bytes that may be kept of them, and columns of a block.  Each
 * product has to arrange all of `wte` anew, which many rows make up for. */
#define ROWS_MAX ((size_t)512)
#define LOGITS_BYTES ((size_t)128 << 20)
#define COLUMNS ((size_t)256)

struct head {
	struct cpu *cpu;
	/* What cpu_classify was told, of the rows of this tile. */
	const float *in, *wte;
	float *dwte;
	const int32_t *targets;
	size_t rows, c, vocab;
	float scale;
	/* Of a block each, [block][rows]: exponentials' largest logit and sum,
	 * in the end the factor that makes gradients of them. */
	float *exps, *top, *sum;
	float *wanted; /* the target's logit, [rows] */
	/* For each part of the blocks: the logits of one, which stay in a
	 * cache; a sum of gradients. */
	float *logits, *din;
};

static size_t blocks(size_t vocab)
{
	return (vocab + COLUMNS - 1) / COLUMNS;
}

static size_t columns(const struct head *h, size_t block)
{
	const size_t left = h->vocab - block * COLUMNS;

	return left < COLUMNS ? left : COLUMNS;
}

/* The rows of a block are `columns` long. */
static float *exps_of(const struct head *h, size_t block)
{
	return h->exps + block * COLUMNS * h->rows;
}

/* Is row i's target in this block?  Then *column is its place. */
static bool has_target(const struct head *h, size_t block, size_t i,
		       size_t *column)
{
	const int32_t target = h->targets[i];

	*column = (size_t)target - block * COLUMNS;
	return target >= 0 && (size_t)target / COLUMNS == block;
}

CPU_CLONES static float largest(const float *x, size_t n)
{
	float top = -INFINITY;
	size_t i;

#pragma omp simd reduction(max : top)
	for (i = 0; i < n; i++)
		top = x[i] > top ? x[i] : top;
	return top;
}

/* out = e^(x - top).  Returns the sum. */
CPU_CLONES static float exponentials(float *out, const float *x, size_t n,
				     float top)
{
	float sum = 0;
	size_t i;

#pragma omp simd reduction(+ : sum)
	for (i = 0; i < n; i++) {
		out[i] = cpu_exp(x[i] - top);
		sum += out[i];
	}
	return sum;
}

CPU_CLONES static void scale_row(float *x, size_t n, float factor)
{
	size_t i;

	for (i = 0; i < n; i++)
		x[i] *= factor;
}

static void block_forward(const struct head *h, size_t block, float *logits)
{
	const size_t n = columns(h, block);
	size_t i, column;

	cpu_product(h->cpu, AS_IT_IS, TRANSPOSED, h->rows, n, h->c, 1, h->in,
		    h->c, h->wte + block * COLUMNS * h->c, h->c, 0, logits, n);
	for (i = 0; i < h->rows; i++) {
		float *const x = logits + i * n;
		const size_t at = block * h->rows + i;

		cpu_round_to(h->cpu->base.dtype, x, n);
		if (has_target(h, block, i, &column))
			h->wanted[i] = x[column];
		h->top[at] = largest(x, n);
		h->sum[at] = exponentials(exps_of(h, block) + i * n, x, n,
					  h->top[at]);
	}
}

/* The cross entropy of a row; its `sum`s become factors. */
static double row_loss(const struct head *h, size_t i)
{
	const size_t n = blocks(h->vocab);
	float top = -INFINITY, sum = 0;
	size_t k;

	if (h->targets[i] < 0) {
		for (k = 0; k < n; k++)
			h->sum[k * h->rows + i] = 0;
		return 0;
	}
	for (k = 0; k < n; k++)
		top = fmaxf(top, h->top[k * h->rows + i]);
	for (k = 0; k < n; k++) {
		const size_t at = k * h->rows + i;
		const float factor = cpu_exp(h->top[at] - top);

		sum += h->sum[at] * factor;
		h->sum[at] = factor;
	}
	for (k = 0; k < n; k++)
		h->sum[k * h->rows + i] *= h->scale / sum;
	/* A NaN loses every comparison: the sum is what shows it. */
	return (double)(logf(sum) + top) - h->wanted[i] + 0 * sum;
}

/* Gradients of a block's logits, and what they add to the others'. */
static void block_backward(const struct head *h, size_t block, float *din,
			   bool first)
{
	const size_t n = columns(h, block), c = h->c;
	float *const grads = exps_of(h, block);
	size_t i, column;

	for (i = 0; i < h->rows; i++) {
		float *const x = grads + i * n;

		scale_row(x, n, h->sum[block * h->rows + i]);
		if (has_target(h, block, i, &column))
			x[column] -= h->scale;
		cpu_round_to(h->cpu->base.dtype, x, n);
	}
	cpu_product(h->cpu, AS_IT_IS, AS_IT_IS, h->rows, c, n, 1, grads, n,
		    h->wte + block * COLUMNS * c, c, first ? 0 : 1, din, c);
	cpu_product(h->cpu, TRANSPOSED, AS_IT_IS, n, c, h->rows, 1, grads, n,
		    h->in, c, 1, h->dwte + block * COLUMNS * c, c);
}

static void forward(const struct head *h, double *loss)
{
	const size_t parts = h->cpu->threads, n = blocks(h->vocab);
	double losses[ROWS_MAX];
	size_t t, i;

#pragma omp parallel for schedule(static, 1) private(i)
	for (t = 0; t < parts; t++)
		for (i = n * t / parts; i < n * (t + 1) / parts; i++)
			block_forward(h, i, h->logits + t * h->rows * COLUMNS);
#pragma omp parallel for schedule(static)
	for (i = 0; i < h->rows; i++)
		losses[i] = row_loss(h, i);
	for (i = 0; i < h->rows; i++)
		*loss += losses[i];
}

/* Each part of the blocks has a sum for `din` of its own, and they are added
 * in order: the same result in every run. */
static void backward(const struct head *h, float *din)
{
	const size_t parts = h->cpu->threads, n = blocks(h->vocab);
	const size_t size = h->rows * h->c;
	size_t t;

#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < parts; t++) {
		const size_t first = n * t / parts, end = n * (t + 1) / parts;
		size_t i;

		if (first == end)
			memset(h->din + t * size, 0, size * sizeof(*din));
		for (i = first; i < end; i++)
			block_backward(h, i, h->din + t * size, i == first);
	}
	memcpy(din, h->din, size * sizeof(*din));
	for (t = 1; t < parts; t++)
		cpu_accumulate(&h->cpu->base, din, h->din + t * size, size);
	cpu_round_to(h->cpu->base.dtype, din, size);
}

/* As many rows as there may be, or fewer so that tiles are of one size. */
static size_t tile_rows(size_t rows, size_t vocab)
{
	const size_t fit = LOGITS_BYTES / (vocab * sizeof(float));
	const size_t most = fit < 1 ? 1 : fit > ROWS_MAX ? ROWS_MAX : fit;
	const size_t tiles = (rows + most - 1) / most;

	return (rows + tiles - 1) / tiles;
}

void cpu_classify(struct backend *b, double *loss, void *din, float *dwte,
		  const void *in, const void *wte, const int32_t *targets,
		  size_t rows, size_t c, size_t vocab, float scale)
{
	struct cpu *const cpu = (struct cpu *)b;
	const size_t tile = tile_rows(rows, vocab);
	const size_t per_row = vocab + 2 * blocks(vocab) + 1 +
			       cpu->threads * (COLUMNS + c);
	float *const scratch = cpu_scratch(cpu, tile * per_row * sizeof(float));
	size_t at;

	if (!scratch)
		return;
	for (at = 0; at < rows; at += tile) {
		const size_t n = rows - at < tile ? rows - at : tile;
		struct head h = {
			.cpu = cpu,
			.in = (const float *)in + at * c,
			.wte = wte,
			.dwte = dwte,
			.targets = targets + at,
			.rows = n,
			.c = c,
			.vocab = vocab,
			.scale = scale,
			.logits = scratch,
		};

		h.exps = h.logits + cpu->threads * n * COLUMNS;
		h.top = h.exps + n * vocab;
		h.sum = h.top + n * blocks(vocab);
		h.wanted = h.sum + n * blocks(vocab);
		h.din = h.wanted + n;
		forward(&h, loss);
		if (din)
			backward(&h, (float *)din + at * c);
	}
}
