/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Linear layers.  Bias, residual, gelu_new, its slope and the bias gradient are cuBLASLt
 * epilogues, computed in registers.  If it has no epilogue for a shape or type, separate kernels
 * follow the GEMM.
 */
#include "gpu/cuda/cuda_column_sums.cuh"
#include "gpu/cuda/cuda_gemm.h"
#include "gpu/cuda/cuda_ops.h"

#define THREADS 256

/* gelu_new: see CPU_GELU_A. */
#define GELU_A 1.5957691216f /* 2 sqrt(2 / pi) */
#define GELU_B 0.044715f

static __device__ __forceinline__ float logistic_of_gelu(float x)
{
	return 1.0f / (1.0f + expf(-GELU_A * (x + GELU_B * x * x * x)));
}

/* x[rows][c] += bias; if `out` is given, also out = gelu_new(x) */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) finish_rows(T *x, T *out, const T *bias, size_t c)
{
	const size_t row = blockIdx.x * c;

	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> f = load<N>(x + row + i);
		const floats<N> b = load<N>(bias + i);

#pragma unroll
		for (int k = 0; k < N; k++)
			f.x[k] = rounded<T>(f.x[k] + b.x[k]);
		store(x + row + i, f);
		if (!out)
			continue;
#pragma unroll
		for (int k = 0; k < N; k++)
			f.x[k] *= logistic_of_gelu(f.x[k]);
		store(out + row + i, f);
	}
}

/* d[rows][c] *= the slope of gelu_new at `pre` */
template <int N, typename T>
static __global__ void __launch_bounds__(THREADS) gelu_grad_rows(T *d, const T *pre, size_t c)
{
	const size_t row = blockIdx.x * c;

	for (size_t i = threadIdx.x * N; i < c; i += THREADS * N) {
		floats<N> f = load<N>(d + row + i);
		const floats<N> p = load<N>(pre + row + i);

#pragma unroll
		for (int k = 0; k < N; k++) {
			const float x = p.x[k], s = logistic_of_gelu(x);

			f.x[k] *= s + x * s * (1 - s) * GELU_A * (1 + 3 * GELU_B * x * x);
		}
		store(d + row + i, f);
	}
}

template <typename T>
static void cuda_linear_finish(struct backend *b, T *x, T *out, const T *bias, size_t rows,
			       size_t c)
{
	const bool aligned = is_aligned<wide<T>()>(x, out, bias);

	by_width<T>(c, aligned, [=](auto n) {
		cuda_launch(cuda_of(b), "linear", finish_rows<decltype(n)::value, T>,
			    (unsigned)rows, THREADS, 0, x, out, bias, c);
	});
}

void cuda_linear(struct backend *b, void *out, void *pre, const void *in, const void *w,
		 const void *bias, const void *residual, size_t rows, size_t ic, size_t oc)
{
	struct cuda *const c = cuda_of(b);
	struct cuda_gemm p = cuda_gemm_of(rows, oc, ic, { in, ic, false }, { w, oc, false }, out);

	p.add = residual;
	p.epilogue = pre ? CUDA_EPILOGUE_BIAS_GELU : CUDA_EPILOGUE_BIAS;
	p.vector = (void *)bias;
	p.aux = pre;
	if (cuda_gemm_run(c, &p))
		return;
	p.out = pre ? pre : out;
	p.epilogue = CUDA_EPILOGUE_NONE;
	p.vector = p.aux = NULL;
	if (cuda_gemm_run(c, &p))
		by_type(b->dtype, [=](auto t) {
			typedef decltype(t) T;

			cuda_linear_finish(b, (T *)p.out, (T *)(pre ? out : NULL), (const T *)bias,
					   rows, oc);
		});
}

static void gelu_grad(struct backend *b, void *din, const void *pre, size_t rows, size_t c)
{
	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		T *const d = (T *)din;
		const T *const x = (const T *)pre;

		by_width<T>(c, is_aligned<wide<T>()>(d, x), [=](auto n) {
			cuda_launch(cuda_of(b), "linear_grad",
				    gelu_grad_rows<decltype(n)::value, T>, (unsigned)rows, THREADS,
				    0, d, x, c);
		});
	});
}

static void grad_of_in(struct backend *b, void *din, const void *dout, const void *pre,
		       const void *w, size_t rows, size_t ic, size_t oc)
{
	struct cuda *const c = cuda_of(b);
	struct cuda_gemm p = cuda_gemm_of(rows, ic, oc, { dout, oc, false }, { w, oc, true }, din);

	p.epilogue = pre ? CUDA_EPILOGUE_GELU_GRAD : CUDA_EPILOGUE_NONE;
	p.aux = (void *)pre;
	if (cuda_gemm_run(c, &p) || !pre)
		return;
	p.epilogue = CUDA_EPILOGUE_NONE;
	p.aux = NULL;
	if (cuda_gemm_run(c, &p))
		gelu_grad(b, din, pre, rows, ic);
}

template <typename T> struct bias_sums {
	static constexpr int SUMS = 1;
	const T *dout;
	size_t c;

	template <int N> __device__ void add(floats<N> *sums, size_t row, size_t column) const
	{
		sums[0] += load<N>(dout + row * c + column);
	}
};

static void grad_of_bias(struct backend *b, float *dbias, const void *dout, size_t rows, size_t oc,
			 bool fresh)
{
	const column_sums sums = { { dbias }, fresh };

	by_type(b->dtype, [=](auto t) {
		typedef decltype(t) T;
		const bias_sums<T> of = { (const T *)dout, oc };

		by_width<T>(oc, is_aligned<wide<T>()>(of.dout), [=](auto n) {
			sum_columns<decltype(n)::value>(cuda_of(b), "linear_grad", of, sums, rows,
							oc);
		});
	});
}

/* The first architecture with new GEMM kernels.  On all devices cuBLASLt 13.0 has only Ampere's
 * kernels with column sums in the epilogue; on Hopper, a GEMM without them plus another pass over
 * the gradient should be faster; this was not measured. */
#define HOPPER 9

/* Return false, with nothing queued, if cuBLASLt cannot compute it or would be slower. */
static bool multiply_with_sums(struct backend *b, struct cuda_gemm p, float *dbias, bool fresh)
{
	struct cuda *const c = cuda_of(b);

	if (c->major >= HOPPER)
		return false;
	p.epilogue = CUDA_EPILOGUE_SUMS;
	p.vector = fresh ? dbias : cuda_scratch(c, p.n * sizeof(*dbias));
	if (!p.vector || !cuda_gemm_run(c, &p))
		return false;
	if (!fresh)
		cuda_accumulate(b, dbias, (const float *)p.vector, p.n);
	return true;
}

static void grad_of_weights(struct backend *b, float *dw, float *dbias, const void *dout,
			    const void *in, size_t rows, size_t ic, size_t oc, bool fresh)
{
	struct cuda_gemm p = cuda_gemm_of(ic, oc, rows, { in, ic, true }, { dout, oc, false }, dw);

	p.add = fresh ? NULL : dw;
	p.wide = true;
	if (dbias && multiply_with_sums(b, p, dbias, fresh))
		return;
	cuda_gemm_run(cuda_of(b), &p);
	if (dbias)
		grad_of_bias(b, dbias, dout, rows, oc, fresh);
}

void cuda_linear_grad(struct backend *b, void *din, float *dw, float *dbias, const void *dout,
		      const void *in, const void *pre, const void *w, size_t rows, size_t ic,
		      size_t oc, bool fresh)
{
	if (dw)
		grad_of_weights(b, dw, dbias, dout, in, rows, ic, oc, fresh);
	if (din)
		grad_of_in(b, din, dout, pre, w, rows, ic, oc);
}
