/* SPDX-License-Identifier: Apache-2.0 */
/* The operations of backend.h that ZeRO needs. */
#include "tests/support/hostbackend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/cast.h"
#include "gpu/backend/backend.h"
#include "gpu/backend/clip.h"

static int sync_host(struct backend *b, struct errmsg *err)
{
	(void)b;
	(void)err;
	return 0;
}

static void *alloc(struct backend *b, size_t bytes)
{
	(void)b;
	return calloc(1, bytes ? bytes : 1);
}

static void free_host(struct backend *b, void *p)
{
	(void)b;
	free(p);
}

static void copy(struct backend *b, void *dst, const void *src, size_t bytes)
{
	(void)b;
	memcpy(dst, src, bytes);
}

static void zero(struct backend *b, void *p, size_t bytes)
{
	(void)b;
	memset(p, 0, bytes);
}

static void sum_squares(struct backend *b, double *sum, const float *x, size_t n)
{
	(void)b;
	for (size_t i = 0; i < n; i++)
		*sum += (double)x[i] * (double)x[i];
}

static void accumulate(struct backend *b, float *dst, const float *src, size_t n)
{
	(void)b;
	for (size_t i = 0; i < n; i++)
		dst[i] += src[i];
}

static void round_weights(struct backend *b, void *dst, const float *src, size_t n)
{
	float *const out = dst;

	for (size_t i = 0; i < n; i++) {
		float rounded;

		cast_from_float(b->dtype, &src[i], &rounded, 1);
		cast_to_float(b->dtype, &rounded, &out[i], 1);
	}
}

static void clip(struct backend *b, float *factor, const double *sum, const double *scale,
		 double most)
{
	(void)b;
	*factor = clip_factor(clip_norm(*sum, *scale), *scale, most);
}

static void adam(struct backend *b, const struct backend_adam *a, const struct backend_rate *rate,
		 const float *factor, void *weights, float *p, float *m, float *v,
		 const float *grad, size_t n)
{
	const float b1 = (float)a->beta1, b2 = (float)a->beta2;
	const float c1 = (float)(1 - a->beta1), c2 = (float)(1 - a->beta2);

	for (size_t i = 0; *factor != 0 && i < n; i++) {
		const float g = grad[i] * *factor + a->l2 * p[i];

		p[i] *= rate->decay;
		m[i] = b1 * m[i] + c1 * g;
		v[i] = b2 * v[i] + c2 * g * g;
		p[i] -= rate->step_size * m[i] / (sqrtf(v[i]) / rate->denom + a->eps);
	}
	if (*factor != 0)
		round_weights(b, weights, p, n);
}

struct backend *hostbackend(enum dtype dtype)
{
	static const struct backend_ops ops = {
		.sync = sync_host,
		.alloc = alloc,
		.free = free_host,
		.to_device = copy,
		.to_host = copy,
		.zero = zero,
		.sum_squares = sum_squares,
		.accumulate = accumulate,
		.round = round_weights,
		.clip = clip,
		.adam = adam,
	};
	static struct backend host = { .ops = &ops, .name = "host", .act_size = sizeof(float) };

	host.dtype = dtype;
	return &host;
}
