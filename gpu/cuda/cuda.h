/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_H
#define UCTRAIN_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gpu/backend/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * The CUDA backend's internals: host code is C, kernels are in cuda_*.cu. act_t buffers have the
 * model's type.  All operations are queued on one stream.  Memory is allocated and freed in stream
 * order, without waiting.
 */
struct cuda {
	struct backend base;
	int device;
	int major;           /* compute capability */
	size_t shared_limit; /* dynamic shared memory that a block can have, in bytes */
	cudaStream_t stream;
	cudaStream_t side_streams[BACKEND_QUEUES]; /* of the other queues */
	struct gemm_cache *gemm_cache;
	bool tf32;          /* float32 GEMMs may use tf32 */
	bool deterministic; /* bit-identical results in every run */
	/* Scratch memory of operations, grown on demand and kept. */
	void *scratch;
	size_t scratch_len;
	void *recorded_scratch; /* scratch memory of a graph, which owns it; or NULL */
	/* The first failure, reported by sync: a negative errno, or 0. */
	int failed;
	char failure[256];
};

static inline struct cuda *cuda_of(struct backend *b)
{
	return (struct cuda *)b;
}

/* Check the result of a call.  Returns false after recording a failure and the call's name for
 * sync to report; failures after the first are ignored. */
bool cuda_ok(struct cuda *c, cudaError_t e, const char *call);
#define CUDA_CALL(c, function, ...) cuda_ok(c, function(__VA_ARGS__), #function)

/* Record a failed call, with a negative errno and a reason, for sync to report. */
void cuda_fail(struct cuda *c, int rc, const char *call, const char *reason);

/* Return the first failure since the last call, with a message; or 0. */
int cuda_failure(struct cuda *c, struct errmsg *err);

/* Return at least `bytes` bytes of device memory, aligned for any vector type, for the operation
 * being queued.  NULL on failure, which sync reports.  The next call invalidates it. */
void *cuda_scratch(struct cuda *c, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
