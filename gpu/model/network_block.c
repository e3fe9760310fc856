/* SPDX-License-Identifier: Apache-2.0 */
/* A transformer block of GPT-2, forward and backward. */
#include <assert.h>
#include <stdbool.h>

#include "gpu/backend/backend.h"
#include "gpu/backend/splitmix.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

/* out = x + dropout(in * w + bias) */
static void project(const struct pass *p, void *out, const void *x, const void *in, const void *w,
		    const void *bias, size_t ic, struct backend_dropout drop)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;

	if (!n->ranks.tensor && !(drop.p > 0)) {
		o->linear(n->b, out, NULL, in, w, bias, x, n->rows, ic, n->c);
		return;
	}
	/* Only one rank's summand includes the bias. */
	if (n->model->part.rank)
		bias = n->no_bias;
	o->linear(n->b, network_summand(n, out), NULL, in, w, bias, NULL, n->rows, ic, n->c);
	network_sum(n, out);
	if (drop.p > 0)
		network_dropout(n, out, drop);
	o->add(n->b, out, x, n->own_rows * n->c);
}

/* Compute attention of some heads, or its gradient d_wide from the gradient of its output.  Dropout
 * masks are the same as if one rank had all heads.  Ranks that share heads process the batch row by
 * row, since their heads of a row are not numbered consecutively across rows. */
static void attend_heads(const struct pass *p, unsigned unit, struct block *k, const void *d_heads)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	struct backend_dropout drop = network_drop(p, unit, PLACE_ATTENTION);
	const uint64_t skip = drop.skip;
	const size_t all = n->model->config.n_head;
	size_t first;
	const size_t number = network_heads(n, &first);
	const size_t width = n->c / all * number;
	const size_t step = number < all && p->drop > 0 ? 1 : n->batch;
	const size_t row = n->seq * width * n->b->act_size;

	for (size_t i = 0; i < n->batch; i += step) {
		char *const heads = (char *)k->attended + i * row;
		char *const qkv = (char *)k->qkv + i * 3 * row;
		float *const stats = k->attention_stats + i * n->seq * number;

		drop.skip = splitmix64_skip(skip, all * i + first);
		if (d_heads)
			o->attention_grad(n->b, (char *)n->d_wide + i * 3 * row,
					  (const char *)d_heads + i * row, heads, stats, qkv, step,
					  n->seq, number, width, drop);
		else
			o->attention(n->b, heads, stats, qkv, step, n->seq, number, width, drop);
	}
}

#define QUERIES_KEYS_VALUES 3

static void attend(const struct pass *p, unsigned unit, struct block *k)
{
	struct network *const n = p->n;

	if (n->ranks.sequence)
		network_to_heads(n, k->qkv, k->qkv, QUERIES_KEYS_VALUES);
	attend_heads(p, unit, k, NULL);
	if (n->ranks.sequence)
		network_to_positions(n, k->heads, k->attended, 1);
}

static void attend_backward(const struct pass *p, unsigned unit, struct block *k, void *d_heads)
{
	struct network *const n = p->n;

	if (n->ranks.sequence)
		network_to_heads(n, d_heads, d_heads, 1);
	attend_heads(p, unit, k, d_heads);
	if (n->ranks.sequence)
		network_to_positions(n, n->d_wide, n->d_wide, QUERIES_KEYS_VALUES);
}

static void norm_1(const struct pass *p, const void **w, const void *x, struct block *k)
{
	network_norm(p, k->ln_1, k->ln_1_stats, x, w[GPT2_LN_1_WEIGHT], w[GPT2_LN_1_BIAS]);
}

static void norm_2(const struct pass *p, const void **w, struct block *k)
{
	network_norm(p, k->ln_2, k->ln_2_stats, k->mid, w[GPT2_LN_2_WEIGHT], w[GPT2_LN_2_BIAS]);
}

static void mlp_inside(const struct pass *p, const void **w, struct block *k)
{
	struct network *const n = p->n;

	n->b->ops->linear(n->b, k->gelu, k->pre, network_all_rows(n, k->ln_2), w[GPT2_C_FC_WEIGHT],
			  w[GPT2_C_FC_BIAS], NULL, n->rows, n->c, 4 * n->width);
}

/* A block's forward pass up to its last projection. */
static void block_inside(const struct pass *p, unsigned unit, const void **w, const void *x,
			 struct block *k)
{
	struct network *const n = p->n;

	norm_1(p, w, x, k);
	n->b->ops->linear(n->b, k->qkv, NULL, network_all_rows(n, k->ln_1), w[GPT2_C_ATTN_WEIGHT],
			  w[GPT2_C_ATTN_BIAS], NULL, n->rows, n->c, 3 * n->width);
	attend(p, unit, k);
	project(p, k->mid, x, k->heads, w[GPT2_ATTN_PROJ_WEIGHT], w[GPT2_ATTN_PROJ_BIAS], n->width,
		network_drop(p, unit, PLACE_ATTN_PROJ));
	norm_2(p, w, k);
	mlp_inside(p, w, k);
}

void network_block_forward(const struct pass *p, unsigned unit, const void *weights, const void *x,
			   struct block *k)
{
	const void *w[GPT2_BLOCK_PARAMS];

	for (unsigned i = 0; i < GPT2_BLOCK_PARAMS; i++)
		w[i] = network_weight(p, weights, unit, i);
	block_inside(p, unit, w, x, k);
	project(p, k->out, k->mid, k->gelu, w[GPT2_MLP_PROJ_WEIGHT], w[GPT2_MLP_PROJ_BIAS],
		4 * p->n->width, network_drop(p, unit, PLACE_MLP_PROJ));
}

/* The gradient of a branch's output: the residual stream's, with dropout applied. */
static const void *into_branch(const struct pass *p, struct backend_dropout drop)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const size_t len = n->own_rows * n->c;

	if (!(drop.p > 0))
		return network_all_rows(n, n->d);
	o->zero(n->b, n->d_branch, len * n->b->act_size);
	o->add(n->b, n->d_branch, n->d, len);
	network_dropout(n, n->d_branch, drop);
	return network_all_rows(n, n->d_branch);
}

/* Compute the gradient of a branch's input (this rank's rows) from d_wide, the gradient after the
 * branch's first projection.  Its sum over ranks overlaps the computation of the projection's
 * gradients. */
static const void *from_branch(struct network *n, float *dw, float *dbias, const void *in,
			       const void *w, size_t width, bool fresh)
{
	const struct backend_ops *const o = n->b->ops;
	const void *const rows = network_all_rows(n, in), *sum;

	o->linear_grad(n->b, n->d_branch, NULL, NULL, n->d_wide, rows, NULL, w, n->rows, n->c,
		       width, fresh);
	sum = network_sum_branch(n);
	o->linear_grad(n->b, NULL, dw, dbias, n->d_wide, rows, NULL, w, n->rows, n->c, width,
		       fresh);
	network_sum_wait(n);
	return sum;
}

static void mlp_backward(const struct pass *p, unsigned unit, const void **w, float **g, bool fresh,
			 struct block *k)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const void *sum;

	o->linear_grad(n->b, n->d_wide, g[GPT2_MLP_PROJ_WEIGHT],
		       p->drop > 0 ? g[GPT2_MLP_PROJ_BIAS] : NULL,
		       into_branch(p, network_drop(p, unit, PLACE_MLP_PROJ)), k->gelu, k->pre,
		       w[GPT2_MLP_PROJ_WEIGHT], n->rows, 4 * n->width, n->c, fresh);
	sum = from_branch(n, g[GPT2_C_FC_WEIGHT], g[GPT2_C_FC_BIAS], k->ln_2, w[GPT2_C_FC_WEIGHT],
			  4 * n->width, fresh);
	/* d_branch is the residual's gradient for this projection, then for the attention's. */
	network_norm_grad(n, g[GPT2_LN_2_WEIGHT], g[GPT2_LN_2_BIAS],
			  p->drop > 0 ? NULL : g[GPT2_MLP_PROJ_BIAS],
			  p->drop > 0 ? NULL : g[GPT2_ATTN_PROJ_BIAS], sum, k->mid, k->ln_2_stats,
			  w[GPT2_LN_2_WEIGHT], fresh);
}

static void attention_backward(const struct pass *p, unsigned unit, const void **w, float **g,
			       bool fresh, const void *x, struct block *k)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	/* d_wide holds the gradient of qkv, followed by that of the heads' outputs. */
	void *const d_heads = (char *)n->d_wide + n->rows * 3 * n->width * n->b->act_size;
	const void *sum;

	o->linear_grad(n->b, d_heads, g[GPT2_ATTN_PROJ_WEIGHT],
		       p->drop > 0 ? g[GPT2_ATTN_PROJ_BIAS] : NULL,
		       into_branch(p, network_drop(p, unit, PLACE_ATTN_PROJ)), k->heads, NULL,
		       w[GPT2_ATTN_PROJ_WEIGHT], n->rows, n->width, n->c, fresh);
	attend_backward(p, unit, k, d_heads);
	sum = from_branch(n, g[GPT2_C_ATTN_WEIGHT], g[GPT2_C_ATTN_BIAS], k->ln_1,
			  w[GPT2_C_ATTN_WEIGHT], 3 * n->width, fresh);
	network_norm_grad(n, g[GPT2_LN_1_WEIGHT], g[GPT2_LN_1_BIAS], NULL, NULL, sum, x,
			  k->ln_1_stats, w[GPT2_LN_1_WEIGHT], fresh);
}

/* Recompute activations whose buffers blocks share. */
static void block_again(const struct pass *p, unsigned unit, const void **w, const void *x,
			struct block *k)
{
	const unsigned shared = p->n->recompute;

	if (shared == RECOMPUTE_BLOCKS) {
		block_inside(p, unit, w, x, k);
		return;
	}
	if (shared & RECOMPUTE_NORMS) {
		norm_1(p, w, x, k);
		norm_2(p, w, k);
	}
	if (shared & RECOMPUTE_GELU)
		mlp_inside(p, w, k);
}

void network_block_backward(const struct pass *p, unsigned unit, const void *x, struct block *k)
{
	bool fresh;
	const void *const weights = p->w->acquire(p->w->ctx, unit);
	float *const grads = p->w->gradient(p->w->ctx, unit, &fresh);
	const void *w[GPT2_BLOCK_PARAMS];
	float *g[GPT2_BLOCK_PARAMS];

	for (unsigned i = 0; i < GPT2_BLOCK_PARAMS; i++) {
		w[i] = network_weight(p, weights, unit, i);
		g[i] = network_gradient(p, grads, unit, i);
	}
	/* The last block's activations are still in the shared buffers. */
	if (unit + 1 < GPT2_UNIT_BLOCK(p->n->model->part.end_layer))
		block_again(p, unit, w, x, k);
	mlp_backward(p, unit, w, g, fresh, k);
	attention_backward(p, unit, w, g, fresh, x, k);
	p->w->release(p->w->ctx, unit);
	p->w->complete(p->w->ctx, unit);
}
