/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_NVTX3_H
#define CUDAEMU_NVTX3_H

/* The part of NVTX that the CUDA backend calls.  Ranges that are still open at the end of a
 * program are a failure. */
int nvtxRangePushA(const char *name);
int nvtxRangePop(void);

#endif
