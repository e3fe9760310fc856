/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_IMPL_H
#define CUDAEMU_IMPL_H

/* Shared by the files of the emulated runtime. */
#include <stdint.h>

#include "cuda_runtime_api.h"

/* Remember an error for cudaGetLastError, and return it. */
cudaError_t cudaemu_result(cudaError_t e);

/* The number of allocations so far, and: those up to a number are complete. */
uint64_t cudaemu_allocated(void);
void cudaemu_settle(uint64_t number);

/* Does the calling thread capture?  Then the call fails, and so does the
 * capture. */
bool cudaemu_forbids(const char *call);

#endif
