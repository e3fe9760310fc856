/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges between ranks that compute the same rows.
 *
 * Tensor-parallel ranks sum the outputs of projections into the residual stream.  If they split the
 * stream, each gets its rows of the sum, and gathers all rows of a norm at the start of a branch
 * (Korthikanti et al.: Reducing Activation Recomputation, 2022); reduce-scatter and gather together
 * move as many bytes as an all-reduce.
 *
 * Sequence-parallel ranks have some positions of every activation, except in attention, where they
 * have all positions of some heads (Jacobs et al.: DeepSpeed Ulysses, 2023).
 */
#include <assert.h>

#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/device_group.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/network_impl.h"

const void *network_all_rows(struct network *n, const void *own)
{
	struct device_group *const g = n->ranks.tensor;
	const size_t bytes = n->own_rows * n->c * n->b->act_size;

	if (!n->ranks.cut_residual)
		return own;
	device_group_all_gather(g, own, device_group_equal(g, bytes), n->all_rows);
	device_group_wait(g);
	return n->all_rows;
}

void *network_summand(struct network *n, void *out)
{
	return n->ranks.cut_residual ? n->d_branch : out;
}

static void begin_sum(struct network *n, void *out)
{
	struct device_group *const g = n->ranks.tensor;
	const size_t len = n->own_rows * n->c;
	/* Host buffers of act_t hold floats, rounded to the model's type. */
	const enum dtype dtype = n->b->on_host ? DTYPE_F32 : n->b->dtype;

	if (!g)
		return;
	if (n->ranks.cut_residual)
		device_group_reduce_scatter(g, n->d_branch, device_group_equal(g, len), dtype, out);
	else
		device_group_sum(g, out, len, dtype);
	if (n->b->on_host)
		n->b->ops->round(n->b, out, out, len);
}

void network_sum_wait(struct network *n)
{
	if (n->ranks.tensor)
		device_group_wait(n->ranks.tensor);
}

void network_sum(struct network *n, void *out)
{
	begin_sum(n, out);
	network_sum_wait(n);
}

const void *network_sum_branch(struct network *n)
{
	/* The last norm's output is no longer needed: reuse its buffer. */
	void *const sum = n->ranks.cut_residual ? n->normed : n->d_branch;

	begin_sum(n, sum);
	return sum;
}

void network_norm_grad(struct network *n, float *dweight, float *dbias, float *dold, float *dnew,
		       const void *dout, const void *in, const float *stats, const void *weight,
		       bool fresh)
{
	const struct backend_ops *const o = n->b->ops;
	float *const to[] = { dweight, dbias, dold, dnew };
	const size_t sums = dold ? 4 : 2;
	float *const from = n->d_norm;

	assert(!dold == !dnew);
	if (!n->ranks.cut_residual) {
		o->norm_grad(n->b, n->d, dweight, dbias, dold, dnew, dout, in, stats, weight,
			     n->own_rows, n->c, fresh);
		return;
	}
	o->norm_grad(n->b, n->d, from, from + n->c, dold ? from + 2 * n->c : NULL,
		     dnew ? from + 3 * n->c : NULL, dout, in, stats, weight, n->own_rows, n->c,
		     true);
	device_group_sum(n->ranks.tensor, from, sums * n->c, DTYPE_F32);
	network_sum_wait(n);
	for (size_t i = 0; i < sums; i++) {
		if (fresh)
			o->zero(n->b, to[i], n->c * sizeof(*from));
		o->accumulate(n->b, to[i], from + i * n->c, n->c);
	}
}

/* Masks are the same as if one rank had all rows: a run ends with this rank's positions of a row of
 * the batch. */
void network_dropout(struct network *n, void *x, struct backend_dropout drop)
{
	const bool whole = n->length == n->seq;
	size_t run;

	for (size_t row = 0; row < n->own_rows; row += run) {
		const size_t at = n->own_first + row, within = at % n->length;
		const size_t left = n->own_rows - row;
		const size_t first = at / n->length * n->seq + n->position + within;

		run = whole || n->length - within > left ? left : n->length - within;
		n->b->ops->dropout(n->b, (char *)x + row * n->c * n->b->act_size, run * n->c,
				   first * n->c, drop);
	}
}

size_t network_heads(const struct network *n, size_t *first)
{
	const struct gpt2_part *const part = &n->model->part;
	/* The heads are split among the ranks like the positions of a row. */
	const size_t heads = part->n_head / (n->seq / n->length);

	*first = (size_t)part->rank * part->n_head + n->position / n->length * heads;
	return heads;
}

/* exchanged[1] = every rank's data for this rank from exchanged[0]. */
static void exchange(struct network *n, size_t width)
{
	struct device_group *const g = n->ranks.sequence;

	device_group_all_to_all(g, n->exchanged[0], n->exchanged[1],
				n->rows * width * n->b->act_size);
	device_group_wait(g);
}

void network_to_heads(struct network *n, void *out, const void *in, size_t parts)
{
	const struct backend_ops *const o = n->b->ops;
	const size_t ranks = n->seq / n->length, width = n->width / ranks;

	o->transpose(n->b, n->exchanged[0], in, n->rows * parts, ranks, width);
	exchange(n, parts * width);
	o->transpose(n->b, out, n->exchanged[1], ranks, n->batch, n->length * parts * width);
}

void network_to_positions(struct network *n, void *out, const void *in, size_t parts)
{
	const struct backend_ops *const o = n->b->ops;
	const size_t ranks = n->seq / n->length, width = n->width / ranks;

	o->transpose(n->b, n->exchanged[0], in, n->batch, ranks, n->length * parts * width);
	exchange(n, parts * width);
	o->transpose(n->b, out, n->exchanged[1], ranks, n->rows * parts, width);
}
