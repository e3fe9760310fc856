/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The backward pass of cuda_attention.cu.  Scores are recomputed twice: for the gradients of keys
 * and values, and for the gradients of queries.  This takes seven GEMMs instead of five, but no
 * block adds to another's result, so the order of all sums is fixed.
 */
#include "gpu/backend/splitmix.h"
#include "gpu/cuda/cuda_head.cuh"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"

/* Groups of eight columns whose scores are in registers at once. */
template <int D, typename T> constexpr int STEP = TILE_ROWS<D, T> / 8 < 4 ? TILE_ROWS<D, T> / 8 : 4;

/* Columns of the gradients that a block accumulates; registers have no room for more beside a wide
 * head's rows.  Blocks for other columns of the head compute the same scores. */
template <int D, typename T> constexpr int SLICE = D > 128 || sizeof(T) > 2 ? 64 : D;

#define DOT_LANES 8 /* per query in dot_outputs */
#define DOT_THREADS 256
#define DOT_QUERIES (DOT_THREADS / DOT_LANES)

/* On entry s holds scores, and d products of values with the output's gradient; on return s holds
 * the weights after dropout, and d the gradients of scores.  Rows belong to this block, columns to
 * the stream; `sums` and `delta` belong to queries, which are the rows or, with `of_keys`, the
 * columns. */
template <bool of_keys, bool drops, int N>
static __device__ __forceinline__ void
score_grads(float s[N][4], float d[N][4], const cuda_heads &a, uint64_t seed, size_t row,
	    size_t column, const float *sums, const float *delta)
{
	const float scale = a.scale * LOG2_E;

#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const size_t mine = row + j / 2 * 8;
			const size_t other = column + i * 8 + j % 2;
			const size_t query = of_keys ? other : mine;
			const size_t key = of_keys ? mine : other;
			const int at = of_keys ? i * 8 + j % 2 : j / 2;
			const float weight = ptx_exp2(s[i][j] * scale - sums[at] * LOG2_E);
			float grad = d[i][j];

			if (drops) {
				const uint32_t random =
					dropout_element(splitmix64(seed, query), key);

				grad = dropout_apply(grad, random, a.drop.p);
				s[i][j] = dropout_apply(weight, random, a.drop.p);
			} else {
				s[i][j] = weight;
			}
			d[i][j] = weight * (grad - delta[at]);
		}
}

/* Copy sums and delta of a tile's queries to shared memory.  Beyond the sequence any value is
 * valid, since the tile's rows are zeros there: store zeros. */
template <int ROWS>
static __device__ __forceinline__ void copy_stats(float *to, const float *sums, const float *delta,
						  size_t at, size_t seq)
{
	const uint32_t i = threadIdx.x % ROWS;
	const float *const from = threadIdx.x < ROWS ? sums : delta;

	to[threadIdx.x] = at + i < seq ? from[at + i] : 0;
}

/* A warp's rows: the left factors, their gradients so far, and the sums and delta of the lane's two
 * queries. */
template <int D, typename T> struct own_rows {
	left_rows<D, T> x1, x2;
	float d1[SLICE<D, T> / 8][4], d2[SLICE<D, T> / 8][4];
	float sums[2], delta[2];

	__device__ __forceinline__ void load(const head_of_block<T> &h, const T *tile, uint32_t row,
					     size_t mine, size_t seq)
	{
		x1.load(tile, row);
		x2.load(tile + TILE_ROWS<D, T> * D, row);
		clear<SLICE<D, T> / 8>(d1);
		clear<SLICE<D, T> / 8>(d2);
#pragma unroll
		for (int half = 0; half < 2; half++) {
			const size_t at = mine + half * 8;

			sums[half] = at < seq ? h.stats[at] : 0;
			delta[half] = at < seq ? h.delta[at] : 0;
		}
	}
};

/* Add the contribution of a tile of the stream to the gradients. */
template <int D, bool of_keys, bool drops, typename T>
static __device__ __forceinline__ void add_tile(own_rows<D, T> &r, const T *tile,
						const float *stats, const cuda_heads &a,
						uint64_t seed, size_t row, size_t at, size_t column)
{
	constexpr int rows = TILE_ROWS<D, T>, step = STEP<D, T>;
	constexpr int slice = SLICE<D, T>;
	const size_t mine = row + threadIdx.x % WARP / 4;

#pragma unroll
	for (int n = 0; n < rows; n += step * 8) {
		float s[step][4], d[step][4];
		const int of_lane = n + threadIdx.x % 4 * 2;

		/* Skip it if all of it is masked. */
		if (of_keys ? at + n + step * 8 <= row : at + n > row + 15)
			continue;
		multiply_rows<D, step>(s, r.x1, tile, n);
		multiply_rows<D, step>(d, r.x2, tile + rows * D, n);
		if (of_keys ? at + n < row + 16 : at + n + step * 8 > row)
			mask_later_keys<of_keys, step>(s, mine, at + of_lane);
		score_grads<of_keys, drops, step>(s, d, a, seed, mine, at + of_lane,
						  of_keys ? stats + of_lane : r.sums,
						  of_keys ? stats + rows + of_lane : r.delta);
		multiply_columns<D, slice, step>(r.d1, d, tile + column, n);
		if (of_keys)
			multiply_columns<D, slice, step>(r.d2, s, tile + rows * D + column, n);
	}
}

template <int D, bool of_keys, typename T>
static __device__ __forceinline__ void store_gradients(const own_rows<D, T> &r,
						       const head_of_block<T> &h, float scale,
						       size_t row, size_t column)
{
	constexpr int slice = SLICE<D, T>;
	const float scales[2] = { scale, scale }, ones[2] = { 1, 1 };

	store_rows<slice>(of_keys ? h.dk : h.dq, h.q, row, column, r.d1, scales);
	if (of_keys)
		store_rows<slice>(h.dv, h.q, row, column, r.d2, ones);
}

/* The gradient of a tile's rows: with `of_keys` of keys and values, otherwise of queries.
 * Registers limit the number of blocks per multiprocessor. */
template <int D, bool of_keys, bool drops, typename T>
static __global__ void __launch_bounds__(TILE_ROWS<D, T> * 2, D == 64 ? (of_keys && drops ? 2 : 3)
								      : 1) attend_grad(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	constexpr int rows = TILE_ROWS<D, T>, slices = D / SLICE<D, T>;
	CUDA_SHARED(float, stats, [2][2 * rows]);
	const head_of_block<T> h = head_of<T>(a);
	const tile_stream<D, rows * 2, T> queries = { (T *)shared, h.q, h.dout };
	const tile_stream<D, rows * 2, T> keys = { (T *)shared, h.k, h.v };
	const tile_stream<D, rows * 2, T> own = of_keys ? keys : queries;
	const tile_stream<D, rows * 2, T> stream = of_keys ? queries : keys;
	/* Start with the longest blocks: most queries see the first keys, the last queries see
	 * most keys. */
	const size_t block = of_keys ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
	const size_t first = block / slices * rows;
	const size_t column = block % slices * SLICE<D, T>;
	const size_t row = first + threadIdx.x / WARP * 16;
	const size_t past = first + rows < a.seq ? first + rows : a.seq;
	const size_t begin = of_keys ? first : 0;
	const size_t end = of_keys ? a.seq : past;
	own_rows<D, T> r;

	own.copy(own.own_rows(), first);
	ptx_commit_copies();
	stream.copy(stream.stage(0), begin);
	copy_stats<rows>(stats[0], h.stats, h.delta, begin, a.seq);
	wait_for_stage();
	r.load(h, own.own_rows(), (uint32_t)(row - first), row + threadIdx.x % WARP / 4, a.seq);
	__syncthreads();
	for (size_t at = begin, i = 0; at < end; at += rows, i++) {
		if (at + rows < end) {
			stream.copy(stream.stage(i + 1), at + rows);
			copy_stats<rows>(stats[(i + 1) % 2], h.stats, h.delta, at + rows, a.seq);
		}
		wait_for_stage();
		add_tile<D, of_keys, drops>(r, stream.stage(i), stats[i % 2], a, h.seed, row, at,
					    column);
		__syncthreads();
	}
	store_gradients<D, of_keys>(r, h, a.scale, row, column);
}

/* delta = the dot product of out and dout for each query, by as many lanes as a head of 64 16-bit
 * elements occupies. */
template <int N, typename T>
static __global__ void __launch_bounds__(DOT_THREADS) dot_outputs(cuda_heads a, float *delta)
{
	const size_t query = (size_t)blockIdx.x * DOT_QUERIES + threadIdx.x / DOT_LANES;
	const size_t lane = threadIdx.x % DOT_LANES;
	const head_of_block<T> h = head_of<T>(a);
	float sum = 0;

	if (query < a.seq)
		for (size_t i = lane * N; i < a.width; i += DOT_LANES * N) {
			const size_t at = query * h.dout.stride + i;
			const floats<N> x = load<N>(h.out + at);
			const floats<N> y = load<N>(h.dout.p + at);

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

static void launch_delta(struct cuda *c, const cuda_heads &a, float *delta)
{
	by_type(c->base.dtype, [&](auto t) {
		typedef decltype(t) T;

		by_width<T>(a.width, a.chunked, [&](auto n) {
			cuda_launch(c, "attention_grad", dot_outputs<decltype(n)::value, T>,
				    attention_grid(a, DOT_QUERIES, 1), DOT_THREADS, 0, a, delta);
		});
	});
}

void cuda_attention_grad(struct backend *b, void *dqkv, const void *dout, const void *out,
			 const float *stats, const void *qkv, size_t batch, size_t seq,
			 size_t heads, size_t c, backend_dropout drop)
{
	struct cuda *const cuda = cuda_of(b);
	struct cuda_heads a = cuda_heads_of(qkv, batch, seq, heads, c, drop);
	float *delta;

	a.out = (void *)out;
	a.stats = (float *)stats;
	a.dout = dout;
	a.dqkv = dqkv;
	if (!cuda_heads_fit(cuda, &a))
		return;
	delta = (float *)cuda_scratch(cuda, batch * heads * seq * sizeof(*delta));
	if (!delta)
		return;
	launch_delta(cuda, a, delta);
	a.delta = delta;
	by_kind(b->dtype, a, [&](auto t, auto room, auto drops) {
		typedef decltype(t) T;
		constexpr int D = decltype(room)::value, R = TILE_ROWS<D, T>;
		constexpr int S = D / SLICE<D, T>;
		constexpr bool has_drop = decltype(drops)::value;
		const size_t shared = tile_stream_bytes<D, T>();

		cuda_launch(cuda, "attention_grad", attend_grad<D, true, has_drop, T>,
			    attention_grid(a, R, S), R * 2, shared, a);
		cuda_launch(cuda, "attention_grad", attend_grad<D, false, has_drop, T>,
			    attention_grid(a, R, S), R * 2, shared, a);
	});
}
