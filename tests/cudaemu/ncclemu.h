/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_NCCLEMU_H
#define CUDAEMU_NCCLEMU_H

#include <stdbool.h>

#include "gpu/nvidia/nccl_api.h"

/*
 * The calls of NCCL that we use, by MPI.  Operations are complete when they return;
 * the calls of a group are executed in their order, which is the same on all ranks,
 * except that what is sent and received in one is awaited at its end.
 */
extern const struct nccl_api ncclemu;

/* Was a collective queued that will never end? */
extern bool ncclemu_hangs;

/* Is called for each collective, and for each group as one. */
void ncclemu_started(void);

/* Is called before each operation: it comes after what this stream has been given. */
void ncclemu_after(cudaStream_t stream);

/* Is called for what this rank gives to a reduction. */
void ncclemu_reduces(size_t bytes);

/* Keep an operation with a copy of its argument if the stream is captured; false:
 * do it. */
bool ncclemu_record(cudaStream_t stream, void (*run)(void *arg),
		    const void *arg, size_t bytes);

/* Is the stream captured? */
bool ncclemu_is_recorded(cudaStream_t stream);

/* The memory behind a device address. */
void *ncclemu_memory(const void *p);

#endif
