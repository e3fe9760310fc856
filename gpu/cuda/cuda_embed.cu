/* SPDX-License-Identifier: Apache-2.0 */
/* Embeddings.  The backward pass sorts rows by token, so that one block adds up
 * a token's gradient, in the order of rows. */
#include "gpu/cuda/cuda_launch.cuh"
#include "gpu/cuda/cuda_ops.h"
#include "gpu/cuda/cuda_types.cuh"

#define THREADS 128

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	embed_rows(T *out, const T *wte, const T *wpe, const int32_t *tokens,
		   size_t seq, size_t c)
{
	const size_t row = blockIdx.x;
	const int32_t token = tokens[row];
	const T *const te =
		token == TOKEN_ELSEWHERE ? NULL : wte + (size_t)token * c;
	const T *const pe = wpe ? wpe + row % seq * c : NULL;

	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> x = te ? load<N>(te + i) : floats<N>();
		const floats<N> p = pe ? load<N>(pe + i) : floats<N>();

#pragma unroll
		for (int k = 0; k < N; k++)
			x.x[k] += p.x[k];
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
			cuda_launch(cuda_of(b), "embed",
				    embed_rows<decltype(n)::value, T>,
				    (unsigned)(batch * seq), THREADS, 0, x, te,
				    pe, tokens, seq, c);
		});
	});
}

/* --- backward --------------------------------------------------------------- */

#define TILE 1024

/* A row's rank, sorted by token and then by row, is the number of rows before
 * it.  Counting these is quadratic, but fast compared to the rest of a step. */
static __global__ void __launch_bounds__(THREADS)
	sort_rows(uint32_t *order, const int32_t *tokens, size_t rows)
{
	__shared__ int32_t tile[TILE];
	const size_t me = (size_t)blockIdx.x * THREADS + threadIdx.x;
	const int32_t mine = me < rows ? tokens[me] : 0;
	uint32_t before = 0;

	for (size_t at = 0; at < rows; at += TILE) {
		const unsigned n = rows - at < TILE ? rows - at : TILE;
		/* Among equal tokens, earlier rows come first. */
		const unsigned earlier = me <= at      ? 0
					 : me - at < n ? me - at
						       : n;

		__syncthreads();
		for (unsigned i = threadIdx.x; i < n; i += THREADS)
			tile[i] = tokens[at + i];
		__syncthreads();
		for (unsigned i = 0; i < earlier; i++)
			before += tile[i] <= mine;
		for (unsigned i = earlier; i < n; i++)
			before += tile[i] < mine;
	}
	if (me < rows)
		order[before] = (uint32_t)me;
}

/* The end of the rows with the first row's token.  There may be many: steps
 * double until one is too far. */
static __device__ __forceinline__ size_t end_of_token(const int32_t *tokens,
						      const uint32_t *order,
						      size_t first, size_t rows)
{
	const int32_t token = tokens[order[first]];
	size_t last = first, step = 1;

	while (last + step < rows && tokens[order[last + step]] == token) {
		last += step;
		step *= 2;
	}
	for (step /= 2; step; step /= 2)
		if (last + step < rows && tokens[order[last + step]] == token)
			last += step;
	return last + 1;
}

/* The block of a token's first row adds up all of them. */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	add_tokens(float *dwte, const T *dout, const int32_t *tokens,
		   const uint32_t *order, size_t rows, size_t c)
{
	const size_t first = blockIdx.x;
	const int32_t token = tokens[order[first]];

	if (token == TOKEN_ELSEWHERE ||
	    (first && tokens[order[first - 1]] == token))
		return;
	const size_t end = end_of_token(tokens, order, first, rows);

	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		float *const to = dwte + (size_t)token * c + i;
		floats<N> sum = load<N>(to);

#pragma unroll 4
		for (size_t at = first; at < end; at++) {
			const floats<N> d =
				load<N>(dout + (size_t)order[at] * c + i);

#pragma unroll
			for (int k = 0; k < N; k++)
				sum.x[k] += d.x[k];
		}
		store(to, sum);
	}
}

template <int N, typename T>
static __global__ void __launch_bounds__(THREADS)
	add_positions(float *dwpe, const T *dout, size_t batch, size_t seq,
		      size_t c)
{
	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		float *const to = dwpe + blockIdx.x * c + i;
		floats<N> sum = load<N>(to);

#pragma unroll 4
		for (size_t k = 0; k < batch; k++) {
			const floats<N> d =
				load<N>(dout + (k * seq + blockIdx.x) * c + i);

#pragma unroll
			for (int j = 0; j < N; j++)
				sum.x[j] += d.x[j];
		}
		store(to, sum);
	}
}

void cuda_embed_grad(struct backend *b, float *dwte, float *dwpe,
		     const void *dout, const int32_t *tokens, size_t batch,
		     size_t seq, size_t c)
{
	struct cuda *const cuda = cuda_of(b);
	const size_t rows = batch * seq;
	uint32_t *const order =
		(uint32_t *)cuda_scratch(cuda, rows * sizeof(*order));

	if (!order)
		return;
	cuda_launch(cuda, "embed_grad", sort_rows,
		    (unsigned)((rows + THREADS - 1) / THREADS), THREADS, 0,
		    order, tokens, rows);
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		const T *const d = (const T *)dout;
		const bool aligned = is_aligned<wide<T>()>(d, dwte, dwpe);

		by_width<T>(c, aligned, [=](auto n) {
			constexpr int N = decltype(n)::value;

			cuda_launch(cuda, "embed_grad", add_tokens<N, T>,
				    (unsigned)rows, THREADS, 0, dwte, d, tokens,
				    order, rows, c);
			cuda_launch(cuda, "embed_grad", add_positions<N, T>,
				    (unsigned)seq, THREADS, 0, dwpe, d, batch,
				    seq, c);
		});
	});
}
