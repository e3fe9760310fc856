/* SPDX-License-Identifier: Apache-2.0 */
/* A new model: the distributions of Hugging Face, whoever makes which part. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gpu/model/gpt2.h"
#include "gpu/model/init_weights.h"

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

static void make_model(struct gpt2 *m)
{
	const struct gpt2_config c = { .n_layer = 2,
				       .n_head = 2,
				       .n_embd = 64,
				       .vocab_size = 500,
				       .n_positions = 40 };

	assert_int_equal(gpt2_init(m, &c, NULL), 0);
}

static void distributions(void **state)
{
	/* c_proj: 0.02 / sqrt(2 * n_layer) */
	static const struct {
		size_t i;
		double mean, std;
	} params[] = {
		{ 0, 0, 0.02 },  /* wte */ { 1, 0, 0.02 },      /* wpe */
		{ 2, 1, 0 },     /* ln_1.weight */ { 3, 0, 0 }, /* ln_1.bias */
		{ 4, 0, 0.02 },  /* c_attn */ { 5, 0, 0 },
		{ 6, 0, 0.01 },  /* attn.c_proj */ { 10, 0, 0.02 }, /* c_fc */
		{ 12, 0, 0.01 }, /* mlp.c_proj */ { 26, 1, 0 },     /* ln_f */
	};
	struct gpt2 m;

	(void)state;
	make_model(&m);
	for (size_t k = 0; k < COUNT(params); k++) {
		const size_t n = m.params[params[k].i].numel;
		double sum = 0, squares = 0;
		float *x = malloc(n * sizeof(*x));

		initial_weights(&m, params[k].i, 42, 0, n, x);
		for (size_t e = 0; e < n; e++) {
			sum += (double)x[e];
			squares += (x[e] - params[k].mean) *
				   (x[e] - params[k].mean);
		}
		assert_float_equal(sum / (double)n, params[k].mean,
				   params[k].std / 8);
		assert_float_equal(sqrt(squares / (double)n), params[k].std,
				   params[k].std / 20);
		free(x);
	}
	gpt2_done(&m);
}

static void parts_are_parts_of_the_whole(void **state)
{
	static float whole[200000]; /* more than a thread makes at a time */
	float part[50];
	struct gpt2 m;

	(void)state;
	make_model(&m);
	initial_weights(&m, 4, 42, 0, 200000, whole);
	initial_weights(&m, 4, 42, 199950, 50, part);
	assert_memory_equal(whole + 199950, part, sizeof(part));
	initial_weights(&m, 4, 42, 123, 50, part);
	assert_memory_equal(whole + 123, part, sizeof(part));
	initial_weights(&m, 4, 43, 123, 50, part);
	assert_memory_not_equal(whole + 123, part, sizeof(part));
	initial_weights(&m, 10, 42, 123, 50, part);
	assert_memory_not_equal(whole + 123, part, sizeof(part));
	gpt2_done(&m);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(distributions),
		cmocka_unit_test(parts_are_parts_of_the_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
