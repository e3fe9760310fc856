/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures and graphs.  Operations on a captured stream are kept with copies of their arguments;
 * each launch of the graph runs them.
 *
 * Calls that CUDA forbids during a capture fail and invalidate it.  So do allocations and copies of
 * unpinned memory: CUDA would capture them, but we do not want that.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "cudaemu.h"
#include "cudaemu_impl.h"

struct node {
	void (*run)(void *arg);
	void *arg;
	struct nodes after;
	bool done;
};

struct cudaemu_graph {
	struct node *v;
	size_t n;
	struct nodes ends; /* last operations of the stream that the capture began with */
	cudaStream_t origin;
	enum cudaStreamCaptureMode mode;
	bool spoiled;
	bool shared; /* whether an instantiated graph also owns it */
};

_Thread_local struct cudaemu_graph *cudaemu_capture;

static bool has(const struct nodes *set, size_t node)
{
	for (size_t i = 0; i < set->n; i++)
		if (set->v[i] == node)
			return true;
	return false;
}

void nodes_add(struct nodes *set, size_t node)
{
	if (has(set, node))
		return;
	set->v = realloc(set->v, (set->n + 1) * sizeof(*set->v));
	if (!set->v)
		abort();
	set->v[set->n++] = node;
}

void nodes_clear(struct nodes *set)
{
	free(set->v);
	*set = (struct nodes){ 0 };
}

void nodes_add_all(struct nodes *set, const struct nodes *more)
{
	for (size_t i = 0; i < more->n; i++)
		nodes_add(set, more->v[i]);
}

cudaError_t cudaemu_spoil(cudaError_t e, const char *call)
{
	fprintf(stderr, "cudaemu: %s during a capture: %s\n", call, cudaGetErrorName(e));
	if (cudaemu_capture)
		cudaemu_capture->spoiled = true;
	return cudaemu_result(e);
}

bool cudaemu_forbids(const char *call)
{
	if (!cudaemu_capture)
		return false;
	cudaemu_spoil(cudaErrorStreamCaptureUnsupported, call);
	return true;
}

void cudaemu_capture_operation(cudaStream_t s, void (*run)(void *arg), const void *arg,
			       size_t bytes)
{
	struct cudaemu_graph *const g = s->graph;
	struct node *n;

	g->v = realloc(g->v, (g->n + 1) * sizeof(*g->v));
	n = &g->v[g->n];
	*n = (struct node){ .run = run, .arg = malloc(bytes) };
	if (!g->v || !n->arg)
		abort();
	memcpy(n->arg, arg, bytes);
	nodes_add_all(&n->after, &s->ends);
	nodes_clear(&s->ends);
	nodes_add(&s->ends, g->n++);
}

bool cudaemu_is_recorded(const struct cudaemu_stream *stream)
{
	return stream && stream->graph;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
	if (cudaemu_capture || s->graph)
		return cudaemu_spoil(cudaErrorInvalidValue, "cudaStreamBeginCapture");
	s->graph = cudaemu_capture = calloc(1, sizeof(*cudaemu_capture));
	if (!cudaemu_capture)
		abort();
	cudaemu_capture->origin = s;
	cudaemu_capture->mode = mode;
	return cudaSuccess;
}

static void mark(struct cudaemu_graph *g, const struct nodes *which)
{
	for (size_t i = 0; i < which->n; i++) {
		struct node *const n = &g->v[which->v[i]];

		if (n->done)
			continue;
		n->done = true;
		mark(g, &n->after);
	}
}

/* Does the origin's end come after all operations? */
static bool is_joined(struct cudaemu_graph *g)
{
	bool all = true;

	mark(g, &g->ends);
	for (size_t i = 0; i < g->n; i++) {
		all = all && g->v[i].done;
		g->v[i].done = false;
	}
	return all;
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
	struct cudaemu_graph *const g = s->graph;

	*graph = NULL;
	if (!g || g != cudaemu_capture || g->origin != s)
		return cudaemu_spoil(cudaErrorStreamCaptureUnmatched, "cudaStreamEndCapture");
	nodes_add_all(&g->ends, &s->ends);
	for (cudaStream_t i = cudaemu_streams; i; i = i->next)
		if (i->graph == g) {
			i->graph = NULL;
			nodes_clear(&i->ends);
		}
	if (!is_joined(g))
		cudaemu_spoil(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture");
	cudaemu_capture = NULL;
	if (g->spoiled) {
		cudaGraphDestroy(g);
		return cudaemu_result(cudaErrorStreamCaptureInvalidated);
	}
	*graph = g;
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	if (g->shared) {
		g->shared = false;
		return cudaSuccess;
	}
	for (size_t i = 0; i < g->n; i++) {
		free(g->v[i].arg);
		nodes_clear(&g->v[i].after);
	}
	nodes_clear(&g->ends);
	free(g->v);
	free(g);
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g,
					  unsigned long long flags)
{
	if (flags || cudaemu_forbids("cudaGraphInstantiateWithFlags"))
		return cudaemu_result(cudaErrorInvalidValue);
	/* CUDAEMU_GRAPHS=none emulates a driver without graphs. */
	if (getenv("CUDAEMU_GRAPHS"))
		return cudaemu_result(cudaErrorMemoryAllocation);
	g->shared = true;
	*exec = (cudaGraphExec_t)g;
	return cudaSuccess;
}

/* Queued operations may still use it. */
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	cudaemu_finish();
	return cudaGraphDestroy((cudaGraph_t)exec);
}

static void run_node(struct cudaemu_graph *g, size_t i)
{
	struct node *const n = &g->v[i];

	if (n->done)
		return;
	n->done = true;
	for (size_t k = 0; k < n->after.n; k++)
		run_node(g, n->after.v[k]);
	n->run(n->arg);
}

/* Run all operations, in a random order that their waits allow. */
static void run_graph(void *arg)
{
	struct cudaemu_graph *const g = *(struct cudaemu_graph **)arg;
	size_t *const order = malloc((g->n + 1) * sizeof(*order));

	if (!order)
		abort();
	for (size_t i = 0; i < g->n; i++) {
		const size_t k = cudaemu_random(i + 1);

		g->v[i].done = false;
		order[i] = order[k];
		order[k] = i;
	}
	for (size_t i = 0; i < g->n; i++)
		run_node(g, order[i]);
	free(order);
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	if (s->graph)
		return cudaemu_spoil(cudaErrorStreamCaptureUnsupported, "cudaGraphLaunch");
	cudaemu_queue(s, run_graph, &exec, sizeof(exec));
	return cudaSuccess;
}
