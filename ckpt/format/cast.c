/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to float32 and back, with a loop for each type.  C's own conversions from wider types
 * round to nearest even as torch's do.  Those of the 16-bit formats, which are used for gigabytes
 * of weights, are written without branches, so that compilers vectorise the loops.
 *
 * The bits of NaNs are those of torch's loops for x86 (ATen's vec256 and vec512, which use F16C for
 * float16): all ones in bfloat16; in float16 the upper bits of the fraction, made quiet.
 */
#include "ckpt/format/cast.h"

#include <assert.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "ckpt/base/array.h"
#include "ckpt/base/cpu_clones.h"

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

/* c ? a : b without a branch, which would prevent vectorisation of the loops below. */
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

/* OFP8 E4M3: 4 exponent bits, 3 of fraction; all ones is the only NaN, for which torch uses one
 * of these bits. */
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

/* torch's result for NaNs of these types, which lack a sign or an infinity. */
#define ODD_NAN UINT32_C(0x7f800001)

/* E4M3FNUZ and E5M2FNUZ: the exponent's bias is one more than in the types above, and the
 * bits of -0 are the only NaN. */
static inline float fnuz_to_float(uint8_t b, unsigned fraction, uint32_t bias,
				  float least)
{
	const uint32_t sign = (uint32_t)(b & 0x80) << 24;
	const uint32_t magnitude = b & 0x7f;
	const uint32_t small = to_bits((float)(int32_t)magnitude * least);
	const uint32_t normal = (magnitude << (23 - fraction)) + ((127 - bias) << 23);
	const uint32_t value =
		sign | cast_choose(magnitude < 1u << fraction, small, normal);

	return from_bits(cast_choose(b == 0x80, ODD_NAN, value));
}

static inline float e4m3fnuz_to_float(uint8_t b)
{
	return fnuz_to_float(b, 3, 8, 0x1p-10f);
}

static inline float e5m2fnuz_to_float(uint8_t b)
{
	return fnuz_to_float(b, 2, 16, 0x1p-17f);
}

/* E8M0: an exponent alone; 0 is 2^-127, which is subnormal. */
static inline float e8m0_to_float(uint8_t b)
{
	return from_bits(b == 0xff ? ODD_NAN
				   : cast_choose(b == 0, 1u << 22, (uint32_t)b << 23));
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
 * For normal numbers keep the upper bits, rounded; a carry goes into the exponent, and past the
 * largest number gives infinity.  Subnormals are multiples of 2^-24, the last place of 0.5: adding
 * 0.5 rounds to them.
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

static inline float bfloat_to_float(uint16_t b)
{
	return from_bits((uint32_t)b << 16);
}

static inline float bool_to_float(uint8_t b)
{
	return b ? 1 : 0;
}

/* Convert `n` elements, of any alignment. */
typedef void loop(const void *in, void *out, size_t n);

/* Define a loop.  Blocks of constant length are vectorised; memcpy allows any alignment. */
#define BLOCK 64
#define LOOP(name, from_t, to_t, convert)                       \
	static void name(const void *in, void *out, size_t n)   \
	{                                                       \
		const uint8_t *p = in;                          \
		uint8_t *q = out;                               \
                                                                \
		for (; n >= BLOCK; n -= BLOCK) {                \
			from_t a[BLOCK];                        \
			to_t b[BLOCK];                          \
                                                                \
			memcpy(a, p, sizeof(a));                \
			for (int i = 0; i < BLOCK; i++)         \
				b[i] = (to_t)convert(a[i]);     \
			memcpy(q, b, sizeof(b));                \
			p += sizeof(a);                         \
			q += sizeof(b);                         \
		}                                               \
		for (; n; n--, p += sizeof(from_t), q += sizeof(to_t)) { \
			from_t a;                               \
			to_t b;                                 \
                                                                \
			memcpy(&a, p, sizeof(a));               \
			b = (to_t)convert(a);                   \
			memcpy(q, &b, sizeof(b));               \
		}                                               \
	}

CPU_CLONES LOOP(bfloats_to_floats, uint16_t, float, bfloat_to_float)
CPU_CLONES LOOP(e4m3s_to_floats, uint8_t, float, e4m3_to_float)
CPU_CLONES LOOP(e5m2s_to_floats, uint8_t, float, e5m2_to_float)
CPU_CLONES LOOP(halves_to_floats_by_hand, uint16_t, float, half_to_float)
CPU_CLONES LOOP(floats_to_bfloats, float, uint16_t, float_to_bfloat)
CPU_CLONES LOOP(floats_to_halves_by_hand, float, uint16_t, float_to_half)
LOOP(e4m3fnuzs_to_floats, uint8_t, float, e4m3fnuz_to_float)
LOOP(e5m2fnuzs_to_floats, uint8_t, float, e5m2fnuz_to_float)
LOOP(e8m0s_to_floats, uint8_t, float, e8m0_to_float)
LOOP(bools_to_floats, uint8_t, float, bool_to_float)
LOOP(i8s_to_floats, int8_t, float, )
LOOP(u8s_to_floats, uint8_t, float, )
LOOP(i16s_to_floats, int16_t, float, )
LOOP(u16s_to_floats, uint16_t, float, )
LOOP(i32s_to_floats, int32_t, float, )
LOOP(u32s_to_floats, uint32_t, float, )
LOOP(i64s_to_floats, int64_t, float, )
LOOP(u64s_to_floats, uint64_t, float, )
LOOP(doubles_to_floats, double, float, )
LOOP(floats_to_doubles, float, double, )
LOOP(i32s_to_doubles, int32_t, double, )
LOOP(u32s_to_doubles, uint32_t, double, )
LOOP(i64s_to_doubles, int64_t, double, )
LOOP(u64s_to_doubles, uint64_t, double, )

static void copy_floats(const void *in, void *out, size_t n)
{
	memmove(out, in, n * sizeof(float));
}

static void copy_doubles(const void *in, void *out, size_t n)
{
	memcpy(out, in, n * sizeof(double));
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

static void halves_to_floats(const void *in, void *out, size_t n)
{
	const size_t done = have_f16c() ? f16c_to_floats(in, out, n) : 0;

	halves_to_floats_by_hand((const uint8_t *)in + 2 * done,
				 (uint8_t *)out + 4 * done, n - done);
}

static void floats_to_halves(const void *in, void *out, size_t n)
{
	const size_t done = have_f16c() ? f16c_to_halves(in, out, n) : 0;

	floats_to_halves_by_hand((const uint8_t *)in + 4 * done,
				 (uint8_t *)out + 2 * done, n - done);
}

static loop *const to_floats[DTYPES] = {
	[DTYPE_F64] = doubles_to_floats,     [DTYPE_F32] = copy_floats,
	[DTYPE_F16] = halves_to_floats,	     [DTYPE_BF16] = bfloats_to_floats,
	[DTYPE_I64] = i64s_to_floats,	     [DTYPE_I32] = i32s_to_floats,
	[DTYPE_I16] = i16s_to_floats,	     [DTYPE_I8] = i8s_to_floats,
	[DTYPE_U64] = u64s_to_floats,	     [DTYPE_U32] = u32s_to_floats,
	[DTYPE_U16] = u16s_to_floats,	     [DTYPE_U8] = u8s_to_floats,
	[DTYPE_BOOL] = bools_to_floats,	     [DTYPE_F8_E4M3] = e4m3s_to_floats,
	[DTYPE_F8_E5M2] = e5m2s_to_floats,   [DTYPE_F8_E8M0] = e8m0s_to_floats,
	[DTYPE_F8_E4M3FNUZ] = e4m3fnuzs_to_floats,
	[DTYPE_F8_E5M2FNUZ] = e5m2fnuzs_to_floats,
};

/* Conversions of types whose values float32 cannot represent. */
static loop *const to_doubles[DTYPES] = {
	[DTYPE_F64] = copy_doubles,	[DTYPE_I64] = i64s_to_doubles,
	[DTYPE_U64] = u64s_to_doubles,	[DTYPE_I32] = i32s_to_doubles,
	[DTYPE_U32] = u32s_to_doubles,
};

static loop *const from_floats[] = {
	[DTYPE_F32] = copy_floats,
	[DTYPE_F16] = floats_to_halves,
	[DTYPE_BF16] = floats_to_bfloats,
};

bool cast_knows(enum dtype d)
{
	return to_floats[d];
}

bool cast_makes(enum dtype d)
{
	return d < COUNT(from_floats) && from_floats[d];
}

void cast_to_float(enum dtype from, const void *in, float *out, size_t n)
{
	assert(cast_knows(from));
	to_floats[from](in, out, n);
}

void cast_from_float(enum dtype to, const float *in, void *out, size_t n)
{
	assert(cast_makes(to));
	from_floats[to](in, out, n);
}

void cast_to_double(enum dtype from, const void *in, double *out, size_t n)
{
	const size_t size = dtype_size(from);
	const uint8_t *p = in;
	float batch[CAST_BATCH];

	if (to_doubles[from]) {
		to_doubles[from](in, out, n);
		return;
	}
	for (size_t k; n; n -= k, p += k * size, out += k) {
		k = n < CAST_BATCH ? n : CAST_BATCH;
		cast_to_float(from, p, batch, k);
		floats_to_doubles(batch, out, k);
	}
}

void cast(enum dtype from, const void *in, enum dtype to, void *out, size_t n)
{
	const uint8_t *p = in;
	uint8_t *q = out;
	float batch[CAST_BATCH];

	if (from == DTYPE_F32) {
		cast_from_float(to, in, out, n);
		return;
	}
	if (to == DTYPE_F32) {
		cast_to_float(from, in, out, n);
		return;
	}
	for (size_t k; n; n -= k) {
		k = n < CAST_BATCH ? n : CAST_BATCH;
		cast_to_float(from, p, batch, k);
		cast_from_float(to, batch, q, k);
		p += k * dtype_size(from);
		q += k * dtype_size(to);
	}
}

bool arith_knows(enum dtype t)
{
	return t == DTYPE_F64 || cast_makes(t);
}

/*
 * Compute to[i] + v[i], or to[i] / by if `v` is NULL.  A sum or a quotient of float32s
 * that is computed in float64 and rounded to float32 equals the float32 result: float64 has more
 * than twice the digits.
 */
static void arith(enum dtype t, void *to, const void *v, double by, size_t n)
{
	const size_t item = dtype_size(t);
	double a[CAST_BATCH], b[CAST_BATCH];
	float rounded[CAST_BATCH];

	assert(arith_knows(t));
	for (size_t at = 0, k; at < n; at += k) {
		uint8_t *place = (uint8_t *)to + at * item;

		k = n - at < CAST_BATCH ? n - at : CAST_BATCH;
		cast_to_double(t, place, a, k);
		if (v)
			cast_to_double(t, (const uint8_t *)v + at * item, b, k);
		for (size_t i = 0; i < k; i++)
			a[i] = v ? a[i] + b[i] : a[i] / by;
		if (t == DTYPE_F64) {
			copy_doubles(a, place, k);
		} else {
			doubles_to_floats(a, rounded, k);
			cast_from_float(t, rounded, place, k);
		}
	}
}

void arith_add(enum dtype t, void *sum, const void *v, size_t n)
{
	arith(t, sum, v, 0, n);
}

void arith_divide(enum dtype t, void *v, double by, size_t n)
{
	arith(t, v, NULL, t == DTYPE_F64 ? by : (double)(float)by, n);
}
