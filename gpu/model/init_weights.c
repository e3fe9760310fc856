/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a new model: GPT2PreTrainedModel._init_weights has normal(0.02)
 * for matrices, less for those whose output is added to the residual, of
 * which there are two in each layer; ones and zeros for the norms; zeros for
 * biases.  The numbers are counted, not drawn: the generator (splitmix64) is
 * asked for the value of an index.
 */
#include "gpu/model/init_weights.h"

#include <math.h>
#include <string.h>

#include "ckpt/sys/parallel.h"
#include "gpu/model/gpt2.h"

#define STD 0.02

/* Elements that a thread makes at a time: some milliseconds. */
#define PIECE ((size_t)1 << 16)

static uint64_t mix(uint64_t x)
{
	x += UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

/* In (0, 1]: there is a logarithm of it. */
static double uniform(uint64_t bits)
{
	return ((double)(bits >> 11) + 1) * 0x1p-53;
}

static float normal(uint64_t key, uint64_t index, double std)
{
	const double r = sqrt(-2 * log(uniform(mix(key + 2 * index))));
	const double angle = 2 * M_PI * uniform(mix(key + 2 * index + 1));

	return (float)(std * r * cos(angle));
}

static int ends_in(const char *s, const char *end)
{
	const size_t n = strlen(s), m = strlen(end);

	return n >= m && strcmp(s + n - m, end) == 0;
}

/* Elements of a matrix, for threads to share. */
struct drawing {
	uint64_t key, first;
	size_t n;
	double std;
	float *out;
};

static int draw_piece(void *ctx, size_t i)
{
	const struct drawing *const d = ctx;
	const size_t begin = i * PIECE, left = d->n - begin;
	const size_t end = begin + (left < PIECE ? left : PIECE);

	for (size_t k = begin; k < end; k++)
		d->out[k] = normal(d->key, d->first + k, d->std);
	return 0;
}

void initial_weights(const struct gpt2 *m, size_t i, uint64_t seed,
		     uint64_t first, size_t n, float *out)
{
	const struct gpt2_param *p = &m->params[i];
	const uint64_t key = mix(mix(seed) ^ i);
	double std = STD;

	if (p->ndim == 1) {
		const float value = ends_in(p->name, "weight") ? 1 : 0;

		for (size_t k = 0; k < n; k++)
			out[k] = value;
		return;
	}
	if (ends_in(p->name, "c_proj.weight"))
		std /= sqrt(2.0 * m->config.n_layer);
	parallel_for((n + PIECE - 1) / PIECE, parallel_width(), draw_piece,
		     &(struct drawing){ key, first, n, std, out });
}
