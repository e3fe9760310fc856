/* SPDX-License-Identifier: Apache-2.0 */
/* Layer norm: one warp per row, which is in the L1 cache after the first
 * pass. */
#include "gpu/cuda/cuda_column_sums.cuh"
#include "gpu/cuda/cuda_ops.h"

#define ROWS 4 /* of a block */

template <int N, typename T>
static __global__ void __launch_bounds__(ROWS *WARP)
	norm_rows(T *out, float *stats, const T *in, const T *weight,
		  const T *bias, size_t rows, size_t c, float eps)
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

void cuda_norm(struct backend *b, void *out, float *stats, const void *in,
	       const void *weight, const void *bias, size_t rows, size_t c,
	       float eps)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const y = (T *)out;
		const T *const x = (const T *)in;
		const T *const w = (const T *)weight, *const s = (const T *)bias;
		const bool aligned = is_aligned<wide<T>()>(y, x, w, s);

		by_width<T>(c, aligned, [=](auto n) {
			cuda_launch(cuda_of(b), "norm",
				    norm_rows<decltype(n)::value, T>,
				    blocks_of(rows), ROWS * WARP, 0, y, stats,
				    x, w, s, rows, c, eps);
		});
	});
}

/* --- backward --------------------------------------------------------------- */

template <int N, typename T>
static __global__ void __launch_bounds__(ROWS *WARP)
	norm_rows_grad(T *din, const T *dout, const T *in, const float *stats,
		       const T *weight, size_t rows, size_t c)
{
	const size_t row = (size_t)blockIdx.x * ROWS + threadIdx.x / WARP;
	const size_t first = threadIdx.x % WARP * N, at = row * c;
	float sum = 0, dot = 0;

	if (row >= rows)
		return;
	const float mean = stats[2 * row], r = stats[2 * row + 1];

	for (size_t i = first; i < c; i += WARP * N) {
		const floats<N> dy = load<N>(dout + at + i);
		const floats<N> x = load<N>(in + at + i);
		const floats<N> w = load<N>(weight + i);

#pragma unroll
		for (int k = 0; k < N; k++) {
			const float g = dy.x[k] * w.x[k];

			sum += g;
			dot += g * (x.x[k] - mean) * r;
		}
	}
	sum = warp_sum(sum) / (float)c;
	dot = warp_sum(dot) / (float)c;
	for (size_t i = first; i < c; i += WARP * N) {
		const floats<N> dy = load<N>(dout + at + i);
		const floats<N> x = load<N>(in + at + i);
		const floats<N> w = load<N>(weight + i);
		floats<N> dx = load<N>(din + at + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			dx.x[k] += r * (dy.x[k] * w.x[k] - sum -
					(x.x[k] - mean) * r * dot);
		store(din + at + i, dx);
	}
}

/* Gradients of weight and bias. */
template <typename T> struct norm_sums {
	static constexpr int SUMS = 2;
	const T *dout, *in;
	const float *stats;
	size_t c;

	template <int N>
	__device__ void add(floats<N> *sums, size_t row, size_t column) const
	{
		const floats<N> dy = load<N>(dout + row * c + column);
		const floats<N> x = load<N>(in + row * c + column);
		const float mean = stats[2 * row], r = stats[2 * row + 1];

#pragma unroll
		for (int k = 0; k < N; k++) {
			sums[0].x[k] += dy.x[k] * (x.x[k] - mean) * r;
			sums[1].x[k] += dy.x[k];
		}
	}
};

void cuda_norm_grad(struct backend *b, void *din, float *dweight, float *dbias,
		    const void *dout, const void *in, const float *stats,
		    const void *weight, size_t rows, size_t c)
{
	const column_sums sums = { { dweight, dbias } };

	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const dx = (T *)din;
		const T *const dy = (const T *)dout, *const x = (const T *)in;
		const T *const w = (const T *)weight;
		const norm_sums<T> of = { dy, x, stats, c };
		const bool aligned = is_aligned<wide<T>()>(dx, dy, x, w);

		by_width<T>(c, aligned, [=](auto n) {
			constexpr int N = decltype(n)::value;

			cuda_launch(cuda_of(b), "norm_grad",
				    norm_rows_grad<N, T>, blocks_of(rows),
				    ROWS * WARP, 0, dx, dy, x, stats, w, rows,
				    c);
			sum_columns<N>(cuda_of(b), "norm_grad", of, sums, rows,
				       c);
		});
	});
}
