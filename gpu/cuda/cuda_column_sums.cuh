/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_COLUMN_SUMS_CUH
#define UCTRAIN_CUDA_COLUMN_SUMS_CUH

/*
 * Accumulated sums over the rows of a matrix: gradients of biases.  A first kernel sums chunks of
 * rows, a second one adds the chunks in order.  The chunks depend on the number of rows only, so
 * that the result does not depend on the device.
 *
 * The summand is a functor with SUMS results for N columns:
 *
 *     template <int N> __device__ void
 *     add(floats<N> sums[SUMS], size_t row, size_t column) const
 */
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_reduce.cuh"
#include "gpu/cuda/cuda_types.cuh"

#define COLUMN_WARPS 8
#define CHUNKS_MAX ((size_t)128)
#define CHUNK_MIN ((size_t)64)

/* parts[chunk][SUMS][c] */
template <int N, typename F>
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
	columns_of_chunks(F of, float *parts, size_t rows, size_t c, size_t chunk)
{
	CUDA_SHARED(float, shared, [COLUMN_WARPS][F::SUMS][WARP * N]);
	const size_t first = (size_t)blockIdx.x * WARP * N;
	const size_t column = first + threadIdx.x * N;
	const size_t begin = blockIdx.y * chunk;
	const size_t end = begin + chunk < rows ? begin + chunk : rows;
	floats<N> sums[F::SUMS] = {};

	if (column < c)
		for (size_t i = begin + threadIdx.y; i < end; i += COLUMN_WARPS)
			of.template add<N>(sums, i, column);
#pragma unroll
	for (int s = 0; s < F::SUMS; s++)
#pragma unroll
		for (int k = 0; k < N; k++)
			shared[threadIdx.y][s][threadIdx.x * N + k] = sums[s].x[k];
	__syncthreads();
	for (unsigned i = threadIdx.y * WARP + threadIdx.x; i < F::SUMS * WARP * N;
	     i += WARP * COLUMN_WARPS) {
		const unsigned s = i / (WARP * N), at = i % (WARP * N);
		float sum = 0;

		if (first + at >= c)
			continue;
		for (unsigned w = 0; w < COLUMN_WARPS; w++)
			sum += shared[w][s][at];
		parts[(blockIdx.y * F::SUMS + s) * c + first + at] = sum;
	}
}

struct column_sums {
	float *to[4];
	bool fresh; /* overwrite instead of accumulating */
};

/* Each block adds the chunks of 32 columns of one sum. */
static __global__ void __launch_bounds__(WARP *COLUMN_WARPS)
	add_chunks(column_sums sums, const float *parts, size_t chunks, size_t c)
{
	CUDA_SHARED(float, shared, [COLUMN_WARPS][WARP]);
	const size_t column = (size_t)blockIdx.x * WARP + threadIdx.x;
	const size_t step = gridDim.y * c;
	float sum = 0;

	if (column < c)
		for (size_t i = threadIdx.y; i < chunks; i += COLUMN_WARPS)
			sum += parts[i * step + blockIdx.y * c + column];
	shared[threadIdx.y][threadIdx.x] = sum;
	__syncthreads();
	if (threadIdx.y || column >= c)
		return;
	for (unsigned w = 1; w < COLUMN_WARPS; w++)
		sum += shared[w][threadIdx.x];
	float *const to = sums.to[blockIdx.y] + column;

	*to = sums.fresh ? sum : *to + sum;
}

/* to[s] = or += the sums over chunks of parts[chunks][nsums][c]. */
static void add_chunks_to(struct cuda *c, const char *name, const column_sums &sums, int nsums,
			  const float *parts, size_t chunks, size_t columns)
{
	cuda_launch(c, name, add_chunks,
		    dim3((unsigned)((columns + WARP - 1) / WARP), (unsigned)nsums),
		    dim3(WARP, COLUMN_WARPS), 0, sums, parts, chunks, columns);
}

static size_t chunk_rows(size_t rows)
{
	const size_t even = (rows + CHUNKS_MAX - 1) / CHUNKS_MAX;

	return even > CHUNK_MIN ? even : CHUNK_MIN;
}

/* Process N columns at once; they must be aligned accordingly. */
template <int N, typename F>
static void sum_columns(struct cuda *c, const char *name, const F &of, const column_sums &sums,
			size_t rows, size_t columns)
{
	const size_t chunk = chunk_rows(rows);
	const size_t chunks = (rows + chunk - 1) / chunk;
	const dim3 block(WARP, COLUMN_WARPS);
	float *const parts = (float *)cuda_scratch(c, chunks * F::SUMS * columns * sizeof(float));

	if (!parts)
		return;
	cuda_launch(c, name, columns_of_chunks<N, F>,
		    dim3((unsigned)((columns + WARP * N - 1) / (WARP * N)), (unsigned)chunks),
		    block, 0, of, parts, rows, columns, chunk);
	add_chunks_to(c, name, sums, F::SUMS, parts, chunks, columns);
}

#endif
