/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to float32 and back.  C's own conversions from wider types round
 * to nearest even as torch's do; the two 16-bit formats are packed by hand.
 */
#include "ckpt/cast.h"

#include <assert.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/bytes.h"

static float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* IEEE binary16: 5 exponent bits, 10 of fraction. */
static float half_to_float(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	const uint32_t exponent = h >> 10 & 0x1f, fraction = h & 0x3ff;

	if (exponent == 0x1f) /* infinity, NaN */
		return from_bits(sign | 0x7f800000 | fraction << 13);
	if (exponent)
		return from_bits(sign | (exponent + 112) << 23 |
				 fraction << 13);

	/* Zero and subnormals: fraction * 2^-24, exact in float32. */
	const float magnitude = (float)fraction * 0x1p-24f;

	return sign ? -magnitude : magnitude;
}

static float element(enum dtype from, const uint8_t *p)
{
	const uint64_t bits = dtype_size(from) == 8 ? get_le64(p) : 0;
	double d;

	switch (from) {
	case DTYPE_F64: memcpy(&d, &bits, sizeof(d)); return (float)d;
	case DTYPE_F32: return from_bits(get_le32(p));
	case DTYPE_F16: return half_to_float(get_le16(p));
	case DTYPE_BF16: return from_bits((uint32_t)get_le16(p) << 16);
	case DTYPE_I64: return (float)(int64_t)bits;
	case DTYPE_I32: return (float)(int32_t)get_le32(p);
	case DTYPE_I16: return (float)(int16_t)get_le16(p);
	case DTYPE_I8: return (float)(int8_t)*p;
	case DTYPE_U8: return (float)*p;
	case DTYPE_BOOL: return *p ? 1.0f : 0.0f;
	case DTYPE_C64:
	case DTYPE_C128:
	case DTYPE_OTHER: break;
	}
	assert(!"no real type");
	return 0;
}

void cast_to_float(enum dtype from, const void *in, float *out, size_t n)
{
	const uint8_t *const p = in;
	const size_t size = dtype_size(from);

	for (size_t i = 0; i < n; i++)
		out[i] = element(from, p + i * size);
}

static uint32_t to_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

/* The upper bits of v, without the lower `n`; rounded to nearest even. */
static uint32_t round_off(uint32_t v, unsigned n)
{
	const uint32_t half = UINT32_C(1) << (n - 1);

	return (v + half - 1 + (v >> n & 1)) >> n;
}

static uint16_t float_to_bfloat(float f)
{
	return f != f ? 0x7fc0 : (uint16_t)round_off(to_bits(f), 16);
}

static uint16_t float_to_half(float f)
{
	const uint32_t bits = to_bits(f), magnitude = bits & 0x7fffffff;
	const uint16_t sign = bits >> 16 & 0x8000;
	const unsigned exponent = magnitude >> 23;

	if (f != f)
		return sign | 0x7e00;
	if (exponent >= 127 + 16) /* 2^16 and more */
		return sign | 0x7c00;
	/* A fraction that is rounded up moves on into the exponent, at the
	 * upper end to infinity. */
	if (exponent >= 127 - 14)
		return (uint16_t)(sign | round_off(magnitude - (112u << 23),
						   13));
	/* Subnormals count 2^-24; what is below half of one is zero. */
	if (exponent < 127 - 25)
		return sign;
	return (uint16_t)(sign | round_off((magnitude & 0x7fffff) | 0x800000,
					   126 - exponent));
}

void cast_from_float(enum dtype to, const float *in, void *out, size_t n)
{
	uint8_t *const p = out;

	assert(to == DTYPE_F16 || to == DTYPE_BF16 || to == DTYPE_F32);
	for (size_t i = 0; i < n; i++)
		if (to == DTYPE_F32)
			put_le32(p + 4 * i, to_bits(in[i]));
		else
			put_le16(p + 2 * i, to == DTYPE_F16 ?
						    float_to_half(in[i]) :
						    float_to_bfloat(in[i]));
}
