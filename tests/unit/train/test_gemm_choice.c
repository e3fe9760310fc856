/* SPDX-License-Identifier: Apache-2.0 */
/* The fastest of cuBLASLt's suggestions is used, on emulated GPUs. */
#include <stddef.h>

#include "ckpt/base/errmsg.h"
#include "cudaemu.h"
#include "gpu/cuda/backend_cuda.h"
#include "tests/support/ops.h"
#include "tests/support/unit.h"

#define ALGORITHMS 4

/* Count the products of one linear layer and its gradient, by algorithm. */
static void count_products(const struct backend_cuda_options *o, unsigned products[ALGORITHMS])
{
	const struct op *const op = op_named("linear");
	struct errmsg err = { "" };
	struct backend *b;
	struct side s;

	for (unsigned i = 0; i < ALGORITHMS; i++)
		products[i] = cudaemu_products_by(i);
	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, o, &err), 0);
	side_begin(&s, b, 0);
	op->work(&s, &op->shapes[0]);
	assert_int_equal(b->ops->sync(b, &err), 0);
	side_end(&s);
	b->ops->destroy(b);
	for (unsigned i = 0; i < ALGORITHMS; i++)
		products[i] = cudaemu_products_by(i) - products[i];
}

static void fastest_is_used(void **state)
{
	static const struct {
		const char *what;
		unsigned fastest; /* algorithm that is currently fastest */
		bool last_fails, deterministic;
		bool measured;
		unsigned used;
	} runs[] = {
		{ .what = "one is not measured where results must be the same",
		  .deterministic = true,
		  .fastest = 2,
		  .used = 0 },
		{ .what = "otherwise the fastest is used",
		  .fastest = 2,
		  .measured = true,
		  .used = 2 },
		{ .what = "one that fails is not chosen",
		  .last_fails = true,
		  .fastest = ALGORITHMS - 1,
		  .measured = true,
		  .used = 0 },
	};

	for (size_t i = 0; i < COUNT(runs); i++) {
		const struct backend_cuda_options o = {
			.deterministic = runs[i].deterministic,
		};
		unsigned products[ALGORITHMS], others = 0, most = 0;

		cudaemu_offer(ALGORITHMS, runs[i].fastest, runs[i].last_fails);
		count_products(&o, products);
		for (unsigned k = 0; k < ALGORITHMS; k++) {
			others += k == runs[i].used ? 0 : products[k];
			most = products[k] > products[most] ? k : most;
		}
		if (most != runs[i].used || (others > 0) != runs[i].measured)
			fail_msg("%s: %u %u %u %u", runs[i].what, products[0], products[1],
				 products[2], products[3]);
	}
	cudaemu_offer(1, 0, false);
}

/* Compute one shape on a new backend. */
static struct backend *do_linear(struct side *s, const struct shape *h)
{
	const struct backend_cuda_options o = { 0 };
	struct backend *b;

	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, &o, NULL), 0);
	side_begin(s, b, 0);
	op_named("linear")->work(s, h);
	assert_int_equal(b->ops->sync(b, NULL), 0);
	return b;
}

/* Measuring leaves no trace in sums, nor in what epilogues store. */
static void results_are_the_same(void **state)
{
	const struct op *const op = op_named("linear");

	for (size_t i = 0; i < op->nshapes; i++) {
		struct backend *plain, *measured;
		struct side want, got;

		plain = do_linear(&want, &op->shapes[i]);
		cudaemu_offer(ALGORITHMS, 2, true);
		measured = do_linear(&got, &op->shapes[i]);
		cudaemu_offer(1, 0, false);
		sides_equal("measured", &got, &want);
		side_end(&want);
		side_end(&got);
		plain->ops->destroy(plain);
		measured->ops->destroy(measured);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fastest_is_used),
		cmocka_unit_test(results_are_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
