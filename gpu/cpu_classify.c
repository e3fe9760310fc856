/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Head and loss.  The logits of a whole batch would be the largest thing in
 * memory by far; those of a few rows are made, turned into their own gradient
 * in place, and used up while they are still in the cache.
 */
#include <cblas.h>
#include <math.h>

#include "gpu/cpu.h"
#include "gpu/cpu_math.h"

/* Rows whose logits are there at once, and the bytes they may take.  Each
 * product has to arrange all of `wte` anew, which many rows make up for. */
#define ROWS_MAX ((size_t)256)
#define LOGITS_BYTES ((size_t)64 << 20)

/* The cross entropy of a row against `target`; its logits become e^(x - max)
 * and *sum their sum. */
CPU_CLONES static double exponentials(float *x, size_t n, int32_t target,
				      float *sum)
{
	const float wanted = x[target];
	float top = -INFINITY, s = 0;
	size_t i;

#pragma omp simd reduction(max : top)
	for (i = 0; i < n; i++)
		top = x[i] > top ? x[i] : top;
#pragma omp simd reduction(+ : s)
	for (i = 0; i < n; i++) {
		x[i] = cpu_exp(x[i] - top);
		s += x[i];
	}
	*sum = s;
	/* A NaN loses every comparison: the sum is what shows it. */
	return (double)(logf(s) + top) - wanted + 0 * s;
}

CPU_CLONES static void scale_row(float *x, size_t n, float factor)
{
	size_t i;

	for (i = 0; i < n; i++)
		x[i] *= factor;
}

/* The loss of a row, its logits replaced by their gradient, times `scale`. */
static double row_loss(enum dtype dtype, float *x, size_t n, int32_t target,
		       float scale)
{
	float sum;
	double loss;

	if (target < 0) {
		scale_row(x, n, 0);
		return 0;
	}
	cpu_round_to(dtype, x, n);
	loss = exponentials(x, n, target, &sum);
	if (scale == 0)
		return loss;
	scale_row(x, n, scale / sum);
	x[target] -= scale;
	cpu_round_to(dtype, x, n);
	return loss;
}

static size_t tile_rows(size_t vocab)
{
	const size_t n = LOGITS_BYTES / (vocab * sizeof(float));

	return n < 1 ? 1 : n > ROWS_MAX ? ROWS_MAX : n;
}

void cpu_classify(struct backend *b, double *loss, void *din, float *dwte,
		  const void *in, const void *wte, const int32_t *targets,
		  size_t rows, size_t c, size_t vocab, float scale)
{
	const size_t tile = tile_rows(vocab);
	float *const logits =
		cpu_scratch((struct cpu *)b, tile * vocab * sizeof(float));
	double losses[ROWS_MAX];
	size_t at, i;

	if (!logits)
		return;
	for (at = 0; at < rows; at += tile) {
		const size_t n = rows - at < tile ? rows - at : tile;
		const float *const x = (const float *)in + at * c;
		float *const dx = din ? (float *)din + at * c : NULL;

		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)n,
			    (int)vocab, (int)c, 1, x, (int)c, wte, (int)c, 0,
			    logits, (int)vocab);
#pragma omp parallel for schedule(static)
		for (i = 0; i < n; i++)
			losses[i] = row_loss(b->dtype, logits + i * vocab, vocab,
					     targets[at + i], din ? scale : 0);
		for (i = 0; i < n; i++)
			*loss += losses[i];
		if (!din)
			continue;
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n,
			    (int)c, (int)vocab, 1, logits, (int)vocab, wte,
			    (int)c, 0, dx, (int)c);
		cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)vocab,
			    (int)c, (int)n, 1, logits, (int)vocab, x, (int)c, 1,
			    dwte, (int)c);
		for (i = 0; i < n; i++)
			cpu_round_to(b->dtype, dx + i * c, c);
	}
}
