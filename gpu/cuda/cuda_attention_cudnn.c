/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention by cuDNN, where it is faster than our kernels and equivalent.  Its
 * dropout has other masks, and its backward sums have no fixed order: it is not
 * used where these matter.  `stats` has the same meaning for both, so that
 * forward and backward pass can each be computed by either.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/cuda/cuda_attention.h"
#include "gpu/nvidia/cudnn_attention.h"

/* Versions of cuDNN. Backward kernels before the first have errors because of
 * which NVIDIA's front end rejects them; before the second, callers have to
 * mask keys beyond a multiple of 128. */
#define VERSION_MIN 91100
#define VERSION_ANY_SEQ 91600

#define SEQ_MIN 64    /* too little work below */
#define WIDTH_MAX 128 /* of a head, on all devices */
#define ALIGNMENT 16
#define WORKSPACE_ALIGNMENT 256

/* The plan of a shape and direction.  Without a graph, cuDNN does not compute
 * it. */
struct attention_plan {
	struct cudnn_attention shape;
	bool back;
	struct cudnn_graph *graph;
};

struct cudnn {
	const struct cudnn_api *api;
	struct cudnn_target target;
	struct attention_plan *plans;
	size_t n;
	bool reported; /* the fallback was reported */
};

static void close_cudnn(struct cudnn *d)
{
	if (d->target.handle)
		d->api->cudnnDestroy(d->target.handle);
	d->target.handle = NULL;
	d->api = NULL;
}

static void cuda_attention_cudnn_report(struct cudnn *d, const char *why)
{
	if (!d->reported)
		fprintf(stderr,
			"uctrain: cuDNN failed, using our own attention kernels instead: %s\n",
			why);
	d->reported = true;
}

/* On failure d->api remains NULL. */
static void open_cudnn(struct cuda *c, struct cudnn *d)
{
	const struct cudnn_api *const api = cudnn_api();
	cudnnStatus_t s;

	if (!api || api->version < VERSION_MIN)
		return;
	d->api = api;
	s = api->cudnnCreate(&d->target.handle);
	if (s)
		d->target.handle = NULL;
	else
		s = api->cudnnSetStream(d->target.handle, c->stream);
	if (s) {
		cuda_attention_cudnn_report(d, api->cudnnGetErrorString(s));
		close_cudnn(d);
	}
}

/* NULL: cuDNN is unavailable. */
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
		cudnn_graph_free(d->plans[i].graph);
	close_cudnn(d);
	free(d->plans);
	free(d);
}

static bool is_aligned(const void *p)
{
	return (uintptr_t)p % ALIGNMENT == 0;
}

static bool fits(const struct cuda *c, const struct cuda_heads *a)
{
	return !c->no_cudnn && c->base.dtype != DTYPE_F32 && a->drop.p == 0 &&
	       a->width % 8 == 0 && a->width <= WIDTH_MAX &&
	       a->seq >= SEQ_MIN && is_aligned(a->qkv) && is_aligned(a->out) &&
	       is_aligned(a->stats) && is_aligned(a->dout) &&
	       is_aligned(a->dqkv);
}

static bool version_fits(const struct cudnn *d, const struct cuda_heads *a)
{
	return d->api->version >= VERSION_ANY_SEQ || a->seq % 128 == 0;
}

/* Leave this plan's shape to our kernels from now on. */
static void give_up(struct cudnn *d, struct attention_plan *w, const char *why)
{
	cuda_attention_cudnn_report(d, why);
	cudnn_graph_free(w->graph);
	w->graph = NULL;
}

static struct attention_plan *
new_plan(struct cudnn *d, const struct cudnn_attention *shape, bool back)
{
	struct attention_plan *const plans =
		realloc(d->plans, (d->n + 1) * sizeof(*plans));
	struct attention_plan *w;

	if (!plans)
		return NULL;
	d->plans = plans;
	w = &plans[d->n++];
	*w = (struct attention_plan){ .shape = *shape, .back = back };
	w->graph = back ? cudnn_attention_grad_graph(d->api, shape)
			: cudnn_attention_graph(d->api, shape);
	if (w->graph && cudnn_graph_plan(w->graph, &d->target) < 0)
		give_up(d, w, cudnn_graph_why(w->graph));
	return w;
}

/* Find or make the plan of a shape. */
static struct attention_plan *
find_plan(struct cudnn *d, const struct cudnn_attention *shape, bool back)
{
	for (size_t i = 0; i < d->n; i++) {
		const struct cudnn_attention *const s = &d->plans[i].shape;

		if (d->plans[i].back == back && s->batch == shape->batch &&
		    s->seq == shape->seq && s->heads == shape->heads &&
		    s->width == shape->width)
			return &d->plans[i];
	}
	return new_plan(d, shape, back);
}

/* NULL: our kernels have to compute it. */
static struct attention_plan *plan_for(struct cuda *c,
				       const struct cuda_heads *a, bool back)
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
	struct attention_plan *w;

	if (!d || !version_fits(d, a))
		return NULL;
	w = find_plan(d, &shape, back);
	return w && w->graph ? w : NULL;
}

/* If this fails, cuDNN has queued nothing. */
static bool cuda_attention_cudnn_run(struct cuda *c, struct attention_plan *w,
				     void *slots[], void *workspace)
{
	struct cudnn *const d = c->cudnn;
	const cudnnStatus_t s = cudnn_graph_run(w->graph, slots, workspace);

	if (s != CUDNN_STATUS_SUCCESS)
		give_up(d, w, d->api->cudnnGetErrorString(s));
	return s == CUDNN_STATUS_SUCCESS;
}

/* Third `i` of a buffer with rows of queries, keys and values. */
static void *third(const struct cuda *c, const void *qkv,
		   const struct cuda_heads *a, size_t i)
{
	return (char *)qkv + i * a->heads * a->width * c->base.act_size;
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
	struct attention_plan *const w = plan_for(c, a, false);
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
			return true; /* reported by sync */
	}
	set_slots(c, a, &scale, slots);
	return cuda_attention_cudnn_run(c, w, slots, workspace);
}

static size_t aligned(size_t bytes)
{
	return (bytes + WORKSPACE_ALIGNMENT - 1) / WORKSPACE_ALIGNMENT *
	       WORKSPACE_ALIGNMENT;
}

bool cuda_attention_cudnn_grad(struct cuda *c, const struct cuda_heads *a)
{
	struct attention_plan *const w =
		c->deterministic ? NULL : plan_for(c, a, true);
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
		return true; /* reported by sync */
	set_slots(c, a, &scale, slots);
	slots[ATTENTION_DOUT] = (void *)a->dout;
	slots[ATTENTION_DQ] = third(c, a->dqkv, a, 0);
	slots[ATTENTION_DK] = third(c, a->dqkv, a, 1);
	slots[ATTENTION_DV] = third(c, a->dqkv, a, 2);
	slots[ATTENTION_ONE] = &one;
	slots[ATTENTION_DELTA] = scratch;
	slots[ATTENTION_DQ_SUM] = scratch + delta;
	return cuda_attention_cudnn_run(c, w, slots, scratch + delta + sums);
}
