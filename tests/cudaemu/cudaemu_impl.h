/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_IMPL_H
#define CUDAEMU_IMPL_H

/* Shared by the files of the emulated runtime. */
#include <stdbool.h>
#include <stddef.h>

#include "cuda_runtime_api.h"

/* Remember an error for cudaGetLastError, and return it. */
cudaError_t cudaemu_result(cudaError_t e);

/* Indices of operations in the nodes of a graph. */
struct nodes {
	size_t *v, n;
};
void nodes_add(struct nodes *set, size_t node);
void nodes_add_all(struct nodes *set, const struct nodes *more);
void nodes_clear(struct nodes *set);

struct cudaemu_stream {
	struct cudaemu_graph *graph; /* NULL: not captured */
	struct nodes ends;           /* operations that the next captured one must follow */
	struct queued *first, **end; /* operations that have not run yet */
	struct cudaemu_stream *next;
};

/* All streams. */
extern cudaStream_t cudaemu_streams;
/* The graph that this thread captures, or NULL. */
extern _Thread_local struct cudaemu_graph *cudaemu_capture;

/* Fail and invalidate this thread's capture. */
cudaError_t cudaemu_spoil(cudaError_t e, const char *call);

/* Return whether the calling thread captures; then the call fails, and so does the capture. */
bool cudaemu_forbids(const char *call);

/* Keep an operation, with a copy of its argument, in the stream's graph. */
void cudaemu_capture_operation(cudaStream_t s, void (*run)(void *arg), const void *arg,
			       size_t bytes);

/* Queue an operation without counting it, since the host did not request it. */
void cudaemu_queue_quietly(cudaStream_t s, void (*run)(void *arg), const void *arg, size_t bytes);

/* Run all queued operations of a stream, and those that it waits for. */
void cudaemu_finish_stream(cudaStream_t s);

/* With CUDAEMU_APART, allow or forbid the host access to device memory. */
void cudaemu_reach_memory(bool reach);

/* Return a random number below n. */
size_t cudaemu_random(size_t n);

#endif
