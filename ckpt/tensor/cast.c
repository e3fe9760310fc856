/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to float32 and back.  C's own conversions from wider types round
 * to nearest even as torch's do.  The two 16-bit formats, which gigabytes of weights
 * have, are packed by hand in loops without branches, which compilers vectorise.
 *
 * The bits of NaNs are those of torch's loops for x86 (ATen's vec256 and vec512,
 * which use F16C for float16): all ones in bfloat16; in float16 the upper bits of
 * the fraction, made quiet.
 */
#include "ckpt/tensor/cast.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ckpt/base/bytes.h"
#include "ckpt/sys/cpu_clones.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "elements of checkpoints are little-endian, and are taken as they are"
#endif

#define INFINITE UINT32_C(0x7f800000)

static inline uint32_t to_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

static inline float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

/* --- single elements ------------------------------------------------------- */

/* c ? a : b without a branch, which would keep the loops below from being
 * vectorised. */
static inline uint32_t cast_choose(bool c, uint32_t a, uint32_t b)
{
	const uint32_t mask = -(uint32_t)c;

	return (a & mask) | (b & ~mask);
}

/* IEEE binary16: 5 exponent bits, 10 of fraction.  Zero and subnormals are
 * fraction * 2^-24, which float32 holds exactly; NaNs become quiet ones. */
static inline float half_to_float(uint16_t h)
{
	const uint32_t sign = (uint32_t)(h & 0x8000) << 16;
	const uint32_t magnitude = h & 0x7fff;
	const uint32_t small = to_bits((float)(int32_t)magnitude * 0x1p-24f);
	const uint32_t normal = (magnitude << 13) + (112u << 23);
	const uint32_t quiet = (uint32_t)(magnitude > 0x7c00) << 22;
	const uint32_t special = INFINITE | magnitude << 13 | quiet;

	return from_bits(sign | cast_choose(magnitude < 0x400, small,
					    cast_choose(magnitude < 0x7c00,
							normal, special)));
}

/* OFP8 E4M3: 4 exponent bits, 3 of fraction; all ones is the only NaN, and
 * torch makes one of these bits of it. */
static inline float e4m3_to_float(uint8_t b)
{
	const uint32_t sign = (uint32_t)(b & 0x80) << 24;
	const uint32_t magnitude = b & 0x7f;
	const uint32_t small = to_bits((float)(int32_t)magnitude * 0x1p-9f);
	const uint32_t normal = (magnitude << 20) + (120u << 23);

	return from_bits(sign | cast_choose(magnitude < 8, small,
					    cast_choose(magnitude < 0x7f,
							normal, 0x7ff00000)));
}

/* E5M2 is the upper half of a binary16. */
static inline float e5m2_to_float(uint8_t b)
{
	return half_to_float((uint16_t)(b << 8));
}

/* The upper 16 bits, rounded to nearest even. */
static inline uint16_t float_to_bfloat(float f)
{
	const uint32_t bits = to_bits(f);
	const uint32_t rounded = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;

	return (uint16_t)cast_choose((bits & 0x7fffffff) > INFINITE, 0xffff,
				     rounded);
}

/*
 * Of normal numbers the upper bits are kept, rounded; a carry goes into the
 * exponent, and past the largest number gives infinity.  Subnormals are multiples
 * of 2^-24, the last place of 0.5: adding 0.5 rounds to them.
 */
static inline uint16_t float_to_half(float f)
{
	const uint32_t bits = to_bits(f), magnitude = bits & 0x7fffffff;
	const uint32_t sign = bits >> 16 & 0x8000;
	const uint32_t least = magnitude - (112u << 23);
	const uint32_t normal = (least + 0xfff + (least >> 13 & 1)) >> 13;
	const uint32_t small =
		to_bits(from_bits(magnitude) + 0.5f) - to_bits(0.5f);
	const uint32_t nan = 0x7e00 | (magnitude >> 13 & 0x3ff);

	const uint32_t finite =
		cast_choose(magnitude < 113u << 23, small, normal);
	const uint32_t large = cast_choose(magnitude > INFINITE, nan, 0x7c00);

	return (uint16_t)(sign |
			  cast_choose(magnitude < 143u << 23, finite, large));
}

static inline float element(enum dtype from, const uint8_t *p)
{
	const uint64_t bits = dtype_size(from) == 8 ? get_le64(p) : 0;
	double d;

	switch (from) {
	case DTYPE_F64:
		memcpy(&d, &bits, sizeof(d));
		return (float)d;
	case DTYPE_I64: return (float)(int64_t)bits;
	case DTYPE_I32: return (float)(int32_t)get_le32(p);
	case DTYPE_I16: return (float)(int16_t)get_le16(p);
	case DTYPE_I8: return (float)(int8_t)*p;
	case DTYPE_U8: return (float)*p;
	case DTYPE_BOOL: return *p ? 1.0f : 0.0f;
	case DTYPE_U16: return (float)get_le16(p);
	case DTYPE_U32: return (float)get_le32(p);
	case DTYPE_U64: return (float)bits;
	case DTYPE_F32:
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F8_E4M3:
	case DTYPE_F8_E5M2:
	case DTYPE_C64:
	case DTYPE_C128:
	case DTYPE_OTHER: break;
	}
	assert(!"no such type");
	return 0;
}

/* --- many ------------------------------------------------------------------ */

/*
 * Convert `n` elements in blocks of constant length.  memcpy allows any
 * alignment.
 */
#define BLOCK 64
#define CONVERT(convert, from_t, to_t, in, out, n)         \
	do {                                               \
		const uint8_t *p_ = (in);                  \
		uint8_t *q_ = (out);                       \
		size_t left_ = (n);                        \
                                                           \
		for (; left_ >= BLOCK; left_ -= BLOCK) {   \
			from_t a_[BLOCK];                  \
			to_t b_[BLOCK];                    \
                                                           \
			memcpy(a_, p_, sizeof(a_));        \
			for (int i_ = 0; i_ < BLOCK; i_++) \
				b_[i_] = convert(a_[i_]);  \
			memcpy(q_, b_, sizeof(b_));        \
			p_ += sizeof(a_);                  \
			q_ += sizeof(b_);                  \
		}                                          \
		for (; left_; left_--) {                   \
			from_t a_;                         \
			to_t b_;                           \
                                                           \
			memcpy(&a_, p_, sizeof(a_));       \
			b_ = convert(a_);                  \
			memcpy(q_, &b_, sizeof(b_));       \
			p_ += sizeof(a_);                  \
			q_ += sizeof(b_);                  \
		}                                          \
	} while (0)

static inline float bfloat_to_float(uint16_t b)
{
	return from_bits((uint32_t)b << 16);
}

CPU_CLONES static void bfloats_to_floats(const void *in, void *out, size_t n)
{
	CONVERT(bfloat_to_float, uint16_t, float, in, out, n);
}

/*
 * Convert float16 by F16C, which processors have had since 2013 and no compiler
 * generates for such loops.  Returns the number of elements converted: all but the
 * last few, or none.
 */
#if defined(__x86_64__)
#define EIGHT 8

__attribute__((target("avx,f16c"))) static size_t
f16c_to_floats(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + EIGHT <= n; i += EIGHT)
		_mm256_storeu_ps((float *)(out + 4 * i),
				 _mm256_cvtph_ps(_mm_loadu_si128(
					 (const __m128i *)(in + 2 * i))));
	return i;
}

__attribute__((target("avx,f16c"))) static size_t
f16c_to_halves(const uint8_t *in, uint8_t *out, size_t n)
{
	size_t i = 0;

	for (; i + EIGHT <= n; i += EIGHT)
		_mm_storeu_si128(
			(__m128i *)(out + 2 * i),
			_mm256_cvtps_ph(
				_mm256_loadu_ps((const float *)(in + 4 * i)),
				_MM_FROUND_TO_NEAREST_INT));
	return i;
}

/* All processors with AVX2 have F16C, which clang 14 cannot test for. */
static bool have_f16c(void)
{
	return __builtin_cpu_supports("avx2");
}
#else
static size_t f16c_to_floats(const uint8_t *in, uint8_t *out, size_t n)
{
	(void)in, (void)out, (void)n;
	return 0;
}

#define f16c_to_halves f16c_to_floats

static bool have_f16c(void)
{
	return false;
}
#endif

CPU_CLONES static void halves_to_floats(const void *in, void *out, size_t n)
{
	const uint8_t *const from = in;
	uint8_t *const to = out;
	const size_t done = have_f16c() ? f16c_to_floats(from, to, n) : 0;

	CONVERT(half_to_float, uint16_t, float, from + 2 * done, to + 4 * done,
		n - done);
}

CPU_CLONES static void e4m3s_to_floats(const void *in, void *out, size_t n)
{
	CONVERT(e4m3_to_float, uint8_t, float, in, out, n);
}

CPU_CLONES static void e5m2s_to_floats(const void *in, void *out, size_t n)
{
	CONVERT(e5m2_to_float, uint8_t, float, in, out, n);
}

CPU_CLONES static void floats_to_bfloats(const void *in, void *out, size_t n)
{
	CONVERT(float_to_bfloat, float, uint16_t, in, out, n);
}

CPU_CLONES static void floats_to_halves(const void *in, void *out, size_t n)
{
	const uint8_t *const from = in;
	uint8_t *const to = out;
	const size_t done = have_f16c() ? f16c_to_halves(from, to, n) : 0;

	CONVERT(float_to_half, float, uint16_t, from + 4 * done, to + 2 * done,
		n - done);
}

static void to_floats(enum dtype from, const void *in, void *out, size_t n)
{
	const size_t size = dtype_size(from);
	const uint8_t *const p = in;
	uint8_t *const q = out;

	switch (from) {
	case DTYPE_F32:
		memmove(out, in, n * sizeof(float));
		return;
	case DTYPE_F16:
		halves_to_floats(in, out, n);
		return;
	case DTYPE_BF16:
		bfloats_to_floats(in, out, n);
		return;
	case DTYPE_F8_E4M3:
		e4m3s_to_floats(in, out, n);
		return;
	case DTYPE_F8_E5M2:
		e5m2s_to_floats(in, out, n);
		return;
	default:
		break;
	}
	for (size_t i = 0; i < n; i++) {
		const float f = element(from, p + i * size);

		memcpy(q + i * sizeof(f), &f, sizeof(f));
	}
}

static void from_floats(enum dtype to, const void *in, void *out, size_t n)
{
	assert(to == DTYPE_F16 || to == DTYPE_BF16 || to == DTYPE_F32);
	if (to == DTYPE_F32)
		memmove(out, in, n * sizeof(float));
	else if (to == DTYPE_F16)
		floats_to_halves(in, out, n);
	else
		floats_to_bfloats(in, out, n);
}

bool cast_knows(enum dtype d)
{
	return d != DTYPE_C64 && d != DTYPE_C128 && d != DTYPE_OTHER;
}

void cast_to_float(enum dtype from, const void *in, float *out, size_t n)
{
	to_floats(from, in, out, n);
}

static double wide_element(enum dtype from, const uint8_t *p)
{
	double d;

	switch (from) {
	case DTYPE_F64: memcpy(&d, p, sizeof(d)); return d;
	case DTYPE_I64: return (double)(int64_t)get_le64(p);
	case DTYPE_U64: return (double)get_le64(p);
	case DTYPE_I32: return (int32_t)get_le32(p);
	case DTYPE_U32: return get_le32(p);
	default: break;
	}
	assert(!"no wide type");
	return 0;
}

void cast_to_double(enum dtype from, const void *in, double *out, size_t n)
{
	const size_t size = dtype_size(from);
	const bool wide = size == 8 || from == DTYPE_I32 || from == DTYPE_U32;
	const uint8_t *p = in;
	float batch[CAST_BATCH];

	for (; wide && n; n--, p += size)
		*out++ = wide_element(from, p);
	/* float32 represents every value of the other types. */
	for (size_t k; n; n -= k, p += k * size) {
		k = n < CAST_BATCH ? n : CAST_BATCH;
		to_floats(from, p, batch, k);
		for (size_t i = 0; i < k; i++)
			*out++ = batch[i];
	}
}

void cast_from_float(enum dtype to, const float *in, void *out, size_t n)
{
	from_floats(to, in, out, n);
}

void cast(enum dtype from, const void *in, enum dtype to, void *out, size_t n)
{
	const uint8_t *p = in;
	uint8_t *q = out;
	float batch[CAST_BATCH];

	if (from == DTYPE_F32) {
		from_floats(to, in, out, n);
		return;
	}
	if (to == DTYPE_F32) {
		to_floats(from, in, out, n);
		return;
	}
	for (size_t k; n; n -= k) {
		k = n < CAST_BATCH ? n : CAST_BATCH;
		to_floats(from, p, batch, k);
		from_floats(to, batch, q, k);
		p += k * dtype_size(from);
		q += k * dtype_size(to);
	}
}
