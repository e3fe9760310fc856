/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the header of the same name: launches run immediately, on the
 * host. */
#ifndef UCTRAIN_CUDA_LAUNCH_CUH
#define UCTRAIN_CUDA_LAUNCH_CUH

#include <cuda_runtime.h>

#include "gpu/cuda/cuda.h"

#define CUDA_DYNAMIC_SHARED(name) \
	unsigned char *const name = (unsigned char *)cudaemu_shared()

template <typename... P, typename... A>
static void cuda_launch_on(struct cuda *c, cudaStream_t stream,
			   const char *name, void (*kernel)(P...), dim3 grid,
			   dim3 block, size_t shared, A... args)
{
	auto body = [=] { kernel(static_cast<P>(args)...); };

	(void)c;
	(void)stream;
	(void)name;
	cudaemu_run(
		grid, block, shared,
		[](void *p) { (*static_cast<decltype(body) *>(p))(); }, &body);
}

template <typename K, typename... A>
static void cuda_launch(struct cuda *c, const char *name, K kernel, dim3 grid,
			dim3 block, size_t shared, A... args)
{
	cuda_launch_on(c, c->stream, name, kernel, grid, block, shared,
		       args...);
}

#endif
