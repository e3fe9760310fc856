/* SPDX-License-Identifier: Apache-2.0 */
/* Updates, learning rates and loss scales are those of torch 2.15 and DeepSpeed 0.19.8, which
 * computed the reference values. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/zero/optimizer.h"
#include "tests/support/unit.h"

/* Three steps on (0.5, -1.25, 3.0); the gradient of step t is t times (0.1,
 * -2.0, 0.03). */
static void updates_of_torch(void **state)
{
	static const struct {
		enum optimizer_kind kind;
		float p[3][3];
	} runs[] = {
		{ OPTIMIZER_ADAMW,
		  { { 0.4895000159740448f, -1.2387499809265137f, 2.986999988555908f },
		    { 0.4794306457042694f, -1.2279313802719116f, 2.974433183670044f },
		    { 0.4695061147212982f, -1.217258334159851f, 2.9620134830474854f } } },
		{ OPTIMIZER_ADAM,
		  { { 0.49000000953674316f, -1.2400000095367432f, 2.990000009536743f },
		    { 0.48022595047950745f, -1.2303863763809204f, 2.979997396469116f },
		    { 0.4705677330493927f, -1.220907211303711f, 2.9699900150299072f } } },
	};
	struct backend *b;

	assert_int_equal(backend_cpu_new(&b, DTYPE_F32, 1, NULL), 0);
	for (size_t k = 0; k < COUNT(runs); k++) {
		const struct optimizer_config o = { .kind = runs[k].kind,
						    .beta1 = 0.9,
						    .beta2 = 0.95,
						    .eps = 1e-8,
						    .weight_decay = 0.1 };
		float p[3] = { 0.5f, -1.25f, 3 }, m[3] = { 0 }, v[3] = { 0 };
		float w[3];

		for (unsigned t = 1; t <= 3; t++) {
			/* Gradients arrive scaled by 8. */
			const float g[3] = { 0.8f * (float)t, -16 * (float)t, 0.24f * (float)t };
			const struct backend_adam a = optimizer_adam(&o, true);
			const struct backend_rate rate = optimizer_rate(&o, true, t, 0.01);
			const float eighth = 1.0f / 8;

			b->ops->adam(b, &a, &rate, &eighth, w, p, m, v, g, 3);
			for (size_t i = 0; i < 3; i++)
				assert_float_equal(p[i], runs[k].p[t - 1][i], 3e-7);
			assert_memory_equal(w, p, sizeof(w));
		}
	}
	b->ops->destroy(b);
}

static void rates_of_deepspeed(void **state)
{
	static const struct {
		struct lr_schedule_config c;
		double lr[12];
	} runs[] = {
		{ { .kind = SCHEDULE_CONSTANT, .warmup = 5 },
		  { 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01 } },
		{ { .kind = SCHEDULE_WARMUP, .start_lr = 0.001, .warmup = 5, .log_warmup = true },
		  { 0.001, 0.001, 0.0048760890226605385, 0.007143455750373869, 0.008752178045321076,
		    0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01 } },
		{ { .kind = SCHEDULE_WARMUP, .start_lr = 0.001, .warmup = 5 },
		  { 0.001, 0.001, 0.0028, 0.0046, 0.0064, 0.0082, 0.01, 0.01, 0.01, 0.01, 0.01,
		    0.01 } },
		{ { .kind = SCHEDULE_WARMUP, .start_lr = 0.001, .warmup = 1 },
		  { 0.001, 0.001, 0.0055, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.01 } },
		{ { .kind = SCHEDULE_LINEAR,
		    .start_lr = 0.001,
		    .warmup = 4,
		    .total = 9,
		    .log_warmup = true },
		  { 0.001, 0.001, 0.0055, 0.008132331253245204, 0.01, 0.01, 0.0082, 0.0064, 0.0046,
		    0.0028, 0.001, 0.001 } },
		{ { .kind = SCHEDULE_COSINE,
		    .start_lr = 0.001,
		    .min_lr = 0.002,
		    .warmup = 4,
		    .total = 9,
		    .log_warmup = true },
		  { 0, 0.001, 0.0055, 0.008132331253245204, 0.01, 0.009236067977499792,
		    0.007236067977499789, 0.004763932022500211, 0.0027639320225002107, 0.002, 0.002,
		    0.002 } },
		{ { .kind = SCHEDULE_COSINE,
		    .start_lr = 0.001,
		    .min_lr = 0.002,
		    .warmup = 4,
		    .total = 9 },
		  { 0, 0.001, 0.00325, 0.0055, 0.00775, 0.009236067977499792, 0.007236067977499789,
		    0.004763932022500211, 0.0027639320225002107, 0.002, 0.002, 0.002 } },
	};

	for (size_t k = 0; k < COUNT(runs); k++)
		for (unsigned i = 0; i < COUNT(runs[k].lr); i++)
			assert_float_equal(lr_schedule_lr(&runs[k].c, 0.01, i + 1), runs[k].lr[i],
					   1e-15);
}

/* Without warm-up, which DeepSpeed requires, the rate is full at once. */
static void no_warmup(void **state)
{
	static const enum lr_schedule_kind kinds[] = { SCHEDULE_WARMUP, SCHEDULE_COSINE,
						       SCHEDULE_LINEAR };

	for (size_t k = 0; k < COUNT(kinds); k++) {
		const struct lr_schedule_config c = { .kind = kinds[k], .total = 10 };

		assert_true(lr_schedule_lr(&c, 0.01, 1) == 0.01);
	}
}

/* 'o' is an overflow, 'g' a good step.  After each: scale and hysteresis left. */
static void scales_of_deepspeed(void **state)
{
	static const char went[] = "ggggggoogoogggggggggogoooggggggo";
	static const int16_t want[][2] = {
		{ 256, 2 }, { 256, 2 }, { 256, 2 }, { 512, 2 }, { 512, 2 }, { 512, 2 }, { 512, 1 },
		{ 256, 1 }, { 256, 1 }, { 128, 1 }, { 64, 1 },  { 64, 1 },  { 64, 1 },  { 64, 1 },
		{ 128, 2 }, { 128, 2 }, { 128, 2 }, { 256, 2 }, { 256, 2 }, { 256, 2 }, { 256, 1 },
		{ 256, 1 }, { 128, 1 }, { 64, 1 },  { 32, 1 },  { 32, 1 },  { 32, 1 },  { 32, 1 },
		{ 64, 2 },  { 64, 2 },  { 64, 2 },  { 64, 1 },
	};
	const struct loss_scaler_config c = {
		.initial = 256, .dynamic = true, .window = 3, .hysteresis = 2, .minimum = 32
	};
	struct loss_scaler s;

	loss_scaler_init(&s, &c);
	for (size_t i = 0; i < COUNT(want); i++) {
		assert_int_equal(loss_scaler_update(&s, went[i] == 'o', NULL), 0);
		assert_float_equal(s.scale, want[i][0], 0);
		assert_int_equal(s.patience, want[i][1]);
	}
}

static void smallest_scale_is_an_end(void **state)
{
	const struct loss_scaler_config c = {
		.initial = 2, .dynamic = true, .window = 1000, .hysteresis = 1, .minimum = 1
	};
	struct errmsg err;
	struct loss_scaler s;

	loss_scaler_init(&s, &c);
	assert_int_equal(loss_scaler_update(&s, true, &err), 0);
	assert_float_equal(s.scale, 1, 0);
	assert_int_equal(loss_scaler_update(&s, true, &err), -ERANGE);
	assert_non_null(strstr(err.text, "smallest loss scale"));
}

static void static_scales(void **state)
{
	const struct loss_scaler_config none = { 0 }, fixed = { .initial = 128 };
	struct loss_scaler s;

	loss_scaler_init(&s, &none);
	assert_int_equal(loss_scaler_update(&s, true, NULL), 0);
	assert_float_equal(s.scale, 1, 0);
	loss_scaler_init(&s, &fixed);
	assert_int_equal(loss_scaler_update(&s, true, NULL), 0);
	assert_float_equal(s.scale, 128, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(updates_of_torch),
		cmocka_unit_test(rates_of_deepspeed),
		cmocka_unit_test(no_warmup),
		cmocka_unit_test(scales_of_deepspeed),
		cmocka_unit_test(smallest_scale_is_an_end),
		cmocka_unit_test(static_scales),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
