/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Embeddings.  The backward pass sorts rows by token and cuts them into chunks, which blocks sum in
 * row order.  A frequent token may be in several chunks and has a sum in each; another kernel adds
 * these sums.  The chunks depend on the number of rows only, and so does the order of all sums.
 */
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_reduce.cuh"
#include "gpu/cuda/cuda_types.cuh"

#define THREADS 128

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	embed_rows(T *out, const T *wte, const T *wpe, const int32_t *tokens, size_t seq, size_t c)
{
	const size_t row = blockIdx.x;
	const int32_t token = tokens[row];
	const T *const te = token == TOKEN_ELSEWHERE ? NULL : wte + (size_t)token * c;
	const T *const pe = wpe ? wpe + row % seq * c : NULL;

	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> x = te ? load<N>(te + i) : floats<N>();

		x += pe ? load<N>(pe + i) : floats<N>();
		store(out + row * c + i, x);
	}
}

void cuda_embed(struct backend *b, void *out, const void *wte, const void *wpe,
		const int32_t *tokens, size_t batch, size_t seq, size_t c)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const x = (T *)out;
		const T *const te = (const T *)wte, *const pe = (const T *)wpe;
		const bool aligned = is_aligned<wide<T>()>(x, te, pe);

		by_width<T>(c, aligned, [=](auto n) {
			cuda_launch(cuda_of(b), "embed", embed_rows<decltype(n)::value, T>,
				    (unsigned)(batch * seq), THREADS, 0, x, te, pe, tokens, seq, c);
		});
	});
}

/* Rows in a run, which is sorted by counting: quadratic, but a single launch.  Runs are then
 * merged.  Below: rows that a block compares at a time. */
#define RUN ((size_t)8192)
#define TILE 1024

/* A token and its row, in the order in which they are sorted. */
typedef uint64_t place;

static __device__ __forceinline__ int32_t token_at(place p)
{
	return (int32_t)(p >> 32);
}

static __device__ __forceinline__ uint32_t row_at(place p)
{
	return (uint32_t)p;
}

/* Within a run, a row's rank is the number of rows before it. */
static __global__ void __launch_bounds__(THREADS)
	sort_runs(place *sorted, const int32_t *tokens, size_t rows)
{
	CUDA_SHARED(int32_t, tile, [TILE]);
	const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
	const size_t run = me / RUN * RUN;
	const size_t end = run + RUN < rows ? run + RUN : rows;
	const uint32_t mine = me < rows ? tokens[me] : 0;
	uint32_t before = 0;

	for (size_t at = run; at < end; at += TILE) {
		const unsigned n = end - at < TILE ? end - at : TILE;
		/* Among equal tokens, earlier rows come first. */
		const unsigned earlier = me <= at ? 0 : me - at < n ? me - at : n;

		__syncthreads();
		for (unsigned i = threadIdx.x; i < n; i += THREADS)
			tile[i] = tokens[at + i];
		__syncthreads();
		for (unsigned i = 0; i < earlier; i++)
			before += (uint32_t)tile[i] <= mine;
		for (unsigned i = earlier; i < n; i++)
			before += (uint32_t)tile[i] < mine;
	}
	if (me < rows)
		sorted[run + before] = (place)mine << 32 | me;
}

/* Count a run's places before p. */
static __device__ __forceinline__ size_t count_before(const place *run, size_t n, place p)
{
	size_t low = 0;

	while (n) {
		const size_t half = n / 2;

		if (run[low + half] < p) {
			low += half + 1;
			n -= half + 1;
		} else {
			n = half;
		}
	}
	return low;
}

/* Merge pairs of sorted runs: for each place, count the places of the other run before it. */
static __global__ void __launch_bounds__(THREADS)
	merge_runs(place *to, const place *from, size_t run, size_t rows)
{
	const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
	const size_t first = me / (2 * run) * (2 * run);
	const size_t second = first + run < rows ? first + run : rows;
	const size_t end = second + run < rows ? second + run : rows;

	if (me >= rows)
		return;
	const place p = from[me];

	if (me < second)
		to[me + count_before(from + second, end - second, p)] = p;
	else
		to[me - run + count_before(from + first, run, p)] = p;
}

/* Sort all rows, with `other` as a second buffer.  Returns the buffer with the result. */
static place *sort_rows(struct cuda *c, place *sorted, place *other, const int32_t *tokens,
			size_t rows)
{
	const unsigned blocks = (unsigned)((rows + THREADS - 1) / THREADS);

	cuda_launch(c, "embed_grad", sort_runs, blocks, THREADS, 0, sorted, tokens, rows);
	for (size_t run = RUN; run < rows; run *= 2) {
		place *const from = sorted;

		cuda_launch(c, "embed_grad", merge_runs, blocks, THREADS, 0, other, from, run,
			    rows);
		sorted = other;
		other = from;
	}
	return sorted;
}

/* Rows of a chunk, and how many of them a thread loads at once. */
#define CHUNK 32
#define DEEP 4

/* to += sum, for float. */
template <int N> static __device__ __forceinline__ void add_to(float *to, const floats<N> &sum)
{
	floats<N> all = load<N>(to);

	all += sum;
	store(to, all);
}

/* The partial sum of a token that is also in the previous or next chunk.  `parts` has two rows per
 * chunk: for the token of the chunk's first row, and for another token. */
static __device__ __forceinline__ float *part_of(float *parts, size_t chunk, bool first, size_t c)
{
	return parts + (2 * chunk + !first) * c;
}

/* The rows of a block's chunk. */
struct chunk {
	unsigned n;
	/* Including the row before the chunk and the row after it. */
	int32_t token[CHUNK + 2];
	uint32_t row[CHUNK];
};

static __device__ __forceinline__ void load_chunk(chunk &h, const place *sorted, size_t rows)
{
	const size_t begin = (size_t)blockIdx.x * CHUNK;
	const unsigned n = rows - begin < CHUNK ? rows - begin : CHUNK;

	if (threadIdx.x < n + 2) {
		const size_t at = begin + threadIdx.x - 1;

		h.token[threadIdx.x] = at < rows ? token_at(sorted[at]) : TOKEN_NONE;
	}
	if (threadIdx.x < n)
		h.row[threadIdx.x] = row_at(sorted[begin + threadIdx.x]);
	if (threadIdx.x == 0)
		h.n = n;
	__syncthreads();
}

/* Store the sum of the chunk's rows from `first` to `last`, which are all its rows with that
 * token. */
template <int N>
static __device__ __forceinline__ void store_sum(const chunk &h, unsigned first, unsigned last,
						 const floats<N> &sum, float *dwte, float *parts,
						 size_t c)
{
	const int32_t t = h.token[last + 1];

	if ((first == 0 && h.token[0] == t) || (last + 1 == h.n && h.token[h.n + 1] == t))
		store(part_of(parts, blockIdx.x, first == 0, c), sum);
	else if (t != TOKEN_ELSEWHERE)
		add_to(dwte + (size_t)t * c, sum);
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	add_tokens(float *dwte, float *parts, const T *dout, const place *sorted, size_t rows,
		   size_t c)
{
	CUDA_SHARED(chunk, h);

	load_chunk(h, sorted, rows);
	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> sum = {};
		unsigned first = 0; /* first row of the token */

		for (unsigned at = 0; at < h.n; at += DEEP) {
			floats<N> d[DEEP] = {};

#pragma unroll
			for (unsigned k = 0; k < DEEP; k++)
				if (at + k < h.n)
					d[k] = load<N>(dout + (size_t)h.row[at + k] * c + i);
#pragma unroll
			for (unsigned k = 0; k < DEEP; k++) {
				const unsigned r = at + k;

				sum += d[k];
				if (r >= h.n || (r + 1 < h.n && h.token[r + 2] == h.token[r + 1]))
					continue;
				store_sum(h, first, r, sum, dwte + i, parts + i, c);
				sum = {};
				first = r + 1;
			}
		}
	}
}

/* Starting at a chunk that begins with a token, return the end of the chunks that do.  There may be
 * many: the step doubles until it is past the end. */
static __device__ __forceinline__ size_t end_of_chunks(const place *sorted, size_t chunk,
						       size_t rows)
{
	const int32_t t = token_at(sorted[chunk * CHUNK]);
	size_t step = 1;

	while ((chunk + step) * CHUNK < rows && token_at(sorted[(chunk + step) * CHUNK]) == t) {
		chunk += step;
		step *= 2;
	}
	for (step /= 2; step; step /= 2)
		if ((chunk + step) * CHUNK < rows && token_at(sorted[(chunk + step) * CHUNK]) == t)
			chunk += step;
	return chunk + 1;
}

#define JOIN_WARPS 8

/* The blocks of a token's first chunk add its partial sums: each block for some columns, each warp
 * for some of the sums. */
template <int N>
static __global__ void __launch_bounds__(WARP *JOIN_WARPS)
	join_chunks(float *dwte, float *parts, const place *sorted, size_t rows, size_t c)
{
	CUDA_SHARED(float, shared, [JOIN_WARPS][WARP * N]);
	const size_t me = blockIdx.x, last = (me + 1) * CHUNK - 1;
	const size_t column = ((size_t)blockIdx.y * WARP + threadIdx.x) * N;

	if (last + 1 >= rows)
		return;
	const int32_t t = token_at(sorted[last]);
	const bool first = token_at(sorted[me * CHUNK]) == t;

	if (t == TOKEN_ELSEWHERE || token_at(sorted[last + 1]) != t ||
	    (first && me && token_at(sorted[me * CHUNK - 1]) == t))
		return;
	const size_t end = end_of_chunks(sorted, me + 1, rows);
	floats<N> sum = {};

	if (column < c) {
#pragma unroll 4
		for (size_t k = me + threadIdx.y; k < end; k += JOIN_WARPS)
			sum += load<N>(part_of(parts, k, k > me || first, c) + column);
	}
#pragma unroll
	for (int j = 0; j < N; j++)
		shared[threadIdx.y][threadIdx.x * N + j] = sum.x[j];
	__syncthreads();
	if (threadIdx.y || column >= c)
		return;
	for (unsigned w = 1; w < JOIN_WARPS; w++)
#pragma unroll
		for (int j = 0; j < N; j++)
			sum.x[j] += shared[w][threadIdx.x * N + j];
	add_to(dwte + (size_t)t * c + column, sum);
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	add_positions(float *dwpe, const T *dout, size_t batch, size_t seq, size_t c)
{
	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> sum = {};

#pragma unroll 4
		for (size_t k = 0; k < batch; k++)
			sum += load<N>(dout + (k * seq + blockIdx.x) * c + i);
		add_to(dwpe + blockIdx.x * c + i, sum);
	}
}

static size_t chunks_of(size_t rows)
{
	return (rows + CHUNK - 1) / CHUNK;
}

/* Add the sums that chunks with a common token have left in `parts`. */
static void join(struct cuda *c, float *dwte, float *parts, const place *sorted, size_t rows,
		 size_t columns)
{
	by_width<float>(columns, is_aligned<wide<float>()>(dwte), [=](auto n) {
		constexpr int N = decltype(n)::value;
		const size_t across = (columns + WARP * N - 1) / (WARP * N);

		cuda_launch(c, "embed_grad", join_chunks<N>,
			    dim3((unsigned)chunks_of(rows), (unsigned)across),
			    dim3(WARP, JOIN_WARPS), 0, dwte, parts, sorted, rows, columns);
	});
}

void cuda_embed_grad(struct backend *b, float *dwte, float *dwpe, const void *dout,
		     const int32_t *tokens, size_t batch, size_t seq, size_t c)
{
	struct cuda *const cuda = cuda_of(b);
	const size_t rows = batch * seq;
	const size_t parts = 2 * chunks_of(rows) * c * sizeof(float);
	/* Round up to a multiple of any vector's size, so that the following parts are aligned. */
	const size_t even = (rows + THREADS - 1) / THREADS * THREADS;
	place *const scratch = (place *)cuda_scratch(cuda, 2 * even * sizeof(place) + parts);

	if (!scratch)
		return;
	const place *const sorted = sort_rows(cuda, scratch, scratch + even, tokens, rows);
	float *const sums = (float *)(scratch + 2 * even);

	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		const T *const d = (const T *)dout;
		const bool aligned = is_aligned<wide<T>()>(d, dwte, dwpe);

		by_width<T>(c, aligned, [=](auto n) {
			constexpr int N = decltype(n)::value;

			cuda_launch(cuda, "embed_grad", add_tokens<N, T>, (unsigned)chunks_of(rows),
				    THREADS, 0, dwte, sums, d, sorted, rows, c);
			cuda_launch(cuda, "embed_grad", add_positions<N, T>, (unsigned)seq, THREADS,
				    0, dwpe, d, batch, seq, c);
		});
	});
	join(cuda, dwte, sums, sorted, rows, c);
}
