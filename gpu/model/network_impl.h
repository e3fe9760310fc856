/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_IMPL_H
#define UCTRAIN_NETWORK_IMPL_H

/* Private to network*.c: the buffers of a network, a pass, and what ranks exchange. */
#include <stdbool.h>

#include "gpu/backend/backend.h"
#include "gpu/backend/memory.h"
#include "gpu/model/network.h"

/* Activations of a block: act_t buffers of own_rows * n_embd elements, or of rows times the
 * multiple of `width` in the comment.  float buffers have the shapes of backend.h. */
struct block {
	void *ln_1, *qkv /* 3 */, *heads /* 1 */, *mid, *ln_2, *pre /* 4 */;
	void *gelu /* 4 */, *out;
	/* With ranks of a sequence, what attention computed, of which `heads` has own positions;
	 * else `heads`.  They have qkv, too, of some heads. */
	void *attended /* 1 */;
	float *ln_1_stats, *attention_stats, *ln_2_stats;
};

struct network {
	const struct gpt2 *model;
	struct backend *b;
	struct network_ranks ranks;
	struct backend_group tokens_group; /* ranks.tensor's */
	size_t batch, seq, c;
	size_t tokens_of_row;       /* seq, or one more: the last target */
	size_t length, position;    /* own positions of `seq`, and the first */
	size_t rows;                /* batch * length */
	size_t own_rows, own_first; /* of these, in the residual stream */
	size_t width;               /* of this rank's heads; c, if it has all */
	unsigned recompute;         /* network_recompute: all blocks share these buffers */
	struct block *blocks;
	void *embedded, *normed;
	float *ln_f_stats;
	/* Gradients of the residual stream, of one branch, and of the widest activation. Forward,
	 * `d_branch` has summands for the stream. */
	void *d, *d_branch, *d_wide;
	/* With a residual stream that is cut: all rows of what this rank has some of, and a
	 * norm's sums over rows. */
	void *all_rows;
	float *d_norm;
	void *exchanged[2];              /* 3; ranks of a sequence */
	const int32_t *tokens, *targets; /* of this micro-batch, on the device */
	void *no_bias;                   /* zeros, of the width; ranks of a group */
	struct backend_memory memory;
};

/* A pass: the network and the arguments of this micro-batch. */
struct pass {
	struct network *n;
	const struct network_weights *w;
	float drop;
	const struct network_pass *now; /* on the device; of training */
	float *d_embed;                 /* the gradient of the embeddings' unit */
	bool fresh_embed;
	double *loss; /* on the device; of forward passes */
};

/* A parameter inside its unit's weights or gradients. */
const void *network_weight(const struct pass *p, const void *unit_weights, unsigned unit,
			   unsigned param);
float *network_gradient(const struct pass *p, float *unit_gradient, unsigned unit, unsigned param);

/* Each place in a block that applies dropout has its own seed, and so has the embedding, which
 * counts as the block before the first. */
enum place { PLACE_ATTENTION, PLACE_ATTN_PROJ, PLACE_MLP_PROJ, PLACES };
struct backend_dropout network_drop(const struct pass *p, unsigned unit, enum place place);

/* The norm of own rows of the residual stream. */
void network_norm(const struct pass *p, void *out, float *stats, const void *x, const void *w,
		  const void *bias);

/* The block of `unit`, from its input `x` to k->out. */
void network_block_forward(const struct pass *p, unsigned unit, const void *weights, const void *x,
			   struct block *k);

/* The gradients of its weights, and in n->d that of the residual stream before it, where that
 * behind it was. */
void network_block_backward(const struct pass *p, unsigned unit, const void *x, struct block *k);

/* All rows of `own`, which has own ones, until the next call. */
const void *network_all_rows(struct network *n, const void *own);

/* Where the summand of what network_sum makes of it is to be computed. */
void *network_summand(struct network *n, void *out);

/* out = own rows of the sum over tensor-parallel ranks of network_summand(out). */
void network_sum(struct network *n, void *out);

/* Begin to make own rows of the sum over tensor-parallel ranks of d_branch; they are there after
 * network_sum_wait, before which nothing accesses d_branch. */
const void *network_sum_branch(struct network *n);
void network_sum_wait(struct network *n);

/* The gradients of a norm, of own rows, accumulated over ranks that have others. Arguments are
 * those of the backend's norm_grad. */
void network_norm_grad(struct network *n, float *dweight, float *dbias, float *dold, float *dnew,
		       const void *dout, const void *in, const float *stats, const void *weight,
		       bool fresh);

/* Dropout of own rows of the residual stream. */
void network_dropout(struct network *n, void *x, struct backend_dropout drop);

/* Of this rank's heads, those whose attention it computes: their number, and the number of the
 * first among all heads of the model. */
size_t network_heads(const struct network *n, size_t *first);

/* Exchange own positions of all heads, [batch][length][parts][width], for all positions of some
 * heads, [batch][seq][parts][width of these], and back.  `out` may be `in`. */
void network_to_heads(struct network *n, void *out, const void *in, size_t parts);
void network_to_positions(struct network *n, void *out, const void *in, size_t parts);

#endif
