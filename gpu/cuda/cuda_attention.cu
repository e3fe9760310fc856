/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention by our own kernel, for every type and for heads of up to 256 elements: flash
 * attention, which keeps no weights in memory, only the logarithm of each query's sum of
 * exponentials.  A warp computes 16 queries; the next tile of keys and values is copied while the
 * current one is used.
 */
#include "gpu/backend/splitmix.h"
#include "gpu/cuda/cuda_head.cuh"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"

/* Queries per block: the rows of a stage. */
template <int D, typename T> constexpr int QUERIES = 2 * TILE_ROWS<D, T>;

static __device__ __forceinline__ float quad_sum(float x)
{
	x += __shfl_xor_sync(0xffffffffu, x, 1);
	return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

static __device__ __forceinline__ float quad_max(float x)
{
	x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
	return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}

/* Softmax of a lane's two queries so far: the largest score, as a power of two, and the lane's part
 * of the sum. */
struct softmax {
	float top[2], sum[2];
};

/* Turn scores into weights.  `fade` rescales the sums so far.  Every query sees a key in its first
 * tile. */
template <int N>
static __device__ __forceinline__ void weigh(float s[N][4], softmax &r, float fade[2], float scale)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float top = -INFINITY;

#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int j = 0; j < 2; j++)
				top = fmaxf(top, s[i][half * 2 + j]);
		top = fmaxf(r.top[half], quad_max(top) * scale);
		fade[half] = ptx_exp2(r.top[half] - top);
		r.top[half] = top;
		r.sum[half] *= fade[half];
#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float &x = s[i][half * 2 + j];

				x = ptx_exp2(x * scale - top);
				r.sum[half] += x;
			}
	}
}

template <int N>
static __device__ __forceinline__ void drop_weights(float s[N][4], uint64_t seed, size_t query,
						    size_t at, float drop)
{
	const uint32_t first = at + threadIdx.x % 4 * 2;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint64_t of_row = splitmix64(seed, query + half * 8);

#pragma unroll
		for (int i = 0; i < N; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float &x = s[i][half * 2 + j];

				x = dropout_apply(x, dropout_element(of_row, first + i * 8 + j),
						  drop);
			}
	}
}

/* Add one tile of keys and values to o, the weighted sum of values. */
template <int D, bool drops, typename T>
static __device__ __forceinline__ void
attend_tile(float o[D / 8][4], softmax &r, const left_rows<D, T> &q, const T *tile,
	    const cuda_heads &a, uint64_t seed, size_t row, size_t at)
{
	constexpr int rows = TILE_ROWS<D, T>;
	const size_t query = row + threadIdx.x % WARP / 4;
	float s[rows / 8][4], fade[2];

	multiply_rows<D, rows / 8>(s, q, tile, 0);
	if (at + rows > row)
		mask_later_keys<false, rows / 8>(s, query, at + threadIdx.x % 4 * 2);
	weigh<rows / 8>(s, r, fade, a.scale * LOG2_E);
	if (drops)
		drop_weights<rows / 8>(s, seed, query, at, a.drop.p);
#pragma unroll
	for (int i = 0; i < D / 8; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			o[i][j] *= fade[j / 2];
	multiply_columns<D, D, rows / 8>(o, s, tile + rows * D, 0);
}

/* Compute the factors that normalize a lane's two queries, and store the logarithms of their sums
 * for the backward pass. */
static __device__ __forceinline__ void finish_rows(float factor[2], const softmax &r, float *stats,
						   size_t query, size_t seq)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const float sum = quad_sum(r.sum[half]);

		factor[half] = 1 / sum;
		if (threadIdx.x % 4 == 0 && query + half * 8 < seq)
			stats[query + half * 8] = LN_2 * r.top[half] + logf(sum);
	}
}

template <int D, bool drops, typename T>
static __global__ void __launch_bounds__(QUERIES<D, T> * 2, D == 64 ? 2 : 1) attend(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	constexpr int queries = QUERIES<D, T>, tile = TILE_ROWS<D, T>;
	constexpr int threads = queries * 2;
	const head_of_block<T> h = head_of<T>(a);
	const tile_stream<D, threads, T> keys = { (T *)shared, h.k, h.v };
	/* The last queries see most keys: start with them, so that shorter blocks fill the gaps at
	 * the end. */
	const size_t first = (size_t)(gridDim.x - 1 - blockIdx.x) * queries;
	const size_t row = first + threadIdx.x / WARP * 16;
	const size_t query = row + threadIdx.x % WARP / 4;
	const size_t past = first + queries < a.seq ? first + queries : a.seq;
	left_rows<D, T> q;
	float o[D / 8][4], factor[2];
	softmax r = { { -INFINITY, -INFINITY }, { 0, 0 } };

	clear<D / 8>(o);
	copy_tile<D, queries, threads>(keys.own_rows(), h.q, first);
	ptx_commit_copies();
	keys.copy(keys.stage(0), 0);
	wait_for_stage();
	q.load(keys.own_rows(), (uint32_t)(row - first));
	__syncthreads();
	for (size_t at = 0, i = 0; at < past; at += tile, i++) {
		if (at + tile < past)
			keys.copy(keys.stage(i + 1), at + tile);
		wait_for_stage();
		if (at <= row + 15)
			attend_tile<D, drops>(o, r, q, keys.stage(i), a, h.seed, row, at);
		__syncthreads();
	}
	finish_rows(factor, r, h.stats, query, a.seq);
	store_rows<D>(h.out, h.dout, row, 0, o, factor);
}

void cuda_attention(struct backend *b, void *out, float *stats, const void *qkv, size_t batch,
		    size_t seq, size_t heads, size_t c, backend_dropout drop)
{
	struct cuda *const cuda = cuda_of(b);
	struct cuda_heads a = cuda_heads_of(qkv, batch, seq, heads, c, drop);

	a.out = out;
	a.stats = stats;
	if (!cuda_heads_fit(cuda, &a))
		return;
	by_kind(b->dtype, a, [&](auto t, auto room, auto drops) {
		typedef decltype(t) T;
		constexpr int D = decltype(room)::value;

		cuda_launch(cuda, "attention", attend<D, decltype(drops)::value, T>,
			    attention_grid(a, QUERIES<D, T>, 1), QUERIES<D, T> * 2,
			    tile_stream_bytes<D, T>(), a);
	});
}
