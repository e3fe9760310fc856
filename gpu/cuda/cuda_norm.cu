/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm: one warp per row, which is in the L1 cache after the first pass. */
#include "gpu/cuda/cuda_column_sums.cuh"
#include "gpu/cuda/cuda_ops.h"

#define ROWS 4 /* per block */

template <int N, typename T>
static __global__ void __launch_bounds__(ROWS *WARP)
	norm_rows(T *out, float *stats, const T *in, const T *weight, const T *bias, size_t rows,
		  size_t c, float eps)
{
	const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP;
	const size_t first = threadIdx.x % WARP * N;
	const T *const x = in + row * c;
	float sum = 0, squares = 0;

	if (row >= rows)
		return;
	for (size_t i = first; i < c; i += WARP * N) {
		const floats<N> f = load<N>(x + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			sum += f.x[k];
	}
	const float mean = warp_sum(sum) / (float)c;

	for (size_t i = first; i < c; i += WARP * N) {
		const floats<N> f = load<N>(x + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			squares += (f.x[k] - mean) * (f.x[k] - mean);
	}
	const float r = 1.0f / sqrtf(warp_sum(squares) / (float)c + eps);

	for (size_t i = first; i < c; i += WARP * N) {
		floats<N> f = load<N>(x + i);
		const floats<N> w = load<N>(weight + i), b = load<N>(bias + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			f.x[k] = (f.x[k] - mean) * r * w.x[k] + b.x[k];
		store(out + row * c + i, f);
	}
	if (first == 0) {
		stats[2 * row] = mean;
		stats[2 * row + 1] = r;
	}
}

static unsigned blocks_of(size_t rows)
{
	return (unsigned)((rows + ROWS - 1) / ROWS);
}

void cuda_norm(struct backend *b, void *out, float *stats, const void *in, const void *weight,
	       const void *bias, size_t rows, size_t c, float eps)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const y = (T *)out;
		const T *const x = (const T *)in;
		const T *const w = (const T *)weight, *const s = (const T *)bias;
		const bool aligned = is_aligned<wide<T>()>(y, x, w, s);

		by_width<T>(c, aligned, [=](auto n) {
			cuda_launch(cuda_of(b), "norm", norm_rows<decltype(n)::value, T>,
				    blocks_of(rows), ROWS * WARP, 0, y, stats, x, w, s, rows, c,
				    eps);
		});
	});
}

/* A block processes a chunk of rows, one row per warp at a time, and sums each column over its rows
 * in shared memory: all warps store their summands for a stretch of columns, then all threads share
 * the additions.  There are more blocks than a GPU can run at once, with enough rows each to be
 * worth the final sums.  If the sums of all columns do not fit into shared memory, several blocks
 * process the same rows, each for a strip of columns; every element is still computed in the same
 * way. */
#define GRAD_WARPS 8
#define GRAD_CHUNKS_MAX ((size_t)512)
#define GRAD_CHUNK_MIN ((size_t)16)

/* Sums over rows: gradients of the weight and the bias, and `din` before and after. */
enum { SUM_WEIGHT, SUM_BIAS, SUM_OLD, SUM_NEW, NORM_SUMS };

/* With all four sums, stretches are shorter, which halves the shared memory. */
#define WIDE_OF_ALL 4

/* Elements that all warps of a stretch add to one sum. */
template <int N> constexpr unsigned STRETCH = GRAD_WARPS *WARP *N;

/* Bytes of the two stretches in flight; the block's sums follow them. */
template <int N> static size_t stretches_bytes(int sums)
{
	return 2 * sums * STRETCH<N> * sizeof(float);
}

/* Columns of a strip, a multiple of the columns that a warp loads at once.  Strips are equal, and
 * as few as shared memory allows. */
template <int N> static size_t grad_strip(const struct cuda *cuda, int sums, size_t c)
{
	const size_t step = WARP * N;
	const size_t taken = stretches_bytes<N>(sums);
	const size_t room = cuda->shared_limit > taken ? cuda->shared_limit - taken : 0;
	const size_t steps = room / (sums * sizeof(float)) / step;
	/* If not even one step fits, the launch fails. */
	const size_t fit = (steps ? steps : 1) * step;
	const size_t strips = (c + fit - 1) / fit;

	return ((c + strips - 1) / strips + step - 1) / step * step;
}

/* The values of a whole row that its gradient needs. */
struct norm_row {
	float mean, r;  /* mean and 1/sigma of `in` */
	float sum, dot; /* means of the normed gradient, and of its product with the normed input */
};

template <int N, typename T>
static __device__ __forceinline__ norm_row row_of(const T *dy, const T *x, const T *weight,
						  const float *stats, size_t c)
{
	norm_row row = { stats[0], stats[1], 0, 0 };

	for (size_t i = threadIdx.x * N; i < c; i += WARP * N) {
		const floats<N> d = load<N>(dy + i), f = load<N>(x + i);
		const floats<N> w = load<N>(weight + i);

#pragma unroll
		for (int k = 0; k < N; k++) {
			const float g = d.x[k] * w.x[k];

			row.sum += g;
			row.dot += g * (f.x[k] - row.mean) * row.r;
		}
	}
	row.sum = warp_sum(row.sum) / (float)c;
	row.dot = warp_sum(row.dot) / (float)c;
	return row;
}

/* dx += the gradient of N elements.  Returns their summands for each sum. */
template <int N, int SUMS, typename T>
static __device__ __forceinline__ void grad_of_elements(const norm_row &row, T *dx, const T *dy,
							const T *x, const T *weight,
							floats<N> add[SUMS])
{
	const floats<N> d = load<N>(dy), f = load<N>(x), w = load<N>(weight);
	floats<N> g = load<N>(dx);

#pragma unroll
	for (int k = 0; k < N; k++) {
		const float n = (f.x[k] - row.mean) * row.r;

		if (SUMS > SUM_OLD)
			add[SUM_OLD].x[k] = g.x[k];
		g.x[k] += row.r * (d.x[k] * w.x[k] - row.sum - n * row.dot);
		add[SUM_WEIGHT].x[k] = d.x[k] * n;
		add[SUM_BIAS].x[k] = d.x[k];
		if (SUMS > SUM_NEW)
			add[SUM_NEW].x[k] = rounded<T>(g.x[k]);
	}
	store(dx, g);
}

/* parts[chunk][SUMS][c], by blocks (chunk, strip) */
template <int N, int SUMS, typename T>
static __global__ void __launch_bounds__(WARP *GRAD_WARPS)
	norm_rows_grad(T *din, float *parts, const T *dout, const T *in, const float *stats,
		       const T *weight, size_t rows, size_t c, size_t chunk, size_t strip)
{
	CUDA_DYNAMIC_SHARED(shared);
	float *const stretches = (float *)shared;
	float *const sums = stretches + 2 * SUMS * STRETCH<N>;
	const unsigned me = threadIdx.y * WARP + threadIdx.x;
	const size_t begin = blockIdx.x * chunk;
	const size_t end = begin + chunk < rows ? begin + chunk : rows;
	const size_t left = blockIdx.y * strip;
	const size_t width = left + strip < c ? strip : c - left;
	unsigned turn = 0;

	for (size_t i = me; i < SUMS * width; i += WARP * GRAD_WARPS)
		sums[i] = 0;
	for (size_t first = begin; first < end; first += GRAD_WARPS) {
		const size_t at = first + threadIdx.y;
		const bool is_row = at < end;
		norm_row row = {};

		if (is_row)
			row = row_of<N>(dout + at * c, in + at * c, weight, stats + 2 * at, c);
		for (size_t k = 0; k < width; k += WARP * N, turn++) {
			float *const stretch = stretches + turn % 2 * SUMS * STRETCH<N>;
			const size_t i = left + k + threadIdx.x * N;
			floats<N> add[SUMS] = {};

			if (is_row && i < left + width)
				grad_of_elements<N, SUMS>(row, din + at * c + i, dout + at * c + i,
							  in + at * c + i, weight + i, add);
#pragma unroll
			for (int s = 0; s < SUMS; s++)
				store(stretch + s * STRETCH<N> + me * N, add[s]);
			/* All threads have read the previous stretch, which the next one
			 * overwrites. */
			__syncthreads();
			for (unsigned j = me; j < SUMS * WARP * N; j += WARP * GRAD_WARPS) {
				const unsigned s = j / (WARP * N);
				const unsigned column = j % (WARP * N);
				float sum = 0;

				if (k + column >= width)
					continue;
#pragma unroll
				for (unsigned w = 0; w < GRAD_WARPS; w++)
					sum += stretch[s * STRETCH<N> + w * WARP * N + column];
				sums[s * width + k + column] += sum;
			}
		}
	}
	/* Other threads store sums that this thread computed in the last stretch. */
	__syncthreads();
#pragma unroll
	for (int s = 0; s < SUMS; s++)
		for (size_t i = me; i < width; i += WARP * GRAD_WARPS)
			parts[(blockIdx.x * SUMS + s) * c + left + i] = sums[s * width + i];
}

/* Chunks, and so the sums, depend on the number of rows only. */
static size_t grad_chunk(size_t rows)
{
	const size_t even = (rows + GRAD_CHUNKS_MAX - 1) / GRAD_CHUNKS_MAX;

	return even > GRAD_CHUNK_MIN ? even : GRAD_CHUNK_MIN;
}

struct norm_grad {
	struct cuda *c;
	float *parts;
	const float *stats;
	size_t rows, width, chunk, chunks;
};

template <int N, int SUMS, typename T>
static void norm_grad_of(const norm_grad &g, T *din, const T *dout, const T *in, const T *weight)
{
	const size_t strip = grad_strip<N>(g.c, SUMS, g.width);
	const dim3 grid((unsigned)g.chunks, (unsigned)((g.width + strip - 1) / strip));

	cuda_launch(g.c, "norm_grad", norm_rows_grad<N, SUMS, T>, grid, dim3(WARP, GRAD_WARPS),
		    stretches_bytes<N>(SUMS) + SUMS * strip * sizeof(float), din, g.parts, dout, in,
		    g.stats, weight, g.rows, g.width, g.chunk, strip);
}

void cuda_norm_grad(struct backend *b, void *din, float *dweight, float *dbias, float *dold,
		    float *dnew, const void *dout, const void *in, const float *stats,
		    const void *weight, size_t rows, size_t c, bool fresh)
{
	struct cuda *const cuda = cuda_of(b);
	const column_sums sums = { { dweight, dbias, dold, dnew }, fresh };
	const bool all = dold && dnew;
	const int nsums = all ? NORM_SUMS : SUM_OLD;
	const size_t chunk = grad_chunk(rows);
	const size_t chunks = (rows + chunk - 1) / chunk;
	float *const parts = (float *)cuda_scratch(cuda, chunks * nsums * c * sizeof(float));
	const norm_grad g = { cuda, parts, stats, rows, c, chunk, chunks };

	if (!parts)
		return;
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const dx = (T *)din;
		const T *const dy = (const T *)dout, *const x = (const T *)in;
		const T *const w = (const T *)weight;
		const bool aligned = is_aligned<wide<T>()>(dx, dy, x, w);

		by_width<T>(c, aligned, [=](auto n) {
			constexpr int N = decltype(n)::value;
			constexpr int M = N < WIDE_OF_ALL ? N : WIDE_OF_ALL;

			if (all)
				norm_grad_of<M, NORM_SUMS>(g, dx, dy, x, w);
			else
				norm_grad_of<N, SUM_OLD>(g, dx, dy, x, w);
		});
	});
	add_chunks_to(cuda, "norm_grad", sums, nsums, parts, chunks, c);
}
