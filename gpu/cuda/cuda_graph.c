/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Record queued operations as a CUDA graph, by capturing the computation's stream and the streams
 * that wait for its events.  The capture restricts only this thread's calls: threads that save or
 * watch go on.
 */
#include "gpu/cuda/cuda_ops.h"

#include <assert.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/watch/watch.h"

struct backend_graph {
	cudaGraphExec_t exec;
	void *scratch; /* owned; used by the graph's kernels */
};

int cuda_record_begin(struct backend *b, struct errmsg *err)
{
	struct cuda *const c = cuda_of(b);

	assert(!b->recording && !c->recorded_scratch);
	b->recording =
		CUDA_CALL(c, cudaStreamBeginCapture, c->stream, cudaStreamCaptureModeThreadLocal);
	return cuda_failure(c, err);
}

static void end_capture(struct cuda *c, cudaGraphExec_t *exec)
{
	cudaGraph_t graph = NULL;

	c->base.recording = false;
	if (!CUDA_CALL(c, cudaStreamEndCapture, c->stream, &graph))
		return;
	if (!c->failed)
		CUDA_CALL(c, cudaGraphInstantiateWithFlags, exec, graph, 0);
	CUDA_CALL(c, cudaGraphDestroy, graph);
}

int cuda_record_end(struct backend *b, struct backend_graph **out, struct errmsg *err)
{
	struct cuda *const c = cuda_of(b);
	struct backend_graph *const g = calloc(1, sizeof(*g));
	cudaGraphExec_t exec = NULL;
	int rc;

	assert(b->recording);
	end_capture(c, &exec);
	rc = cuda_failure(c, err);
	if (!rc && !g)
		rc = errmsg_nomem(err, NULL);
	if (rc) {
		if (exec)
			cudaGraphExecDestroy(exec);
		free(g);
		return rc;
	}
	g->exec = exec;
	g->scratch = c->recorded_scratch = c->scratch;
	*out = g;
	return 0;
}

void cuda_replay(struct backend *b, const struct backend_graph *g)
{
	struct cuda *const c = cuda_of(b);

	/* The launch of a large graph may block. */
	watch_begin("a step that is replayed");
	CUDA_CALL(c, cudaGraphLaunch, g->exec, c->stream);
	watch_end();
}

void cuda_graph_free(struct backend *b, struct backend_graph *g)
{
	struct cuda *const c = cuda_of(b);

	if (!g)
		return;
	CUDA_CALL(c, cudaGraphExecDestroy, g->exec);
	if (g->scratch && g->scratch != c->scratch)
		CUDA_CALL(c, cudaFreeAsync, g->scratch, c->stream);
	c->recorded_scratch = NULL;
	free(g);
}
