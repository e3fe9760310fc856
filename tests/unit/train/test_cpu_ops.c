/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every CPU operation computes what PyTorch does, forward and backward, in every type, for any
 * shape and number of threads (numbers/ops.pt, made by interop/make_numbers.py).
 *
 * Outputs are NaN before they are overwritten; accumulated ones are not zero.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/format/value.h"
#include "gpu/backend/backend.h"
#include "tests/support/numbers.h"
#include "tests/support/unit.h"

static const unsigned threads[] = { 1, 2, 5 };

/* One case of the reference, and its memory. */
struct op_case {
	const struct value *dict;
	struct backend *b;
	double tolerance;
	void *held[24];
	size_t nheld;
	char name[64];
};

static struct numbers numbers;

static int open_numbers(void **state)
{
	numbers_open(&numbers, "ops.pt");
	return 0;
}

static int close_numbers(void **state)
{
	numbers_close(&numbers);
	return 0;
}

static void *hold(struct op_case *c, void *p)
{
	assert_non_null(p);
	assert_true(c->nheld < COUNT(c->held));
	return c->held[c->nheld++] = p;
}

static void drop(struct op_case *c)
{
	while (c->nheld)
		free(c->held[--c->nheld]);
}

static size_t size(const struct op_case *c, size_t i)
{
	return numbers_size(c->dict, i);
}

static float *in(struct op_case *c, const char *key, size_t numel)
{
	return hold(c, numbers_floats(&numbers, c->dict, key, numel));
}

static int32_t *ints(struct op_case *c, const char *key, size_t numel)
{
	return hold(c, numbers_ints(&numbers, c->dict, key, numel));
}

static float *filled(struct op_case *c, size_t numel, float with)
{
	float *const x = hold(c, malloc(numel * sizeof(*x)));
	size_t i;

	for (i = 0; i < numel; i++)
		x[i] = with;
	return x;
}

static float *written(struct op_case *c, size_t numel)
{
	return filled(c, numel, NAN);
}

/* Initial value of accumulated outputs: a power of two, so that subtracting it loses almost
 * nothing. */
#define BEFORE 0.5f

static float *added_to(struct op_case *c, size_t numel)
{
	return filled(c, numel, BEFORE);
}

static void near(struct op_case *c, const char *key, const float *got, size_t numel)
{
	char what[128];

	snprintf(what, sizeof(what), "%s: %s", c->name, key);
	numbers_near(what, got, in(c, key, numel), numel, c->tolerance);
}

/* `near` for the model's type. */
static void near_act(struct op_case *c, const char *key, float *got, size_t numel)
{
	float *const rounded = written(c, numel);

	near(c, key, got, numel);
	c->b->ops->round(c->b, rounded, got, numel);
	assert_memory_equal(rounded, got, numel * sizeof(*got));
}

static void near_added(struct op_case *c, const char *key, float *got, size_t numel)
{
	size_t i;

	for (i = 0; i < numel; i++)
		got[i] -= BEFORE;
	near(c, key, got, numel);
}

static void norm(struct op_case *c)
{
	const struct backend_ops *const o = c->b->ops;
	const size_t rows = size(c, 0), width = size(c, 1), n = rows * width;
	float *const x = in(c, "in", n), *const w = in(c, "weight", width);
	float *const dy = in(c, "dout", n), *const y = written(c, n);
	float *const stats = written(c, rows * 2), *const dx = added_to(c, n);
	float *const dw = added_to(c, width), *const db = added_to(c, width);

	o->norm(c->b, y, stats, x, w, in(c, "bias", width), rows, width, 1e-5f);
	near_act(c, "out", y, n);
	o->norm_grad(c->b, dx, dw, db, NULL, NULL, dy, x, stats, w, rows, width, false);
	near_added(c, "din", dx, n);
	near_added(c, "dweight", dw, width);
	near_added(c, "dbias", db, width);
}

static void linear(struct op_case *c)
{
	const struct backend_ops *const o = c->b->ops;
	const size_t rows = size(c, 0), ic = size(c, 1), oc = size(c, 2);
	const int residual = size(c, 3) != 0, gelu = size(c, 4) != 0;
	float *const x = in(c, "in", rows * ic);
	float *const w = in(c, "weight", ic * oc), *const b = in(c, "bias", oc);
	float *const y = written(c, rows * oc), *const dx = written(c, rows * ic);
	float *const pre = gelu ? written(c, rows * oc) : NULL;
	float *const dw = added_to(c, ic * oc), *const db = added_to(c, oc);

	o->linear(c->b, y, pre, x, w, b, residual ? in(c, "residual", rows * oc) : NULL, rows, ic,
		  oc);
	near_act(c, "out", y, rows * oc);
	if (pre)
		near_act(c, "pre", pre, rows * oc);
	o->linear_grad(c->b, dx, dw, db, in(c, "dout", rows * oc),
		       gelu ? in(c, "in_gelu", rows * ic) : x,
		       gelu ? in(c, "in_pre", rows * ic) : NULL, w, rows, ic, oc, false);
	near_act(c, "din", dx, rows * ic);
	near_added(c, "dweight", dw, ic * oc);
	near_added(c, "dbias", db, oc);
}

static void attention(struct op_case *c)
{
	const struct backend_ops *const o = c->b->ops;
	const size_t batch = size(c, 0), seq = size(c, 1), heads = size(c, 2);
	const size_t width = heads * size(c, 3), n = batch * seq * width;
	float *const qkv = in(c, "qkv", 3 * n), *const y = written(c, n);
	float *const stats = written(c, batch * heads * seq);
	float *const dqkv = written(c, 3 * n);

	o->attention(c->b, y, stats, qkv, batch, seq, heads, width, (struct backend_dropout){ 0 });
	near_act(c, "out", y, n);
	o->attention_grad(c->b, dqkv, in(c, "dout", n), y, stats, qkv, batch, seq, heads, width,
			  (struct backend_dropout){ 0 });
	near_act(c, "dqkv", dqkv, 3 * n);
}

static void cross_entropy(struct op_case *c)
{
	const struct backend_ops *const o = c->b->ops;
	const size_t rows = size(c, 0), width = size(c, 1), vocab = size(c, 2);
	const int32_t *const targets = ints(c, "targets", rows);
	float *const x = in(c, "in", rows * width);
	float *const wte = in(c, "wte", vocab * width);
	float *const dx = written(c, rows * width);
	float *const dw = added_to(c, vocab * width);
	const double want = numbers_scalar(&numbers, c->dict, "loss");
	const float scale = (float)numbers_scalar(&numbers, c->dict, "scale");
	double loss = 1, again = 1;

	o->cross_entropy(c->b, &loss, dx, dw, x, wte, targets, rows, width, vocab, &scale, false,
			 NULL);
	if (fabs(loss - 1 - want) > c->tolerance * want)
		fail_msg("%s: loss %g, not %g", c->name, loss - 1, want);
	near_act(c, "din", dx, rows * width);
	near_added(c, "dwte", dw, vocab * width);
	o->cross_entropy(c->b, &again, NULL, NULL, x, wte, targets, rows, width, vocab, NULL, false,
			 NULL);
	assert_true(again == loss);
}

static void embed(struct op_case *c)
{
	const struct backend_ops *const o = c->b->ops;
	const size_t batch = size(c, 0), seq = size(c, 1), width = size(c, 2);
	const size_t vocab = size(c, 3), n = batch * seq * width;
	const size_t positions = seq + 2;
	const int32_t *const tokens = ints(c, "tokens", batch * seq);
	float *const y = written(c, n), *const dwte = added_to(c, vocab * width);
	float *const dwpe = added_to(c, positions * width);

	o->embed(c->b, y, in(c, "wte", vocab * width), in(c, "wpe", positions * width), tokens,
		 batch, seq, width);
	near_act(c, "out", y, n);
	o->embed_grad(c->b, dwte, dwpe, in(c, "dout", n), tokens, batch, seq, width);
	near_added(c, "dwte", dwte, vocab * width);
	near_added(c, "dwpe", dwpe, positions * width);
}

/* float32 has 24 bits; sums of some hundred terms in another order lose a few. In 16 bits, torch
 * also rounds weight gradients, and single steps of gelu_new and of sums. */
static const struct {
	const char *name;
	enum dtype dtype;
	double tolerance;
} types[] = {
	{ "f32", DTYPE_F32, 3e-6 },
	{ "bf16", DTYPE_BF16, 1.0 / 64 },
	{ "f16", DTYPE_F16, 1.0 / 512 },
};

static void case_begin(struct op_case *c, const char *op, size_t i, unsigned with_threads)
{
	struct errmsg err = { "" };
	size_t t = 0;

	*c = (struct op_case){ .dict = numbers_case(&numbers, i) };
	while (!value_is_str(value_find(c->dict, "type"), types[t].name))
		t++;
	c->tolerance = types[t].tolerance;
	snprintf(c->name, sizeof(c->name), "case %zu, %s of %s, %u threads", i, op, types[t].name,
		 with_threads);
	assert_int_equal(backend_cpu_new(&c->b, types[t].dtype, with_threads, &err), 0);
}

static void case_end(struct op_case *c)
{
	struct errmsg err = { "" };

	if (c->b->ops->sync(c->b, &err))
		fail_msg("%s: %s", c->name, err.text);
	c->b->ops->destroy(c->b);
	drop(c);
}

static const struct op {
	const char *name;
	void (*check)(struct op_case *c);
} ops[] = {
	{ "norm", norm },           { "linear", linear },
	{ "attention", attention }, { "cross_entropy", cross_entropy },
	{ "embed", embed },
};

static void is_pytorchs(void **state)
{
	const struct op *const op = *state;
	size_t i, t, cases = 0;

	for (i = 0; i < numbers_count(&numbers); i++) {
		const struct value *const dict = numbers_case(&numbers, i);

		if (!value_is_str(value_find(dict, "op"), op->name))
			continue;
		for (t = 0; t < COUNT(threads); t++) {
			struct op_case c;

			case_begin(&c, op->name, i, threads[t]);
			op->check(&c);
			case_end(&c);
		}
		cases++;
	}
	assert_true(cases >= COUNT(types));
}

#define SEQ ((size_t)32)
#define SEEDS 64

/* Get the weights of all queries: equal keys make them uniform, and an identity matrix as values
 * shows them. */
static void show_weights(struct backend *b, uint64_t seed, float *out)
{
	float qkv[SEQ * 3 * SEQ] = { 0 }, stats[SEQ];
	size_t i;

	for (i = 0; i < SEQ; i++)
		qkv[i * 3 * SEQ + 2 * SEQ + i] = 1;
	b->ops->attention(b, out, stats, qkv, 1, SEQ, 1, SEQ,
			  (struct backend_dropout){ .p = 0.5f, .skip = seed });
}

/* Count the weights that are dropped in both arrays or in neither. */
static size_t alike(const float *x, const float *y, size_t n)
{
	size_t i, same = 0;

	for (i = 0; i < n; i++)
		same += (x[i] == 0) == (y[i] == 0);
	return same;
}

/* A run uses consecutive seeds: no row of one step may equal a row of another. */
static void every_row_drops_others(void **state)
{
	const size_t n = 24;
	struct errmsg err = { "" };
	float first[SEQ * SEQ], other[SEQ * SEQ];
	struct backend *b;
	unsigned seed;
	size_t i, j;

	assert_int_equal(backend_cpu_new(&b, DTYPE_F32, 1, &err), 0);
	show_weights(b, 0, first);
	for (seed = 0; seed <= SEEDS; seed++) {
		show_weights(b, seed, other);
		for (i = n; i < SEQ; i++)
			for (j = n; j < SEQ; j++)
				assert_int_equal(alike(first + i * SEQ, other + j * SEQ, n) == n,
						 seed == 0 && i == j);
	}
	b->ops->destroy(b);
}

int main(void)
{
	struct CMUnitTest tests[COUNT(ops) + 1];
	char names[COUNT(ops)][32];
	size_t i;

	for (i = 0; i < COUNT(ops); i++) {
		snprintf(names[i], sizeof(names[i]), "%s_is_pytorchs", ops[i].name);
		tests[i] =
			(struct CMUnitTest){ names[i], is_pytorchs, NULL, NULL, (void *)&ops[i] };
	}
	tests[i] = (struct CMUnitTest)cmocka_unit_test(every_row_drops_others);
	return cmocka_run_group_tests(tests, open_numbers, close_numbers);
}
