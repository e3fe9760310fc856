/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_CPU_MATH_H
#define UCTRAIN_CPU_MATH_H

#include <stdint.h>
#include <string.h>

#include "ckpt/base/cpu_clones.h"

/* Element arithmetic that compilers can vectorise: no branches, no calls, no errno. */

static inline float cpu_from_bits(uint32_t u)
{
	float f;

	memcpy(&f, &u, sizeof(f));
	return f;
}

static inline uint32_t cpu_to_bits(float f)
{
	uint32_t u;

	memcpy(&u, &f, sizeof(u));
	return u;
}

/*
 * e^x within 2 ulp; 0 below -87.3, where the result would be subnormal, and saturated above
 * 88.3.  NaN stays NaN. x = n ln 2 + r with |r| <= ln 2 / 2, where ln 2 is split in two so that n
 * times the first part is exact (Cody and Waite), then the series of e^r.
 */
static inline float cpu_exp(float x)
{
	/* 1.5 * 2^23: adding it rounds to an integer, which is in the lowest bits. */
	const float magic = 12582912.0f;
	const float top = x > 88.3f ? 88.3f : x;
	const float y = top < -87.3f ? -87.3f : top;
	const float shifted = y * 1.44269504f + magic;
	const float n = shifted - magic;
	const float r = (y - n * 0.693359375f) + n * 2.12194440e-4f;
	float p = 1.0f / 5040;

	p = p * r + 1.0f / 720;
	p = p * r + 1.0f / 120;
	p = p * r + 1.0f / 24;
	p = p * r + 1.0f / 6;
	p = p * r + 0.5f;
	p = p * r * r + r + 1.0f;
	p *= cpu_from_bits((cpu_to_bits(shifted) << 23) + 0x3f800000u);
	return top < -87.3f ? 0.0f : p;
}

/* gelu_new, x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), equals x times the
 * logistic function of 2u. */
#define CPU_GELU_A 1.5957691216f /* 2 sqrt(2 / pi) */
#define CPU_GELU_B 0.044715f

static inline float cpu_logistic(float x)
{
	return 1.0f / (1.0f + cpu_exp(-x));
}

static inline float cpu_gelu(float x)
{
	return x * cpu_logistic(CPU_GELU_A * (x + CPU_GELU_B * x * x * x));
}

static inline float cpu_gelu_slope(float x)
{
	const float s = cpu_logistic(CPU_GELU_A * (x + CPU_GELU_B * x * x * x));

	return s + x * s * (1 - s) * CPU_GELU_A * (1 + 3 * CPU_GELU_B * x * x);
}

/* Round to the nearest bfloat16, ties to even.  NaN stays NaN. */
static inline float cpu_round_bf16(float x)
{
	const uint32_t u = cpu_to_bits(x);
	const uint32_t r = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;

	return x != x ? x : cpu_from_bits(r);
}

/*
 * Round to the nearest float16.  Adding and subtracting a power of two that is 2^13 times the
 * last place to keep removes the lower digits.  Below 2^-14, where float16 is subnormal, the last
 * place is 2^-24.
 */
static inline float cpu_round_f16(float x)
{
	const uint32_t sign = cpu_to_bits(x) & 0x80000000u;
	const float a = cpu_from_bits(cpu_to_bits(x) & 0x7fffffffu);
	const uint32_t e = cpu_to_bits(a) & 0x7f800000u;
	const uint32_t least = 113u << 23; /* the bits of 2^-14 */
	const float step = cpu_from_bits((e > least ? e : least) + (13u << 23));
	const float r = (a + step) - step;
	const float y = a >= 65520.0f ? __builtin_inff() : r;

	return x != x ? x : cpu_from_bits(cpu_to_bits(y) | sign);
}

#endif
