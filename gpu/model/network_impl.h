/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_IMPL_H
#define UCTRAIN_NETWORK_IMPL_H

/* Private to network*.c: a network's buffers, a pass, and exchanges between ranks. */
#include <stdbool.h>

#include "gpu/backend/backend.h"
#include "gpu/backend/memory.h"
#include "gpu/model/network.h"

/* Activations of a block: act_t buffers of own_rows * n_embd elements.  A number k in a comment
 * means rows * k * width elements instead. float buffers have the shapes of backend.h. */
struct block {
	void *ln_1, *qkv /* 3 */, *heads /* 1 */, *mid, *ln_2, *pre /* 4 */;
	void *gelu /* 4 */, *out;
	/* The output of attention.  With sequence-parallel ranks it has all positions of some
	 * heads, as qkv does, and `heads` has this rank's positions; else it equals `heads`. */
	void *attended /* 1 */;
	float *ln_1_stats, *attention_stats, *ln_2_stats;
};

struct network {
	const struct gpt2 *model;
	struct backend *b;
	struct network_ranks ranks;
	struct backend_group tokens_group; /* ranks.tensor's */
	size_t batch, seq, c;
	size_t tokens_of_row;       /* tokens per row: seq, or seq + 1 with the last target */
	size_t length, position;    /* this rank's positions of `seq`, and the first one */
	size_t rows;                /* batch * length */
	size_t own_rows, own_first; /* rows of these in this rank's residual stream, and the first
				     * one */
	size_t width;               /* of this rank's heads together; c if it has all heads */
	unsigned recompute;         /* enum network_recompute: all blocks share these buffers */
	struct block *blocks;
	void *embedded, *normed;
	float *ln_f_stats;
	/* Gradients of the residual stream, of a branch, and of the widest activation.  In the
	 * forward pass `d_branch` holds summands for the stream. */
	void *d, *d_branch, *d_wide;
	/* If ranks split the residual stream: a buffer for all its rows, and a norm's sums over
	 * rows. */
	void *all_rows;
	float *d_norm;
	void *exchanged[2];              /* 3; for sequence-parallel ranks */
	const int32_t *tokens, *targets; /* of this micro-batch, on the device */
	void *no_bias;                   /* zeros, n_embd long; for groups of several ranks */
	struct backend_memory memory;
};

/* A pass: the network and the arguments of this micro-batch. */
struct pass {
	struct network *n;
	const struct network_weights *w;
	float drop;
	const struct network_pass *now; /* on the device; NULL unless training */
	float *d_embed;                 /* gradient of the embeddings' unit */
	bool fresh_embed;
	double *loss; /* on the device; for forward passes */
};

/* Return a parameter within its unit's weights or gradients. */
const void *network_weight(const struct pass *p, const void *unit_weights, unsigned unit,
			   unsigned param);
float *network_gradient(const struct pass *p, float *unit_gradient, unsigned unit, unsigned param);

/* Each place in a block that applies dropout has its own seed.  The embedding counts as the block
 * before the first. */
enum place { PLACE_ATTENTION, PLACE_ATTN_PROJ, PLACE_MLP_PROJ, PLACES };
struct backend_dropout network_drop(const struct pass *p, unsigned unit, enum place place);

/* Apply a norm to this rank's rows of the residual stream. */
void network_norm(const struct pass *p, void *out, float *stats, const void *x, const void *w,
		  const void *bias);

/* Run the block of `unit` from its input `x` to k->out. */
void network_block_forward(const struct pass *p, unsigned unit, const void *weights, const void *x,
			   struct block *k);

/* Compute the gradients of its weights, and replace the gradient of the block's output in n->d by
 * the gradient of its input. */
void network_block_backward(const struct pass *p, unsigned unit, const void *x, struct block *k);

/* Gather all rows of which `own` has this rank's; valid until the next call. */
const void *network_all_rows(struct network *n, const void *own);

/* Return the buffer in which to compute the summand for network_sum(out). */
void *network_summand(struct network *n, void *out);

/* out = this rank's rows of the sum of network_summand(out) over tensor-parallel ranks. */
void network_sum(struct network *n, void *out);

/* Start summing d_branch over tensor-parallel ranks.  Returns this rank's rows of the sum, valid
 * after network_sum_wait; until then nothing may access d_branch. */
const void *network_sum_branch(struct network *n);
void network_sum_wait(struct network *n);

/* Compute the gradients of a norm over this rank's rows, and accumulate them over ranks with other
 * rows.  Arguments as for the backend's norm_grad. */
void network_norm_grad(struct network *n, float *dweight, float *dbias, float *dold, float *dnew,
		       const void *dout, const void *in, const float *stats, const void *weight,
		       bool fresh);

/* Apply dropout to this rank's rows of the residual stream. */
void network_dropout(struct network *n, void *x, struct backend_dropout drop);

/* The heads whose attention this rank computes: their number, and the index of the first among all
 * heads of the model. */
size_t network_heads(const struct network *n, size_t *first);

/* Exchange this rank's positions of all heads, [batch][length][parts][width], for all positions of
 * some heads, [batch][seq][parts][width of these heads]; and back.  `out` may be `in`. */
void network_to_heads(struct network *n, void *out, const void *in, size_t parts);
void network_to_positions(struct network *n, void *out, const void *in, size_t parts);

#endif
