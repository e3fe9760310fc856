/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2's forward and backward pass, in operations of a backend.
 *
 *     x = wte[token] + wpe[position]
 *     per block: x1 = x + attn_proj(attention(c_attn(ln_1(x))))
 *                x' = x1 + mlp_proj(gelu(c_fc(ln_2(x1))))
 *     loss of ln_f(x) * wte' against the next token
 *
 * Each block keeps the activations that its backward pass needs, or recomputes
 * some, or all of them from its input.  The `x` of a block is the `out` of the block before.
 *
 * Tensor-parallel ranks all have the residual stream, or rows of it, and cut what is
 * between two of its projections: c_attn, the heads and attn_proj; c_fc and mlp_proj.
 * They sum up what the second projection adds to the stream, and, backward, the
 * gradients of what the first one took from it (network_ranks.c).
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/splitmix.h"
#include "gpu/backend/backend.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

/* A pass: the network and the arguments of this micro-batch. */
struct pass {
	struct network *n;
	const struct network_weights *w;
	struct errmsg *err;
	float drop;
	const struct network_pass *now; /* on the device; of training */
	float *d_embed; /* the gradient of the embeddings' unit */
	bool fresh_embed;
	double *loss; /* on the device; of forward passes */
};

/* A parameter inside its unit's weights or gradients. */
static const void *weight(const struct pass *p, const void *unit_weights,
			  unsigned unit, unsigned param)
{
	const struct gpt2 *const m = p->n->model;

	assert(unit < m->nunits && param < m->units[unit].n);
	return (const char *)unit_weights +
	       m->params[m->units[unit].first + param].start * p->n->b->act_size;
}

static float *network_gradient(const struct pass *p, float *unit_gradient,
			       unsigned unit, unsigned param)
{
	const struct gpt2 *const m = p->n->model;

	assert(unit < m->nunits && param < m->units[unit].n);
	return unit_gradient + m->params[m->units[unit].first + param].start;
}

/* Zero the gradient of one of the embeddings. */
static void zero_gradient(const struct pass *p, unsigned param)
{
	struct backend *const b = p->n->b;
	const struct gpt2 *const m = p->n->model;
	const uint64_t n =
		m->params[m->units[GPT2_UNIT_EMBED].first + param].numel;

	b->ops->zero(b, network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, param),
		     n * sizeof(*p->d_embed));
}

/* Each place in a block that applies dropout has its own seed, and so has the
 * embedding, which counts as the block before the first. */
enum place { PLACE_ATTENTION, PLACE_ATTN_PROJ, PLACE_MLP_PROJ, PLACES };

static struct backend_dropout drop_of(const struct pass *p, unsigned unit,
				      enum place place)
{
	return (struct backend_dropout){
		.p = p->drop,
		.seed = p->now ? &p->now->seed : NULL,
		.skip = ((uint64_t)unit * PLACES + place + 1) *
			UINT64_C(0xd1342543de82ef95),
	};
}

/* out = x + dropout(in * w + bias) */
static void project(const struct pass *p, void *out, const void *x,
		    const void *in, const void *w, const void *bias, size_t ic,
		    struct backend_dropout drop)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;

	if (!n->ranks.tensor && !(drop.p > 0)) {
		o->linear(n->b, out, NULL, in, w, bias, x, n->rows, ic, n->c);
		return;
	}
	/* One rank's summand has the bias. */
	if (n->ranks.tensor && n->ranks.tensor->rank)
		bias = n->no_bias;
	o->linear(n->b, network_summand(n, out), NULL, in, w, bias, NULL,
		  n->rows, ic, n->c);
	network_sum(n, out);
	if (drop.p > 0)
		network_dropout(n, out, drop);
	o->add(n->b, out, x, n->own_rows * n->c);
}

/* Attention of some heads, or its gradient d_wide by that of its output.  Masks are
 * those that the heads have where one rank has all: ranks that share them go through
 * the batch row by row, since the numbers of a row's heads are not consecutive. */
static void attend_heads(const struct pass *p, unsigned unit, struct block *k,
			 const void *d_heads)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	struct backend_dropout drop = drop_of(p, unit, PLACE_ATTENTION);
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
					  (const char *)d_heads + i * row,
					  heads, stats, qkv, step, n->seq,
					  number, width, drop);
		else
			o->attention(n->b, heads, stats, qkv, step, n->seq,
				     number, width, drop);
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

static void attend_backward(const struct pass *p, unsigned unit,
			    struct block *k, void *d_heads)
{
	struct network *const n = p->n;

	if (n->ranks.sequence)
		network_to_heads(n, d_heads, d_heads, 1);
	attend_heads(p, unit, k, d_heads);
	if (n->ranks.sequence)
		network_to_positions(n, n->d_wide, n->d_wide,
				     QUERIES_KEYS_VALUES);
}

static void norm(const struct pass *p, void *out, float *stats, const void *x,
		 const void *w, const void *bias)
{
	struct network *const n = p->n;

	n->b->ops->norm(n->b, out, stats, x, w, bias, n->own_rows, n->c,
			n->model->config.layer_norm_epsilon);
}

static void norm_1(const struct pass *p, const void **w, const void *x,
		   struct block *k)
{
	norm(p, k->ln_1, k->ln_1_stats, x, w[GPT2_LN_1_WEIGHT],
	     w[GPT2_LN_1_BIAS]);
}

static void norm_2(const struct pass *p, const void **w, struct block *k)
{
	norm(p, k->ln_2, k->ln_2_stats, k->mid, w[GPT2_LN_2_WEIGHT],
	     w[GPT2_LN_2_BIAS]);
}

static void mlp_inside(const struct pass *p, const void **w, struct block *k)
{
	struct network *const n = p->n;

	n->b->ops->linear(n->b, k->gelu, k->pre, network_all_rows(n, k->ln_2),
			  w[GPT2_C_FC_WEIGHT], w[GPT2_C_FC_BIAS], NULL, n->rows,
			  n->c, 4 * n->width);
}

/* A block's forward pass up to its last projection. */
static void block_inside(const struct pass *p, unsigned unit, const void **w,
			 const void *x, struct block *k)
{
	struct network *const n = p->n;

	norm_1(p, w, x, k);
	n->b->ops->linear(n->b, k->qkv, NULL, network_all_rows(n, k->ln_1),
			  w[GPT2_C_ATTN_WEIGHT], w[GPT2_C_ATTN_BIAS], NULL,
			  n->rows, n->c, 3 * n->width);
	attend(p, unit, k);
	project(p, k->mid, x, k->heads, w[GPT2_ATTN_PROJ_WEIGHT],
		w[GPT2_ATTN_PROJ_BIAS], n->width,
		drop_of(p, unit, PLACE_ATTN_PROJ));
	norm_2(p, w, k);
	mlp_inside(p, w, k);
}

static void block_forward(const struct pass *p, unsigned unit,
			  const void *weights, const void *x, struct block *k)
{
	const void *w[GPT2_BLOCK_PARAMS];
	unsigned i;

	for (i = 0; i < GPT2_BLOCK_PARAMS; i++)
		w[i] = weight(p, weights, unit, i);
	block_inside(p, unit, w, x, k);
	project(p, k->out, k->mid, k->gelu, w[GPT2_MLP_PROJ_WEIGHT],
		w[GPT2_MLP_PROJ_BIAS], 4 * p->n->width,
		drop_of(p, unit, PLACE_MLP_PROJ));
}

/* The gradient of a branch's output: the residual stream's, with dropout
 * applied. */
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

/* The gradient of a branch's input, own rows, of which d_wide is the gradient after the
 * branch's first projection.  Its sum over ranks is under way while the gradients of the
 * projection are computed. */
static const void *from_branch(struct network *n, float *dw, float *dbias,
			       const void *in, const void *w, size_t width,
			       bool fresh)
{
	const struct backend_ops *const o = n->b->ops;
	const void *const rows = network_all_rows(n, in), *sum;

	o->linear_grad(n->b, n->d_branch, NULL, NULL, n->d_wide, rows, NULL, w,
		       n->rows, n->c, width, fresh);
	sum = network_sum_branch(n);
	o->linear_grad(n->b, NULL, dw, dbias, n->d_wide, rows, NULL, w, n->rows,
		       n->c, width, fresh);
	network_sum_wait(n);
	return sum;
}

static void mlp_backward(const struct pass *p, unsigned unit, const void **w,
			 float **g, bool fresh, struct block *k)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const void *sum;

	o->linear_grad(n->b, n->d_wide, g[GPT2_MLP_PROJ_WEIGHT],
		       p->drop > 0 ? g[GPT2_MLP_PROJ_BIAS] : NULL,
		       into_branch(p, drop_of(p, unit, PLACE_MLP_PROJ)),
		       k->gelu, k->pre, w[GPT2_MLP_PROJ_WEIGHT], n->rows,
		       4 * n->width, n->c, fresh);
	sum = from_branch(n, g[GPT2_C_FC_WEIGHT], g[GPT2_C_FC_BIAS], k->ln_2,
			  w[GPT2_C_FC_WEIGHT], 4 * n->width, fresh);
	/* The residual's gradient is that of this projection, and then that of the
	 * attention's. */
	network_norm_grad(n, g[GPT2_LN_2_WEIGHT], g[GPT2_LN_2_BIAS],
			  p->drop > 0 ? NULL : g[GPT2_MLP_PROJ_BIAS],
			  p->drop > 0 ? NULL : g[GPT2_ATTN_PROJ_BIAS], sum,
			  k->mid, k->ln_2_stats, w[GPT2_LN_2_WEIGHT], fresh);
}

static void attention_backward(const struct pass *p, unsigned unit,
			       const void **w, float **g, bool fresh,
			       const void *x, struct block *k)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	/* d_wide holds the gradient of qkv, followed by that of the heads'
	 * outputs. */
	void *const d_heads =
		(char *)n->d_wide + n->rows * 3 * n->width * n->b->act_size;
	const void *sum;

	o->linear_grad(n->b, d_heads, g[GPT2_ATTN_PROJ_WEIGHT],
		       p->drop > 0 ? g[GPT2_ATTN_PROJ_BIAS] : NULL,
		       into_branch(p, drop_of(p, unit, PLACE_ATTN_PROJ)),
		       k->heads, NULL, w[GPT2_ATTN_PROJ_WEIGHT], n->rows,
		       n->width, n->c, fresh);
	attend_backward(p, unit, k, d_heads);
	sum = from_branch(n, g[GPT2_C_ATTN_WEIGHT], g[GPT2_C_ATTN_BIAS],
			  k->ln_1, w[GPT2_C_ATTN_WEIGHT], 3 * n->width, fresh);
	network_norm_grad(n, g[GPT2_LN_1_WEIGHT], g[GPT2_LN_1_BIAS], NULL, NULL,
			  sum, x, k->ln_1_stats, w[GPT2_LN_1_WEIGHT], fresh);
}

/* Recompute what a block shares with others. */
static void block_again(const struct pass *p, unsigned unit, const void **w,
			const void *x, struct block *k)
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

static int block_backward(const struct pass *p, unsigned unit, const void *x,
			  struct block *k)
{
	bool fresh = false;
	const void *const weights = p->w->acquire(p->w->ctx, unit, p->err);
	float *const grads =
		weights ? p->w->gradient(p->w->ctx, unit, &fresh, p->err) : NULL;
	const void *w[GPT2_BLOCK_PARAMS];
	float *g[GPT2_BLOCK_PARAMS];
	unsigned i;

	if (!grads)
		return -ENOMEM;
	for (i = 0; i < GPT2_BLOCK_PARAMS; i++) {
		w[i] = weight(p, weights, unit, i);
		g[i] = network_gradient(p, grads, unit, i);
	}
	/* The last block's activations are still in the shared buffers. */
	if (unit + 1 < GPT2_UNIT_BLOCK(p->n->model->part.end_layer))
		block_again(p, unit, w, x, k);
	mlp_backward(p, unit, w, g, fresh, k);
	attention_backward(p, unit, w, g, fresh, x, k);
	p->w->release(p->w->ctx, unit);
	return p->w->complete(p->w->ctx, unit, p->err);
}

static const void *input_of(const struct network *n, unsigned layer)
{
	const unsigned first = n->model->part.first_layer;

	return layer > first ? n->blocks[layer - first - 1].out : n->embedded;
}

static struct block *block_of(const struct network *n, unsigned layer)
{
	return &n->blocks[layer - n->model->part.first_layer];
}

static bool is_first(const struct network *n)
{
	return n->model->part.stage == 0;
}

static bool is_last(const struct network *n)
{
	return n->model->part.stage + 1 == n->model->part.stages;
}

static int embed(const struct pass *p)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const void *w = p->w->acquire(p->w->ctx, GPT2_UNIT_EMBED, p->err);
	const char *wpe;

	if (!w)
		return -ENOMEM;
	wpe = (const char *)weight(p, w, GPT2_UNIT_EMBED, GPT2_WPE) +
	      n->position * n->c * n->b->act_size;
	o->embed(n->b, network_summand(n, n->embedded),
		 weight(p, w, GPT2_UNIT_EMBED, GPT2_WTE),
		 n->ranks.tensor && n->ranks.tensor->rank ? NULL : wpe,
		 n->tokens, n->batch, n->length, n->c);
	network_sum(n, n->embedded);
	p->w->release(p->w->ctx, GPT2_UNIT_EMBED);
	if (p->drop > 0)
		network_dropout(n, n->embedded,
				drop_of(p, GPT2_UNIT_EMBED, PLACE_MLP_PROJ));
	return 0;
}

/* The forward pass of this rank's layers, without the head. */
static int forward(const struct pass *p)
{
	struct network *const n = p->n;
	const struct gpt2_part *const part = &n->model->part;
	unsigned layer;
	int rc = is_first(n) ? embed(p) : 0;

	if (rc)
		return rc;
	for (layer = part->first_layer; layer < part->end_layer; layer++) {
		const unsigned unit = GPT2_UNIT_BLOCK(layer);
		const void *const w = p->w->acquire(p->w->ctx, unit, p->err);
		if (!w)
			return -ENOMEM;
		block_forward(p, unit, w, input_of(n, layer),
			      block_of(n, layer));
		p->w->release(p->w->ctx, unit);
	}
	return 0;
}

/* The last norm and the head: computes the loss and, in training, when `d_last`
 * is the last unit's gradient, the gradient of the residual stream. */
static int head(struct pass *p, const void *last, float *d_last, bool fresh)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const unsigned unit = gpt2_unit_last(n->model);
	const void *const x = input_of(n, n->model->config.n_layer);
	const void *const ln_w = weight(p, last, unit, GPT2_LN_F_WEIGHT);
	const void *embed, *sum;

	norm(p, n->normed, n->ln_f_stats, x, ln_w,
	     weight(p, last, unit, GPT2_LN_F_BIAS));
	embed = p->w->acquire(p->w->ctx, GPT2_UNIT_EMBED, p->err);
	if (!embed)
		return -ENOMEM;
	o->cross_entropy(n->b, p->loss, d_last ? n->d_branch : NULL,
			 d_last ? network_gradient(p, p->d_embed,
						   GPT2_UNIT_EMBED, GPT2_WTE)
				: NULL,
			 network_all_rows(n, n->normed),
			 weight(p, embed, GPT2_UNIT_EMBED, GPT2_WTE),
			 n->targets, n->rows, n->c, n->model->part.vocab_size,
			 p->now ? &p->now->scale : NULL, p->fresh_embed,
			 n->ranks.tensor);
	p->w->release(p->w->ctx, GPT2_UNIT_EMBED);
	if (!d_last)
		return 0;
	sum = network_sum_branch(n);
	o->zero(n->b, n->d, n->own_rows * n->c * n->b->act_size);
	network_sum_wait(n);
	network_norm_grad(n, network_gradient(p, d_last, unit, GPT2_LN_F_WEIGHT),
			  network_gradient(p, d_last, unit, GPT2_LN_F_BIAS),
			  NULL, NULL, sum, x, n->ln_f_stats, ln_w, fresh);
	return 0;
}

static int last_unit(struct pass *p)
{
	struct network *const n = p->n;
	const unsigned unit = gpt2_unit_last(n->model);
	const void *const w = p->w->acquire(p->w->ctx, unit, p->err);
	const bool train = p->now != NULL;
	float *d_last = NULL;
	bool fresh = false;
	int rc;

	if (!w)
		return -ENOMEM;
	if (train) {
		d_last = p->w->gradient(p->w->ctx, unit, &fresh, p->err);
		p->d_embed = p->w->gradient(p->w->ctx, GPT2_UNIT_EMBED,
					    &p->fresh_embed, p->err);
		if (!d_last || !p->d_embed)
			return -ENOMEM;
		/* The head stores the rest; only the first stage has both. */
		if (p->fresh_embed && is_first(n))
			zero_gradient(p, GPT2_WPE);
	}
	rc = head(p, w, d_last, fresh);
	p->w->release(p->w->ctx, unit);
	if (!rc && train)
		rc = p->w->complete(p->w->ctx, unit, p->err);
	/* Another stage adds the gradient of the embedding's other use. */
	if (!rc && train && !is_first(n))
		rc = p->w->complete(p->w->ctx, GPT2_UNIT_EMBED, p->err);
	return rc;
}

static int embed_backward(struct pass *p)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;

	if (!is_last(n))
		p->d_embed = p->w->gradient(p->w->ctx, GPT2_UNIT_EMBED,
					    &p->fresh_embed, p->err);
	if (!p->d_embed)
		return -ENOMEM;
	if (!is_last(n) && p->fresh_embed) {
		zero_gradient(p, GPT2_WTE);
		zero_gradient(p, GPT2_WPE);
	}
	if (p->drop > 0)
		network_dropout(n, n->d,
				drop_of(p, GPT2_UNIT_EMBED, PLACE_MLP_PROJ));
	o->embed_grad(
		n->b, network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, GPT2_WTE),
		network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, GPT2_WPE) +
			n->position * n->c,
		network_all_rows(n, n->d), n->tokens, n->batch, n->length, n->c);
	return p->w->complete(p->w->ctx, GPT2_UNIT_EMBED, p->err);
}

static int backward(struct pass *p)
{
	struct network *const n = p->n;
	unsigned layer = n->model->part.end_layer;
	int rc = 0;

	while (!rc && layer-- > n->model->part.first_layer)
		rc = block_backward(p, GPT2_UNIT_BLOCK(layer),
				    input_of(n, layer), block_of(n, layer));
	return rc || !is_first(n) ? rc : embed_backward(p);
}

size_t network_predictions(const struct network *n)
{
	return n->batch * (n->tokens_of_row - 1);
}

struct network_pass network_pass_of(const struct network *n, float scale,
				    uint64_t seed)
{
	return (struct network_pass){
		.seed = seed,
		.scale = (float)(scale / (double)network_predictions(n)),
	};
}

static int network_run(struct pass *p, const int32_t *ints)
{
	struct network *const n = p->n;
	int rc;

	n->tokens = ints;
	n->targets = ints + n->rows;
	rc = forward(p);
	if (!rc && is_last(n))
		rc = last_unit(p);
	if (!rc && p->now && n->model->part.stages == 1)
		rc = backward(p);
	return rc;
}

static struct pass training_pass(struct network *n,
				 const struct network_weights *w,
				 const struct network_pass *now,
				 struct errmsg *err)
{
	return (struct pass){
		.n = n,
		.w = w,
		.err = err,
		.drop = n->model->config.dropout,
		.now = now,
	};
}

void network_predict_beyond(struct network *n)
{
	n->tokens_of_row = n->seq + 1;
}

int network_train(struct network *n, const struct network_weights *w,
		  const int32_t *ints, const struct network_pass *now,
		  double *loss, struct errmsg *err)
{
	struct pass p = training_pass(n, w, now, err);

	p.loss = loss;
	return network_run(&p, ints);
}

int network_backward(struct network *n, const struct network_weights *w,
		     const struct network_pass *now, struct errmsg *err)
{
	struct pass p = training_pass(n, w, now, err);

	return backward(&p);
}

void *network_input(struct network *n)
{
	return n->embedded;
}

const void *network_output(const struct network *n)
{
	return input_of(n, n->model->part.end_layer);
}

void *network_residual_gradient(struct network *n)
{
	return n->d;
}

size_t network_residual_bytes(const struct network *n)
{
	return n->own_rows * n->c * n->b->act_size;
}

int network_evaluate(struct network *n, const struct network_weights *w,
		     const int32_t *ints, double *loss, struct errmsg *err)
{
	struct pass p = { .n = n, .w = w, .err = err, .loss = loss };

	return network_run(&p, ints);
}
