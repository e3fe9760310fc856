/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_NCCLEMU_H
#define CUDAEMU_NCCLEMU_H

#include <stdbool.h>

#include "gpu/nvidia/nccl_api.h"

/*
 * The calls of NCCL that we use, by MPI.  A group is one operation, in which the calls are
 * executed in their order, which is the same on all ranks, except that what is sent and received
 * is awaited at its end.
 */
extern const struct nccl_api ncclemu;

/* Was a collective queued that will never end? */
extern bool ncclemu_hangs;

/* Is called when an operation has been done. */
void ncclemu_started(void);

/* Called with the size of this rank's operand of a reduction. */
void ncclemu_reduces(size_t bytes);

/* Queue an operation with a copy of its argument, or do it after the stream's earlier
 * operations. */
void ncclemu_queue(cudaStream_t stream, void (*run)(void *arg), const void *arg, size_t bytes);

/* Return whether the stream is being captured. */
bool ncclemu_is_recorded(cudaStream_t stream);

/* The memory behind a device address. */
void *ncclemu_memory(const void *p);

#endif
