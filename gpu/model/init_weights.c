/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Weights of a new model, after GPT2PreTrainedModel._init_weights: normal(0.02) for matrices,
 * with a smaller deviation for the two matrices per layer whose output is added to the residual
 * stream; ones and zeros for norms; zeros for biases.  The generator is counter-based: splitmix64
 * of an element's index.
 */
#include <assert.h>
#include <math.h>

#include "ckpt/base/parallel.h"
#include "ckpt/format/names.h"
#include "gpu/backend/splitmix.h"
#include "gpu/model/gpt2.h"

#define STD 0.02

/* Elements per task of a thread: some milliseconds of work. */
#define PIECE ((size_t)1 << 16)

/* Return a uniform number in (0, 1]: the caller takes its logarithm. */
static double uniform(uint64_t bits)
{
	return ((double)(bits >> 11) + 1) * 0x1p-53;
}

static float normal(uint64_t key, uint64_t index, double std)
{
	const double r = sqrt(-2 * log(uniform(splitmix64(key + 2 * index, 1))));
	const double angle = 2 * M_PI * uniform(splitmix64(key + 2 * index + 1, 1));

	return (float)(std * r * cos(angle));
}

/* A range of a matrix's elements, shared by threads. */
struct drawing {
	const struct gpt2_param *param;
	uint64_t key, first;
	size_t n;
	double std;
	float *out;
};

static int draw_piece(void *ctx, size_t i, struct errmsg *err)
{
	const struct drawing *const d = ctx;
	const size_t begin = i * PIECE, left = d->n - begin;
	const size_t end = begin + (left < PIECE ? left : PIECE);

	(void)err;
	for (size_t k = begin, n; k < end; k += n) {
		uint64_t at;

		n = gpt2_whole_run(d->param, d->first + k, end - k, &at);
		for (size_t j = 0; j < n; j++)
			d->out[k + j] =
				at + j < d->param->whole_numel ? normal(d->key, at + j, d->std) : 0;
	}
	return 0;
}

void init_weights(const struct gpt2 *m, size_t i, uint64_t seed, uint64_t first, size_t n,
		  float *out)
{
	const struct gpt2_param *p = &m->params[i];
	const uint64_t key = splitmix64(splitmix64(seed, 1) ^ p->number, 1);
	double std = STD;

	assert(first + n <= p->numel);
	if (p->ndim == 1) {
		const float value = names_ends_with(p->name, "weight") ? 1 : 0;

		for (size_t k = 0; k < n; k++)
			out[k] = value;
		return;
	}
	if (names_ends_with(p->name, "c_proj.weight"))
		std /= sqrt(2.0 * m->config.n_layer);
	parallel_for((n + PIECE - 1) / PIECE, parallel_width(), draw_piece,
		     &(struct drawing){ p, key, first, n, std, out }, NULL);
}
