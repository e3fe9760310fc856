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
 * The parts of the CUDA backend: host code is C, kernels are in cuda_*.cu.
 * lp buffers have the model's type.  All operations are queued on one stream;
 * memory is taken and given back in its order, too, so that neither waits.
 */
struct cuda {
	struct backend base;
	int device;
	int major; /* of its compute capability */
	cudaStream_t stream;
	cudaStream_t beside[BACKEND_QUEUES]; /* of the other queues */
	struct products *products;
	struct cudnn *cudnn; /* NULL: not asked for yet */
	bool tf32;           /* products of float32 may keep less of it */
	size_t logits_bytes; /* that are there at once */
	bool no_gds;         /* files are read through the host's memory */
	bool no_cudnn;       /* attention is by our kernels */
	bool repeatable;     /* the same bits every time */
	/* Grown on first use and kept: what operations need for themselves. */
	void *scratch;
	size_t scratch_len;
	/* The first failure, which sync tells: a negative errno, or 0. */
	int failed;
	char failure[256];
};

static inline struct cuda *cuda_of(struct backend *b)
{
	return (struct cuda *)b;
}

/* Was the call a success?  If not, sync will tell its name and the reason; only
 * the first failure is kept, others follow from it. */
bool cuda_ok(struct cuda *c, cudaError_t e, const char *call);

/* A call has failed, with a negative errno and a reason, for sync to tell. */
void cuda_fail(struct cuda *c, int rc, const char *call, const char *reason);

/* At least `bytes` of device memory, aligned for any vector, for the operation
 * that asks, or NULL, which sync will tell.  The last one's is gone. */
void *cuda_scratch(struct cuda *c, size_t bytes);

#ifdef __cplusplus
}
#endif

#endif
