/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by cuDNN, where it is quicker than our kernels and means the same:
 * its dropout has other patterns than ours, and its sums on the way back come
 * in any order, so that neither is asked for where that matters.  Its `stats`
 * are ours: forwards and back are each by who can.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda/cuda_attention.h"
#include "gpu/nvidia/cudnn_attention.h"

/* Of cuDNN: before the first, backward kernels had errors that NVIDIA's front
 * end refuses them for; before the second, keys beyond a multiple of 128 had to
 * be masked by whoever calls. */
#define VERSION_MIN 91100
#define VERSION_ANY_SEQ 91600

#define SEQ_MIN 64    /* fewer positions are no work */
#define WIDTH_MAX 128 /* of a head, on all devices */
#define ALIGNMENT 16
#define WORKSPACE_ALIGNMENT 256

/* What is done in one way; without a graph, not by cuDNN. */
struct way {
	struct cudnn_attention shape;
	bool back;
	struct cudnn_graph *graph;
};

struct cudnn {
	const struct cudnn_api *api;
	struct cudnn_target target;
	struct way *ways;
	size_t n;
	bool told; /* that it failed */
};

/* --- beginning and end ------------------------------------------------------ */

static void close_cudnn(struct cudnn *d)
{
	if (d->target.handle)
		d->api->destroy(d->target.handle);
	d->target.handle = NULL;
	d->api = NULL;
}

static void tell(struct cudnn *d, const char *why)
{
	if (!d->told)
		fprintf(stderr,
			"uctrain: attention is by our own kernels where cuDNN "
			"failed: %s\n",
			why);
	d->told = true;
}

/* Without an api, it cannot be used. */
static void open_cudnn(struct cuda *c, struct cudnn *d)
{
	const struct cudnn_api *const api = cudnn_api();
	cudnnStatus_t s;

	if (!api || api->version < VERSION_MIN)
		return;
	d->api = api;
	s = api->create(&d->target.handle);
	if (s)
		d->target.handle = NULL;
	else
		s = api->set_stream(d->target.handle, c->stream);
	if (s) {
		tell(d, api->get_error_string(s));
		close_cudnn(d);
	}
}

/* NULL: it cannot be used. */
static struct cudnn *cudnn_of(struct cuda *c)
{
	if (!c->cudnn) {
		c->cudnn = calloc(1, sizeof(*c->cudnn));
		if (c->cudnn)
			open_cudnn(c, c->cudnn);
	}
	return c->cudnn && c->cudnn->api ? c->cudnn : NULL;
}

void cuda_attention_cudnn_done(struct cuda *c)
{
	struct cudnn *const d = c->cudnn;

	if (!d)
		return;
	for (size_t i = 0; i < d->n; i++)
		cudnn_graph_free(d->ways[i].graph);
	close_cudnn(d);
	free(d->ways);
	free(d);
}

/* --- which way -------------------------------------------------------------- */

static bool is_aligned(const void *p)
{
	return (uintptr_t)p % ALIGNMENT == 0;
}

static bool fits(const struct cuda *c, const struct cuda_heads *a)
{
	return !c->no_cudnn && c->base.dtype != DTYPE_F32 && a->drop == 0 &&
	       a->width % 8 == 0 && a->width <= WIDTH_MAX &&
	       a->seq >= SEQ_MIN && is_aligned(a->qkv) && is_aligned(a->out) &&
	       is_aligned(a->stats) && is_aligned(a->dout) &&
	       is_aligned(a->dqkv);
}

static bool version_fits(const struct cudnn *d, const struct cuda_heads *a)
{
	return d->api->version >= VERSION_ANY_SEQ || a->seq % 128 == 0;
}

/* From now on this is for our kernels. */
static void give_up(struct cudnn *d, struct way *w, const char *why)
{
	tell(d, why);
	cudnn_graph_free(w->graph);
	w->graph = NULL;
}

static struct way *new_way(struct cudnn *d, const struct cudnn_attention *shape,
			   bool back)
{
	struct way *const ways = realloc(d->ways, (d->n + 1) * sizeof(*ways));
	struct way *w;

	if (!ways)
		return NULL;
	d->ways = ways;
	w = &ways[d->n++];
	*w = (struct way){ .shape = *shape, .back = back };
	w->graph = back ? cudnn_attention_grad_graph(d->api, shape)
			: cudnn_attention_graph(d->api, shape);
	if (w->graph && cudnn_graph_plan(w->graph, &d->target) < 0)
		give_up(d, w, cudnn_graph_why(w->graph));
	return w;
}

/* The way of a shape, or NULL: not by cuDNN. */
static struct way *find_way(struct cudnn *d,
			    const struct cudnn_attention *shape, bool back)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct cudnn_attention *const s = &d->ways[i].shape;

		if (d->ways[i].back == back && s->batch == shape->batch &&
		    s->seq == shape->seq && s->heads == shape->heads &&
		    s->width == shape->width)
			return &d->ways[i];
	}
	return new_way(d, shape, back);
}

/* NULL: not by cuDNN. */
static struct way *way_for(struct cuda *c, const struct cuda_heads *a, bool back)
{
	const struct cudnn_attention shape = {
		.type = c->base.dtype == DTYPE_BF16 ? CUDNN_DATA_BFLOAT16
						    : CUDNN_DATA_HALF,
		.batch = (int64_t)a->batch,
		.seq = (int64_t)a->seq,
		.heads = (int64_t)a->heads,
		.width = (int64_t)a->width,
	};
	struct cudnn *const d = fits(c, a) ? cudnn_of(c) : NULL;
	struct way *w;

	if (!d || !version_fits(d, a))
		return NULL;
	w = find_way(d, &shape, back);
	return w && w->graph ? w : NULL;
}

/* --- operations ------------------------------------------------------------- */

/* When cuDNN fails it has queued nothing. */
static bool run(struct cuda *c, struct way *w, void *slots[], void *workspace)
{
	struct cudnn *const d = c->cudnn;
	const cudnnStatus_t s = cudnn_graph_run(w->graph, slots, workspace);

	if (s != CUDNN_STATUS_SUCCESS)
		give_up(d, w, d->api->get_error_string(s));
	return s == CUDNN_STATUS_SUCCESS;
}

/* Third `i` of what has rows of queries, keys and values. */
static void *third(const struct cuda *c, const void *qkv,
		   const struct cuda_heads *a, size_t i)
{
	return (char *)qkv + i * a->heads * a->width * c->base.lp_size;
}

static float minus_infinity = -INFINITY, one = 1;

static void set_slots(const struct cuda *c, const struct cuda_heads *a,
		      float *scale, void *slots[])
{
	slots[ATTENTION_Q] = third(c, a->qkv, a, 0);
	slots[ATTENTION_K] = third(c, a->qkv, a, 1);
	slots[ATTENTION_V] = third(c, a->qkv, a, 2);
	slots[ATTENTION_OUT] = a->out;
	slots[ATTENTION_STATS] = a->stats;
	slots[ATTENTION_SCALE] = scale;
	slots[ATTENTION_MINUS_INFINITY] = &minus_infinity;
}

bool cuda_attention_cudnn(struct cuda *c, const struct cuda_heads *a)
{
	struct way *const w = way_for(c, a, false);
	void *slots[ATTENTION_SLOTS];
	float scale = a->scale;
	void *workspace = NULL;
	size_t bytes;

	if (!w)
		return false;
	bytes = cudnn_graph_workspace(w->graph);
	if (bytes) {
		workspace = cuda_scratch(c, bytes);
		if (!workspace)
			return true; /* sync tells */
	}
	set_slots(c, a, &scale, slots);
	return run(c, w, slots, workspace);
}

static size_t aligned(size_t bytes)
{
	return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT *
	       WORKSPACE_ALIGNMENT;
}

bool cuda_attention_cudnn_grad(struct cuda *c, const struct cuda_heads *a)
{
	struct way *const w = c->repeatable ? NULL : way_for(c, a, true);
	const size_t rows = a->batch * a->heads * a->seq;
	const size_t delta = aligned(rows * sizeof(float));
	const size_t sums = aligned(rows * a->width * sizeof(float));
	void *slots[ATTENTION_GRAD_SLOTS];
	float scale = a->scale;
	char *scratch;

	if (!w)
		return false;
	scratch =
		cuda_scratch(c, delta + sums + cudnn_graph_workspace(w->graph));
	if (!scratch)
		return true; /* sync tells */
	set_slots(c, a, &scale, slots);
	slots[ATTENTION_DOUT] = (void *)a->dout;
	slots[ATTENTION_DQ] = third(c, a->dqkv, a, 0);
	slots[ATTENTION_DK] = third(c, a->dqkv, a, 1);
	slots[ATTENTION_DV] = third(c, a->dqkv, a, 2);
	slots[ATTENTION_ONE] = &one;
	slots[ATTENTION_DELTA] = scratch;
	slots[ATTENTION_DQ_SUM] = scratch + delta;
	return run(c, w, slots, scratch + delta + sums);
}
