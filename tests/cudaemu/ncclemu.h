/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_NCCLEMU_H
#define CUDAEMU_NCCLEMU_H

#include <stdbool.h>

#include "gpu/nvidia/nccl_api.h"

/*
 * NCCL's calls by MPI.  A group is one operation, which runs the calls in their order, the same on
 * all ranks, and waits for sends and receives at its end.
 */
extern const struct nccl_api ncclemu;

/* Return whether a collective was queued that will never end. */
extern bool ncclemu_hangs;

/* Called when an operation has run. */
void ncclemu_started(void);

/* Called with the size of this rank's operand of a reduction. */
void ncclemu_reduces(size_t bytes);

/* Queue an operation with a copy of its argument, or run it after the stream's earlier
 * operations. */
void ncclemu_queue(cudaStream_t stream, void (*run)(void *arg), const void *arg, size_t bytes);

/* Return whether the stream is being captured. */
bool ncclemu_is_recorded(cudaStream_t stream);

/* Return the memory behind a device address. */
void *ncclemu_memory(const void *p);

#endif
