/* SPDX-License-Identifier: Apache-2.0 */
/* Queues are CUDA streams, events are CUDA events. */
#include "gpu/cuda/cuda_ops.h"

#include <assert.h>

#include "gpu/watch/watch.h"

static cudaStream_t stream_of(const struct cuda *c, enum backend_queue q)
{
	assert(q < BACKEND_QUEUES);
	return q == QUEUE_COMPUTE ? c->stream : c->side_streams[q];
}

void cuda_queues_init(struct cuda *c)
{
	int least = 0, most = 0;

	/* Collectives need few processors.  Raise their priority: other ranks wait for them, so
	 * they must not wait for a kernel that fills the GPU. */
	CUDA_CALL(c, cudaDeviceGetStreamPriorityRange, &least, &most);
	for (unsigned q = 0; q < BACKEND_QUEUES; q++)
		if (q != QUEUE_COMPUTE)
			CUDA_CALL(c, cudaStreamCreateWithPriority, &c->side_streams[q],
				  cudaStreamNonBlocking, q == QUEUE_COMM ? most : least);
}

void cuda_queues_done(struct cuda *c)
{
	for (unsigned q = 0; q < BACKEND_QUEUES; q++)
		if (c->side_streams[q])
			cudaStreamDestroy(c->side_streams[q]);
}

/* A new thread uses the first device by default. */
void cuda_enter(struct backend *b)
{
	CUDA_CALL(cuda_of(b), cudaSetDevice, cuda_of(b)->device);
}

void *cuda_host_alloc(struct backend *b, size_t bytes)
{
	void *p = NULL;

	(void)b;
	if (cudaMallocHost(&p, bytes ? bytes : 1) != cudaSuccess) {
		cudaGetLastError();
		return NULL; /* the caller reports it */
	}
	return p;
}

void cuda_host_free(struct backend *b, void *p)
{
	CUDA_CALL(cuda_of(b), cudaFreeHost, p);
}

/* With cudaMemcpyDefault, CUDA derives the direction from the addresses. */
void cuda_copy(struct backend *b, enum backend_queue q, void *dst, const void *src, size_t bytes)
{
	struct cuda *const c = cuda_of(b);

	CUDA_CALL(c, cudaMemcpyAsync, dst, src, bytes, cudaMemcpyDefault, stream_of(c, q));
}

struct backend_event *cuda_event_new(struct backend *b)
{
	cudaEvent_t e = NULL;

	(void)b;
	if (cudaEventCreateWithFlags(&e, cudaEventDisableTiming) != cudaSuccess) {
		cudaGetLastError();
		return NULL;
	}
	return (struct backend_event *)e;
}

void cuda_event_free(struct backend *b, struct backend_event *e)
{
	CUDA_CALL(cuda_of(b), cudaEventDestroy, (cudaEvent_t)e);
}

void cuda_event_record(struct backend *b, struct backend_event *e, enum backend_queue q)
{
	struct cuda *const c = cuda_of(b);

	CUDA_CALL(c, cudaEventRecord, (cudaEvent_t)e, stream_of(c, q));
}

void cuda_event_wait(struct backend *b, struct backend_event *e)
{
	watch_begin("the computation on the GPU");
	CUDA_CALL(cuda_of(b), cudaEventSynchronize, (cudaEvent_t)e);
	watch_end();
}

void cuda_queue_wait(struct backend *b, enum backend_queue q, struct backend_event *e)
{
	struct cuda *const c = cuda_of(b);

	CUDA_CALL(c, cudaStreamWaitEvent, stream_of(c, q), (cudaEvent_t)e, 0);
}

void *cuda_native_queue(struct backend *b, enum backend_queue q)
{
	return stream_of(cuda_of(b), q);
}
