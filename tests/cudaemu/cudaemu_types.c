/* SPDX-License-Identifier: Apache-2.0 */
/* float16 conversions, rounding to nearest, ties to even. */
#include <math.h>
#include <string.h>

#include "cudaemu.h"

uint16_t cudaemu_to_f16(float x)
{
	const unsigned sign = signbit(x) ? 0x8000 : 0;
	const float a = fabsf(x);
	int e;

	if (x != x)
		return 0x7fff;
	if (a >= 65520.0f)
		return (uint16_t)(sign | 0x7c00);
	if (a == 0)
		return (uint16_t)sign;
	frexpf(a, &e); /* 2^(e - 1) <= a */
	e = e - 1 < -14 ? -14 : e - 1;
	/* In units of the last place, the ranges of consecutive exponents are contiguous. */
	return (uint16_t)(sign | (unsigned)((e + 14) * 1024 + (int)nearbyintf(ldexpf(a, 10 - e))));
}

float cudaemu_from_f16(uint16_t x)
{
	const uint32_t sign = (uint32_t)(x & 0x8000) << 16;
	const uint32_t e = x >> 10 & 31, m = x & 1023;
	/* The exponent's bias is 15 in float16 and 127 in float; all ones remain all ones. */
	const uint32_t u = sign | (e == 31 ? 255 : e ? e + 112 : 0) << 23 | m << 13;
	float f;

	if (e == 0 && m)
		return ldexpf((float)(sign ? -(int)m : (int)m), -24);
	memcpy(&f, &u, sizeof(f));
	return f;
}
