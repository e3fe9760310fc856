/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_HEAD_CUH
#define UCTRAIN_CUDA_HEAD_CUH

/*
 * Where a block finds the head that it attends for.  The grid is parts of the
 * sequence x heads x rows of the batch.
 */
#include "gpu/cuda/cuda_attention.h"
#include "gpu/cuda/cuda_types.cuh"
#include "gpu/backend/dropout.h"

template <typename T> struct head_of_block {
	const T *q, *k, *v;  /* rows 3 * c apart */
	T *dq, *dk, *dv;     /* likewise */
	T *out;              /* rows c apart */
	const T *dout;       /* likewise */
	float *stats;        /* of each query */
	const float *delta;  /* likewise */
	size_t wide, narrow; /* 3 * c and c */
	uint64_t seed;
};

template <typename T>
static __device__ __forceinline__ head_of_block<T> head_of(const cuda_heads &a)
{
	const size_t c = a.heads * a.width;
	const size_t head = blockIdx.z * a.heads + blockIdx.y;
	const size_t at = blockIdx.z * a.seq * c + blockIdx.y * a.width;
	const size_t in = blockIdx.z * a.seq * 3 * c + blockIdx.y * a.width;
	const T *const q = (const T *)a.qkv + in;
	T *const dq = (T *)a.dqkv + in;

	return {
		q,
		q + c,
		q + 2 * c,
		dq,
		dq + c,
		dq + 2 * c,
		(T *)a.out + at,
		(const T *)a.dout + at,
		a.stats + head * a.seq,
		a.delta + head * a.seq,
		3 * c,
		c,
		pattern_random(a.seed, head),
	};
}

/* The weight of a key for a query, or its gradient. */
static __device__ __forceinline__ float
drop_weight(float x, uint64_t seed, size_t query, size_t key, float drop)
{
	return pattern_drop(x,
			    pattern_element(pattern_random(seed, query),
					    (uint32_t)key),
			    drop);
}

#endif
