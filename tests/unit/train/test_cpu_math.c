/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of single elements has the accuracy that cpu_math.h promises, for all inputs. */
#include <math.h>

#include "ckpt/format/cast.h"
#include "gpu/backend/cpu_math.h"
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"
#include "tests/support/unit.h"

/* Steps between tested floats: prime, so that all bits of the mantissa change. */
#define STRIDE 1009

static double ulps(float got, double want)
{
	const float nearest = (float)want;

	return fabs(got - want) / (nextafterf(nearest, INFINITY) - nearest);
}

static void exp_is_within_2_ulp(void **state)
{
	uint32_t u;

	for (u = 0; u < 0x7f800000u; u += STRIDE) {
		const float a = cpu_from_bits(u);
		const float both[] = { a, -a };
		size_t i;

		for (i = 0; i < 2; i++) {
			const float x = both[i], got = cpu_exp(x);

			if (x < -87.3f)
				assert_true(got == 0);
			else if (x <= 88.3f && !(ulps(got, exp(x)) <= 2))
				fail_msg("exp(%.9g) is %.9g", x, got);
			else if (x > 88.3f)
				assert_true(got == cpu_exp(88.3f));
		}
	}
	assert_true(cpu_exp(0) == 1);
	assert_true(cpu_exp(-INFINITY) == 0);
	assert_true(isnan(cpu_exp(NAN)));
}

static double gelu(double x)
{
	return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static void gelu_is_the_tanh_formula(void **state)
{
	int i;

	for (i = -120000; i <= 120000; i++) {
		const double x = i / 10000.0, h = 1e-6;
		const double slope = (gelu(x + h) - gelu(x - h)) / (2 * h);

		if (fabs(cpu_gelu((float)x) - gelu((float)x)) > 1e-6 * fmin(1 + fabs(x), 8))
			fail_msg("gelu(%g) is %g", x, cpu_gelu((float)x));
		if (fabs(cpu_gelu_slope((float)x) - slope) > 2e-6)
			fail_msg("its slope at %g is %g, not %g", x, cpu_gelu_slope((float)x),
				 slope);
	}
}

/* A 16-bit type, all of its values, and its rounding. */
static const struct type {
	enum dtype dtype;
	float (*round)(float x);
	uint16_t infinity;
} types[] = {
	{ DTYPE_BF16, cpu_round_bf16, 0x7f80 },
	{ DTYPE_F16, cpu_round_f16, 0x7c00 },
};

static float number(const struct type *t, unsigned bits)
{
	const uint8_t le[2] = { (uint8_t)bits, (uint8_t)(bits >> 8) };
	float x;

	cast_to_float(t->dtype, le, &x, 1);
	return x;
}

/* Rounding to nearest even between all neighbours: the midpoint and values just beside it.  The
 * value after the largest is infinity. */
static void rounds_to_nearest_even(void **state)
{
	size_t i;

	for (i = 0; i < COUNT(types); i++) {
		const struct type *const t = &types[i];
		unsigned u;

		for (u = 0; u < t->infinity; u++) {
			const float lo = number(t, u), hi = number(t, u + 1);
			const float below = u ? lo - number(t, u - 1) : hi;
			const float gap = isinf(hi) ? below : hi - lo;
			const float middle = lo + gap / 2;

			assert_true(t->round(lo) == lo);
			assert_true(t->round(-lo) == -lo);
			assert_true(t->round(middle) == (u & 1 ? hi : lo));
			assert_true(t->round(nextafterf(middle, 0)) == lo);
			assert_true(t->round(nextafterf(middle, INFINITY)) == hi);
			assert_true(t->round(-middle) == (u & 1 ? -hi : -lo));
		}
		assert_true(t->round(INFINITY) == INFINITY);
		assert_true(t->round(-INFINITY) == -INFINITY);
		assert_true(isnan(t->round(NAN)));
		assert_true(signbit(t->round(-0.0f)));
	}
}

/* Return whether `often` of n is within five standard deviations of the expectation. */
static bool is_likely(unsigned often, unsigned n, double rate)
{
	return fabs(often - n * rate) < 5 * sqrt(n * rate * (1 - rate));
}

static const float rates[] = { 0.01f, 0.1f, 0.5f, 0.9f };

static float dropped(uint64_t row, uint32_t i, float rate)
{
	return dropout_apply(2, dropout_element(splitmix64(3, row), i), rate);
}

static void drops_as_often_as_told(void **state)
{
	const unsigned n = 100000;
	size_t r;

	for (r = 0; r < COUNT(rates); r++) {
		const double rate = rates[r], kept = 2 / (1 - rate);
		unsigned i, often = 0;

		for (i = 0; i < n; i++) {
			const float x = dropped(0, i, rates[r]);

			often += x == 0;
			assert_true(x == 0 || fabs(x - kept) < 1e-5 * kept);
		}
		assert_true(is_likely(often, n, rate));
	}
}

/* Two elements a few columns or rows apart are dropped together as often as independence
 * predicts. */
static void neighbours_are_dropped_independently(void **state)
{
	const unsigned n = 300;

	for (size_t r = 0; r < COUNT(rates); r++)
		for (unsigned rows = 0; rows < 9; rows++)
			for (unsigned steps = !rows; steps < 9; steps++) {
				const float rate = rates[r];
				unsigned often = 0;

				for (unsigned i = 0; i < n * n; i++)
					often += dropped(i / n, i % n, rate) == 0 &&
						 dropped(i / n + rows, i % n + steps, rate) == 0;
				assert_true(is_likely(often, n * n, (double)rate * rate));
			}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(exp_is_within_2_ulp),
		cmocka_unit_test(gelu_is_the_tanh_formula),
		cmocka_unit_test(rounds_to_nearest_even),
		cmocka_unit_test(drops_as_often_as_told),
		cmocka_unit_test(neighbours_are_dropped_independently),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
