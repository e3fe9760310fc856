/* SPDX-License-Identifier: Apache-2.0 */
/* The buffers of a network: all device memory that a micro-batch needs. */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/device_group.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

/* Allocate `width` elements in each row, act_t. */
static void *take_rows(struct network *n, size_t width)
{
	return backend_take(&n->memory, n->rows * width * n->b->act_size);
}

/* Allocate rows of the residual stream. */
static void *take_own(struct network *n)
{
	return backend_take(&n->memory, n->own_rows * n->c * n->b->act_size);
}

static float *take_stats(struct network *n, size_t rows, size_t of_row)
{
	return backend_take(&n->memory, rows * of_row * sizeof(float));
}

static void take_norms(struct network *n, struct block *k)
{
	k->ln_1 = take_own(n);
	k->ln_2 = take_own(n);
}

static void take_gelu(struct network *n, struct block *k)
{
	k->pre = take_rows(n, 4 * n->width);
	k->gelu = take_rows(n, 4 * n->width);
}

static void take_inside(struct network *n, struct block *k)
{
	k->qkv = take_rows(n, 3 * n->width);
	k->heads = take_rows(n, n->width);
	k->attended = n->ranks.sequence ? take_rows(n, n->width) : k->heads;
	k->mid = take_own(n);
	k->ln_1_stats = take_stats(n, n->own_rows, 2);
	k->ln_2_stats = take_stats(n, n->own_rows, 2);
	k->attention_stats = take_stats(n, n->rows, n->model->part.n_head);
}

/* Allocate a block's activations; those in `shared` are the first block's. */
static void take_block(struct network *n, struct block *k, unsigned shared)
{
	*k = n->blocks[0];
	if (!(shared & RECOMPUTE_NORMS))
		take_norms(n, k);
	if (!(shared & RECOMPUTE_GELU))
		take_gelu(n, k);
	if (shared != RECOMPUTE_BLOCKS)
		take_inside(n, k);
	k->out = take_own(n);
}

static void take_rest(struct network *n)
{
	n->embedded = take_own(n);
	n->normed = take_own(n);
	n->ln_f_stats = take_stats(n, n->own_rows, 2);
	n->d = take_own(n);
	n->d_branch = take_rows(n, n->c);
	n->d_wide = take_rows(n, 4 * n->width);
	if (n->ranks.tensor)
		n->no_bias = backend_take(&n->memory, n->c * n->b->act_size);
	if (n->ranks.cut_residual) {
		n->all_rows = take_rows(n, n->c);
		n->d_norm = backend_take(&n->memory, 4 * n->c * sizeof(float));
	}
	for (size_t i = 0; n->ranks.sequence && i < 2; i++)
		n->exchanged[i] = take_rows(n, 3 * n->width);
}

/* Compute which rows of the batch this rank has. */
static void set_rows(struct network *n)
{
	const struct comm *const tensor = n->ranks.tensor ? n->ranks.tensor->comm : NULL;
	const struct comm *const sequence = n->ranks.sequence ? n->ranks.sequence->comm : NULL;

	assert((tensor ? tensor->size : 1) == n->model->part.size);
	if (tensor)
		n->tokens_group = device_group_of_backend(n->ranks.tensor);
	n->length = n->seq;
	if (sequence) {
		assert(n->seq % sequence->size == 0);
		assert(n->model->part.n_head % sequence->size == 0);
		n->length /= sequence->size;
		n->position = sequence->rank * n->length;
	}
	n->rows = n->own_rows = n->batch * n->length;
	if (n->ranks.cut_residual) {
		assert(tensor && n->rows % tensor->size == 0);
		n->own_rows /= tensor->size;
		n->own_first = tensor->rank * n->own_rows;
	}
}

int network_new(struct network **out, const struct gpt2 *model, struct backend *b,
		const struct network_ranks *ranks, size_t batch, size_t seq, unsigned recompute,
		struct errmsg *err)
{
	const unsigned layers = model->part.end_layer - model->part.first_layer;
	struct network *const n = calloc(1, sizeof(*n));

	if (!n)
		return errmsg_nomem(err, NULL);
	*n = (struct network){
		.model = model,
		.b = b,
		.memory = { .b = b },
		.ranks = ranks ? *ranks : (struct network_ranks){ 0 },
		.batch = batch,
		.seq = seq,
		.tokens_of_row = seq,
		.c = model->config.n_embd,
		.width = model->part.width,
		.recompute = recompute,
	};
	set_rows(n);
	n->blocks = calloc(layers, sizeof(*n->blocks));
	if (!n->blocks) {
		network_free(n);
		return errmsg_nomem(err, NULL);
	}
	for (unsigned i = 0; i < layers; i++)
		take_block(n, &n->blocks[i], i ? recompute : 0);
	take_rest(n);
	if (n->memory.lacking) {
		const uint64_t wanted = n->memory.bytes;

		network_free(n);
		return errmsg_set(err, -ENOMEM,
				  "cannot allocate %" PRIu64 " MiB of activations for a micro-batch of %zu: make it smaller%s",
				  wanted >> 20, batch,
				  recompute == RECOMPUTE_BLOCKS ? "" : ", or --recompute");
	}
	*out = n;
	return 0;
}

void network_free(struct network *n)
{
	if (!n)
		return;
	backend_give_back(&n->memory);
	free(n->blocks);
	free(n);
}

size_t network_memory(const struct network *n)
{
	return n->memory.bytes;
}
