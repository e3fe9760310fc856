/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_LAUNCH_CUH
#define UCTRAIN_CUDA_LAUNCH_CUH

/* Kernel launches.  Tests without a GPU replace this header and cuda_ptx.cuh:
 * these two have all code that only nvcc can compile. */
#include <cuda_runtime.h>

#include "gpu/cuda/cuda.h"

/* Dynamic shared memory that needs no opt-in. */
#define CUDA_SHARED_DEFAULT ((size_t)48 << 10)

/* The block's dynamic shared memory, whose size is an argument of the
 * launch. */
#define CUDA_DYNAMIC_SHARED(name) \
	extern __shared__ __align__(128) unsigned char name[]

/* Queue a kernel.  A failure is reported by sync. */
template <typename... P, typename... A>
static void cuda_launch_on(struct cuda *c, cudaStream_t stream,
			   const char *name, void (*kernel)(P...), dim3 grid,
			   dim3 block, size_t shared, A... args)
{
	if (shared > CUDA_SHARED_DEFAULT)
		cuda_ok(c,
			cudaFuncSetAttribute(
				kernel,
				cudaFuncAttributeMaxDynamicSharedMemorySize,
				(int)shared),
			name);
	kernel<<<grid, block, shared, stream>>>(static_cast<P>(args)...);
	cuda_ok(c, cudaGetLastError(), name);
}

/* The same on the computation's stream. */
template <typename K, typename... A>
static void cuda_launch(struct cuda *c, const char *name, K kernel, dim3 grid,
			dim3 block, size_t shared, A... args)
{
	cuda_launch_on(c, c->stream, name, kernel, grid, block, shared,
		       args...);
}

#endif
