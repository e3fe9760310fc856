/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams, events and graphs.  Operations on a stream are done when they are called,
 * unless it is captured: then they are kept with copies of their arguments, and each
 * launch of the graph does them.
 *
 * What CUDA forbids while a thread captures fails and spoils the capture, and so do
 * allocations and copies of memory that is not pinned, which CUDA would capture and we
 * do not want.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_runtime_api.h"
#include "cudaemu.h"
#include "cudaemu_impl.h"

/* Operations before others: indices into the nodes of a graph. */
struct nodes {
	size_t *v, n;
};

struct node {
	void (*run)(void *arg);
	void *arg;
	struct nodes after;
	bool done;
};

struct cudaemu_graph {
	struct node *v;
	size_t n;
	struct nodes ends; /* of the stream that the capture began with */
	cudaStream_t origin;
	enum cudaStreamCaptureMode mode;
	bool spoiled;
	bool shared; /* by what was instantiated */
};

struct cudaemu_stream {
	struct cudaemu_graph *graph; /* NULL: not captured */
	struct nodes ends;           /* what the next operation comes after */
	struct cudaemu_stream *next;
};

struct cudaemu_event {
	uint64_t number; /* of the last allocation before it */
	double at;       /* milliseconds */
	bool timed, recorded;
	struct cudaemu_graph *graph; /* NULL: not recorded in a capture */
	struct nodes ends;
};

static cudaStream_t streams;
/* Of this thread. */
static _Thread_local struct cudaemu_graph *capture;
static double now;

void cudaemu_spend(double ms)
{
	now += ms;
}

/* --- what comes before what ---------------------------------------------------- */

static bool has(const struct nodes *set, size_t node)
{
	for (size_t i = 0; i < set->n; i++)
		if (set->v[i] == node)
			return true;
	return false;
}

static void add(struct nodes *set, size_t node)
{
	if (has(set, node))
		return;
	set->v = realloc(set->v, (set->n + 1) * sizeof(*set->v));
	if (!set->v)
		abort();
	set->v[set->n++] = node;
}

static void clear(struct nodes *set)
{
	free(set->v);
	*set = (struct nodes){ 0 };
}

static void add_all(struct nodes *set, const struct nodes *more)
{
	for (size_t i = 0; i < more->n; i++)
		add(set, more->v[i]);
}

/* --- capture --------------------------------------------------------------------- */

static cudaError_t spoil(cudaError_t e, const char *call)
{
	fprintf(stderr, "cudaemu: %s during a capture: %s\n", call,
		cudaGetErrorName(e));
	if (capture)
		capture->spoiled = true;
	return cudaemu_result(e);
}

bool cudaemu_forbids(const char *call)
{
	if (!capture)
		return false;
	spoil(cudaErrorStreamCaptureUnsupported, call);
	return true;
}

bool cudaemu_record(cudaStream_t s, void (*run)(void *arg), const void *arg,
		    size_t bytes)
{
	struct cudaemu_graph *const g = s ? s->graph : NULL;
	struct node *n;

	if (!g) {
		cudaemu_traffic.calls++;
		return false;
	}
	g->v = realloc(g->v, (g->n + 1) * sizeof(*g->v));
	n = &g->v[g->n];
	*n = (struct node){ .run = run, .arg = malloc(bytes) };
	if (!g->v || !n->arg)
		abort();
	memcpy(n->arg, arg, bytes);
	add_all(&n->after, &s->ends);
	clear(&s->ends);
	add(&s->ends, g->n++);
	return true;
}

bool cudaemu_is_recorded(const struct cudaemu_stream *stream)
{
	return stream && stream->graph;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s,
				   enum cudaStreamCaptureMode mode)
{
	if (capture || s->graph)
		return spoil(cudaErrorInvalidValue, "cudaStreamBeginCapture");
	s->graph = capture = calloc(1, sizeof(*capture));
	if (!capture)
		abort();
	capture->origin = s;
	capture->mode = mode;
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
	if (!g || g != capture || g->origin != s)
		return spoil(cudaErrorStreamCaptureUnmatched,
			     "cudaStreamEndCapture");
	add_all(&g->ends, &s->ends);
	for (cudaStream_t i = streams; i; i = i->next)
		if (i->graph == g) {
			i->graph = NULL;
			clear(&i->ends);
		}
	if (!is_joined(g))
		spoil(cudaErrorStreamCaptureUnjoined, "cudaStreamEndCapture");
	capture = NULL;
	if (g->spoiled) {
		cudaGraphDestroy(g);
		return cudaemu_result(cudaErrorStreamCaptureInvalidated);
	}
	*graph = g;
	return cudaSuccess;
}

/* --- graphs ----------------------------------------------------------------------- */

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
	if (g->shared) {
		g->shared = false;
		return cudaSuccess;
	}
	for (size_t i = 0; i < g->n; i++) {
		free(g->v[i].arg);
		clear(&g->v[i].after);
	}
	clear(&g->ends);
	free(g->v);
	free(g);
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t g,
					  unsigned long long flags)
{
	if (flags || cudaemu_forbids("cudaGraphInstantiateWithFlags"))
		return cudaemu_result(cudaErrorInvalidValue);
	/* CUDAEMU_GRAPHS=none is a driver that cannot. */
	if (getenv("CUDAEMU_GRAPHS"))
		return cudaemu_result(cudaErrorMemoryAllocation);
	g->shared = true;
	*exec = (cudaGraphExec_t)g;
	return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	return cudaGraphDestroy((cudaGraph_t)exec);
}

static void run_node(struct cudaemu_graph *g, size_t i);

static void run_all(struct cudaemu_graph *g, const struct nodes *which)
{
	for (size_t i = 0; i < which->n; i++)
		run_node(g, which->v[i]);
}

static void run_node(struct cudaemu_graph *g, size_t i)
{
	struct node *const n = &g->v[i];

	if (n->done)
		return;
	n->done = true;
	run_all(g, &n->after);
	n->run(n->arg);
}

/* Each operation is done when one that waits for it is next: another order than the
 * calls had, so that a wait that is missing shows. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
	struct cudaemu_graph *const g = (struct cudaemu_graph *)exec;
	const uint64_t calls = cudaemu_traffic.calls;

	if (s->graph)
		return spoil(cudaErrorStreamCaptureUnsupported,
			     "cudaGraphLaunch");
	for (size_t i = 0; i < g->n; i++)
		g->v[i].done = false;
	run_all(g, &g->ends);
	cudaemu_traffic.calls = calls + 1;
	return cudaSuccess;
}

/* --- streams ----------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
	(void)flags;
	*stream = calloc(1, sizeof(**stream));
	if (!*stream)
		return cudaemu_result(cudaErrorMemoryAllocation);
	(*stream)->next = streams;
	streams = *stream;
	return cudaSuccess;
}

/* Lower numbers come first. */
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags,
					 int priority)
{
	if (priority > 0 || priority < -5)
		return cudaemu_result(cudaErrorInvalidValue);
	return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	cudaStream_t *at = &streams;

	while (*at && *at != stream)
		at = &(*at)->next;
	if (*at)
		*at = stream->next;
	free(stream);
	return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	if (stream->graph || cudaemu_forbids("cudaStreamSynchronize"))
		return spoil(cudaErrorStreamCaptureUnsupported,
			     "cudaStreamSynchronize");
	cudaemu_traffic.waits++;
	cudaemu_settle(UINT64_MAX);
	return cudaSuccess;
}

static cudaError_t captured(const char *call)
{
	return spoil(cudaErrorCapturedEvent, call);
}

/* A stream that waits for what is captured is captured, too. */
static void join(cudaStream_t stream, const struct cudaemu_event *event)
{
	stream->graph = event->graph;
	add_all(&stream->ends, &event->ends);
}

/* Otherwise operations are complete when they return: nothing to wait for. */
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event,
				unsigned flags)
{
	(void)flags;
	if (event->graph && event->graph != capture)
		return captured("cudaStreamWaitEvent");
	if (event->graph)
		join(stream, event);
	else if (stream->graph && event->recorded)
		return spoil(cudaErrorStreamCaptureIsolation,
			     "cudaStreamWaitEvent");
	return cudaSuccess;
}

/* --- events ------------------------------------------------------------------------ */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
	*event = calloc(1, sizeof(**event));
	if (*event)
		(*event)->timed = !(flags & cudaEventDisableTiming);
	return cudaemu_result(*event ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	clear(&event->ends);
	free(event);
	return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	event->number = cudaemu_allocated();
	event->at = now;
	event->recorded = true;
	event->graph = stream->graph;
	clear(&event->ends);
	if (event->graph)
		add_all(&event->ends, &stream->ends);
	return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t begun, cudaEvent_t ended)
{
	if (begun->graph || ended->graph)
		return captured("cudaEventElapsedTime");
	if (!begun->timed || !ended->timed)
		return cudaemu_result(cudaErrorInvalidValue);
	*ms = (float)(ended->at - begun->at);
	return cudaSuccess;
}

/* All work is done when it is queued, as a stream without much to do has done it. */
cudaError_t cudaEventQuery(cudaEvent_t event)
{
	if (event->graph)
		return captured("cudaEventQuery");
	cudaemu_settle(event->number);
	return cudaSuccess;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	if (event->graph)
		return captured("cudaEventSynchronize");
	cudaemu_traffic.waits++;
	cudaemu_settle(event->number);
	return cudaSuccess;
}
