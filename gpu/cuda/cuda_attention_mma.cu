/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention on tensor cores, for 16-bit types and heads of up to 128
 * elements: as in cuda_attention.cu, but a warp has 16 rows, and tiles of the
 * other side are copied while the one before is used.
 *
 * On the way back scores are made again, once for the gradients of keys and
 * once for those of queries: seven products instead of five, and none of the
 * sums that blocks would otherwise have in common.
 */
#include "gpu/cuda/cuda_head.cuh"
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_mma.cuh"

#define LN_2 0.6931471806f

#define TILE 64     /* rows of the other side */
#define QUERIES 128 /* of a block, forwards */
#define ROWS TILE   /* of a block, on the way back */
#define STEP 4      /* columns / 8 of scores that are there at once, likewise */

/* Tiles of the other side: two matrices, there twice. */
template <int D> static constexpr size_t shared_bytes()
{
	return 4 * TILE * D * sizeof(uint16_t);
}

/* What passes by: rows of two matrices, in tiles that are copied to one of two
 * stages while the other is used. */
template <int D, int THREADS, typename T> struct passing {
	T *tiles;
	const T *y1, *y2;
	size_t y1_apart, y2_apart, seq, width;

	__device__ __forceinline__ T *stage(size_t i) const
	{
		return tiles + i % 2 * (2 * TILE * D);
	}

	/* Begin to copy the rows from `at` on to stage i. */
	__device__ __forceinline__ void copy(size_t i, size_t at) const
	{
		copy_tile<D, TILE, THREADS>(stage(i), y1, y1_apart, at, seq,
					    width);
		copy_tile<D, TILE, THREADS>(stage(i) + TILE * D, y2, y2_apart,
					    at, seq, width);
	}
};

/* All copies but those of the last group have happened, for all threads. */
static __device__ __forceinline__ void wait_for_stage()
{
	ptx_copies_are_a_group();
	ptx_wait_for_copies<1>();
	__syncthreads();
}

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

/* A query sees no later keys: their scores become such as weigh nothing.  The
 * lane's first score is at `row` and `column`; rows are queries, or with
 * `of_keys` keys. */
template <bool of_keys, int N>
static __device__ __forceinline__ void hide_later_keys(float s[N][4],
						       size_t row, size_t column)
{
	const int ahead = (int)(row - column);

#pragma unroll
	for (int i = 0; i < N; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const int by = i * 8 + j % 2 - j / 2 * 8;

			if (of_keys ? by < ahead : by > ahead)
				s[i][j] = -INFINITY;
		}
}

/* --- forwards --------------------------------------------------------------- */

/* A lane's two queries: the largest score, counted in powers of two, and the
 * lane's part of the sum. */
struct running {
	float top[2], sum[2];
};

/* Scores become weights; `fade` is what is left of what was summed before.  Of
 * each query some key is seen from the first tile on. */
static __device__ __forceinline__ void weigh(float s[TILE / 8][4], running &r,
					     float fade[2], float scale)
{
#pragma unroll
	for (int half = 0; half < 2; half++) {
		float top = -INFINITY;

#pragma unroll
		for (int i = 0; i < TILE / 8; i++)
#pragma unroll
			for (int j = 0; j < 2; j++)
				top = fmaxf(top, s[i][half * 2 + j]);
		top = fmaxf(r.top[half], quad_max(top) * scale);
		fade[half] = ptx_exp2(r.top[half] - top);
		r.top[half] = top;
		r.sum[half] *= fade[half];
#pragma unroll
		for (int i = 0; i < TILE / 8; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float &x = s[i][half * 2 + j];

				x = ptx_exp2(x * scale - top);
				r.sum[half] += x;
			}
	}
}

static __device__ __forceinline__ void drop_weights(float s[TILE / 8][4],
						    uint64_t seed, size_t query,
						    size_t at, float drop)
{
	const uint32_t first = at + threadIdx.x % 4 * 2;

#pragma unroll
	for (int half = 0; half < 2; half++) {
		const uint64_t of_row = pattern_random(seed, query + half * 8);

#pragma unroll
		for (int i = 0; i < TILE / 8; i++)
#pragma unroll
			for (int j = 0; j < 2; j++) {
				float &x = s[i][half * 2 + j];

				x = pattern_drop(
					x,
					pattern_element(of_row,
							first + i * 8 + j),
					drop);
			}
	}
}

/* One tile of keys and values more: o is the sum of values so far. */
template <int D, bool drops, typename T>
static __device__ __forceinline__ void
attend_tile(float o[D / 8][4], running &r, const uint32_t q[D / 16][4],
	    const T *tile, const cuda_heads &a, uint64_t seed, size_t row,
	    size_t at)
{
	const size_t query = row + threadIdx.x % WARP / 4;
	float s[TILE / 8][4], fade[2];

	multiply_rows<D, TILE / 8>(s, q, tile, 0);
	if (at + TILE > row)
		hide_later_keys<false, TILE / 8>(s, query,
						 at + threadIdx.x % 4 * 2);
	weigh(s, r, fade, a.scale * LOG2_E);
	if (drops)
		drop_weights(s, seed, query, at, a.drop);
#pragma unroll
	for (int i = 0; i < D / 8; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			o[i][j] *= fade[j / 2];
	multiply_columns<D, TILE / 8>(o, s, tile + TILE * D, 0);
}

/* What the sums of a lane's two queries are divided by; the way back needs
 * their logarithms. */
static __device__ __forceinline__ void finish_rows(float factor[2],
						   const running &r,
						   float *stats, size_t query,
						   size_t seq)
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
static __global__ void __launch_bounds__(QUERIES * 2, D == 64 ? 2 : 1)
	attend(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	constexpr int threads = QUERIES * 2;
	const head_of_block<T> h = head_of<T>(a);
	const passing<D, threads, T> keys = { (T *)shared, h.k,    h.v,
					      h.wide,      h.wide, a.seq,
					      a.width };
	/* Long rows of work first: short ones fill the gaps at the end. */
	const size_t first = (size_t)(gridDim.x - 1 - blockIdx.x) * QUERIES;
	const size_t row = first + threadIdx.x / WARP * 16;
	const size_t query = row + threadIdx.x % WARP / 4;
	const size_t past = first + QUERIES < a.seq ? first + QUERIES : a.seq;
	uint32_t q[D / 16][4];
	float o[D / 8][4] = {}, factor[2];
	running r = { { -INFINITY, -INFINITY }, { 0, 0 } };

	/* Queries are in the second stage's place until it is needed. */
	copy_tile<D, QUERIES, threads>(keys.stage(1), h.q, h.wide, first, a.seq,
				       a.width);
	ptx_copies_are_a_group();
	keys.copy(0, 0);
	wait_for_stage();
	load_a<D>(q, keys.stage(1), (uint32_t)(row - first));
	__syncthreads();
	for (size_t at = 0, i = 0; at < past; at += TILE, i++) {
		if (at + TILE < past)
			keys.copy(i + 1, at + TILE);
		wait_for_stage();
		if (at <= row + 15)
			attend_tile<D, drops>(o, r, q, keys.stage(i), a, h.seed,
					      row, at);
		__syncthreads();
	}
	finish_rows(factor, r, h.stats, query, a.seq);
	store_rows<D>(h.out, h.narrow, row, a.seq, a.width, o, factor);
}

/* --- the way back ----------------------------------------------------------- */

/* From scores `s` and products `d` of values and the output's gradient: s
 * becomes the weights as they were used, d the gradient of scores.  Rows are
 * this side's, columns the other's; `sums` and `delta` belong to queries,
 * which are rows or, with `of_keys`, columns. */
template <bool of_keys, bool drops>
static __device__ __forceinline__ void
weigh_again(float s[STEP][4], float d[STEP][4], const cuda_heads &a,
	    uint64_t seed, size_t row, size_t column, const float *sums,
	    const float *delta)
{
	const float scale = a.scale * LOG2_E;

#pragma unroll
	for (int i = 0; i < STEP; i++)
#pragma unroll
		for (int j = 0; j < 4; j++) {
			const size_t mine = row + j / 2 * 8;
			const size_t other = column + i * 8 + j % 2;
			const size_t query = of_keys ? other : mine;
			const size_t key = of_keys ? mine : other;
			const int at = of_keys ? i * 8 + j % 2 : j / 2;
			const float weight =
				ptx_exp2(s[i][j] * scale - sums[at] * LOG2_E);
			float grad = d[i][j];

			if (drops) {
				const uint32_t random = pattern_element(
					pattern_random(seed, query), key);

				grad = pattern_drop(grad, random, a.drop);
				s[i][j] = pattern_drop(weight, random, a.drop);
			} else {
				s[i][j] = weight;
			}
			d[i][j] = weight * (grad - delta[at]);
		}
}

/* sums and delta of a tile's queries, for the lanes to find.  Beyond the sequence
 * rows are zeros, and whatever weighs them adds nothing. */
static __device__ __forceinline__ void copy_stats(float *to, const float *sums,
						  const float *delta, size_t at,
						  size_t seq)
{
	const uint32_t i = threadIdx.x % TILE;
	const float *const from = threadIdx.x < TILE ? sums : delta;

	to[threadIdx.x] = at + i < seq ? from[at + i] : 0;
}

/* What a warp has of its rows: factors, and gradients so far. */
template <int D> struct own_rows {
	uint32_t x1[D / 16][4], x2[D / 16][4];
	float d1[D / 8][4], d2[D / 8][4];
	float sums[2], delta[2];
};

template <int D, typename T>
static __device__ __forceinline__ void
begin_rows(own_rows<D> &r, const head_of_block<T> &h, const T *tile,
	   uint32_t row, size_t mine, size_t seq)
{
	load_a<D>(r.x1, tile, row);
	load_a<D>(r.x2, tile + TILE * D, row);
#pragma unroll
	for (int i = 0; i < D / 8; i++)
#pragma unroll
		for (int j = 0; j < 4; j++)
			r.d1[i][j] = r.d2[i][j] = 0;
#pragma unroll
	for (int half = 0; half < 2; half++) {
		const size_t at = mine + half * 8;

		r.sums[half] = at < seq ? h.stats[at] : 0;
		r.delta[half] = at < seq ? h.delta[at] : 0;
	}
}

/* What a tile of the other side adds to the gradients. */
template <int D, bool of_keys, bool drops, typename T>
static __device__ __forceinline__ void
add_tile(own_rows<D> &r, const T *tile, const float *stats, const cuda_heads &a,
	 uint64_t seed, size_t row, size_t at)
{
	const size_t mine = row + threadIdx.x % WARP / 4;

#pragma unroll
	for (int n = 0; n < TILE; n += STEP * 8) {
		float s[STEP][4], d[STEP][4];
		const int of_lane = n + threadIdx.x % 4 * 2;

		/* Nothing there that is seen? */
		if (of_keys ? at + n + STEP * 8 <= row : at + n > row + 15)
			continue;
		multiply_rows<D, STEP>(s, r.x1, tile, n);
		multiply_rows<D, STEP>(d, r.x2, tile + TILE * D, n);
		if (of_keys ? at + n < row + 16 : at + n + STEP * 8 > row)
			hide_later_keys<of_keys, STEP>(s, mine, at + of_lane);
		weigh_again<of_keys, drops>(s, d, a, seed, mine, at + of_lane,
					    of_keys ? stats + of_lane : r.sums,
					    of_keys ? stats + TILE + of_lane
						    : r.delta);
		multiply_columns<D, STEP>(r.d1, d, tile, n);
		if (of_keys)
			multiply_columns<D, STEP>(r.d2, s, tile + TILE * D, n);
	}
}

template <int D, bool of_keys, typename T>
static __device__ __forceinline__ void
store_gradients(const own_rows<D> &r, const head_of_block<T> &h,
		const cuda_heads &a, size_t row)
{
	const float scales[2] = { a.scale, a.scale }, ones[2] = { 1, 1 };

	store_rows<D>(of_keys ? h.dk : h.dq, h.wide, row, a.seq, a.width, r.d1,
		      scales);
	if (of_keys)
		store_rows<D>(h.dv, h.wide, row, a.seq, a.width, r.d2, ones);
}

/* With so many blocks of a multiprocessor, their registers suffice. */
template <int D, bool of_keys, bool drops, typename T>
static __global__ void
__launch_bounds__(ROWS * 2, D == 64 ? (of_keys && drops ? 2 : 3) : 1)
	attend_grad(cuda_heads a)
{
	CUDA_DYNAMIC_SHARED(shared);
	__shared__ float stats[2][2 * TILE];
	const head_of_block<T> h = head_of<T>(a);
	/* This side, and the other; it passes by. */
	const passing<D, ROWS * 2, T> queries = { (T *)shared, h.q,      h.dout,
						  h.wide,      h.narrow, a.seq,
						  a.width };
	const passing<D, ROWS * 2, T> keys = { (T *)shared, h.k,    h.v,
					       h.wide,      h.wide, a.seq,
					       a.width };
	const passing<D, ROWS * 2, T> own = of_keys ? keys : queries;
	const passing<D, ROWS * 2, T> others = of_keys ? queries : keys;
	/* The first keys are seen by most queries, the last queries see most
	 * keys. */
	const size_t part = of_keys ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
	const size_t first = part * ROWS;
	const size_t row = first + threadIdx.x / WARP * 16;
	const size_t past = first + ROWS < a.seq ? first + ROWS : a.seq;
	const size_t begin = of_keys ? first / TILE * TILE : 0;
	const size_t end = of_keys ? a.seq : past;
	own_rows<D> r;

	/* This side is in the second stage's place until it is needed. */
	own.copy(1, first);
	ptx_copies_are_a_group();
	others.copy(0, begin);
	copy_stats(stats[0], h.stats, h.delta, begin, a.seq);
	wait_for_stage();
	begin_rows(r, h, own.stage(1), (uint32_t)(row - first),
		   row + threadIdx.x % WARP / 4, a.seq);
	__syncthreads();
	for (size_t at = begin, i = 0; at < end; at += TILE, i++) {
		if (at + TILE < end) {
			others.copy(i + 1, at + TILE);
			copy_stats(stats[(i + 1) % 2], h.stats, h.delta,
				   at + TILE, a.seq);
		}
		wait_for_stage();
		add_tile<D, of_keys, drops>(r, others.stage(i), stats[i % 2], a,
					    h.seed, row, at);
		__syncthreads();
	}
	store_gradients<D, of_keys>(r, h, a, row);
}

/* --- operations ------------------------------------------------------------- */

bool cuda_attention_fits_mma(const struct cuda *c, const struct cuda_heads *a)
{
	return c->base.dtype != DTYPE_F32 && a->width <= 128 &&
	       a->width % CHUNK == 0 &&
	       is_aligned<CHUNK>((const bf16 *)a->qkv) &&
	       is_aligned<CHUNK>((const bf16 *)a->out) &&
	       is_aligned<CHUNK>((const bf16 *)a->dout) &&
	       is_aligned<CHUNK>((const bf16 *)a->dqkv);
}

static dim3 grid_of(const cuda_heads &a, size_t rows)
{
	return dim3((unsigned)((a.seq + rows - 1) / rows), (unsigned)a.heads,
		    (unsigned)a.batch);
}

/* Call `work` with the type, the room for a head, and whether to drop: large
 * heads, which are rare, do so in any case, if only with probability 0. */
template <typename F>
static void by_kind(const struct cuda *c, const cuda_heads &a, F work)
{
	const auto by_drop = [&](auto t, auto d) {
		if (a.drop > 0)
			work(t, d, count<1>());
		else
			work(t, d, count<0>());
	};
	const auto by_room = [&](auto t) {
		if (a.width <= 64)
			by_drop(t, count<64>());
		else
			work(t, count<128>(), count<1>());
	};

	if (c->base.dtype == DTYPE_BF16)
		by_room(bf16());
	else
		by_room(f16());
}

void cuda_attention_mma(struct cuda *c, const struct cuda_heads *a)
{
	by_kind(c, *a, [&](auto t, auto room, auto drops) {
		constexpr int D = decltype(room)::value;

		cuda_launch(c, "attention",
			    attend<D, decltype(drops)::value, decltype(t)>,
			    grid_of(*a, QUERIES), QUERIES * 2,
			    shared_bytes<D>(), *a);
	});
}

void cuda_attention_mma_grad(struct cuda *c, const struct cuda_heads *a)
{
	by_kind(c, *a, [&](auto t, auto room, auto drops) {
		typedef decltype(t) T;
		constexpr int D = decltype(room)::value;
		constexpr bool drop = decltype(drops)::value;

		cuda_launch(c, "attention_grad", attend_grad<D, true, drop, T>,
			    grid_of(*a, ROWS), ROWS * 2, shared_bytes<D>(), *a);
		cuda_launch(c, "attention_grad", attend_grad<D, false, drop, T>,
			    grid_of(*a, ROWS), ROWS * 2, shared_bytes<D>(), *a);
	});
}
