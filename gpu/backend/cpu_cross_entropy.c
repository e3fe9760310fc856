/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused head and loss.  The logits of a whole batch would by far be the largest buffer;
 * instead a tile of rows is computed in blocks of columns that fit a core's cache.  Right after a
 * block's logits are computed, their exponentials relative to the block's largest logit replace
 * them.  When all blocks of the tile are done, each is rescaled to the gradient of the logits and
 * consumed.  Every block belongs to one thread.
 *
 * If a group shares the tokens, every rank has some of the blocks: ranks exchange the largest
 * logit of each row, the sum relative to it, and the target's logit.
 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"

/* Rows of a tile, and columns of a block.  Each GEMM has to rearrange all of `wte`, which pays
 * off only with many rows. */
#define ROWS_MAX ((size_t)512)
#define COLUMNS ((size_t)256)

/* A row's largest logit, the sum of its exponentials relative to that one, and the target's
 * logit. */
struct row_sums {
	float top, sum, wanted;
};

#define ROW_FLOATS (sizeof(struct row_sums) / sizeof(float))

struct head {
	struct cpu *cpu;
	/* Arguments of cpu_cross_entropy, restricted to this tile. */
	const float *in, *wte;
	float *dwte;
	bool fresh;
	const int32_t *targets;
	size_t rows, c, vocab;
	float scale;
	/* [block][rows]: exponentials, their largest logit and their sum; finally the factor that
	 * turns exponentials into gradients. */
	float *exps, *top, *sum;
	/* Per row: sums over this rank's blocks, then over all ranks' blocks. */
	struct row_sums *local;
	const struct backend_group *group;
	struct row_sums *gathered; /* [rank][rows] */
	/* Per part of the blocks: the logits of one block, which stay in a cache, and a sum of
	 * gradients. */
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

/* The exponentials of a block; a row has `columns` of them. */
static float *exps_of(const struct head *h, size_t block)
{
	return h->exps + block * COLUMNS * h->rows;
}

/* Is row i's target in this block?  If so, *column is its column. */
static bool has_target(const struct head *h, size_t block, size_t i, size_t *column)
{
	const int32_t target = h->targets[i];

	*column = (size_t)target - block * COLUMNS;
	return target >= 0 && (size_t)target / COLUMNS == block;
}

static void block_forward(const struct head *h, size_t block, float *logits)
{
	const size_t n = columns(h, block);
	size_t column;

	cpu_gemm(h->cpu, NO_TRANS, TRANS, h->rows, n, h->c, 1, h->in, h->c,
		 h->wte + block * COLUMNS * h->c, h->c, 0, logits, n);
	for (size_t i = 0; i < h->rows; i++) {
		float *const x = logits + i * n;
		const size_t at = block * h->rows + i;

		cpu_round_to(h->cpu->base.dtype, x, n);
		if (has_target(h, block, i, &column))
			h->local[i].wanted = x[column];
		h->top[at] = cpu_largest(x, n);
		h->sum[at] = cpu_exponentials(exps_of(h, block) + i * n, x, n, h->top[at]);
	}
}

/* Sum up this rank's blocks of a row. */
static void sum_blocks(const struct head *h, size_t i)
{
	const size_t n = blocks(h->vocab);
	struct row_sums *const r = &h->local[i];

	r->top = -INFINITY;
	r->sum = 0;
	for (size_t k = 0; k < n; k++)
		r->top = fmaxf(r->top, h->top[k * h->rows + i]);
	for (size_t k = 0; k < n; k++) {
		const size_t at = k * h->rows + i;

		r->sum += h->sum[at] * cpu_exp(h->top[at] - r->top);
	}
}

/* Sum up the ranks' sums of a row, in their order. */
static void sum_ranks(const struct head *h, size_t i)
{
	struct row_sums all = { .top = -INFINITY };

	for (unsigned t = 0; t < h->group->size; t++)
		all.top = fmaxf(all.top, h->gathered[t * h->rows + i].top);
	for (unsigned t = 0; t < h->group->size; t++) {
		const struct row_sums *const r = &h->gathered[t * h->rows + i];

		all.sum += r->sum * cpu_exp(r->top - all.top);
		all.wanted += r->wanted;
	}
	h->local[i] = all;
}

/* Return the cross entropy of a row, and turn its `sum`s into factors. */
static double row_loss(const struct head *h, size_t i)
{
	const size_t n = blocks(h->vocab);
	const struct row_sums *const r = &h->local[i];

	if (h->targets[i] == TOKEN_NONE) {
		for (size_t k = 0; k < n; k++)
			h->sum[k * h->rows + i] = 0;
		return 0;
	}
	for (size_t k = 0; k < n; k++) {
		const size_t at = k * h->rows + i;

		h->sum[at] = cpu_exp(h->top[at] - r->top) * (h->scale / r->sum);
	}
	/* A NaN loses every comparison for `top`, but reaches the sum. */
	return (double)(logf(r->sum) + r->top) - r->wanted + 0 * r->sum;
}

/* Gradients of a block's logits, and their contribution to `din` and `dwte`. */
static void block_backward(const struct head *h, size_t block, float *din, bool first)
{
	const size_t n = columns(h, block), c = h->c;
	float *const grads = exps_of(h, block);
	size_t column;

	for (size_t i = 0; i < h->rows; i++) {
		float *const x = grads + i * n;

		cpu_scale_row(x, h->sum[block * h->rows + i], n);
		if (has_target(h, block, i, &column))
			x[column] -= h->scale;
		cpu_round_to(h->cpu->base.dtype, x, n);
	}
	cpu_gemm(h->cpu, NO_TRANS, NO_TRANS, h->rows, c, n, 1, grads, n,
		 h->wte + block * COLUMNS * c, c, first ? 0 : 1, din, c);
	cpu_gemm(h->cpu, TRANS, NO_TRANS, n, c, h->rows, 1, grads, n, h->in, c, h->fresh ? 0 : 1,
		 h->dwte + block * COLUMNS * c, c);
}

static void cpu_cross_entropy_forward(const struct head *h, double *loss)
{
	const size_t parts = h->cpu->threads, n = blocks(h->vocab);
	double losses[ROWS_MAX];
	size_t i;

	/* If another rank has the target, that rank adds its logit. */
	memset(h->local, 0, h->rows * sizeof(*h->local));
#pragma omp parallel for schedule(static, 1) private(i)
	for (size_t t = 0; t < parts; t++)
		for (i = n * t / parts; i < n * (t + 1) / parts; i++)
			block_forward(h, i, h->logits + t * h->rows * COLUMNS);
#pragma omp parallel for schedule(static)
	for (i = 0; i < h->rows; i++)
		sum_blocks(h, i);
	if (h->group) {
		h->group->gather(h->group, &h->local->top, h->rows * ROW_FLOATS, &h->gathered->top);
		for (i = 0; i < h->rows; i++)
			sum_ranks(h, i);
	}
#pragma omp parallel for schedule(static)
	for (i = 0; i < h->rows; i++)
		losses[i] = row_loss(h, i);
	for (i = 0; i < h->rows; i++)
		*loss += losses[i];
}

/* Each part of the blocks has its own sum for `din`.  These are added in a fixed order, so that
 * every run has the same result. */
static void cpu_cross_entropy_backward(const struct head *h, float *din)
{
	const size_t parts = h->cpu->threads, n = blocks(h->vocab);
	const size_t size = h->rows * h->c;

#pragma omp parallel for schedule(static, 1)
	for (size_t t = 0; t < parts; t++) {
		const size_t first = n * t / parts, end = n * (t + 1) / parts;

		if (first == end)
			memset(h->din + t * size, 0, size * sizeof(*din));
		for (size_t i = first; i < end; i++)
			block_backward(h, i, h->din + t * size, i == first);
	}
	memcpy(din, h->din, size * sizeof(*din));
	for (size_t t = 1; t < parts; t++)
		cpu_accumulate(&h->cpu->base, din, h->din + t * size, size);
	cpu_round_to(h->cpu->base.dtype, din, size);
}

/* The most rows that fit, or fewer to have tiles of equal size. */
static size_t tile_rows(size_t rows, size_t vocab, size_t limit)
{
	const size_t fit = limit / (vocab * sizeof(float));
	const size_t most = fit < 1 ? 1 : fit > ROWS_MAX ? ROWS_MAX : fit;
	const size_t tiles = (rows + most - 1) / most;

	return (rows + tiles - 1) / tiles;
}

void cpu_cross_entropy(struct backend *b, double *loss, void *din, float *dwte, const void *in,
		       const void *wte, const int32_t *targets, size_t rows, size_t c, size_t vocab,
		       const float *scale, bool fresh, const struct backend_group *group)
{
	struct cpu *const cpu = (struct cpu *)b;
	const size_t tile = tile_rows(rows, vocab, b->logits_bytes);
	const size_t per_row = vocab + 2 * blocks(vocab) +
			       ROW_FLOATS * (group ? 1 + group->size : 1) +
			       cpu->threads * (COLUMNS + c);
	float *const scratch = cpu_scratch(cpu, tile * per_row * sizeof(float));

	if (!scratch && group)
		group->fail(group, b);
	if (!scratch)
		return;
	for (size_t at = 0; at < rows; at += tile) {
		const size_t n = rows - at < tile ? rows - at : tile;
		struct head h = {
			.cpu = cpu,
			.in = (const float *)in + at * c,
			.wte = wte,
			.dwte = dwte,
			.fresh = fresh && at == 0,
			.targets = targets + at,
			.rows = n,
			.c = c,
			.vocab = vocab,
			.scale = din ? *scale : 0,
			.group = group,
			.logits = scratch,
		};

		h.exps = h.logits + cpu->threads * n * COLUMNS;
		h.top = h.exps + n * vocab;
		h.sum = h.top + n * blocks(vocab);
		h.din = h.sum + n * blocks(vocab);
		h.local = (struct row_sums *)(h.din + cpu->threads * n * c);
		h.gathered = h.local + n;
		cpu_cross_entropy_forward(&h, loss);
		if (din)
			cpu_cross_entropy_backward(&h, (float *)din + at * c);
	}
}
