/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_HEAD_CUH
#define UCTRAIN_CUDA_HEAD_CUH

/*
 * Shared by the forward and the backward kernel of attention: finding a block's head, streaming
 * tiles, masking, and the choice of an instantiation.  The grid is parts of the sequence x heads x
 * rows of the batch.
 */
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"
#include "gpu/cuda/cuda_attention.h"
#include "gpu/cuda/cuda_tile.cuh"

#define LN_2 0.6931471806f

/* Rows of a tile: 64 of a 16-bit type, 32 of float, and at most 16 KiB. */
constexpr int tile_rows(int d, int bytes)
{
	return (16 << 10) / d < 128 ? (16 << 10) / d / bytes : 128 / bytes;
}

template <int D, typename T> constexpr int TILE_ROWS = tile_rows(D, sizeof(T));

/* The head of a block: q, k, v and their gradients have rows 3 * c elements apart, out and dout
 * rows of c. */
template <typename T> struct head_of_block {
	matrix<T> q, k, v, dout;
	T *dq, *dk, *dv, *out;
	float *stats;       /* per query */
	const float *delta; /* per query */
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
		{ q, 3 * c, a.seq, a.width, a.chunked },
		{ q + c, 3 * c, a.seq, a.width, a.chunked },
		{ q + 2 * c, 3 * c, a.seq, a.width, a.chunked },
		{ (const T *)a.dout + at, c, a.seq, a.width, a.chunked },
		dq,
		dq + c,
		dq + 2 * c,
		(T *)a.out + at,
		a.stats + head * a.seq,
		a.delta + head * a.seq,
		splitmix64(dropout_seed(&a.drop), head),
	};
}

/* Streams two matrices in tiles: one stage is copied while the other is used.  A block loads its
 * own rows into the second stage, which is free until the loop starts, or into a third stage if
 * left factors stay in shared memory. */
template <int D, int THREADS, typename T> struct tile_stream {
	static constexpr int rows = TILE_ROWS<D, T>;
	static constexpr int stage_len = 2 * rows * D;

	T *tiles;
	matrix<T> y1, y2;

	__device__ __forceinline__ T *stage(size_t i) const
	{
		return tiles + i % 2 * stage_len;
	}

	__device__ __forceinline__ T *own_rows() const
	{
		return tiles + (left_rows<D, T>::keeps_tile ? 2 : 1) * stage_len;
	}

	/* Start copying the rows from `at` on. */
	__device__ __forceinline__ void copy(T *to, size_t at) const
	{
		copy_tile<D, rows, THREADS>(to, y1, at);
		copy_tile<D, rows, THREADS>(to + rows * D, y2, at);
	}
};

/* Shared memory that a tile_stream needs. */
template <int D, typename T> static size_t tile_stream_bytes()
{
	return (left_rows<D, T>::keeps_tile ? 3 : 2) * sizeof(T) * 2 * TILE_ROWS<D, T> * D;
}

/* End this group of copies and wait, with all threads, for all earlier ones. */
static __device__ __forceinline__ void wait_for_stage()
{
	ptx_commit_copies();
	ptx_wait_for_copies<1>();
	__syncthreads();
}

/* Causal mask: set the scores of keys after their query to -INFINITY. The lane's first score is at
 * `row` and `column`; rows are queries or, with `of_keys`, keys. */
template <bool of_keys, int N>
static __device__ __forceinline__ void mask_later_keys(float s[N][4], size_t row, size_t column)
{
	const int ahead = (int)(row - column);

#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const int by = i * 8 + j % 2 - j / 2 * 8;

			if (of_keys ? by < ahead : by > ahead)
				s[i][j] = -INFINITY;
		}
}

/* The grid for blocks that each take `rows` rows of a sequence, in `slices` slices. */
static inline dim3 attention_grid(const cuda_heads &a, size_t rows, size_t slices)
{
	return dim3((unsigned)((a.seq + rows - 1) / rows * slices), (unsigned)a.heads,
		    (unsigned)a.batch);
}

/* Call `work` with the model's type, the maximum head width, and whether dropout is on.  Wide heads
 * are rare: their kernels always include dropout, with probability 0 if it is off. */
template <typename F> static void by_kind(enum dtype dtype, const cuda_heads &a, F work)
{
	by_type(dtype, [&](auto t) {
		if (a.width <= 64 && a.drop.p == 0)
			work(t, count<64>(), count<0>());
		else if (a.width <= 64)
			work(t, count<64>(), count<1>());
		else if (a.width <= 128)
			work(t, count<128>(), count<1>());
		else
			work(t, count<256>(), count<1>());
	});
}

#endif
