/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_LAUNCH_CUH
#define UCTRAIN_CUDA_LAUNCH_CUH

/*
 * How kernels are launched.  Tests without a GPU have a header of this name of
 * their own: what is written for nvcc alone stands here and in cuda_ptx.cuh.
 */
#include <cuda_runtime.h>

#include "gpu/cuda/cuda.h"

/* What a launch may take without asking. */
#define CUDA_SHARED_DEFAULT ((size_t)48 << 10)

/* The memory of a block whose size its launch has told. */
#define CUDA_DYNAMIC_SHARED(name) \
	extern __shared__ __align__(128) unsigned char name[]

/* Queue a kernel; sync will tell if that fails. */
template <typename... P, typename... A>
static void cuda_launch(struct cuda *c, const char *name, void (*kernel)(P...),
			dim3 grid, dim3 block, size_t shared, A... args)
{
	if (shared > CUDA_SHARED_DEFAULT)
		cuda_ok(c,
			cudaFuncSetAttribute(
				kernel,
				cudaFuncAttributeMaxDynamicSharedMemorySize,
				(int)shared),
			name);
	kernel<<<grid, block, shared, c->stream>>>(static_cast<P>(args)...);
	cuda_ok(c, cudaGetLastError(), name);
}

#endif
