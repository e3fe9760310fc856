/* SPDX-License-Identifier: Apache-2.0 */
/* A new model has Hugging Face's distributions, however its computation is split. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "gpu/model/gpt2.h"
#include "tests/support/unit.h"

static void make_model(struct gpt2 *m)
{
	const struct gpt2_config c = {
		.n_layer = 2, .n_head = 2, .n_embd = 64, .vocab_size = 4000, .n_positions = 40
	};

	assert_int_equal(gpt2_init(m, &c, NULL), 0);
}

static void distributions(void **state)
{
	/* The standard deviation of c_proj is 0.02 / sqrt(2 * n_layer). */
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

	make_model(&m);
	for (size_t k = 0; k < COUNT(params); k++) {
		const size_t n = m.params[params[k].i].numel;
		double sum = 0, squares = 0;
		float *x = malloc(n * sizeof(*x));

		init_weights(&m, params[k].i, 42, 0, n, x);
		for (size_t e = 0; e < n; e++) {
			sum += (double)x[e];
			squares += (x[e] - params[k].mean) * (x[e] - params[k].mean);
		}
		assert_float_equal(sum / (double)n, params[k].mean, params[k].std / 8);
		assert_float_equal(sqrt(squares / (double)n), params[k].std, params[k].std / 20);
		free(x);
	}
	gpt2_done(&m);
}

static void parts_are_parts_of_the_whole(void **state)
{
	static float whole[200000]; /* more than one thread's task */
	float part[50];
	struct gpt2 m;

	make_model(&m);
	init_weights(&m, 0, 42, 0, 200000, whole);
	init_weights(&m, 0, 42, 199950, 50, part);
	assert_memory_equal(whole + 199950, part, sizeof(part));
	init_weights(&m, 0, 42, 123, 50, part);
	assert_memory_equal(whole + 123, part, sizeof(part));
	init_weights(&m, 0, 43, 123, 50, part);
	assert_memory_not_equal(whole + 123, part, sizeof(part));
	init_weights(&m, 10, 42, 123, 50, part);
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
