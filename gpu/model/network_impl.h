/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NETWORK_IMPL_H
#define UCTRAIN_NETWORK_IMPL_H

/* Private to network*.c: the buffers of a network. */
#include <stdbool.h>

#include "gpu/model/network.h"

/* Activations of a block: act_t buffers of rows * n_embd elements, or of the
 * multiple in the comment; of these ranks of a group have their parts.  float
 * buffers have the shapes of backend.h. */
struct block {
	void *ln_1, *qkv /* 3 */, *heads /* 1 */, *mid, *ln_2, *pre /* 4 */;
	void *gelu /* 4 */, *out;
	float *ln_1_stats, *attention_stats, *ln_2_stats;
};

struct network {
	const struct gpt2 *model;
	struct backend *b;
	const struct backend_group *group; /* NULL: this rank alone */
	size_t batch, seq, rows, c;
	size_t tokens_of_row; /* seq, or one more: the last target */
	size_t width; /* of this rank's heads; c, if it has all */
	/* With recomputation all blocks share one set of activations; only
	 * `out` is per block. */
	bool recompute;
	struct block *blocks;
	void *embedded, *normed;
	float *ln_f_stats;
	/* Gradients of the residual stream, of one branch, and of the widest
	 * activation. */
	void *d, *d_branch, *d_wide;
	int32_t *tokens, *targets; /* on the device */
	int32_t *shifted;          /* on the host; source of both */
	void *no_bias;             /* zeros, of the width; ranks of a group */
	double *loss;              /* on the device */
	size_t memory;
	/* All allocations, to be freed by one loop. */
	void **buffers;
	size_t nbuffers;
};

#endif
