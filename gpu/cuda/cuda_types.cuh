/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CUDA_TYPES_CUH
#define UCTRAIN_CUDA_TYPES_CUH

/* Access to act_t, the model's type, in kernels: 16 bytes at a time if alignment permits, else
 * single elements. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "gpu/cuda/cuda_ptx.cuh"

struct bf16 {
	uint16_t bits;
};
struct f16 {
	uint16_t bits;
};

static __device__ __forceinline__ float widen(float x)
{
	return x;
}

static __device__ __forceinline__ float widen(bf16 x)
{
	return __uint_as_float((uint32_t)x.bits << 16);
}

static __device__ __forceinline__ float widen(f16 x)
{
	return ptx_from_f16(x.bits);
}

static __device__ __forceinline__ void narrow(float &to, float x)
{
	to = x;
}

static __device__ __forceinline__ void narrow(bf16 &to, float x)
{
	to.bits = ptx_to_bf16(x);
}

static __device__ __forceinline__ void narrow(f16 &to, float x)
{
	to.bits = ptx_to_f16(x);
}

/* x rounded to T. */
template <typename T> static __device__ __forceinline__ float rounded(float x)
{
	T t;

	narrow(t, x);
	return widen(t);
}

#define LOG2_E 1.4426950409f

/* e^x for small |x|, or where inexact results near 0 are acceptable: computed as a power of two,
 * whose relative error grows with |x|. */
static __device__ __forceinline__ float exp_near(float x)
{
	return ptx_exp2(x * LOG2_E);
}

/* The unsigned integer type of a given size. */
template <size_t bytes> struct word;
template <> struct word<16> {
	typedef uint4 type;
};
template <> struct word<8> {
	typedef uint2 type;
};
template <> struct word<4> {
	typedef uint32_t type;
};
template <> struct word<2> {
	typedef uint16_t type;
};

template <int N> struct floats {
	float x[N];

	__device__ __forceinline__ void operator+=(const floats &other)
	{
#pragma unroll
		for (int i = 0; i < N; i++)
			x[i] += other.x[i];
	}
};

/* Load N elements, aligned to their size or 16 bytes. */
template <int N, typename T> static __device__ __forceinline__ floats<N> load(const T *p)
{
	constexpr size_t most = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
	typedef typename word<most>::type unit;
	constexpr int units = N * sizeof(T) / most;
	unit raw[units];
	T x[N];
	floats<N> f;

#pragma unroll
	for (int i = 0; i < units; i++)
		raw[i] = reinterpret_cast<const unit *>(p)[i];
	memcpy(x, raw, sizeof(x));
#pragma unroll
	for (int i = 0; i < N; i++)
		f.x[i] = widen(x[i]);
	return f;
}

template <int N, typename T> static __device__ __forceinline__ void store(T *p, const floats<N> &f)
{
	constexpr size_t most = N * sizeof(T) < 16 ? N * sizeof(T) : 16;
	typedef typename word<most>::type unit;
	constexpr int units = N * sizeof(T) / most;
	unit raw[units];
	T x[N];

#pragma unroll
	for (int i = 0; i < N; i++)
		narrow(x[i], f.x[i]);
	memcpy(raw, x, sizeof(x));
#pragma unroll
	for (int i = 0; i < units; i++)
		reinterpret_cast<unit *>(p)[i] = raw[i];
}

/* The elements of a 16-byte access. */
template <typename T> constexpr int wide()
{
	return 16 / sizeof(T);
}

template <int N> struct count {
	static constexpr int value = N;
};

/* Are all pointers aligned for accesses of N elements? */
template <int N, typename... T> static bool is_aligned(const T *...p)
{
	return (... && ((uintptr_t)p % (N * sizeof(T) < 16 ? N * sizeof(T) : 16) == 0));
}

/* Call `work` with the elements per access that rows of c elements permit. */
template <typename T, typename F> static void by_width(size_t c, bool aligned, F work)
{
	if (aligned && c % wide<T>() == 0)
		work(count<wide<T>()>());
	else
		work(count<1>());
}

/* Call `work` with a value of the model's type. */
template <typename F> static void by_type(enum dtype dtype, F work)
{
	if (dtype == DTYPE_BF16)
		work(bf16());
	else if (dtype == DTYPE_F16)
		work(f16());
	else
		work(float());
}

#endif
