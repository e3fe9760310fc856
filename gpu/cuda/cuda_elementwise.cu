/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Element-wise operations: dropout, sums, and ZeRO's operations on flat arrays. All are limited
 * by memory bandwidth.  An operation is a functor for N elements from the i-th on; unaligned
 * arrays are processed one element at a time.
 */
#include "gpu/backend/clip.h"
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_reduce.cuh"
#include "gpu/cuda/cuda_types.cuh"

#define THREADS 256
/* Enough blocks to occupy any device; each loops until no work is left. */
#define BLOCKS_MAX ((size_t)132 * 16)

static unsigned blocks_for(size_t work)
{
	const size_t n = (work + THREADS - 1) / THREADS;

	return (unsigned)(n < 1 ? 1 : n < BLOCKS_MAX ? n : BLOCKS_MAX);
}

template <int N, typename F> static __global__ void __launch_bounds__(THREADS) each(F op, size_t n)
{
	const size_t step = (size_t)gridDim.x * THREADS;
	const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
	const size_t whole = n / N;

	for (size_t i = me; i < whole; i += step)
		op.template run<N>(i * N);
	for (size_t i = whole * N + me; i < n; i += step)
		op.template run<1>(i);
}

/* N is the operation's preferred number of elements, used if arrays are aligned. */
template <int N, typename F>
static void for_each_on(struct cuda *c, cudaStream_t stream, const char *name, const F &op,
			bool aligned, size_t n)
{
	if (n == 0)
		return;
	if (aligned)
		cuda_launch_on(c, stream, name, each<N, F>, blocks_for(n / N), THREADS, 0, op, n);
	else
		cuda_launch_on(c, stream, name, each<1, F>, blocks_for(n), THREADS, 0, op, n);
}

template <int N, typename F>
static void for_each(struct backend *b, const char *name, const F &op, bool aligned, size_t n)
{
	struct cuda *const c = cuda_of(b);

	for_each_on<N>(c, c->stream, name, op, aligned, n);
}

template <typename T> struct drop_op {
	T *x;
	uint32_t first;
	backend_dropout drop;

	template <int N> __device__ void run(size_t i) const
	{
		/* All elements count as one row. */
		const uint64_t row = splitmix64(dropout_seed(&drop), 0);
		floats<N> f = load<N>(x + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			f.x[k] = dropout_apply(
				f.x[k], dropout_element(row, first + (uint32_t)(i + k)), drop.p);
		store(x + i, f);
	}
};

void cuda_dropout(struct backend *b, void *x, size_t n, size_t first, backend_dropout drop)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		constexpr int N = wide<T>();
		const drop_op<T> op = { (T *)x, (uint32_t)first, drop };

		for_each<N>(b, "dropout", op, is_aligned<N>(op.x), n);
	});
}

template <typename To, typename From> struct add_op {
	To *dst;
	const From *src;

	template <int N> __device__ void run(size_t i) const
	{
		floats<N> sum = load<N>(dst + i);

		sum += load<N>(src + i);
		store(dst + i, sum);
	}
};

template <typename T>
static void cuda_elementwise_add(struct backend *b, const char *name, T *dst, const T *src,
				 size_t n)
{
	constexpr int N = wide<T>();
	const add_op<T, T> op = { dst, src };

	for_each<N>(b, name, op, is_aligned<N>(dst, src), n);
}

void cuda_add(struct backend *b, void *dst, const void *src, size_t n)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;

		cuda_elementwise_add(b, "add", (T *)dst, (const T *)src, n);
	});
}

/* Transpose in the order of `out`; groups of n elements move together. */
template <typename T> struct transpose_op {
	T *out;
	const T *in;
	size_t rows, columns, n;

	template <int N> __device__ void run(size_t i) const
	{
		const size_t group = i / n;

		out[i] = in[(group % rows * columns + group / rows) * n + i % n];
	}
};

void cuda_transpose(struct backend *b, void *out, const void *in, size_t rows, size_t columns,
		    size_t n)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		const transpose_op<T> op = { (T *)out, (const T *)in, rows, columns, n };

		for_each<1>(b, "transpose", op, true, rows * columns * n);
	});
}

void cuda_accumulate(struct backend *b, float *dst, const float *src, size_t n)
{
	cuda_elementwise_add(b, "accumulate", dst, src, n);
}

template <typename To, typename From> struct convert_op {
	To *dst;
	const From *src;

	template <int N> __device__ void run(size_t i) const
	{
		store(dst + i, load<N>(src + i));
	}
};

template <typename To, typename From>
static void cuda_elementwise_convert(struct backend *b, const char *name, To *dst, const From *src,
				     size_t n)
{
	const convert_op<To, From> op = { dst, src };

	for_each<8>(b, name, op, is_aligned<8>(dst, src), n);
}

void cuda_round(struct backend *b, void *dst, const float *src, size_t n)
{
	by_type(b->dtype,
		[=](auto t) { cuda_elementwise_convert(b, "round", (decltype(t) *)dst, src, n); });
}

void cuda_cast(struct backend *b, enum backend_queue q, float *dst, const void *src,
	       enum dtype from, size_t n, bool add)
{
	const cudaStream_t stream = (cudaStream_t)b->ops->native_queue(b, q);

	by_type(from, [=](auto t) {
		typedef decltype(t) T;
		const convert_op<float, T> op = { dst, (const T *)src };
		const add_op<float, T> sum = { dst, (const T *)src };
		const bool aligned = is_aligned<8>(op.dst, op.src);

		if (add)
			for_each_on<8>(cuda_of(b), stream, "cast", sum, aligned, n);
		else
			for_each_on<8>(cuda_of(b), stream, "cast", op, aligned, n);
	});
}

void cuda_narrow(struct backend *b, enum backend_queue q, void *dst, enum dtype to,
		 const float *src, size_t n)
{
	const cudaStream_t stream = (cudaStream_t)b->ops->native_queue(b, q);

	by_type(to, [=](auto t) {
		typedef decltype(t) T;
		const convert_op<T, float> op = { (T *)dst, src };

		for_each_on<8>(cuda_of(b), stream, "narrow", op, is_aligned<8>(op.dst, op.src), n);
	});
}

template <typename T> struct adam_op {
	/* struct backend_adam, with constant subexpressions precomputed. */
	float keep_v, to_m, to_v;
	float eps, l2;
	const backend_rate *rate;
	const float *factor;
	T *weights;
	float *p, *m, *v;
	const float *grad;

	template <int N> __device__ void run(size_t i) const
	{
		floats<N> fp = load<N>(p + i), fm = load<N>(m + i);
		floats<N> fv = load<N>(v + i);
		const floats<N> fg = load<N>(grad + i);
		const backend_rate now = *rate;
		const float by = *factor;

		if (by == 0)
			return;

#pragma unroll
		for (int k = 0; k < N; k++) {
			const float g = fg.x[k] * by + l2 * fp.x[k];

			fm.x[k] += to_m * (g - fm.x[k]);
			fv.x[k] = keep_v * fv.x[k] + to_v * g * g;
			fp.x[k] = fp.x[k] * now.decay -
				  now.step_size * fm.x[k] / (sqrtf(fv.x[k]) / now.denom + eps);
		}
		store(p + i, fp);
		store(m + i, fm);
		store(v + i, fv);
		store(weights + i, fp);
	}
};

static __global__ void clip_gradients(float *factor, const double *sum, const double *scale,
				      double most)
{
	if (threadIdx.x == 0)
		*factor = clip_factor(clip_norm(*sum, *scale), *scale, most);
}

void cuda_clip(struct backend *b, float *factor, const double *sum, const double *scale,
	       double most)
{
	cuda_launch(cuda_of(b), "clip", clip_gradients, 1, WARP, 0, factor, sum, scale, most);
}

void cuda_adam(struct backend *b, const struct backend_adam *a, const struct backend_rate *rate,
	       const float *factor, void *weights, float *p, float *exp_avg, float *exp_avg_sq,
	       const float *grad, size_t n)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		const adam_op<T> op = {
			(float)a->beta2,
			(float)(1 - a->beta1),
			(float)(1 - a->beta2),
			a->eps,
			a->l2,
			rate,
			factor,
			(T *)weights,
			p,
			exp_avg,
			exp_avg_sq,
			grad,
		};

		for_each<4>(b, "adam", op,
			    is_aligned<4>(p, exp_avg, exp_avg_sq, grad) &&
				    is_aligned<4>(op.weights),
			    n);
	});
}

/* The number of parts, and hence the order of the sum, depends on n only. */
#define PARTS_MAX ((size_t)1024)

/* Each element of an access has its own sum, and several accesses are in flight, so that threads
 * wait for memory only, never for the previous addition. */
template <int N>
static __global__ void __launch_bounds__(THREADS)
	squares_of_parts(double *parts, const float *x, size_t n)
{
	CUDA_SHARED(double, shared, [WARP]);
	const size_t step = (size_t)gridDim.x * THREADS;
	const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
	const size_t whole = n / N;
	double sums[N] = {}, sum = 0;

#pragma unroll 4
	for (size_t i = me; i < whole; i += step) {
		const floats<N> f = load<N>(x + i * N);

#pragma unroll
		for (int k = 0; k < N; k++)
			sums[k] += (double)f.x[k] * f.x[k];
	}
	for (size_t i = whole * N + me; i < n; i += step)
		sum += (double)x[i] * x[i];
#pragma unroll
	for (int k = 0; k < N; k++)
		sum += sums[k];
	sum = block_sum(sum, shared);
	if (threadIdx.x == 0)
		parts[blockIdx.x] = sum;
}

static __global__ void __launch_bounds__(THREADS)
	add_parts(double *to, const double *parts, size_t n)
{
	CUDA_SHARED(double, shared, [WARP]);
	double sum = 0;

	for (size_t i = threadIdx.x; i < n; i += THREADS)
		sum += parts[i];
	sum = block_sum(sum, shared);
	if (threadIdx.x == 0)
		*to += sum;
}

void cuda_sum_squares(struct backend *b, double *sum, const float *x, size_t n)
{
	const size_t whole = (n + THREADS - 1) / THREADS;
	const size_t parts = whole < PARTS_MAX ? whole : PARTS_MAX;
	struct cuda *const c = cuda_of(b);
	double *const sums = (double *)cuda_scratch(c, parts * sizeof(*sums));

	if (!sums || !parts)
		return;
	cuda_launch(c, "sum_squares", is_aligned<4>(x) ? squares_of_parts<4> : squares_of_parts<1>,
		    (unsigned)parts, THREADS, 0, sums, x, n);
	cuda_launch(c, "sum_squares", add_parts, 1, THREADS, 0, sum, sums, parts);
}
