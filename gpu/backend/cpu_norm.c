/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm, one row at a time. */
#include <math.h>
#include <string.h>

#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

CPU_CLONES static void norm_row(float *out, float *stats, const float *x,
				const float *weight, const float *bias,
				size_t c, float eps)
{
	float sum = 0, squares = 0, mean, r;
	size_t i;

#pragma omp simd reduction(+ : sum)
	for (i = 0; i < c; i++)
		sum += x[i];
	mean = sum / (float)c;
#pragma omp simd reduction(+ : squares)
	for (i = 0; i < c; i++)
		squares += (x[i] - mean) * (x[i] - mean);
	r = 1.0f / sqrtf(squares / (float)c + eps);
#pragma omp simd
	for (i = 0; i < c; i++)
		out[i] = (x[i] - mean) * r * weight[i] + bias[i];
	stats[0] = mean;
	stats[1] = r;
}

void cpu_norm(struct backend *b, void *out, float *stats, const void *in,
	      const void *weight, const void *bias, size_t rows, size_t c,
	      float eps)
{
	float *const y = out;
	const float *const x = in;
	size_t i;

#pragma omp parallel for schedule(static)
	for (i = 0; i < rows; i++) {
		norm_row(y + i * c, stats + i * 2, x + i * c, weight, bias, c,
			 eps);
		cpu_round_to(b->dtype, y + i * c, c);
	}
}

/* Accumulates into `dw` and `db`, which are this thread's own, and `dx`. */
CPU_CLONES static void norm_row_grad(float *dx, float *dw, float *db,
				     const float *dy, const float *x,
				     const float *stats, const float *weight,
				     size_t c)
{
	const float mean = stats[0], r = stats[1];
	float sum = 0, dot = 0;
	size_t i;

#pragma omp simd reduction(+ : sum, dot)
	for (i = 0; i < c; i++) {
		const float n = (x[i] - mean) * r, d = dy[i] * weight[i];

		sum += d;
		dot += d * n;
		dw[i] += dy[i] * n;
		db[i] += dy[i];
	}
	sum /= (float)c;
	dot /= (float)c;
#pragma omp simd
	for (i = 0; i < c; i++) {
		const float n = (x[i] - mean) * r;

		dx[i] += (dy[i] * weight[i] - sum - n * dot) * r;
	}
}

void cpu_norm_grad(struct backend *b, void *din, float *dweight, float *dbias,
		   float *dsum, const void *dout, const void *in,
		   const float *stats, const void *weight, size_t rows,
		   size_t c, bool fresh)
{
	struct cpu *const cpu = (struct cpu *)b;
	float *const dx = din;
	const float *const dy = dout, *const x = in;
	const size_t parts = cpu->threads;
	float *const part = cpu_scratch(cpu, parts * 3 * c * sizeof(float));
	size_t t;

	if (!part)
		return;
		/* Each part of the rows has its own sums.  These are added in a
		 * fixed order, so that every run has the same result. */
#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < parts; t++) {
		float *const dw = part + t * 3 * c, *const db = dw + c;
		size_t row;

		memset(dw, 0, 3 * c * sizeof(float));
		for (row = rows * t / parts; row < rows * (t + 1) / parts;
		     row++) {
			norm_row_grad(dx + row * c, dw, db, dy + row * c,
				      x + row * c, stats + row * 2, weight, c);
			cpu_round_to(b->dtype, dx + row * c, c);
			if (dsum)
				cpu_add_row(db + c, dx + row * c, c);
		}
	}
	if (fresh) {
		memset(dweight, 0, c * sizeof(float));
		memset(dbias, 0, c * sizeof(float));
	}
	if (fresh && dsum)
		memset(dsum, 0, c * sizeof(float));
	for (t = 0; t < parts; t++) {
		cpu_add_row(dweight, part + t * 3 * c, c);
		cpu_add_row(dbias, part + t * 3 * c + c, c);
		if (dsum)
			cpu_add_row(dsum, part + t * 3 * c + 2 * c, c);
	}
}
