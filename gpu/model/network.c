/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPT-2's forward and backward pass, in operations of a backend: the embeddings, the blocks
 * (network_block.c), the last norm and the head.
 *
 *     x = wte[token] + wpe[position]
 *     per block: x1 = x + attn_proj(attention(c_attn(ln_1(x))))
 *                x' = x1 + mlp_proj(gelu(c_fc(ln_2(x1))))
 *     loss of ln_f(x) * wte' against the next token
 *
 * Each block keeps the activations that its backward pass needs, or recomputes some, or all of
 * them from its input.  The `x` of a block is the `out` of the block before.
 *
 * Tensor-parallel ranks each have the residual stream, or rows of it, and split the operations of a
 * branch: c_attn, the heads and attn_proj; c_fc and mlp_proj.  They sum the outputs of the branch's
 * second projection and, backward, the gradients of the first projection's input (network_ranks.c).
 */
#include <assert.h>
#include <stdbool.h>

#include "gpu/backend/backend.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

const void *network_weight(const struct pass *p, const void *unit_weights, unsigned unit,
			   unsigned param)
{
	const struct gpt2 *const m = p->n->model;

	assert(unit < m->nunits && param < m->units[unit].n);
	return (const char *)unit_weights +
	       m->params[m->units[unit].first + param].start * p->n->b->act_size;
}

float *network_gradient(const struct pass *p, float *unit_gradient, unsigned unit, unsigned param)
{
	const struct gpt2 *const m = p->n->model;

	assert(unit < m->nunits && param < m->units[unit].n);
	return unit_gradient + m->params[m->units[unit].first + param].start;
}

struct backend_dropout network_drop(const struct pass *p, unsigned unit, enum place place)
{
	return (struct backend_dropout){
		.p = p->drop,
		.seed = p->now ? &p->now->seed : NULL,
		.skip = ((uint64_t)unit * PLACES + place + 1) * UINT64_C(0xd1342543de82ef95),
	};
}

void network_norm(const struct pass *p, void *out, float *stats, const void *x, const void *w,
		  const void *bias)
{
	struct network *const n = p->n;

	n->b->ops->norm(n->b, out, stats, x, w, bias, n->own_rows, n->c,
			n->model->config.layer_norm_epsilon);
}

/* Zero the gradient of one of the embeddings. */
static void zero_gradient(const struct pass *p, unsigned param)
{
	struct backend *const b = p->n->b;
	const struct gpt2 *const m = p->n->model;
	const uint64_t n = m->params[m->units[GPT2_UNIT_EMBED].first + param].numel;

	b->ops->zero(b, network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, param),
		     n * sizeof(*p->d_embed));
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

static void embed(const struct pass *p)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const void *const w = p->w->acquire(p->w->ctx, GPT2_UNIT_EMBED);
	const char *const wpe = (const char *)network_weight(p, w, GPT2_UNIT_EMBED, GPT2_WPE) +
				n->position * n->c * n->b->act_size;

	o->embed(n->b, network_summand(n, n->embedded),
		 network_weight(p, w, GPT2_UNIT_EMBED, GPT2_WTE), n->model->part.rank ? NULL : wpe,
		 n->tokens, n->batch, n->length, n->c);
	network_sum(n, n->embedded);
	p->w->release(p->w->ctx, GPT2_UNIT_EMBED);
	if (p->drop > 0)
		network_dropout(n, n->embedded, network_drop(p, GPT2_UNIT_EMBED, PLACE_MLP_PROJ));
}

/* The forward pass of this rank's layers, without the head. */
static void forward(const struct pass *p)
{
	struct network *const n = p->n;
	const struct gpt2_part *const part = &n->model->part;

	if (is_first(n))
		embed(p);
	for (unsigned layer = part->first_layer; layer < part->end_layer; layer++) {
		const unsigned unit = GPT2_UNIT_BLOCK(layer);
		const void *const w = p->w->acquire(p->w->ctx, unit);

		network_block_forward(p, unit, w, input_of(n, layer), block_of(n, layer));
		p->w->release(p->w->ctx, unit);
	}
}

/* The last norm and the head: computes the loss and, in training, where `d_last` is the last unit's
 * gradient, the gradient of the residual stream. */
static void head(struct pass *p, const void *last, float *d_last, bool fresh)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;
	const unsigned unit = gpt2_unit_last(n->model);
	const void *const x = input_of(n, n->model->config.n_layer);
	const void *const ln_w = network_weight(p, last, unit, GPT2_LN_F_WEIGHT);
	const void *embed, *sum;

	network_norm(p, n->normed, n->ln_f_stats, x, ln_w,
		     network_weight(p, last, unit, GPT2_LN_F_BIAS));
	embed = p->w->acquire(p->w->ctx, GPT2_UNIT_EMBED);
	o->cross_entropy(n->b, p->loss, d_last ? n->d_branch : NULL,
			 d_last ? network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, GPT2_WTE) : NULL,
			 network_all_rows(n, n->normed),
			 network_weight(p, embed, GPT2_UNIT_EMBED, GPT2_WTE), n->targets, n->rows,
			 n->c, n->model->part.vocab_size, p->now ? &p->now->scale : NULL,
			 p->fresh_embed, n->ranks.tensor ? &n->tokens_group : NULL);
	p->w->release(p->w->ctx, GPT2_UNIT_EMBED);
	if (!d_last)
		return;
	sum = network_sum_branch(n);
	o->zero(n->b, n->d, n->own_rows * n->c * n->b->act_size);
	network_sum_wait(n);
	network_norm_grad(n, network_gradient(p, d_last, unit, GPT2_LN_F_WEIGHT),
			  network_gradient(p, d_last, unit, GPT2_LN_F_BIAS), NULL, NULL, sum, x,
			  n->ln_f_stats, ln_w, fresh);
}

static void last_unit(struct pass *p)
{
	struct network *const n = p->n;
	const unsigned unit = gpt2_unit_last(n->model);
	const void *const w = p->w->acquire(p->w->ctx, unit);
	float *d_last = NULL;
	bool fresh = false;

	if (p->now) {
		d_last = p->w->gradient(p->w->ctx, unit, &fresh);
		p->d_embed = p->w->gradient(p->w->ctx, GPT2_UNIT_EMBED, &p->fresh_embed);
		/* The head stores the rest.  Only the first stage has both. */
		if (p->fresh_embed && is_first(n))
			zero_gradient(p, GPT2_WPE);
	}
	head(p, w, d_last, fresh);
	p->w->release(p->w->ctx, unit);
	if (p->now)
		p->w->complete(p->w->ctx, unit);
	/* Another stage adds the gradient from the embedding's other use. */
	if (p->now && !is_first(n))
		p->w->complete(p->w->ctx, GPT2_UNIT_EMBED);
}

static void embed_backward(struct pass *p)
{
	struct network *const n = p->n;
	const struct backend_ops *const o = n->b->ops;

	if (!is_last(n))
		p->d_embed = p->w->gradient(p->w->ctx, GPT2_UNIT_EMBED, &p->fresh_embed);
	if (!is_last(n) && p->fresh_embed) {
		zero_gradient(p, GPT2_WTE);
		zero_gradient(p, GPT2_WPE);
	}
	if (p->drop > 0)
		network_dropout(n, n->d, network_drop(p, GPT2_UNIT_EMBED, PLACE_MLP_PROJ));
	o->embed_grad(n->b, network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, GPT2_WTE),
		      network_gradient(p, p->d_embed, GPT2_UNIT_EMBED, GPT2_WPE) +
			      n->position * n->c,
		      network_all_rows(n, n->d), n->tokens, n->batch, n->length, n->c);
	p->w->complete(p->w->ctx, GPT2_UNIT_EMBED);
}

static void backward(struct pass *p)
{
	struct network *const n = p->n;
	unsigned layer = n->model->part.end_layer;

	while (layer-- > n->model->part.first_layer)
		network_block_backward(p, GPT2_UNIT_BLOCK(layer), input_of(n, layer),
				       block_of(n, layer));
	if (is_first(n))
		embed_backward(p);
}

static struct pass pass_of(struct network *n, const struct network_weights *w,
			   const struct network_pass *now, double *loss)
{
	return (struct pass){
		.n = n,
		.w = w,
		.drop = now ? n->model->config.dropout : 0,
		.now = now,
		.loss = loss,
	};
}

void network_train(struct network *n, const struct network_weights *w, const int32_t *ints,
		   const struct network_pass *now, double *loss)
{
	struct pass p = pass_of(n, w, now, loss);

	n->tokens = ints;
	n->targets = ints + n->rows;
	forward(&p);
	if (is_last(n))
		last_unit(&p);
	if (now && n->model->part.stages == 1)
		backward(&p);
}

void network_backward(struct network *n, const struct network_weights *w,
		      const struct network_pass *now)
{
	struct pass p = pass_of(n, w, now, NULL);

	backward(&p);
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
