/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_REDUCE_CUH
#define UCTRAIN_CUDA_REDUCE_CUH

/* Sums over the threads of a warp or a block.  All threads get the same result, and it is the
 * same in every run: the order is fixed. */
#include <cuda_runtime.h>

#define WARP 32

template <typename T> static __device__ __forceinline__ T warp_sum(T x)
{
#pragma unroll
	for (int i = WARP / 2; i; i /= 2)
		x += __shfl_xor_sync(0xffffffffu, x, i);
	return x;
}

static __device__ __forceinline__ float warp_max(float x)
{
#pragma unroll
	for (int i = WARP / 2; i; i /= 2)
		x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, i));
	return x;
}

/* For a one-dimensional block of at most 32 full warps.  `shared` must not be used otherwise
 * until the next barrier. */
template <typename T> static __device__ __forceinline__ T block_sum(T x, T shared[WARP])
{
	const unsigned lane = threadIdx.x % WARP, warps = blockDim.x / WARP;

	x = warp_sum(x);
	if (lane == 0)
		shared[threadIdx.x / WARP] = x;
	__syncthreads();
	return warp_sum(lane < warps ? shared[lane] : (T)0);
}

#endif
