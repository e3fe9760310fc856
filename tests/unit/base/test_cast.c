/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to float32, compared with an independent computation: the definition of a 16-bit
 * number, by ldexp.
 */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/cast.h"
#include "tests/support/unit.h"

/* A binary floating-point number by definition: (-1)^s 2^(e-bias) 1.f. */
static double value_of(unsigned bits, int exponent_bits, int fraction_bits)
{
	const bool has_infinity = exponent_bits != 4; /* E4M3 has none */
	const int bias = (1 << (exponent_bits - 1)) - 1;
	const int fraction = (int)(bits & ((1u << fraction_bits) - 1));
	const int exponent =
		(int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
	const double sign = bits >> (exponent_bits + fraction_bits) ? -1 : 1;

	if (!has_infinity && (bits & 0x7f) == 0x7f)
		return NAN;
	if (has_infinity && exponent == (1 << exponent_bits) - 1)
		return fraction ? NAN : sign * INFINITY;
	if (exponent == 0)
		return sign * ldexp(fraction, 1 - bias - fraction_bits);
	return sign * ldexp(fraction + (1 << fraction_bits),
			    exponent - bias - fraction_bits);
}

static bool same_bits(float a, float b)
{
	return memcmp(&a, &b, sizeof(a)) == 0;
}

static void check_all(enum dtype dtype, int exponent_bits, int fraction_bits)
{
	const int sign = exponent_bits + fraction_bits;

	for (unsigned i = 0; i < 2u << sign; i++) {
		const uint8_t in[] = { (uint8_t)i, (uint8_t)(i >> 8) };
		const double expect = value_of(i, exponent_bits, fraction_bits);
		float got;

		cast_to_float(dtype, in, &got, 1);
		if (isnan(expect))
			assert_true(isnan(got));
		else
			assert_true(same_bits(got, (float)expect));
		assert_int_equal(signbit(got) != 0, i >> sign);
	}
}

static void every_half_is_exact(void **state)
{
	check_all(DTYPE_F16, 5, 10);
}

static void every_bfloat16_is_exact(void **state)
{
	check_all(DTYPE_BF16, 8, 7);
}

static void every_float8_is_exact(void **state)
{
	check_all(DTYPE_F8_E4M3, 4, 3);
	check_all(DTYPE_F8_E5M2, 5, 2);
}

/* Return a number of the FNUZ types, which have no infinities, no -0 and one more exponent at the
 * bottom; E8M0 has only an exponent. */
static double odd_value_of(enum dtype dtype, unsigned bits)
{
	const int f = dtype == DTYPE_F8_E4M3FNUZ ? 3 : 2;
	const int bias = dtype == DTYPE_F8_E4M3FNUZ ? 8 : 16;
	const int exponent = (int)(bits & 0x7f) >> f;
	const int fraction = (int)bits & ((1 << f) - 1);
	const double sign = bits & 0x80 ? -1 : 1;

	if (dtype == DTYPE_F8_E8M0)
		return bits == 0xff ? NAN : ldexp(1, (int)bits - 127);
	if (bits == 0x80)
		return NAN;
	return sign * (exponent ? ldexp(fraction + (1 << f), exponent - bias - f)
				: ldexp(fraction, 1 - bias - f));
}

static void every_odd_float8_is_exact(void **state)
{
	static const enum dtype types[] = { DTYPE_F8_E4M3FNUZ, DTYPE_F8_E5M2FNUZ,
					    DTYPE_F8_E8M0 };

	for (size_t i = 0; i < COUNT(types); i++)
		for (unsigned b = 0; b < 256; b++) {
			const uint8_t in = (uint8_t)b;
			const double expect = odd_value_of(types[i], b);
			float got;

			cast_to_float(types[i], &in, &got, 1);
			assert_int_equal(isnan(got) != 0, isnan(expect) != 0);
			if (!isnan(expect))
				assert_true(same_bits(got, (float)expect));
		}
}

/* NaNs keep their payload if float32 has room for it; processors make float16's quiet, as torch
 * does. */
static void payloads_of_nans_survive(void **state)
{
	static const struct {
		enum dtype dtype;
		uint16_t in;
		uint32_t bits;
	} cases[] = {
		{ DTYPE_BF16, 0x7fc1, 0x7fc10000 },
		{ DTYPE_BF16, 0xff81, 0xff810000 },
		{ DTYPE_BF16, 0x7f81, 0x7f810000 },
		{ DTYPE_F16, 0x7e01, 0x7fc02000 },
		{ DTYPE_F16, 0x7c01, 0x7fc02000 },
		{ DTYPE_F16, 0xfdff, 0xffffe000 },
		{ DTYPE_F16, 0xfe00, 0xffc00000 },
		{ DTYPE_F8_E4M3, 0x7f, 0x7ff00000 },
		{ DTYPE_F8_E4M3, 0xff, 0xfff00000 },
		{ DTYPE_F8_E5M2, 0x7d, 0x7fe00000 },
		{ DTYPE_F8_E5M2, 0xfe, 0xffc00000 },
		{ DTYPE_F8_E4M3FNUZ, 0x80, 0x7f800001 },
		{ DTYPE_F8_E8M0, 0xff, 0x7f800001 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		uint32_t bits;
		float f;

		cast_to_float(cases[i].dtype, &cases[i].in, &f, 1);
		memcpy(&bits, &f, sizeof(bits));
		assert_int_equal(bits, cases[i].bits);
	}
}

static void doubles_round_to_nearest_even(void **state)
{
	static const struct {
		double in;
		float expect;
	} cases[] = {
		{ 0.0, 0.0f },
		{ -0.0, -0.0f },
		{ 0.1, 0.1f },
		{ 1 + 0x1p-24, 1.0f },                   /* half: to even */
		{ 1 + 0x3p-24, 1 + 0x1p-22f },           /* half: to even */
		{ 1 + 0x1p-24 + 0x1p-50, 1 + 0x1p-23f }, /* above half */
		{ 0x1p-149, 0x1p-149f },
		{ 0x1p-150, 0.0f },
		{ 0x1.8p-150, 0x1p-149f },
		{ 0x1.fffffefp127, 0x1.fffffep127f },
		{ 0x1.ffffffp127, INFINITY },
		{ 1e300, INFINITY },
		{ -1e300, -INFINITY },
		{ INFINITY, INFINITY },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		float got;

		cast_to_float(DTYPE_F64, &cases[i].in, &got, 1);
		assert_true(same_bits(got, cases[i].expect));
	}
}

static void integers_round_to_nearest_even(void **state)
{
	static const struct {
		int64_t in;
		float expect;
	} cases[] = {
		{ 0, 0.0f },
		{ -1, -1.0f },
		{ 16777216, 16777216.0f },
		{ 16777217, 16777216.0f }, /* half: to even */
		{ 16777219, 16777220.0f }, /* half: to even */
		{ -16777217, -16777216.0f },
		{ INT64_MAX, 0x1p63f },
		{ INT64_MIN, -0x1p63f },
		/* Rounding by way of double would be wrong here. */
		{ (INT64_C(1) << 60) + (INT64_C(1) << 36) + 1,
		  0x1p60f + 0x1p37f },
	};
	static const struct {
		enum dtype dtype;
		uint8_t in[8];
		float expect;
	} narrow[] = {
		{ DTYPE_I32, { 0xff, 0xff, 0xff, 0xff }, -1 },
		{ DTYPE_I32, { 0xff, 0xff, 0xff, 0x7f }, 0x1p31f },
		{ DTYPE_I32, { 1, 2, 0, 0 }, 513 },
		{ DTYPE_U64, { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff },
		  0x1p64f },
		{ DTYPE_U64, { 1, 0, 0, 0, 0x80, 0, 0, 0x80 },
		  0x1p63f + 0x1p40f },
		{ DTYPE_U32, { 0xff, 0xff, 0xff, 0xff }, 0x1p32f },
		{ DTYPE_U16, { 0xff, 0xff }, 65535 },
		{ DTYPE_I16, { 0, 0x80 }, -32768 },
		{ DTYPE_I16, { 0xff, 0x7f }, 32767 },
		{ DTYPE_I8, { 0x80 }, -128 },
		{ DTYPE_U8, { 0x80 }, 128 },
		{ DTYPE_BOOL, { 0 }, 0 },
		{ DTYPE_BOOL, { 1 }, 1 },
		{ DTYPE_BOOL, { 0xff }, 1 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		float got;

		cast_to_float(DTYPE_I64, &cases[i].in, &got, 1);
		assert_true(same_bits(got, cases[i].expect));
	}
	for (size_t i = 0; i < COUNT(narrow); i++) {
		float got;

		cast_to_float(narrow[i].dtype, narrow[i].in, &got, 1);
		assert_true(same_bits(got, narrow[i].expect));
	}
}

/* float32 would round these numbers. */
static void float64_holds_wide_types(void **state)
{
	static const struct {
		enum dtype dtype;
		uint8_t in[8];
		double expect;
	} cases[] = {
		{ DTYPE_F64, { 1, 0, 0, 0, 0, 0, 0xf0, 0x3f }, 1 + 0x1p-52 },
		{ DTYPE_I64, { 1, 0, 0, 1 }, 16777217 },
		{ DTYPE_I64, { 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff },
		  -1 },
		{ DTYPE_I32, { 1, 0, 0, 0x81 }, -2130706431 },
		{ DTYPE_F32, { 0, 0, 0xc0, 0xbf }, -1.5 },
		{ DTYPE_BF16, { 0xc0, 0x3f }, 1.5 },
		{ DTYPE_F16, { 1, 0 }, 0x1p-24 },
		{ DTYPE_BOOL, { 2 }, 1 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		double got[2] = { 0, 7 };

		cast_to_double(cases[i].dtype, cases[i].in, got, 1);
		assert_true(got[0] == cases[i].expect && got[1] == 7);
	}
}

/* Shards are not aligned to their elements. */
static void any_alignment_will_do(void **state)
{
	const float in[] = { 1.5f, -2.25f, 1e-40f };
	uint8_t raw[sizeof(in) + 8];

	for (size_t shift = 0; shift < 8; shift++) {
		float out[COUNT(in)];

		memcpy(raw + shift, in, sizeof(in));
		cast_to_float(DTYPE_F32, raw + shift, out, COUNT(in));
		assert_memory_equal(out, in, sizeof(in));
	}
}

/* Conversion gives the same elements alone, in vectors and in their remainder. */
static void elements_do_not_depend_on_their_neighbours(void **state)
{
	static uint8_t in[65536 * 2 + 1];
	static float out[65536];

	for (size_t i = 0; i < 65536; i++) {
		in[2 * i + 1] = (uint8_t)i;
		in[2 * i + 2] = (uint8_t)(i >> 8);
	}
	for (enum dtype t = 0; t < DTYPES; t++) {
		const size_t n = cast_knows(t) ? 131072 / dtype_size(t) : 0;

		for (size_t i = 0, len = 1; i < n; i += len, len = len % 67 + 1) {
			if (len > n - i || len > COUNT(out) - i % COUNT(out))
				len = 1;
			cast_to_float(t, in + 1 + i * dtype_size(t),
				      out + i % COUNT(out), len);
		}
		for (size_t i = n > COUNT(out) ? n - COUNT(out) : 0; i < n;
		     i++) {
			float one;

			cast_to_float(t, in + 1 + i * dtype_size(t), &one, 1);
			assert_true(same_bits(one, out[i % COUNT(out)]));
		}
	}
}

static void many_elements_are_converted_in_order(void **state)
{
	static int32_t in[CAST_BATCH];
	static float out[CAST_BATCH + 1];

	for (int i = 0; i < CAST_BATCH; i++)
		in[i] = i * 3;
	out[CAST_BATCH] = 7;
	cast_to_float(DTYPE_I32, in, out, CAST_BATCH);
	for (int i = 0; i < CAST_BATCH; i++)
		assert_true(same_bits(out[i], (float)(i * 3)));
	assert_true(same_bits(out[CAST_BATCH], 7));
	cast_to_float(DTYPE_I32, in, out, 0);
}

static uint16_t to_16_bits(enum dtype to, float f)
{
	uint16_t many[100], one;
	float in[COUNT(many)];

	/* Long runs take another code path. */
	for (size_t i = 0; i < COUNT(in); i++)
		in[i] = f;
	cast_from_float(to, in, many, COUNT(in));
	cast_from_float(to, &f, &one, 1);
	for (size_t i = 0; i < COUNT(in); i++)
		assert_int_equal(many[i], one);
	return one;
}

/*
 * Between any two neighbours, the midpoint rounds to the even one, and its
 * float32 neighbours to the nearer one.  The upper neighbour of the largest
 * number is infinity, in the place of the next power of two.
 */
static void check_all_halfways(enum dtype to, int exponent_bits,
			       int fraction_bits)
{
	const unsigned infinity = ((1u << exponent_bits) - 1) << fraction_bits;

	for (unsigned i = 0; i < infinity; i++) {
		const double a = value_of(i, exponent_bits, fraction_bits);
		const double b =
			i + 1 < infinity
				? value_of(i + 1, exponent_bits, fraction_bits)
				: ldexp(1, 1 << (exponent_bits - 1));
		const float half = (float)((a + b) / 2);
		const uint16_t even = (uint16_t)(i + (i & 1));

		assert_true(half == (a + b) / 2);
		assert_int_equal(to_16_bits(to, (float)a), i);
		assert_int_equal(to_16_bits(to, half), even);
		assert_int_equal(to_16_bits(to, -half), even | 0x8000);
		assert_int_equal(to_16_bits(to, nextafterf(half, 0)), i);
		assert_int_equal(to_16_bits(to, nextafterf(half, INFINITY)),
				 i + 1);
	}
	assert_int_equal(to_16_bits(to, INFINITY), infinity);
	assert_int_equal(to_16_bits(to, -INFINITY), infinity | 0x8000);
	assert_int_equal(to_16_bits(to, 3e38f),
			 to == DTYPE_F16 ? infinity : 0x7f62);
}

static void halves_round_to_nearest_even(void **state)
{
	check_all_halfways(DTYPE_F16, 5, 10);
}

static void bfloat16s_round_to_nearest_even(void **state)
{
	check_all_halfways(DTYPE_BF16, 8, 7);
}

/* torch 2.15 on x86 converts them so. */
static void nans_are_those_of_torch(void **state)
{
	static const struct {
		uint32_t in;
		uint16_t half;
	} cases[] = {
		{ 0x7fc00000, 0x7e00 }, { 0xffc00000, 0xfe00 },
		{ 0x7f800001, 0x7e00 }, { 0xff812345, 0xfe09 },
		{ 0x7fffffff, 0x7fff }, { 0x7fa00000, 0x7f00 },
		{ 0x7fc12345, 0x7e09 },
	};

	for (size_t i = 0; i < COUNT(cases); i++) {
		float f;

		memcpy(&f, &cases[i].in, sizeof(f));
		assert_int_equal(to_16_bits(DTYPE_F16, f), cases[i].half);
		assert_int_equal(to_16_bits(DTYPE_BF16, f), 0xffff);
	}
}

/* 65536 in bfloat16 is too large for float16; 1 + 2^-7 is exact in both. */
static void types_convert_by_way_of_float32(void **state)
{
	static const uint16_t bfloats[] = { 0x4780, 0x3f81, 0x8000, 0x0001 };
	static const uint16_t halves[] = { 0x7c00, 0x3c08, 0x8000, 0x0000 };
	static const double doubles[] = { 1 + 0x1p-11 + 0x1p-40, -0.1 };
	/* Rounded to float32 first, the former is halfway between two. */
	static const uint16_t of_doubles[] = { 0x3c00, 0xae66 };
	uint16_t got[COUNT(bfloats)];

	cast(DTYPE_BF16, bfloats, DTYPE_F16, got, COUNT(bfloats));
	assert_memory_equal(got, halves, sizeof(halves));
	cast(DTYPE_F64, doubles, DTYPE_F16, got, COUNT(doubles));
	assert_memory_equal(got, of_doubles, sizeof(of_doubles));
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_half_is_exact),
		cmocka_unit_test(every_bfloat16_is_exact),
		cmocka_unit_test(every_float8_is_exact),
		cmocka_unit_test(every_odd_float8_is_exact),
		cmocka_unit_test(payloads_of_nans_survive),
		cmocka_unit_test(doubles_round_to_nearest_even),
		cmocka_unit_test(integers_round_to_nearest_even),
		cmocka_unit_test(float64_holds_wide_types),
		cmocka_unit_test(any_alignment_will_do),
		cmocka_unit_test(elements_do_not_depend_on_their_neighbours),
		cmocka_unit_test(many_elements_are_converted_in_order),
		cmocka_unit_test(halves_round_to_nearest_even),
		cmocka_unit_test(bfloat16s_round_to_nearest_even),
		cmocka_unit_test(nans_are_those_of_torch),
		cmocka_unit_test(types_convert_by_way_of_float32),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
