/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network computes what Hugging Face's GPT2LMHeadModel does: the same loss
 * and the same gradient of every parameter, for small models of odd sizes
 * (numbers/network.pt, made by interop/make_numbers.py); and its gradient is
 * the slope of its loss.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/errmsg.h"
#include "ckpt/ptfile.h"
#include "ckpt/source.h"
#include "ckpt/value.h"
#include "tests/whole.h"

static void begin(struct whole *w, const struct gpt2_config *c, size_t batch,
		  size_t seq, enum dtype dtype, unsigned threads)
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

/* --- PyTorch's numbers ---------------------------------------------------- */

static struct ptfile numbers;

static int open_numbers(void **state)
{
	static char path[4096];
	struct errmsg err;

	(void)state;
	snprintf(path, sizeof(path), "%s/tests/numbers/network.pt",
		 getenv("top_srcdir"));
	if (ptfile_open(&numbers, path, &err)) {
		print_error("%s\n", err.text);
		return -1;
	}
	return 0;
}

static int close_numbers(void **state)
{
	(void)state;
	ptfile_close(&numbers);
	return 0;
}

static void read_tensor(const struct value *v, void *out, size_t numel)
{
	struct errmsg err = { "" };
	struct tensor t;
	uint64_t storage;

	assert_int_equal(
		ptfile_tensor(&numbers, v, "tensor", &t, &storage, &err), 0);
	assert_int_equal(t.numel, numel);
	assert_int_equal(
		source_read(&numbers.src, out, numel * dtype_size(t.dtype),
			    storage + t.storage_offset * dtype_size(t.dtype),
			    &err),
		0);
}

static double read_number(const struct value *model, const char *key)
{
	float x;

	read_tensor(value_find(model, key), &x, 1);
	return x;
}

static size_t size_of(const struct value *model, unsigned i)
{
	return (size_t)value_items(value_find(model, "sizes"))->v[i]->i;
}

/* Model `i` of the numbers, its weights rounded to `dtype`. */
static const struct value *load_model(struct whole *w, size_t i,
				      enum dtype dtype, unsigned threads)
{
	const struct value *const model = value_items(numbers.root)->v[i];
	const struct gpt2_config c = {
		.n_layer = (unsigned)size_of(model, 0),
		.n_head = (unsigned)size_of(model, 1),
		.n_embd = (unsigned)size_of(model, 2),
		.vocab_size = (unsigned)size_of(model, 3),
		.n_positions = (unsigned)size_of(model, 4),
		.layer_norm_epsilon = 1e-5f,
	};
	float *at;
	size_t p;

	begin(w, &c, size_of(model, 5), size_of(model, 6), dtype, threads);
	at = w->weights;
	for (p = 0; p < w->model.nparams; p++) {
		const struct gpt2_param *param = &w->model.params[p];

		read_tensor(value_find(value_find(model, "params"), param->name),
			    at, param->numel);
		at += param->numel;
	}
	w->b->ops->round(w->b, w->weights, w->weights, w->model.numel);
	read_tensor(value_find(model, "tokens"), w->tokens, w->batch * w->seq);
	return model;
}

static double largest(const float *x, size_t n)
{
	double top = 0;
	size_t i;

	for (i = 0; i < n; i++)
		top = fmax(top, fabs(x[i]));
	return top;
}

/* Sums of some thousand terms in another order: float32 keeps 24 bits, and
 * errors are measured against a parameter's largest gradient. */
static void compare_gradients(const struct whole *w, const struct value *model,
			      float scale)
{
	const float *got = w->grads;
	size_t p, i;

	for (p = 0; p < w->model.nparams; p++) {
		const struct gpt2_param *param = &w->model.params[p];
		float *want = calloc(param->numel, sizeof(float));
		double top;

		assert_non_null(want);
		read_tensor(value_find(value_find(model, "grads"), param->name),
			    want, param->numel);
		top = largest(want, param->numel);
		for (i = 0; i < param->numel; i++)
			if (fabs(got[i] / scale - want[i]) > 2e-5 * top + 1e-8)
				fail_msg("%s[%zu] is %g, not %g", param->name,
					 i, got[i] / scale, want[i]);
		free(want);
		got += param->numel;
	}
}

static void loss_and_gradient_are_pytorchs(void **state)
{
	const size_t n = value_items(numbers.root)->n;
	unsigned threads;
	size_t i;

	(void)state;
	for (i = 0; i < n; i++)
		for (threads = 1; threads <= 3; threads++) {
			struct whole w;
			const struct value *model =
				load_model(&w, i, DTYPE_F32, threads);
			const double want = read_number(model, "loss");
			const float scale = 4;

			assert_true(fabs(train(&w, scale) - want) < 2e-6);
			compare_gradients(&w, model, scale);
			assert_true(fabs(evaluate(&w) - want) < 2e-6);
			end(&w);
		}
}

/* bfloat16 has 8 bits and float16 has 11: what two orders of rounding leave in
 * common is about that of the type. */
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
	const size_t n = value_items(numbers.root)->n;
	size_t i, t;

	(void)state;
	for (i = 0; i < n; i++)
		for (t = 0; t < 2; t++) {
			struct whole w;
			const struct value *model =
				load_model(&w, i, types[t].dtype, 2);
			const double want = read_number(model, types[t].key);
			const double got = train(&w, 1);

			if (fabs(got - want) > types[t].tolerance * want)
				fail_msg("%s of model %zu is %g, not %g",
					 types[t].key, i, got, want);
			end(&w);
		}
}

/* --- by themselves -------------------------------------------------------- */

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

/* The slope of the loss along `direction`, by going there and back. */
static double slope(struct whole *w, const float *direction, double step)
{
	double side[2];
	int s;
	size_t i;

	for (s = 0; s < 2; s++) {
		const double by = s ? step : -step;

		for (i = 0; i < w->model.numel; i++)
			w->weights[i] += (float)(by * direction[i]);
		/* Of the loss in training: what is dropped is dropped. */
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

	(void)state;
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
				direction[i] =
					(float)rand() / (float)RAND_MAX - 0.5f;
				want += (double)direction[i] * w.grads[i];
				norm += (double)w.grads[i] * w.grads[i];
			}
			got = slope(&w, direction, 1e-3);
			if (fabs(got - want) > 2e-3 * (1 + sqrt(norm)))
				fail_msg("dropout %g: slope %g, gradient %g",
					 (double)c.dropout, got, want);
			free(direction);
			end(&w);
		}
}

static void gradients_are_added(void **state)
{
	struct whole w;
	float *once;
	size_t i;

	(void)state;
	begin(&w, &config, 3, 5, DTYPE_F32, 2);
	fill(&w, 3);
	train(&w, 1);
	once = malloc(w.model.numel * sizeof(float));
	assert_non_null(once);
	memcpy(once, w.grads, w.model.numel * sizeof(float));
	train(&w, 1);
	for (i = 0; i < w.model.numel; i++)
		assert_true(fabs(w.grads[i] - 2 * once[i]) <=
			    1e-5 * fabs(once[i]) + 1e-7);
	free(once);
	end(&w);
}

static void runs_are_equal_bit_for_bit(void **state)
{
	struct whole w[2];
	int i;

	(void)state;
	for (i = 0; i < 2; i++) {
		struct gpt2_config c = config;

		c.dropout = 0.1f;
		begin(&w[i], &c, 3, 9, DTYPE_F32, 2);
		fill(&w[i], 5);
		train(&w[i], 1);
	}
	assert_memory_equal(w[0].grads, w[1].grads,
			    w[0].model.numel * sizeof(float));
	end(&w[0]);
	end(&w[1]);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(loss_and_gradient_are_pytorchs),
		cmocka_unit_test(sixteen_bits_are_close_to_pytorchs),
		cmocka_unit_test(gradient_is_the_slope_of_the_loss),
		cmocka_unit_test(gradients_are_added),
		cmocka_unit_test(runs_are_equal_bit_for_bit),
	};

	return cmocka_run_group_tests(tests, open_numbers, close_numbers);
}
