/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CUDAEMU_CUDA_RUNTIME_H
#define CUDAEMU_CUDA_RUNTIME_H

/* The part of CUDA C++ that the CUDA backend's kernels use. */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <utility>

#include "cuda_runtime_api.h"
#include "cudaemu.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct dim3 : cudaemu_dim {
	constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1)
	    : cudaemu_dim{ x_, y_, z_ }
	{
	}
};

struct alignas(8) uint2 {
	unsigned x, y;
};
struct alignas(16) uint4 {
	unsigned x, y, z, w;
};

#define threadIdx cudaemu_thread
#define blockIdx cudaemu_block
#define blockDim cudaemu_block_dim
#define gridDim cudaemu_grid_dim

template <typename K>
static cudaError_t cudaFuncSetAttribute(K *kernel, enum cudaFuncAttribute, int bytes)
{
	cudaemu_allow_shared((const void *)kernel, (size_t)bytes);
	return cudaSuccess;
}

template <typename... P> static auto cudaemu_body_of(void (*kernel)(P...), P... values)
{
	return [=] { kernel(values...); };
}

/* Call a kernel with the values at `args`. */
template <typename... P, size_t... I>
static auto cudaemu_body(void (*kernel)(P...), void **args, std::index_sequence<I...>)
{
	return cudaemu_body_of<P...>(kernel, *(P *)args[I]...);
}

template <typename... P>
static cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args,
				    size_t shared, cudaStream_t stream)
{
	auto body = cudaemu_body(kernel, args, std::index_sequence_for<P...>());
	auto launch = [=]() mutable {
		cudaemu_run((const void *)kernel, grid, block, shared,
			    [](void *p) { (*static_cast<decltype(body) *>(p))(); }, &body);
	};
	auto later = [](void *p) { (*static_cast<decltype(launch) *>(p))(); };

	static_assert(__is_trivially_copyable(decltype(launch)));
	cudaemu_queue(stream, later, &launch, sizeof(launch));
	return cudaSuccess;
}

static inline void __syncthreads()
{
	cudaemu_syncthreads();
}

static inline void __syncwarp()
{
	cudaemu_exchange("__syncwarp", "", 1);
}

template <typename T> static inline T cudaemu_of_lane(const char *operation, T x, unsigned lane)
{
	T y;

	memcpy(&y,
	       cudaemu_exchange(operation, &x, sizeof(x)) + lane % CUDAEMU_WARP * CUDAEMU_EXCHANGE,
	       sizeof(y));
	return y;
}

template <typename T> static inline T __shfl_sync(unsigned, T x, int lane)
{
	return cudaemu_of_lane("__shfl_sync", x, (unsigned)lane);
}

template <typename T> static inline T __shfl_xor_sync(unsigned, T x, int mask)
{
	return cudaemu_of_lane("__shfl_xor_sync", x, cudaemu_lane() ^ (unsigned)mask);
}

static inline float __uint_as_float(unsigned u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline unsigned __float_as_uint(float f)
{
	unsigned u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

static inline float rsqrtf(float x)
{
	return 1.0f / sqrtf(x);
}

template <typename T> static inline T min(T a, T b)
{
	return b < a ? b : a;
}

template <typename T> static inline T max(T a, T b)
{
	return a < b ? b : a;
}

#endif
