/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuDNN recognises flash attention by the graph of its operations: it has
 * kernels for exactly these operations, in this order, with these intermediate
 * types (see NVIDIA's documentation of "Fused Attention").  Keys are passed
 * transposed, in the backward pass also values.
 */
#include "gpu/nvidia/cudnn_attention.h"

/* A graph under construction, and the shapes of its tensors. */
struct build {
	struct cudnn_graph *g;
	cudnnDataType_t type;
	struct cudnn_shape in;     /* q, k, v in qkv */
	struct cudnn_shape out;    /* out, dout */
	struct cudnn_shape heads;  /* [batch][heads][seq][width] */
	struct cudnn_shape scores; /* [batch][heads][queries][keys] */
	struct cudnn_shape row;    /* one element per row of scores */
	cudnn_tensor scale, minus_infinity;
};

static void cudnn_attention_begin(struct build *b, const struct cudnn_api *api,
				  const struct cudnn_attention *a)
{
	const int64_t c = a->heads * a->width;

	b->g = cudnn_graph_new(api);
	b->type = a->type;
	b->in = (struct cudnn_shape){
		.dims = { a->batch, a->heads, a->seq, a->width },
		.strides = { a->seq * 3 * c, a->width, 3 * c, 1 },
	};
	b->out = (struct cudnn_shape){
		.dims = { a->batch, a->heads, a->seq, a->width },
		.strides = { a->seq * c, a->width, c, 1 },
	};
	b->heads = cudnn_packed(a->batch, a->heads, a->seq, a->width);
	b->scores = cudnn_packed(a->batch, a->heads, a->seq, a->seq);
	b->row = cudnn_packed(a->batch, a->heads, a->seq, 1);
	if (!b->g)
		return;
	b->scale = cudnn_graph_number(b->g, ATTENTION_SCALE);
	b->minus_infinity = cudnn_graph_number(b->g, ATTENTION_MINUS_INFINITY);
}

static cudnn_tensor act(struct build *b, unsigned slot, struct cudnn_shape s)
{
	return cudnn_graph_memory(b->g, slot, b->type, s);
}

static cudnn_tensor floats(struct build *b, unsigned slot, struct cudnn_shape s)
{
	return cudnn_graph_memory(b->g, slot, CUDNN_DATA_FLOAT, s);
}

/* mode(x, y), in the shape `s`. */
static cudnn_tensor cudnn_attention_each(struct build *b, struct cudnn_shape s,
					 cudnnPointwiseMode_t mode,
					 cudnn_tensor x, cudnn_tensor y)
{
	const cudnn_tensor t = cudnn_graph_between(b->g, CUDNN_DATA_FLOAT, s);

	cudnn_graph_each(b->g, mode, t, x, y);
	return t;
}

static cudnn_tensor cudnn_attention_reduce(struct build *b,
					   cudnnReduceTensorOp_t op,
					   cudnn_tensor x)
{
	const cudnn_tensor t =
		cudnn_graph_between(b->g, CUDNN_DATA_FLOAT, b->row);

	cudnn_graph_reduce(b->g, op, t, x);
	return t;
}

static cudnn_tensor score(struct build *b, cudnn_tensor rows,
			  cudnn_tensor columns)
{
	const cudnn_tensor t =
		cudnn_graph_between(b->g, CUDNN_DATA_FLOAT, b->scores);

	cudnn_graph_multiply(b->g, t, rows, columns);
	return t;
}

/* Causal mask: queries do not see later keys. */
static cudnn_tensor mask(struct build *b, cudnn_tensor x)
{
	const cudnn_tensor row =
		cudnn_graph_between(b->g, CUDNN_DATA_INT32, b->scores);
	const cudnn_tensor column =
		cudnn_graph_between(b->g, CUDNN_DATA_INT32, b->scores);
	const cudnn_tensor seen =
		cudnn_graph_between(b->g, CUDNN_DATA_BOOLEAN, b->scores);
	const cudnn_tensor masked =
		cudnn_graph_between(b->g, CUDNN_DATA_FLOAT, b->scores);

	cudnn_graph_index(b->g, row, x, 2);
	cudnn_graph_index(b->g, column, x, 3);
	cudnn_graph_each(b->g, CUDNN_POINTWISE_CMP_GE, seen, row, column);
	cudnn_graph_select(b->g, masked, x, b->minus_infinity, seen);
	return masked;
}

struct cudnn_graph *cudnn_attention_graph(const struct cudnn_api *api,
					  const struct cudnn_attention *a)
{
	struct build b;
	cudnn_tensor x, top, sum, stats, weights, v;

	cudnn_attention_begin(&b, api, a);
	if (!b.g)
		return NULL;
	x = score(&b, act(&b, ATTENTION_Q, b.in),
		  act(&b, ATTENTION_K, cudnn_transposed(b.in)));
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_MUL, x, b.scale);
	x = mask(&b, x);
	top = cudnn_attention_reduce(&b, CUDNN_REDUCE_TENSOR_MAX, x);
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_SUB, x, top);
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_EXP, x, NULL);
	sum = cudnn_attention_reduce(&b, CUDNN_REDUCE_TENSOR_ADD, x);
	stats = floats(&b, ATTENTION_STATS, b.row);
	cudnn_graph_each(b.g, CUDNN_POINTWISE_ADD, stats, top,
			 cudnn_attention_each(&b, b.row, CUDNN_POINTWISE_LOG,
					      sum, NULL));
	weights = cudnn_graph_between(b.g, b.type, b.scores);
	cudnn_graph_each(b.g, CUDNN_POINTWISE_DIV, weights, x, sum);
	v = act(&b, ATTENTION_V, b.in);
	cudnn_graph_multiply(b.g, act(&b, ATTENTION_OUT, b.out), weights, v);
	return b.g;
}

/* The dot product of out and dout for each query. */
static cudnn_tensor delta(struct build *b, cudnn_tensor out, cudnn_tensor dout)
{
	const cudnn_tensor sum = cudnn_attention_reduce(
		b, CUDNN_REDUCE_TENSOR_ADD,
		cudnn_attention_each(b, b->heads, CUDNN_POINTWISE_MUL, dout,
				     out));
	const cudnn_tensor t = floats(b, ATTENTION_DELTA, b->row);

	cudnn_graph_each(b->g, CUDNN_POINTWISE_MUL, t, sum,
			 cudnn_graph_number(b->g, ATTENTION_ONE));
	return t;
}

/* Transpose scores, to be the left factor of a product by key. */
static cudnn_tensor by_key(struct build *b, cudnn_tensor x)
{
	const cudnn_tensor t =
		cudnn_graph_between(b->g, b->type, cudnn_transposed(b->scores));

	cudnn_graph_reshape(b->g, t, x);
	return t;
}

/* dq = ds * k, summed in memory. */
static void grad_of_queries(struct build *b, cudnn_tensor ds, cudnn_tensor k)
{
	const cudnn_tensor by_rows = cudnn_graph_between(b->g, b->type, b->in);
	const cudnn_tensor sum = floats(b, ATTENTION_DQ_SUM, b->heads);

	cudnn_graph_reshape(b->g, by_rows, k);
	cudnn_graph_multiply(b->g, sum, ds, by_rows);
	cudnn_graph_each(b->g, CUDNN_POINTWISE_IDENTITY,
			 act(b, ATTENTION_DQ, b->in), sum, NULL);
}

struct cudnn_graph *cudnn_attention_grad_graph(const struct cudnn_api *api,
					       const struct cudnn_attention *a)
{
	struct build b;
	cudnn_tensor q, k, dout, sums, weights, x;

	cudnn_attention_begin(&b, api, a);
	if (!b.g)
		return NULL;
	q = act(&b, ATTENTION_Q, b.in);
	k = act(&b, ATTENTION_K, cudnn_transposed(b.in));
	dout = act(&b, ATTENTION_DOUT, b.out);
	sums = delta(&b, act(&b, ATTENTION_OUT, b.out), dout);

	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_MUL,
				 score(&b, q, k), b.scale);
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_SUB, x,
				 floats(&b, ATTENTION_STATS, b.row));
	weights = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_EXP,
				       mask(&b, x), NULL);
	cudnn_graph_multiply(b.g, act(&b, ATTENTION_DV, b.in),
			     by_key(&b, weights), dout);

	x = score(&b, dout, act(&b, ATTENTION_V, cudnn_transposed(b.in)));
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_SUB, x, sums);
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_MUL, x, weights);
	x = cudnn_attention_each(&b, b.scores, CUDNN_POINTWISE_MUL, x, b.scale);
	cudnn_graph_multiply(b.g, act(&b, ATTENTION_DK, b.in), by_key(&b, x), q);
	grad_of_queries(&b, x, k);
	return b.g;
}
