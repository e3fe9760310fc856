/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's operations on flat arrays, all limited by memory bandwidth. */
#include <math.h>
#include <string.h>

#include "gpu/backend/clip.h"
#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

/* Elements per task of a thread. */
#define BLOCK ((size_t)16384)

/* Parts of a sum.  Their number is constant, so that the result does not depend on the number of
 * threads. */
#define PARTS ((size_t)256)

static size_t block_len(size_t at, size_t n)
{
	return n - at < BLOCK ? n - at : BLOCK;
}

CPU_CLONES static double squares(const float *x, size_t n)
{
	double sum = 0;

#pragma omp simd reduction(+ : sum)
	for (size_t i = 0; i < n; i++)
		sum += (double)x[i] * x[i];
	return sum;
}

void cpu_sum_squares(struct backend *b, double *sum, const float *x, size_t n)
{
	double parts[PARTS];

	(void)b;
#pragma omp parallel for schedule(static)
	for (size_t i = 0; i < PARTS; i++) {
		const size_t first = n * i / PARTS, end = n * (i + 1) / PARTS;

		parts[i] = squares(x + first, end - first);
	}
	for (size_t i = 0; i < PARTS; i++)
		*sum += parts[i];
}

void cpu_accumulate(struct backend *b, float *dst, const float *src, size_t n)
{
	(void)b;
#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK)
		cpu_add_row(dst + at, src + at, block_len(at, n));
}

CPU_CLONES static void adam_block(const struct backend_adam *a, struct backend_rate rate,
				  float factor, float *restrict p, float *restrict m,
				  float *restrict v, const float *restrict grad, size_t n)
{
	const struct backend_adam h = *a;
	const float to_m = (float)(1 - h.beta1), to_v = (float)(1 - h.beta2);
	const float keep_v = (float)h.beta2;

	for (size_t i = 0; i < n; i++) {
		const float g = grad[i] * factor + h.l2 * p[i];

		m[i] += to_m * (g - m[i]);
		v[i] = keep_v * v[i] + to_v * g * g;
		p[i] = p[i] * rate.decay -
		       rate.step_size * m[i] / (sqrtf(v[i]) / rate.denom + h.eps);
	}
}

void cpu_clip(struct backend *b, float *factor, const double *sum, const double *scale, double most)
{
	(void)b;
	*factor = clip_factor(clip_norm(*sum, *scale), *scale, most);
}

void cpu_adam(struct backend *b, const struct backend_adam *a, const struct backend_rate *rate,
	      const float *factor, void *weights, float *p, float *exp_avg, float *exp_avg_sq,
	      const float *grad, size_t n)
{
	float *const w = weights;

	if (*factor == 0)
		return;
#pragma omp parallel for schedule(static)
	for (size_t at = 0; at < n; at += BLOCK) {
		const size_t len = block_len(at, n);

		adam_block(a, *rate, *factor, p + at, exp_avg + at, exp_avg_sq + at, grad + at,
			   len);
		memcpy(w + at, p + at, len * sizeof(*w));
		cpu_round_to(b->dtype, w + at, len);
	}
}
