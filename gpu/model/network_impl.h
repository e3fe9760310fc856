/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_IMPL_H
#define UCTRAIN_NETWORK_IMPL_H

/* For network*.c alone: what a network keeps of a micro-batch. */
#include <stdbool.h>

#include "gpu/model/network.h"

/* Activations of a block: lp buffers of rows * n_embd elements, or as many
 * times that as the comment says; float ones as backend.h has them. */
struct block {
	void *ln_1, *qkv /* 3 */, *heads, *mid, *ln_2, *pre /* 4 */;
	void *gelu /* 4 */, *out;
	float *ln_1_stats, *attention_stats, *ln_2_stats;
};

struct network {
	const struct gpt2 *model;
	struct backend *b;
	size_t batch, seq, rows, c;
	/* What is in a block is made again on the way back: all blocks have one
	 * place for it, and only `out` is each one's own. */
	bool recompute;
	struct block *blocks;
	void *embedded, *normed;
	float *ln_f_stats;
	/* Gradients: of the residual stream, of one branch, of the widest. */
	void *d, *d_branch, *d_wide;
	int32_t *tokens, *targets; /* on the device */
	int32_t *shifted;          /* on the host, to make `targets` of */
	double *loss;              /* on the device */
	size_t memory;
	/* What was allocated, so that one loop frees it. */
	void **buffers;
	size_t nbuffers;
};

#endif
