/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces the header of the same name: kernels run on the host, immediately or when
 * a graph is launched. */
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
	auto launch = [=]() mutable {
		cudaemu_run(
			grid, block, shared,
			[](void *p) { (*static_cast<decltype(body) *>(p))(); },
			&body);
	};
	auto later = [](void *p) { (*static_cast<decltype(launch) *>(p))(); };

	static_assert(__is_trivially_copyable(decltype(launch)));
	(void)c;
	(void)name;
	if (!cudaemu_record(stream, later, &launch, sizeof(launch)))
		launch();
}

template <typename K, typename... A>
static void cuda_launch(struct cuda *c, const char *name, K kernel, dim3 grid,
			dim3 block, size_t shared, A... args)
{
	cuda_launch_on(c, c->stream, name, kernel, grid, block, shared, args...);
}

#endif
