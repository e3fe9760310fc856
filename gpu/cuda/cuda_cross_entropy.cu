/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fused head and loss.  Only the logits of a chunk of rows are in memory: a block computes a
 * row's loss and replaces its logits by their gradient.  Rows are padded, for 16-byte accesses and
 * for GEMMs as fast as with an even vocabulary.
 *
 * If a group shares the tokens, a rank has some columns of the logits.  Ranks exchange the
 * largest logit of each row, the sum of exponentials relative to it, and the target's logit,
 * between two kernels.
 */
#include "gpu/cuda/cuda_gemm.h"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_reduce.cuh"
#include "gpu/cuda/cuda_types.cuh"

#define THREADS 256

/* Padding of logits' rows, and the granularity of rows, in elements. */
#define PITCH ((size_t)64)
#define ROWS ((size_t)128)

/* A sum of exponentials relative to the largest logit. */
struct softmax {
	float top, sum;
};

static __device__ __forceinline__ softmax together(softmax a, softmax b)
{
	const float top = fmaxf(a.top, b.top);

	/* No element yet: the difference would be NaN. */
	if (top == -INFINITY)
		return { top, a.sum + b.sum };
	return { top, a.sum * exp_near(a.top - top) + b.sum * exp_near(b.top - top) };
}

static __device__ __forceinline__ softmax softmax_of_warp(softmax x)
{
#pragma unroll
	for (int i = WARP / 2; i; i /= 2) {
		const softmax other = {
			__shfl_xor_sync(0xffffffffu, x.top, i),
			__shfl_xor_sync(0xffffffffu, x.sum, i),
		};

		x = together(x, other);
	}
	return x;
}

/* N logits of a row of n, starting at element i.  The padding is uninitialised: it is never read,
 * and has weight 0. */
template <int N, typename T>
static __device__ __forceinline__ floats<N> load_logits(const T *x, size_t i, size_t n)
{
	floats<N> f;

	if (i + N <= n)
		return load<N>(x + i);
#pragma unroll
	for (int k = 0; k < N; k++)
		f.x[k] = i + k < n ? widen(x[i + k]) : -INFINITY;
	return f;
}

template <int N, typename T>
static __device__ __forceinline__ softmax softmax_of_row(const T *x, size_t n)
{
	CUDA_SHARED(softmax, shared, [WARP]);
	const unsigned lane = threadIdx.x % WARP;
	const softmax none = { -INFINITY, 0 };
	softmax all = none;

	for (size_t i = threadIdx.x * N; i < n; i += THREADS * N) {
		const floats<N> f = load_logits<N>(x, i, n);
		softmax some = none;

#pragma unroll
		for (int k = 0; k < N; k++)
			some.top = fmaxf(some.top, f.x[k]);
#pragma unroll
		for (int k = 0; k < N; k++)
			some.sum += exp_near(f.x[k] - some.top);
		all = together(all, some);
	}
	all = softmax_of_warp(all);
	if (lane == 0)
		shared[threadIdx.x / WARP] = all;
	__syncthreads();
	return softmax_of_warp(lane < THREADS / WARP ? shared[lane] : none);
}

/* Replace a row's logits by their gradient. */
template <int N, typename T>
static __device__ __forceinline__ void grad_of_row(T *x, size_t vocab, softmax all, int32_t target,
						   float scale)
{
	const float factor = target == TOKEN_NONE ? 0 : scale / all.sum;

	for (size_t i = threadIdx.x * N; i < vocab; i += THREADS * N) {
		floats<N> f = load_logits<N>(x, i, vocab);
		const size_t of_target = (size_t)target - i;

#pragma unroll
		for (int k = 0; k < N; k++)
			f.x[k] = factor * exp_near(f.x[k] - all.top);
		if (of_target < N)
#pragma unroll
			for (int k = 0; k < N; k++)
				if (of_target == (size_t)k)
					f.x[k] -= scale;
		store(x + i, f);
	}
}

/* Compute a row's loss and, with `grad`, replace its logits by their gradient. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	lose_row(float *losses, T *logits, const int32_t *targets, size_t vocab, size_t pitch,
		 const float *scale, bool grad)
{
	const int32_t target = targets[blockIdx.x];
	T *const x = logits + blockIdx.x * pitch;
	const softmax all = softmax_of_row<N>(x, vocab);

	if (threadIdx.x == 0)
		losses[blockIdx.x] = target < 0 ? 0 : logf(all.sum) + all.top - widen(x[target]);
	if (!grad)
		return;
	__syncthreads();
	grad_of_row<N>(x, vocab, all, target, *scale);
}

/* A rank's part of a row: the softmax of its columns, and the target's logit, or 0 if another rank
 * has it. */
struct row_sums {
	softmax some;
	float wanted;
};

#define ROW_FLOATS (sizeof(row_sums) / sizeof(float))

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	sum_row(row_sums *sums, const T *logits, const int32_t *targets, size_t vocab, size_t pitch)
{
	const int32_t target = targets[blockIdx.x];
	const T *const x = logits + blockIdx.x * pitch;
	const softmax some = softmax_of_row<N>(x, vocab);

	if (threadIdx.x == 0)
		sums[blockIdx.x] = { some, target < 0 ? 0 : widen(x[target]) };
}

/* Like lose_row, with the parts of all ranks in all[rank][row].  All ranks add them in the same
 * order, so they get the same loss. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	lose_shared_row(float *losses, T *logits, const row_sums *all, unsigned ranks,
			const int32_t *targets, size_t vocab, size_t pitch, const float *scale,
			bool grad)
{
	const int32_t target = targets[blockIdx.x];
	row_sums sum = { { -INFINITY, 0 }, 0 };

	for (unsigned r = 0; r < ranks; r++) {
		const row_sums one = all[(size_t)r * gridDim.x + blockIdx.x];

		sum.some = together(sum.some, one.some);
		sum.wanted += one.wanted;
	}
	if (threadIdx.x == 0)
		losses[blockIdx.x] =
			target == TOKEN_NONE ? 0 : logf(sum.some.sum) + sum.some.top - sum.wanted;
	if (grad)
		grad_of_row<N>(logits + blockIdx.x * pitch, vocab, sum.some, target, *scale);
}

static __global__ void __launch_bounds__(THREADS)
	add_losses(double *loss, const float *losses, size_t rows)
{
	CUDA_SHARED(double, shared, [WARP]);
	double sum = 0;

	for (size_t i = threadIdx.x; i < rows; i += THREADS)
		sum += losses[i];
	sum = block_sum(sum, shared);
	if (threadIdx.x == 0)
		*loss += sum;
}

/* Arguments of cuda_cross_entropy, restricted to a chunk of rows. */
struct head {
	struct cuda *c;
	double *loss;
	void *din;
	float *dwte;
	bool fresh;
	const void *in, *wte;
	const int32_t *targets;
	size_t rows, width, vocab, pitch;
	const float *scale;
	void *logits;
	float *losses;
	const struct backend_group *group; /* or NULL */
	row_sums *sums, *all_sums;         /* of this rank; of all ranks */
};

static bool make_logits(const head &h)
{
	struct cuda_gemm p = cuda_gemm_of(h.rows, h.vocab, h.width, { h.in, h.width, false },
					  { h.wte, h.width, true }, h.logits);

	p.out_pitch = h.pitch;
	return cuda_gemm_run(h.c, &p);
}

static bool give_back(const head &h)
{
	const struct cuda_gemm in =
		cuda_gemm_of(h.rows, h.width, h.vocab, { h.logits, h.pitch, false },
			     { h.wte, h.width, false }, h.din);
	struct cuda_gemm wte = cuda_gemm_of(h.vocab, h.width, h.rows, { h.logits, h.pitch, true },
					    { h.in, h.width, false }, h.dwte);

	wte.add = h.fresh ? NULL : h.dwte;
	wte.wide = true;
	return cuda_gemm_run(h.c, &in) && cuda_gemm_run(h.c, &wte);
}

template <typename T> static void lose_rows(const head &h)
{
	constexpr int N = wide<T>();
	T *const logits = (T *)h.logits;

	if (!h.group) {
		cuda_launch(h.c, "cross_entropy", lose_row<N, T>, (unsigned)h.rows, THREADS, 0,
			    h.losses, logits, h.targets, h.vocab, h.pitch, h.scale, h.din != NULL);
		return;
	}
	cuda_launch(h.c, "cross_entropy", sum_row<N, T>, (unsigned)h.rows, THREADS, 0, h.sums,
		    logits, h.targets, h.vocab, h.pitch);
	h.group->gather(h.group, &h.sums->some.top, h.rows * ROW_FLOATS, &h.all_sums->some.top);
	cuda_launch(h.c, "cross_entropy", lose_shared_row<N, T>, (unsigned)h.rows, THREADS, 0,
		    h.losses, logits, h.all_sums, h.group->size, h.targets, h.vocab, h.pitch,
		    h.scale, h.din != NULL);
}

static bool cross_entropy_of_rows(const head &h)
{
	if (!make_logits(h))
		return false;
	by_type(h.c->base.dtype, [&](auto t) { lose_rows<decltype(t)>(h); });
	cuda_launch(h.c, "cross_entropy", add_losses, 1, THREADS, 0, h.loss, h.losses, h.rows);
	return !h.din || give_back(h);
}

/* The most rows within the limit, or fewer to have chunks of equal size. */
static size_t chunk_of(size_t rows, size_t bytes_of_row, size_t limit)
{
	const size_t fit = limit / bytes_of_row ? limit / bytes_of_row : 1;
	const size_t chunks = (rows + fit - 1) / fit;
	const size_t even = (rows + chunks - 1) / chunks;
	const size_t liked = (even + ROWS - 1) / ROWS * ROWS;

	return liked <= fit ? liked : even;
}

void cuda_cross_entropy(struct backend *b, double *loss, void *din, float *dwte, const void *in,
			const void *wte, const int32_t *targets, size_t rows, size_t c,
			size_t vocab, const float *scale, bool fresh,
			const struct backend_group *group)
{
	struct cuda *const cuda = cuda_of(b);
	const size_t pitch = (vocab + PITCH - 1) / PITCH * PITCH;
	const size_t of_row = pitch * b->act_size, step = c * b->act_size;
	const size_t chunk = chunk_of(rows, of_row, b->logits_bytes);
	const size_t sums = group ? 1 + group->size : 0;
	char *const scratch = (char *)cuda_scratch(
		cuda, chunk * (of_row + sizeof(float) + sums * sizeof(row_sums)));

	bool well = scratch != NULL;

	for (size_t at = 0; well && at < rows; at += chunk) {
		float *const losses = (float *)(scratch + chunk * of_row);
		const head h = {
			.c = cuda,
			.loss = loss,
			.din = din ? (char *)din + at * step : NULL,
			.dwte = dwte,
			.fresh = fresh && at == 0,
			.in = (const char *)in + at * step,
			.wte = wte,
			.targets = targets + at,
			.rows = rows - at < chunk ? rows - at : chunk,
			.width = c,
			.vocab = vocab,
			.pitch = pitch,
			.scale = scale,
			.logits = scratch,
			.losses = losses,
			.group = group,
			.sums = (row_sums *)(losses + chunk),
			.all_sums = (row_sums *)(losses + chunk) + chunk,
		};

		well = cross_entropy_of_rows(h);
	}
	if (!well && group)
		group->fail(group, b);
}
