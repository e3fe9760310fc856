/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_TILE_CUH
#define UCTRAIN_CUDA_TILE_CUH

/*
 * Products of small matrices by one warp: tiles of rows in shared memory, and accumulators in
 * registers.  16-bit types use tensor cores.  float uses plain arithmetic, since tensor cores
 * would round it to tf32; its accumulators have the same layout, so that kernels need not
 * distinguish the types.
 *
 * An accumulator is a 16 x 8 matrix: a lane holds columns lane % 4 * 2 and the next, of row lane
 * / 4 in elements 0 and 1, of row lane / 4 + 8 in 2 and 3.
 */
#include "gpu/cuda/cuda_reduce.cuh"
#include "gpu/cuda/cuda_types.cuh"

/* Elements in 16 bytes, the unit in which tiles are copied. */
template <typename T> constexpr int CHUNK = 16 / (int)sizeof(T);

/* The offset of a chunk in a tile whose rows have D elements.  Chunks are swizzled: eight rows
 * have the same chunk in eight different groups of banks. Rows that are a multiple of 8 apart
 * have the same swizzle, so that the distance between them is a constant in the instruction. */
template <int D, typename T>
static __device__ __forceinline__ uint32_t tile_at(uint32_t row, uint32_t chunk)
{
	return row * D + (chunk ^ (row & 7)) * CHUNK<T>;
}

/* A matrix in global memory whose rows are `stride` elements apart. */
template <typename T> struct matrix {
	const T *p;
	size_t stride, rows, columns;
	bool chunked; /* every row begins and ends at a chunk's boundary */
};

/* Start copying rows [first, first + ROWS) of m to a tile, with zeros beyond its rows and
 * columns.  The caller commits the copies and waits for them. */
template <int D, int ROWS, int THREADS, typename T>
static __device__ __forceinline__ void copy_tile(T *tile, const matrix<T> &m, size_t first)
{
	constexpr int chunks = D / CHUNK<T>;

	static_assert(ROWS * chunks % THREADS == 0, "all threads copy the same number of chunks");
	if (!m.chunked) {
#pragma unroll 1
		for (uint32_t i = threadIdx.x; i < ROWS * D; i += THREADS) {
			const uint32_t row = i / D, column = i % D;
			const bool inside = first + row < m.rows && column < m.columns;

			narrow(tile[tile_at<D, T>(row, column / CHUNK<T>) + column % CHUNK<T>],
			       inside ? widen(m.p[(first + row) * m.stride + column]) : 0);
		}
		return;
	}
#pragma unroll
	for (int i = 0; i < ROWS * chunks; i += THREADS) {
		const uint32_t row = (i + threadIdx.x) / chunks;
		const uint32_t chunk = (i + threadIdx.x) % chunks;
		const bool inside = first + row < m.rows && chunk * CHUNK<T> < m.columns;

		ptx_copy_16(tile + tile_at<D, T>(row, chunk),
			    inside ? m.p + (first + row) * m.stride + chunk * CHUNK<T> : m.p,
			    inside);
	}
}

template <int N> static __device__ __forceinline__ void clear(float x[N][4])
{
#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			x[i][j] = 0;
}

static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2],
					   bf16)
{
	ptx_mma_bf16(d, a, b);
}

static __device__ __forceinline__ void mma(float d[4], const uint32_t a[4], const uint32_t b[2],
					   f16)
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

/* Sixteen rows of a tile as the left factor of a product: fragments in registers, so that the
 * tile can be overwritten. */
template <int D, typename T> struct left_rows {
	static constexpr bool keeps_tile = false;
	uint32_t x[D / 16][4];

	__device__ __forceinline__ void load(const T *tile, uint32_t row)
	{
		const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
		for (int k = 0; k < D / 16; k++)
			ptx_load_matrices(x[k],
					  tile + tile_at<D, T>(row + lane % 16, k * 2 + lane / 16));
	}
};

/* s[i] = a * (8 rows of the tile from row + 8 * i on)', i < N; row % 8 is 0. */
template <int D, int N, typename T>
static __device__ __forceinline__ void multiply_rows(float s[N][4], const left_rows<D, T> &a,
						     const T *tile, uint32_t row)
{
	const uint32_t lane = threadIdx.x % WARP;

	clear<N>(s);
#pragma unroll
	for (int k = 0; k < D / 16; k++)
#pragma unroll
		for (int i = 0; i < N; i += 2) {
			uint32_t b[4];

			ptx_load_matrices(b, tile +
						     tile_at<D, T>(lane / 16 * 8 + lane % 8,
								   k * 2 + lane / 8 % 2) +
						     (row + i * 8) * D);
			mma(s[i], a.x[k], b, T());
			mma(s[i + 1], a.x[k], b + 2, T());
		}
}

/* o += s * (N * 8 rows of the tile from `row` on), W columns starting at the tile's first; row % 8
 * is 0.  For later columns the caller advances `tile` by a multiple of 64, which keeps the
 * swizzle. */
template <int D, int W, int N, typename T>
static __device__ __forceinline__ void multiply_columns(float o[W / 8][4], const float s[N][4],
							const T *tile, uint32_t row)
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int k = 0; k < N; k += 2) {
		/* Accumulators have the layout of a left factor. */
		const uint32_t a[4] = {
			pack(s[k][0], s[k][1], T()),
			pack(s[k][2], s[k][3], T()),
			pack(s[k + 1][0], s[k + 1][1], T()),
			pack(s[k + 1][2], s[k + 1][3], T()),
		};

#pragma unroll
		for (int i = 0; i < W / 8; i += 2) {
			uint32_t b[4];

			ptx_load_matrices_transposed(
				b,
				tile + tile_at<D, T>(lane % 16, i + lane / 16) + (row + k * 8) * D);
			mma(o[i], a, b, T());
			mma(o[i + 1], a, b + 2, T());
		}
	}
}

/* Store two neighbours, starting at an even column, in a chunked row. */
template <typename T> static __device__ __forceinline__ void store_pair(T *to, float lo, float hi)
{
	*reinterpret_cast<uint32_t *>(to) = pack(lo, hi, T());
}

/* Registers cannot hold float rows beside the accumulators: the rows stay in the tile. */
template <int D> struct left_rows<D, float> {
	static constexpr bool keeps_tile = true;
	const float *tile;
	uint32_t row; /* first of the lane's two rows */

	__device__ __forceinline__ void load(const float *from, uint32_t first)
	{
		tile = from;
		row = first + threadIdx.x % WARP / 4;
	}
};

static __device__ __forceinline__ float dot(float sum, const floats<4> &a, const floats<4> &b)
{
#pragma unroll
	for (int i = 0; i < 4; i++)
		sum += a.x[i] * b.x[i];
	return sum;
}

template <int D, int N>
static __device__ __forceinline__ void multiply_rows(float s[N][4], const left_rows<D, float> &a,
						     const float *tile, uint32_t row)
{
	const uint32_t column = threadIdx.x % 4 * 2;

	clear<N>(s);
#pragma unroll 2
	for (int k = 0; k < D / 4; k++) {
		const floats<4> a0 = load<4>(a.tile + tile_at<D, float>(a.row, k));
		const floats<4> a1 = load<4>(a.tile + tile_at<D, float>(a.row + 8, k));

#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				const floats<4> b =
					load<4>(tile + tile_at<D, float>(column + j, k) +
						(row + i * 8) * D);

				s[i][j] = dot(s[i][j], a0, b);
				s[i][2 + j] = dot(s[i][2 + j], a1, b);
			}
	}
}

/* Takes eight columns of s at a time from the front of a copy and shifts the rest forward: the
 * copy stays in registers without unrolling the loop. */
template <int D, int W, int N>
static __device__ __forceinline__ void multiply_columns(float o[W / 8][4], const float s[N][4],
							const float *tile, uint32_t row)
{
	const uint32_t column = threadIdx.x % 4 * 2;
	const uint32_t quad = threadIdx.x % WARP / 4 * 4;
	float left[N * 4];

	memcpy(left, s, sizeof(left));
#pragma unroll 1
	for (int n = 0; n < N; n++, row += 8) {
#pragma unroll
		for (int k = 0; k < 8; k++) {
			const uint32_t owner = quad + k / 2; /* lane with column k */
			const float a0 = __shfl_sync(0xffffffffu, left[k % 2], owner);
			const float a1 = __shfl_sync(0xffffffffu, left[2 + k % 2], owner);

#pragma unroll
			for (int i = 0; i < W / 8; i++) {
				const floats<2> b =
					load<2>(tile + tile_at<D, float>(k, i * 2 + column / 4) +
						column % 4 + row * D);

				o[i][0] += a0 * b.x[0];
				o[i][1] += a0 * b.x[1];
				o[i][2] += a1 * b.x[0];
				o[i][3] += a1 * b.x[1];
			}
		}
#pragma unroll
		for (int i = 0; i + 4 < N * 4; i++)
			left[i] = left[i + 4];
	}
}

static __device__ __forceinline__ void store_pair(float *to, float lo, float hi)
{
	store<2>(to, floats<2>{ { lo, hi } });
}

/* Store a warp's 16 x W block of o, from `row` and `first` column on, in the matrix at `to`,
 * which has m's shape; `factor` scales each of the lane's two rows. */
template <int W, typename T>
static __device__ __forceinline__ void store_rows(T *to, const matrix<T> &m, size_t row,
						  size_t first, const float o[W / 8][4],
						  const float factor[2])
{
	const uint32_t lane = threadIdx.x % WARP;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const size_t at = row + lane / 4 + half * 8;
		T *const out = to + at * m.stride;

		if (at >= m.rows)
			continue;
#pragma unroll
		for (int i = 0; i < W / 8; i++) {
			const size_t column = first + i * 8 + lane % 4 * 2;
			const float lo = o[i][half * 2] * factor[half];
			const float hi = o[i][half * 2 + 1] * factor[half];

			if (m.chunked && column < m.columns) {
				store_pair(out + column, lo, hi);
			} else {
				if (column < m.columns)
					narrow(out[column], lo);
				if (column + 1 < m.columns)
					narrow(out[column + 1], hi);
			}
		}
	}
}

#endif
