/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Conversions to float32, against arithmetic that shares nothing with them:
 * the value of a 16-bit number from its definition, by ldexp.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ckpt/cast.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* A binary floating-point number by definition: (-1)^s 2^(e-bias) 1.f. */
static double value_of(unsigned bits, int exponent_bits, int fraction_bits)
{
	const int bias = (1 << (exponent_bits - 1)) - 1;
	const int fraction = (int)(bits & ((1u << fraction_bits) - 1));
	const int exponent =
		(int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
	const double sign = bits >> 15 ? -1 : 1;

	if (exponent == (1 << exponent_bits) - 1)
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

static void check_all_16_bits(enum dtype dtype, int exponent_bits,
			      int fraction_bits)
{
	for (unsigned i = 0; i < 65536; i++) {
		const uint8_t in[] = { (uint8_t)i, (uint8_t)(i >> 8) };
		const double expect = value_of(i, exponent_bits, fraction_bits);
		float got;

		cast_to_float(dtype, in, &got, 1);
		if (isnan(expect))
			assert_true(isnan(got));
		else
			assert_true(same_bits(got, (float)expect));
		assert_int_equal(signbit(got) != 0, i >> 15);
	}
}

static void every_half_is_exact(void **state)
{
	(void)state;
	check_all_16_bits(DTYPE_F16, 5, 10);
}

static void every_bfloat16_is_exact(void **state)
{
	(void)state;
	check_all_16_bits(DTYPE_BF16, 8, 7);
}

/* NaNs keep their payload where float32 has room for it. */
static void payloads_of_nans_survive(void **state)
{
	static const struct {
		enum dtype dtype;
		uint16_t in;
		uint32_t bits;
	} cases[] = {
		{ DTYPE_BF16, 0x7fc1, 0x7fc10000 },
		{ DTYPE_BF16, 0xff81, 0xff810000 },
		{ DTYPE_F16, 0x7e01, 0x7fc02000 },
		{ DTYPE_F16, 0xfe00, 0xffc00000 },
	};

	(void)state;
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

	(void)state;
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
		/* Rounding by way of double would go wrong here. */
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
		{ DTYPE_I16, { 0, 0x80 }, -32768 },
		{ DTYPE_I16, { 0xff, 0x7f }, 32767 },
		{ DTYPE_I8, { 0x80 }, -128 },
		{ DTYPE_U8, { 0x80 }, 128 },
		{ DTYPE_BOOL, { 0 }, 0 },
		{ DTYPE_BOOL, { 1 }, 1 },
		{ DTYPE_BOOL, { 0xff }, 1 },
	};

	(void)state;
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

/* Shards are not aligned to their elements. */
static void any_alignment_will_do(void **state)
{
	const float in[] = { 1.5f, -2.25f, 1e-40f };
	uint8_t raw[sizeof(in) + 8];

	(void)state;
	for (size_t shift = 0; shift < 8; shift++) {
		float out[COUNT(in)];

		memcpy(raw + shift, in, sizeof(in));
		cast_to_float(DTYPE_F32, raw + shift, out, COUNT(in));
		assert_memory_equal(out, in, sizeof(in));
	}
}

static void many_elements_are_converted_in_order(void **state)
{
	static int32_t in[CAST_BATCH];
	static float out[CAST_BATCH + 1];

	(void)state;
	for (int i = 0; i < CAST_BATCH; i++)
		in[i] = i * 3;
	out[CAST_BATCH] = 7;
	cast_to_float(DTYPE_I32, in, out, CAST_BATCH);
	for (int i = 0; i < CAST_BATCH; i++)
		assert_true(same_bits(out[i], (float)(i * 3)));
	assert_true(same_bits(out[CAST_BATCH], 7));
	cast_to_float(DTYPE_I32, in, out, 0);
}

int main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_half_is_exact),
		cmocka_unit_test(every_bfloat16_is_exact),
		cmocka_unit_test(payloads_of_nans_survive),
		cmocka_unit_test(doubles_round_to_nearest_even),
		cmocka_unit_test(integers_round_to_nearest_even),
		cmocka_unit_test(any_alignment_will_do),
		cmocka_unit_test(many_elements_are_converted_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
