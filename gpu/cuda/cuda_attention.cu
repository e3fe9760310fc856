/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, whose weights are never in memory: of each query there are
 * its largest score and the sum of exponentials so far.  The kernels here take
 * any type and shape, with plain arithmetic; those for tensor cores are in
 * cuda_attention_mma.cu.
 *
 * A warp has a row: a query, or on the way back also a key.  The rows on the
 * other side pass by in tiles of 32, one for each lane.  Gradients of keys and
 * of queries are made by kernels of their own, so that nobody adds to what is
 * another's, and sums have an order.
 */
#include <errno.h>

#include "gpu/cuda/cuda_head.cuh"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_reduce.cuh"

#define WARPS 8 /* of a block */
#define WIDTH_MAX ((size_t)256)

#define DOT_LANES 8 /* that share a query in dot_outputs */
#define DOT_QUERIES (WARPS * WARP / DOT_LANES)

/* Rows of a tile in shared memory: lanes that read one column of all rows meet
 * no other's bank. */
static __host__ __device__ __forceinline__ size_t pitch_of(size_t width)
{
	return width | 1;
}

template <typename T>
static __device__ __forceinline__ void
load_rows(float *tile, const T *from, size_t apart, size_t first, size_t n,
	  size_t seq, size_t width)
{
	const size_t pitch = pitch_of(width);

	for (size_t i = threadIdx.x; i < n * width; i += WARPS * WARP) {
		const size_t row = i / width, column = i % width;

		tile[row * pitch + column] =
			first + row < seq
				? widen(from[(first + row) * apart + column])
				: 0.0f;
	}
}

static __device__ __forceinline__ float dot(const float *a, const float *b,
					    size_t n)
{
	float sum = 0;

	for (size_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* sum += the rows of a tile, times what each lane has for its row.  SLOTS * 32
 * columns at least. */
template <int SLOTS>
static __device__ __forceinline__ void add_rows(float sum[SLOTS], float weight,
						const float *tile, size_t width)
{
	const size_t pitch = pitch_of(width);

	for (int j = 0; j < WARP; j++) {
		const float w = __shfl_sync(0xffffffffu, weight, j);

#pragma unroll
		for (int s = 0; s < SLOTS; s++) {
			const size_t column = s * WARP + threadIdx.x % WARP;

			if (column < width)
				sum[s] += w * tile[j * pitch + column];
		}
	}
}

template <int SLOTS, typename T>
static __device__ __forceinline__ void store_row(T *to, const float x[SLOTS],
						 float factor, size_t width)
{
#pragma unroll
	for (int s = 0; s < SLOTS; s++) {
		const size_t column = s * WARP + threadIdx.x % WARP;

		if (column < width)
			narrow(to[column], x[s] * factor);
	}
}

template <int SLOTS, typename T>
static __global__ void __launch_bounds__(WARPS *WARP) attend(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	const size_t pitch = pitch_of(a.width), lane = threadIdx.x % WARP;
	const size_t first = (size_t)blockIdx.x * WARPS;
	const size_t query = first + threadIdx.x / WARP;
	const head_of_block<T> h = head_of<T>(a);
	float *const q = (float *)shared, *const k = q + WARPS * pitch;
	float *const v = k + WARP * pitch;
	float top = -INFINITY, sum = 0, out[SLOTS] = {};

	load_rows(q, h.q, h.wide, first, WARPS, a.seq, a.width);
	for (size_t at = 0; at < first + WARPS && at < a.seq; at += WARP) {
		const size_t key = at + lane;
		const bool seen = key <= query;
		float score, weight, before = top;

		load_rows(k, h.k, h.wide, at, WARP, a.seq, a.width);
		load_rows(v, h.v, h.wide, at, WARP, a.seq, a.width);
		__syncthreads();
		score = a.scale * dot(q + threadIdx.x / WARP * pitch,
				      k + lane * pitch, a.width);
		top = fmaxf(top, warp_max(seen ? score : -INFINITY));
		weight = seen ? expf(score - top) : 0;
		before = expf(before - top);
		sum = sum * before + warp_sum(weight);
		if (a.drop > 0)
			weight = drop_weight(weight, h.seed, query, key, a.drop);
#pragma unroll
		for (int s = 0; s < SLOTS; s++)
			out[s] *= before;
		add_rows<SLOTS>(out, weight, v, a.width);
		__syncthreads();
	}
	if (query >= a.seq)
		return;
	store_row<SLOTS>(h.out + query * h.narrow, out, 1 / sum, a.width);
	if (lane == 0)
		h.stats[query] = top + logf(sum);
}

/* --- the way back ----------------------------------------------------------- */

/* A weight as it was used, and the gradient of its score. */
static __device__ __forceinline__ void
weigh_again(float &weight, float &d, const cuda_heads &a, uint64_t seed,
	    float sum, float delta, const float *x1, const float *x2,
	    const float *y1, const float *y2, size_t query, size_t key)
{
	weight = expf(a.scale * dot(x1, y1, a.width) - sum);
	d = dot(x2, y2, a.width);
	if (a.drop > 0)
		d = drop_weight(d, seed, query, key, a.drop);
	d = weight * (d - delta);
	if (a.drop > 0)
		weight = drop_weight(weight, seed, query, key, a.drop);
}

/* The gradient of a row: with `of_keys` of a key and its value, otherwise of a
 * query. */
template <bool of_keys, int SLOTS, typename T>
static __global__ void __launch_bounds__(WARPS *WARP) attend_grad(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	const size_t pitch = pitch_of(a.width), lane = threadIdx.x % WARP;
	const size_t first = (size_t)blockIdx.x * WARPS;
	const size_t mine = first + threadIdx.x / WARP;
	const size_t past = first + WARPS < a.seq ? first + WARPS : a.seq;
	const size_t begin = of_keys ? first / WARP * WARP : 0;
	const size_t end = of_keys ? a.seq : past;
	const head_of_block<T> h = head_of<T>(a);
	/* Of this side, and of the other. */
	float *const x1 = (float *)shared, *const x2 = x1 + WARPS * pitch;
	float *const y1 = x2 + WARPS * pitch, *const y2 = y1 + WARP * pitch;
	const size_t my_row = threadIdx.x / WARP * pitch;
	float d1[SLOTS] = {}, d2[SLOTS] = {};

	load_rows(x1, of_keys ? h.k : h.q, h.wide, first, WARPS, a.seq, a.width);
	load_rows(x2, of_keys ? h.v : h.dout, of_keys ? h.wide : h.narrow,
		  first, WARPS, a.seq, a.width);
	for (size_t at = begin; at < end; at += WARP) {
		const size_t other = at + lane;
		const size_t query = of_keys ? other : mine;
		const size_t key = of_keys ? mine : other;
		const bool seen = key <= query && query < a.seq;
		float weight = 0, d = 0;

		load_rows(y1, of_keys ? h.q : h.k, h.wide, at, WARP, a.seq,
			  a.width);
		load_rows(y2, of_keys ? h.dout : h.v,
			  of_keys ? h.narrow : h.wide, at, WARP, a.seq, a.width);
		__syncthreads();
		if (seen)
			weigh_again(weight, d, a, h.seed, h.stats[query],
				    h.delta[query], x1 + my_row, x2 + my_row,
				    y1 + lane * pitch, y2 + lane * pitch, query,
				    key);
		add_rows<SLOTS>(d1, d, y1, a.width);
		if (of_keys)
			add_rows<SLOTS>(d2, weight, y2, a.width);
		__syncthreads();
	}
	if (mine >= a.seq)
		return;
	store_row<SLOTS>((of_keys ? h.dk : h.dq) + mine * h.wide, d1, a.scale,
			 a.width);
	if (of_keys)
		store_row<SLOTS>(h.dv + mine * h.wide, d2, 1, a.width);
}

/* out * dout of each query, by as many lanes as a head of 64 elements keeps
 * busy. */
template <int N, typename T>
static __global__ void __launch_bounds__(WARPS *WARP)
	dot_outputs(cuda_heads a, float *delta)
{
	const size_t query =
		(size_t)blockIdx.x * DOT_QUERIES + threadIdx.x / DOT_LANES;
	const size_t lane = threadIdx.x % DOT_LANES;
	const head_of_block<T> h = head_of<T>(a);
	float sum = 0;

	if (query < a.seq)
		for (size_t i = lane * N; i < a.width; i += DOT_LANES * N) {
			const size_t at = query * h.narrow + i;
			const floats<N> x = load<N>(h.out + at);
			const floats<N> y = load<N>(h.dout + at);

#pragma unroll
			for (int k = 0; k < N; k++)
				sum += x.x[k] * y.x[k];
		}
#pragma unroll
	for (int i = DOT_LANES / 2; i; i /= 2)
		sum += __shfl_xor_sync(0xffffffffu, sum, i);
	if (query < a.seq && lane == 0)
		delta[(blockIdx.z * a.heads + blockIdx.y) * a.seq + query] = sum;
}

/* --- operations ------------------------------------------------------------- */

/* Blocks that have `queries` each. */
static dim3 grid_of(const cuda_heads &a, size_t queries)
{
	return dim3((unsigned)((a.seq + queries - 1) / queries),
		    (unsigned)a.heads, (unsigned)a.batch);
}

static size_t shared_of(const cuda_heads &a, size_t rows)
{
	return rows * pitch_of(a.width) * sizeof(float);
}

template <int SLOTS, typename T>
static void launch(struct cuda *c, const cuda_heads &a)
{
	cuda_launch(c, "attention", attend<SLOTS, T>, grid_of(a, WARPS),
		    WARPS * WARP, shared_of(a, WARPS + 2 * WARP), a);
}

template <int SLOTS, typename T>
static void launch_grad(struct cuda *c, const cuda_heads &a)
{
	const size_t shared = shared_of(a, 2 * WARPS + 2 * WARP);

	cuda_launch(c, "attention_grad", attend_grad<true, SLOTS, T>,
		    grid_of(a, WARPS), WARPS * WARP, shared, a);
	cuda_launch(c, "attention_grad", attend_grad<false, SLOTS, T>,
		    grid_of(a, WARPS), WARPS * WARP, shared, a);
}

static bool is_too_wide(struct cuda *c, const cuda_heads &a)
{
	if (a.width > WIDTH_MAX)
		cuda_fail(c, -ENOTSUP, "attention",
			  "heads of more than 256 elements");
	return a.width > WIDTH_MAX;
}

static cuda_heads attention_of(const void *qkv, size_t batch, size_t seq,
			       size_t heads, size_t c, float drop, uint64_t seed)
{
	cuda_heads a = {};

	a.qkv = qkv;
	a.batch = batch;
	a.seq = seq;
	a.heads = heads;
	a.width = c / heads;
	a.scale = 1.0f / sqrtf((float)a.width);
	a.drop = drop;
	a.seed = seed;
	return a;
}

void cuda_attention(struct backend *b, void *out, float *stats, const void *qkv,
		    size_t batch, size_t seq, size_t heads, size_t c,
		    float drop, uint64_t seed)
{
	struct cuda *const cuda = cuda_of(b);
	struct cuda_heads a =
		attention_of(qkv, batch, seq, heads, c, drop, seed);

	a.out = out;
	a.stats = stats;
	if (cuda_attention_cudnn(cuda, &a))
		return;
	if (cuda_attention_fits_mma(cuda, &a)) {
		cuda_attention_mma(cuda, &a);
		return;
	}
	if (is_too_wide(cuda, a))
		return;
	by_type(b->dtype, [&](auto t) {
		typedef decltype(t) T;

		if (a.width <= 64)
			launch<2, T>(cuda, a);
		else
			launch<8, T>(cuda, a);
	});
}

void cuda_attention_grad(struct backend *b, void *dqkv, const void *dout,
			 const void *out, const float *stats, const void *qkv,
			 size_t batch, size_t seq, size_t heads, size_t c,
			 float drop, uint64_t seed)
{
	struct cuda *const cuda = cuda_of(b);
	struct cuda_heads a =
		attention_of(qkv, batch, seq, heads, c, drop, seed);
	float *delta;

	a.out = (void *)out;
	a.stats = (float *)stats;
	a.dout = dout;
	a.dqkv = dqkv;
	if (cuda_attention_cudnn_grad(cuda, &a))
		return;
	delta = (float *)cuda_scratch(cuda,
				      batch * heads * seq * sizeof(*delta));
	a.delta = delta;
	if (!delta || is_too_wide(cuda, a))
		return;
	by_type(b->dtype, [&](auto t) {
		typedef decltype(t) T;
		constexpr int W = wide<T>();
		const bool aligned = is_aligned<W>((const T *)out) &&
				     is_aligned<W>((const T *)dout);

		by_width<T>(a.width, aligned, [&](auto n) {
			cuda_launch(cuda, "attention_grad",
				    dot_outputs<decltype(n)::value, T>,
				    grid_of(a, DOT_QUERIES), WARPS * WARP, 0, a,
				    delta);
		});
	});
	if (cuda_attention_fits_mma(cuda, &a)) {
		cuda_attention_mma_grad(cuda, &a);
		return;
	}
	by_type(b->dtype, [&](auto t) {
		typedef decltype(t) T;

		if (a.width <= 64)
			launch_grad<2, T>(cuda, a);
		else
			launch_grad<8, T>(cuda, a);
	});
}
