/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_LAUNCH_CUH
#define UCTRAIN_CUDA_LAUNCH_CUH

/* Kernel launches. */
#include <cuda_runtime.h>

#include "gpu/cuda/cuda.h"

/* Queue a kernel.  A failure is reported by sync.  A kernel must request dynamic shared memory if
 * dynamic and static shared memory together exceed 48 KiB; requesting less is harmless. */
template <typename... P, typename... A>
static void cuda_launch_on(struct cuda *c, cudaStream_t stream, const char *name,
			   void (*kernel)(P...), dim3 grid, dim3 block, size_t shared, A... args)
{
	const auto launch = [=](P... values) {
		void *at[] = { &values... };

		return cudaLaunchKernel(kernel, grid, block, at, shared, stream);
	};

	if (shared)
		cuda_ok(c,
			cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
					     (int)shared),
			name);
	cuda_ok(c, launch(static_cast<P>(args)...), name);
}

/* Queue a kernel on the computation's stream. */
template <typename K, typename... A>
static void cuda_launch(struct cuda *c, const char *name, K kernel, dim3 grid, dim3 block,
			size_t shared, A... args)
{
	cuda_launch_on(c, c->stream, name, kernel, grid, block, shared, args...);
}

#endif
