/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm, one row at a time. */
#include <math.h>
#include <string.h>

#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

CPU_CLONES static void norm_row(float *out, float *stats, const float *x, const float *weight,
				const float *bias, size_t c, float eps)
{
	float sum = 0, squares = 0, mean, r;

#pragma omp simd reduction(+ : sum)
	for (size_t i = 0; i < c; i++)
		sum += x[i];
	mean = sum / (float)c;
#pragma omp simd reduction(+ : squares)
	for (size_t i = 0; i < c; i++)
		squares += (x[i] - mean) * (x[i] - mean);
	r = 1.0f / sqrtf(squares / (float)c + eps);
#pragma omp simd
	for (size_t i = 0; i < c; i++)
		out[i] = (x[i] - mean) * r * weight[i] + bias[i];
	stats[0] = mean;
	stats[1] = r;
}

void cpu_norm(struct backend *b, void *out, float *stats, const void *in, const void *weight,
	      const void *bias, size_t rows, size_t c, float eps)
{
	float *const y = out;
	const float *const x = in;

#pragma omp parallel for schedule(static)
	for (size_t i = 0; i < rows; i++) {
		norm_row(y + i * c, stats + i * 2, x + i * c, weight, bias, c, eps);
		cpu_round_to(b->dtype, y + i * c, c);
	}
}

/* Accumulate into this thread's `dw` and `db`, and into `dx`. */
CPU_CLONES static void norm_row_grad(float *dx, float *dw, float *db, const float *dy,
				     const float *x, const float *stats, const float *weight,
				     size_t c)
{
	const float mean = stats[0], r = stats[1];
	float sum = 0, dot = 0;

#pragma omp simd reduction(+ : sum, dot)
	for (size_t i = 0; i < c; i++) {
		const float n = (x[i] - mean) * r, d = dy[i] * weight[i];

		sum += d;
		dot += d * n;
		dw[i] += dy[i] * n;
		db[i] += dy[i];
	}
	sum /= (float)c;
	dot /= (float)c;
#pragma omp simd
	for (size_t i = 0; i < c; i++) {
		const float n = (x[i] - mean) * r;

		dx[i] += (dy[i] * weight[i] - sum - n * dot) * r;
	}
}

/* Sums over rows: gradients of the weight and the bias, and `din` before and after. */
#define NORM_SUMS 4

void cpu_norm_grad(struct backend *b, void *din, float *dweight, float *dbias, float *dold,
		   float *dnew, const void *dout, const void *in, const float *stats,
		   const void *weight, size_t rows, size_t c, bool fresh)
{
	float *const to[NORM_SUMS] = { dweight, dbias, dold, dnew };
	struct cpu *const cpu = (struct cpu *)b;
	float *const dx = din;
	const float *const dy = dout, *const x = in;
	const size_t parts = cpu->threads;
	const size_t of_part = NORM_SUMS * c;
	float *const part = cpu_scratch(cpu, parts * of_part * sizeof(float));

	if (!part)
		return;
		/* Each part of the rows has its own sums.  These are added in a fixed order, so
		 * that every run has the same result. */
#pragma omp parallel for schedule(static, 1)
	for (size_t t = 0; t < parts; t++) {
		float *const dw = part + t * of_part, *const db = dw + c;

		memset(dw, 0, of_part * sizeof(float));
		for (size_t row = rows * t / parts; row < rows * (t + 1) / parts; row++) {
			if (dold)
				cpu_add_row(db + c, dx + row * c, c);
			norm_row_grad(dx + row * c, dw, db, dy + row * c, x + row * c,
				      stats + row * 2, weight, c);
			cpu_round_to(b->dtype, dx + row * c, c);
			if (dnew)
				cpu_add_row(db + 2 * c, dx + row * c, c);
		}
	}
	for (size_t i = 0; i < NORM_SUMS; i++) {
		if (!to[i])
			continue;
		if (fresh)
			memset(to[i], 0, c * sizeof(float));
		for (size_t t = 0; t < parts; t++)
			cpu_add_row(to[i], part + t * of_part + i * c, c);
	}
}
