/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_MMA_CUH
#define UCTRAIN_CUDA_MMA_CUH

/*
 * Products of small matrices on tensor cores: tiles of rows in shared memory,
 * and the parts of them that a warp holds in registers.  A lane has of a result
 * the rows lane / 4 and 8 below, and of every 8 columns two: lane % 4 * 2 and
 * the next.
 */
#include "gpu/cuda/cuda_types.cuh"
#include "gpu/cuda/cuda_reduce.cuh"

static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4],
					   const uint32_t b[2], bf16)
{
	ptx_mma_bf16(d, a, b);
}

static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4],
					   const uint32_t b[2], f16)
{
	ptx_mma_f16(d, a, b);
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi, bf16)
{
	return ptx_to_bf16x2(lo, hi);
}

static __device__ __forceinline__ uint32_t pack(float lo, float hi, f16)
{
	return ptx_to_f16x2(lo, hi);
}

/* Elements that are moved at once. */
#define CHUNK 8

/* Where a chunk of a row is in a tile of rows of D: neighbours in a column are
 * in different banks.  Rows that are a multiple of 8 apart are alike: what is
 * added for them outside is an offset that instructions have room for. */
template <int D>
static __device__ __forceinline__ uint32_t place(uint32_t row, uint32_t chunk)
{
	return row * D + ((chunk ^ (row & 7)) * CHUNK);
}

/* Begin to copy rows [first, first + ROWS) of a matrix, `apart` from each
 * other, to a tile.  Beyond `rows` and `width` there are zeros. */
template <int D, int ROWS, int THREADS, typename T>
static __device__ __forceinline__ void copy_tile(T *tile, const T *from,
						 size_t apart, size_t first,
						 size_t rows, size_t width)
{
	constexpr int chunks = D / CHUNK, at_once = THREADS / chunks;
	const uint32_t chunk = threadIdx.x % chunks;

	static_assert(THREADS % chunks == 0 && ROWS % at_once == 0,
		      "all threads have the same number of chunks");
#pragma unroll
	for (int i = 0; i < ROWS; i += at_once) {
		const uint32_t row = i + threadIdx.x / chunks;
		const bool there = first + row < rows && chunk * CHUNK < width;

		ptx_copy_16(tile + place<D>(row, chunk),
			    there ? from + (first + row) * apart + chunk * CHUNK
				  : from,
			    there);
	}
}

/* Rows [row, row + 16) of a tile as the first factor, by 16 columns. */
template <int D, typename T>
static __device__ __forceinline__ void load_a(uint32_t a[D / 16][4],
					      const T *tile, uint32_t row)
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int k = 0; k < D / 16; k++)
		ptx_load_matrices(a[k], tile + place<D>(row + lane % 16,
							k * 2 + lane / 16));
}

/* s[i] = a * (8 rows of a tile from row + 8 * i on)', i < N; row % 8 is 0 */
template <int D, int N, typename T>
static __device__ __forceinline__ void
multiply_rows(float s[N][4], const uint32_t a[D / 16][4], const T *tile,
	      uint32_t row)
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			s[i][j] = 0;
#pragma unroll
	for (int k = 0; k < D / 16; k++)
#pragma unroll
		for (int i = 0; i < N; i += 2) {
			uint32_t b[4];

			ptx_load_matrices(
				b, tile +
					   place<D>(lane / 16 * 8 + lane % 8,
						    k * 2 + lane / 8 % 2) +
					   (row + i * 8) * D);
			mma(s[i], a[k], b, T());
			mma(s[i + 1], a[k], b + 2, T());
		}
}

/* o += s * (rows of a tile, from `row` on): s has N * 8 columns, row % 8 is 0 */
template <int D, int N, typename T>
static __device__ __forceinline__ void
multiply_columns(float o[D / 8][4], const float s[N][4], const T *tile,
		 uint32_t row)
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int k = 0; k < N; k += 2) {
		/* What a lane has of a result is what it needs of a factor. */
		const uint32_t a[4] = {
			pack(s[k][0], s[k][1], T()),
			pack(s[k][2], s[k][3], T()),
			pack(s[k + 1][0], s[k + 1][1], T()),
			pack(s[k + 1][2], s[k + 1][3], T()),
		};

#pragma unroll
		for (int i = 0; i < D / 8; i += 2) {
			uint32_t b[4];

			ptx_load_matrices_transposed(
				b, tile + place<D>(lane % 16, i + lane / 16) +
					   (row + k * 8) * D);
			mma(o[i], a, b, T());
			mma(o[i + 1], a, b + 2, T());
		}
	}
}

/* Write a warp's 16 rows, the first of which is `row`, times what the lane has
 * for each of its two. */
template <int D, typename T>
static __device__ __forceinline__ void
store_rows(T *to, size_t apart, size_t row, size_t rows, size_t width,
	   const float o[D / 8][4], const float factor[2])
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const size_t at = row + lane / 4 + half * 8;

		if (at >= rows)
			continue;
#pragma unroll
		for (int i = 0; i < D / 8; i++) {
			const size_t column = i * 8 + lane % 4 * 2;
			const uint32_t two =
				pack(o[i][half * 2] * factor[half],
				     o[i][half * 2 + 1] * factor[half], T());

			if (column < width)
				*reinterpret_cast<uint32_t *>(to + at * apart +
							      column) = two;
		}
	}
}

#endif
