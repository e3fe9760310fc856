/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network computes the same loss and the same gradients as Hugging Face's GPT2LMHeadModel,
 * for small models of odd sizes (numbers/network.pt, made by interop/make_numbers.py), and its
 * gradient is the slope of its loss.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"
#include "tests/support/numbers.h"
#include "tests/support/unit.h"
#include "tests/support/whole.h"

static void begin(struct whole *w, const struct gpt2_config *c, size_t batch, size_t seq,
		  enum dtype dtype, unsigned threads)
{
	struct errmsg err = { "" };

	if (whole_init(w, c, batch, seq, dtype, threads, &err))
		fail_msg("%s", err.text);
}

static void end(struct whole *w)
{
	assert_int_equal(w->acquired, 0);
	whole_done(w);
}

static double train(struct whole *w, float scale)
{
	struct errmsg err = { "" };
	double loss = NAN;

	if (whole_train(w, scale, 7, &loss, &err))
		fail_msg("%s", err.text);
	return loss;
}

static double evaluate(struct whole *w)
{
	struct errmsg err = { "" };
	double loss = NAN;

	if (whole_evaluate(w, &loss, &err))
		fail_msg("%s", err.text);
	return loss;
}

static struct numbers numbers;

static int open_numbers(void **state)
{
	numbers_open(&numbers, "network.pt");
	return 0;
}

static int close_numbers(void **state)
{
	numbers_close(&numbers);
	return 0;
}

/* Load model `i` of the reference, with weights rounded to `dtype`. */
static const struct value *load_model(struct whole *w, size_t i, enum dtype dtype, unsigned threads)
{
	const struct value *const model = numbers_case(&numbers, i);
	const struct gpt2_config c = {
		.n_layer = (unsigned)numbers_size(model, 0),
		.n_head = (unsigned)numbers_size(model, 1),
		.n_embd = (unsigned)numbers_size(model, 2),
		.vocab_size = (unsigned)numbers_size(model, 3),
		.n_positions = (unsigned)numbers_size(model, 4),
		.layer_norm_epsilon = 1e-5f,
	};
	const struct value *const params = value_find(model, "params");
	float *at;
	size_t p;

	begin(w, &c, numbers_size(model, 5), numbers_size(model, 6), dtype, threads);
	at = w->weights;
	for (p = 0; p < w->model.nparams; p++) {
		const struct gpt2_param *param = &w->model.params[p];
		float *const x = numbers_floats(&numbers, params, param->name, param->numel);

		w->b->ops->round(w->b, at, x, param->numel);
		free(x);
		at += param->numel;
	}
	free(w->tokens);
	w->tokens = numbers_ints(&numbers, model, "tokens", w->batch * w->seq);
	return model;
}

/* float32 has 24 bits; sums of some thousand terms in another order differ. */
static void compare_gradients(const struct whole *w, const struct value *model, double tolerance)
{
	const struct value *const grads = value_find(model, "grads");
	const float *got = w->grads;
	size_t p;

	for (p = 0; p < w->model.nparams; p++) {
		const struct gpt2_param *param = &w->model.params[p];
		float *const want = numbers_floats(&numbers, grads, param->name, param->numel);

		numbers_near(param->name, got, want, param->numel, tolerance);
		free(want);
		got += param->numel;
	}
}

static void loss_and_gradient_are_pytorchs(void **state)
{
	const size_t n = numbers_count(&numbers);
	unsigned threads;
	size_t i;

	for (i = 0; i < n; i++)
		for (threads = 1; threads <= 3; threads++) {
			struct whole w;
			const struct value *model = load_model(&w, i, DTYPE_F32, threads);
			const double want = numbers_scalar(&numbers, model, "loss");
			const float scale = 4;

			assert_true(fabs(train(&w, scale) - want) < 2e-6);
			for (size_t k = 0; k < w.model.numel; k++)
				w.grads[k] /= scale;
			compare_gradients(&w, model, 2e-5);
			assert_true(fabs(evaluate(&w) - want) < 2e-6);
			end(&w);
		}
}

/* bfloat16 has 8 bits and float16 11: rounding in another order leaves an error of about that
 * size. */
static void sixteen_bits_are_close_to_pytorchs(void **state)
{
	static const struct {
		enum dtype dtype;
		const char *key;
		double tolerance;
	} types[] = {
		{ DTYPE_BF16, "loss_bf16", 1.0 / 64 },
		{ DTYPE_F16, "loss_fp16", 1.0 / 512 },
	};
	const size_t n = numbers_count(&numbers);
	size_t i, t;

	for (i = 0; i < n; i++)
		for (t = 0; t < 2; t++) {
			struct whole w;
			const struct value *model = load_model(&w, i, types[t].dtype, 2);
			const double want = numbers_scalar(&numbers, model, types[t].key);
			const double got = train(&w, 1);

			if (fabs(got - want) > types[t].tolerance * want)
				fail_msg("%s of model %zu is %g, not %g", types[t].key, i, got,
					 want);
			end(&w);
		}
}

static const struct gpt2_config config = {
	.n_layer = 2,
	.n_head = 2,
	.n_embd = 8,
	.vocab_size = 19,
	.n_positions = 9,
	.layer_norm_epsilon = 1e-5f,
};

static void fill(struct whole *w, unsigned seed)
{
	size_t i;

	srand(seed);
	for (i = 0; i < w->model.numel; i++)
		w->weights[i] = (float)rand() / (float)RAND_MAX - 0.5f;
	for (i = 0; i < w->batch * w->seq; i++)
		w->tokens[i] = rand() % (int)w->model.config.vocab_size;
}

/* The slope of the loss along `direction`, by central differences. */
static double slope(struct whole *w, const float *direction, double step)
{
	double side[2];
	int s;
	size_t i;

	for (s = 0; s < 2; s++) {
		const double by = s ? step : -step;

		for (i = 0; i < w->model.numel; i++)
			w->weights[i] += (float)(by * direction[i]);
		/* Compute the training loss, with dropout of a fixed seed. */
		side[s] = train(w, 0);
		for (i = 0; i < w->model.numel; i++)
			w->weights[i] -= (float)(by * direction[i]);
	}
	return (side[1] - side[0]) / (2 * step);
}

static void gradient_is_the_slope_of_the_loss(void **state)
{
	static const float drops[] = { 0, 0.25f };
	size_t d, i;
	unsigned seed;

	for (d = 0; d < 2; d++)
		for (seed = 1; seed <= 5; seed++) {
			struct gpt2_config c = config;
			struct whole w;
			float *direction;
			double want = 0, got, norm = 0;

			c.dropout = drops[d];
			begin(&w, &c, 2, 9, DTYPE_F32, 2);
			fill(&w, seed);
			train(&w, 1);
			direction = malloc(w.model.numel * sizeof(float));
			assert_non_null(direction);
			for (i = 0; i < w.model.numel; i++) {
				direction[i] = (float)rand() / (float)RAND_MAX - 0.5f;
				want += (double)direction[i] * w.grads[i];
				norm += (double)w.grads[i] * w.grads[i];
			}
			got = slope(&w, direction, 1e-3);
			if (fabs(got - want) > 2e-3 * (1 + sqrt(norm)))
				fail_msg("dropout %g: slope %g, gradient %g", (double)c.dropout,
					 got, want);
			free(direction);
			end(&w);
		}
}

static void gradients_are_added(void **state)
{
	struct whole w;
	float *once;
	size_t i;

	begin(&w, &config, 3, 5, DTYPE_F32, 2);
	fill(&w, 3);
	train(&w, 1);
	once = malloc(w.model.numel * sizeof(float));
	assert_non_null(once);
	memcpy(once, w.grads, w.model.numel * sizeof(float));
	train(&w, 1);
	for (i = 0; i < w.model.numel; i++)
		assert_true(fabs(w.grads[i] - 2 * once[i]) <= 1e-5 * fabs(once[i]) + 1e-7);
	free(once);
	end(&w);
}

static void runs_are_equal_bit_for_bit(void **state)
{
	struct whole w[2];
	int i;

	for (i = 0; i < 2; i++) {
		struct gpt2_config c = config;

		c.dropout = 0.1f;
		begin(&w[i], &c, 3, 9, DTYPE_F32, 2);
		fill(&w[i], 5);
		train(&w[i], 1);
	}
	assert_memory_equal(w[0].grads, w[1].grads, w[0].model.numel * sizeof(float));
	end(&w[0]);
	end(&w[1]);
}

/* The third block shares all, some, or all but one of its activations. */
static void made_again_gradients_are_the_same(void **state)
{
	/* Numbers per token in a block: 16 times n_embd. */
	static const struct {
		unsigned recompute;
		size_t shared; /* how many of these 16 are shared */
	} cases[] = {
		{ RECOMPUTE_NORMS, 2 },
		{ RECOMPUTE_GELU, 8 },
		{ RECOMPUTE_GELU | RECOMPUTE_NORMS, 10 },
		{ RECOMPUTE_BLOCKS, 15 },
	};
	struct gpt2_config c = config;
	struct errmsg err = { "" };
	struct whole all;
	size_t i;

	c.dropout = 0.1f;
	c.n_layer = 3;
	begin(&all, &c, 3, 9, DTYPE_BF16, 2);
	fill(&all, 5);
	for (i = 0; i < COUNT(cases); i++) {
		const size_t bytes = 3 * 9 * c.n_embd * all.b->act_size;
		const size_t less = (c.n_layer - 1) * cases[i].shared * bytes;
		struct whole w;

		begin(&w, &c, 3, 9, DTYPE_BF16, 2);
		fill(&w, 5);
		network_free(w.net);
		assert_int_equal(
			network_new(&w.net, &w.model, w.b, NULL, 3, 9, cases[i].recompute, &err),
			0);
		assert_true(network_memory(w.net) + less <= network_memory(all.net));
		memset(all.grads, 0, all.model.numel * sizeof(float));
		assert_true(train(&all, 1) == train(&w, 1));
		assert_memory_equal(w.grads, all.grads, w.model.numel * sizeof(float));
		end(&w);
	}
	end(&all);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loss_and_gradient_are_pytorchs),
		cmocka_unit_test(sixteen_bits_are_close_to_pytorchs),
		cmocka_unit_test(gradient_is_the_slope_of_the_loss),
		cmocka_unit_test(gradients_are_added),
		cmocka_unit_test(runs_are_equal_bit_for_bit),
		cmocka_unit_test(made_again_gradients_are_the_same),
	};

	return cmocka_run_group_tests(tests, open_numbers, close_numbers);
}
