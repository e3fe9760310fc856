/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend does what the CPU's does: each operation, for a table of
 * shapes, in every type, from aligned buffers and others; and a whole model
 * learns along the same curve.
 *
 * Built twice.  test_cuda runs on a GPU, and is skipped where there is none.
 * test_cuda_emulated runs everywhere, on tests/cudaemu, which shows indices,
 * bounds, alignment, reductions, missing barriers, and such races as change the
 * result when the threads of a block run in the opposite order; it shows
 * nothing of the hardware's arithmetic, of cuBLASLt, of its memory model and of
 * its speed.
 *
 * What an operation writes is NaN before, what it adds to is not zero.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/errmsg.h"
#include "gpu/comm.h"
#include "gpu/zero.h"
#include "tests/sides.h"
#ifdef CUDA_EMULATED
#include "cudaemu.h"
#include "cudaemu_cudnn.h"
#endif

#define COUNT(a) (sizeof(a) / sizeof(*(a)))

/* float32 has 24 bits, of which sums of some hundred terms in another order
 * keep 17.  Types of 16 bits have 8 or 11: results are rounded to the one or
 * the other neighbour, from factors that were, too, as weights of attention. */
static const struct {
	const char *name;
	enum dtype dtype;
	double tolerance;
} types[] = {
	{ "f32", DTYPE_F32, 1e-5 },
	{ "bf16", DTYPE_BF16, 1.0 / 64 },
	{ "f16", DTYPE_F16, 1.0 / 512 },
};

struct shape {
	size_t n[4];
	float drop;
	unsigned how; /* what the operation makes of it */
};

/* --- operations ------------------------------------------------------------- */

static void flat(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const struct backend_adam adam = {
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8f,
		.grad_scale = 0.25f,
		.l2 = 0.01f,
		.decay = 0.999f,
		.step_size = 0.01f,
		.denom = 0.1f,
	};
	const size_t n = h->n[0];
	void *const x = side_lp(s, n, 1), *const y = side_lp(s, n, NAN);
	float *const f = side_floats(s, n, 1), *const g = side_floats(s, n, 1);
	float *const m = side_floats(s, n, 0.1f), *const v =
							  side_floats(s, n, 0);
	double *const sum = side_double(s, 0.5);

	o->dropout(s->b, x, n, 0.3f, 77);
	o->round(s->b, y, f, n);
	o->add(s->b, y, x, n);
	o->widen(s->b, f, y, n);
	o->scale(s->b, f, 1.5f, n);
	o->accumulate(s->b, f, g, n);
	o->sum_squares(s->b, sum, f, n);
	o->adam(s->b, &adam, f, m, v, g, n);
	side_show_lp(s, "dropped", x, n);
	side_show_lp(s, "sum", y, n);
	side_show_double(s, "squares", sum);
	side_show_floats(s, "p", f, n);
	side_show_floats(s, "m", m, n);
	side_show_floats(s, "v", v, n);
}

static const struct shape flats[] = {
	{ .n = { 1 } },
	{ .n = { 9 } },
	{ .n = { 64 } },
	{ .n = { 4099 } },
};

/* Batch, positions, width, vocabulary. */
static void embed(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t batch = h->n[0], seq = h->n[1], c = h->n[2];
	const size_t vocab = h->n[3], n = batch * seq * c;
	const int32_t *const tokens =
		side_ints(s, batch * seq, (unsigned)vocab, false);
	void *const out = side_lp(s, n, NAN);
	float *const dwte = side_floats(s, vocab * c, 1);
	float *const dwpe = side_floats(s, (seq + 2) * c, 1);

	o->embed(s->b, out, side_lp(s, vocab * c, 1), side_lp(s, seq * c, 1),
		 tokens, batch, seq, c);
	o->embed_grad(s->b, dwte, dwpe, side_lp(s, n, 1), tokens, batch, seq, c);
	side_show_lp(s, "out", out, n);
	side_show_floats(s, "dwte", dwte, vocab * c);
	side_show_floats(s, "dwpe", dwpe, (seq + 2) * c);
}

static const struct shape embeds[] = {
	{ .n = { 1, 1, 8, 2 } },
	{ .n = { 3, 5, 7, 4 } },
	{ .n = { 2, 17, 64, 300 } },
	/* more rows than are sorted in a tile, and a token in many */
	{ .n = { 11, 100, 16, 3 } },
};

/* Rows, width. */
static void norm(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], c = h->n[1], n = rows * c;
	void *const in = side_lp(s, n, 1), *const w = side_lp(s, c, 1);
	void *const out = side_lp(s, n, NAN), *const din = side_lp(s, n, 1);
	float *const stats = side_floats(s, 2 * rows, NAN);
	float *const dw = side_floats(s, c, 1), *const db = side_floats(s, c, 1);

	o->norm(s->b, out, stats, in, w, side_lp(s, c, 1), rows, c, 1e-5f);
	o->norm_grad(s->b, din, dw, db, side_lp(s, n, 1), in, stats, w, rows, c);
	side_show_lp(s, "out", out, n);
	side_show_lp(s, "din", din, n);
	side_show_floats(s, "dweight", dw, c);
	side_show_floats(s, "dbias", db, c);
}

static const struct shape norms[] = {
	{ .n = { 1, 8 } },
	{ .n = { 5, 7 } },
	{ .n = { 130, 64 } },
	{ .n = { 9, 520 } },
	/* more chunks of rows than one */
	{ .n = { 203, 33 } },
};

/* Rows, columns in and out. */
enum { PLAIN, RESIDUAL, GELU };

static void linear(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], ic = h->n[1], oc = h->n[2];
	void *const in = side_lp(s, rows * ic, 1);
	void *const w = side_lp(s, ic * oc, 0.5f);
	void *const out = side_lp(s, rows * oc, 1);
	void *const pre = h->how == GELU ? side_lp(s, rows * oc, NAN) : NULL;
	/* What `in` was made of. */
	void *const in_pre = h->how == GELU ? side_lp(s, rows * ic, 2) : NULL;
	void *const din = side_lp(s, rows * ic, NAN);
	float *const dw = side_floats(s, ic * oc, 1);
	float *const db = side_floats(s, oc, 1);

	o->linear(s->b, out, pre, in, w, side_lp(s, oc, 1),
		  h->how == RESIDUAL ? out : NULL, rows, ic, oc);
	o->linear_grad(s->b, din, dw, db, side_lp(s, rows * oc, 1), in, in_pre,
		       w, rows, ic, oc);
	side_show_lp(s, "out", out, rows * oc);
	if (pre)
		side_show_lp(s, "pre", pre, rows * oc);
	side_show_lp(s, "din", din, rows * ic);
	side_show_floats(s, "dw", dw, ic * oc);
	side_show_floats(s, "dbias", db, oc);
}

static const struct shape linears[] = {
	{ .n = { 1, 8, 8 }, .how = PLAIN },
	{ .n = { 5, 3, 7 }, .how = GELU },
	{ .n = { 33, 24, 40 }, .how = PLAIN },
	{ .n = { 33, 40, 24 }, .how = RESIDUAL },
	{ .n = { 70, 16, 64 }, .how = GELU },
};

/* Batch, positions, heads, elements of a head. */
static void attention(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t batch = h->n[0], seq = h->n[1], heads = h->n[2];
	const size_t c = heads * h->n[3], n = batch * seq * c;
	void *const qkv = side_lp(s, 3 * n, 1), *const out = side_lp(s, n, NAN);
	void *const dqkv = side_lp(s, 3 * n, NAN);
	float *const stats = side_floats(s, batch * heads * seq, NAN);

	o->attention(s->b, out, stats, qkv, batch, seq, heads, c, h->drop, 5);
	o->attention_grad(s->b, dqkv, side_lp(s, n, 1), out, stats, qkv, batch,
			  seq, heads, c, h->drop, 5);
	side_show_lp(s, "out", out, n);
	side_show_lp(s, "dqkv", dqkv, 3 * n);
}

static const struct shape attentions[] = {
	{ .n = { 1, 1, 1, 8 } },
	{ .n = { 2, 7, 3, 5 } },
	{ .n = { 1, 33, 2, 16 }, .drop = 0.2f },
	{ .n = { 2, 65, 1, 40 }, .drop = 0.2f },
	{ .n = { 1, 131, 1, 64 } },
	{ .n = { 1, 67, 1, 128 }, .drop = 0.2f },
	{ .n = { 1, 40, 1, 136 } },
	{ .n = { 2, 128, 2, 16 } },
	{ .n = { 3, 70, 1, 24 } },
};

/* Rows, width, vocabulary; `how`: the loss alone. */
static void classify(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], c = h->n[1], vocab = h->n[2];
	void *const din = side_lp(s, rows * c, NAN);
	float *const dwte = side_floats(s, vocab * c, 1);
	double *const loss = side_double(s, 0.25);
	const void *const in = side_lp(s, rows * c, 1);

	o->classify(s->b, loss, h->how ? NULL : din, h->how ? NULL : dwte, in,
		    side_lp(s, vocab * c, 1),
		    side_ints(s, rows, (unsigned)vocab, true), rows, c, vocab,
		    0.5f);
	side_show_double(s, "loss", loss);
	side_show_floats(s, "dwte", dwte, vocab * c);
	if (!h->how)
		side_show_lp(s, "din", din, rows * c);
}

static const struct shape heads[] = {
	{ .n = { 1, 8, 2 } },    { .n = { 7, 5, 63 } },
	{ .n = { 70, 16, 65 } }, { .n = { 70, 16, 65 }, .how = 1 },
	{ .n = { 3, 8, 5000 } },
};

static const struct op {
	const char *name;
	void (*work)(struct side *s, const struct shape *h);
	const struct shape *shapes;
	size_t nshapes;
} ops[] = {
	{ "flat", flat, flats, COUNT(flats) },
	{ "embed", embed, embeds, COUNT(embeds) },
	{ "norm", norm, norms, COUNT(norms) },
	{ "linear", linear, linears, COUNT(linears) },
	{ "attention", attention, attentions, COUNT(attentions) },
	{ "classify", classify, heads, COUNT(heads) },
};

/* --- both sides ------------------------------------------------------------- */

/* Logits are enough for some rows of the largest vocabulary above. */
static struct backend_cuda_options options = {
	.logits_bytes = 1 << 14,
	.deterministic = true,
};

static struct backend *cpu(enum dtype dtype)
{
	struct errmsg err = { "" };
	struct backend *b;

	if (backend_cpu_new(&b, dtype, 1, &err))
		fail_msg("%s", err.text);
	return b;
}

static struct backend *cuda(enum dtype dtype)
{
	struct errmsg err = { "" };
	struct backend *b;

	if (backend_cuda_new(&b, dtype, &options, &err))
		fail_msg("%s", err.text);
	return b;
}

static void sync_side(const struct side *s, const char *what)
{
	struct errmsg err = { "" };

	if (s->b->ops->sync(s->b, &err))
		fail_msg("%s: %s", what, err.text);
}

static void do_op(struct side *s, struct backend *b, const struct op *op,
		  const struct shape *h, size_t skew, const char *what)
{
	side_begin(s, b, skew);
	op->work(s, h);
	sync_side(s, what);
}

static void run_otherwise(bool otherwise)
{
#ifdef CUDA_EMULATED
	cudaemu_reverse(otherwise);
#else
	(void)otherwise; /* the hardware does what it likes */
#endif
}

static void check_shape(struct backend *want_by, struct backend *got_by,
			const struct op *op, size_t i, size_t skew,
			const char *type, double tolerance)
{
	struct side want, got, again;
	char what[96];

	snprintf(what, sizeof(what), "%s %zu of %s, %zu beside", op->name, i,
		 type, skew);
	do_op(&want, want_by, op, &op->shapes[i], skew, what);
	do_op(&got, got_by, op, &op->shapes[i], skew, what);
	run_otherwise(true);
	do_op(&again, got_by, op, &op->shapes[i], skew, what);
	run_otherwise(false);
	sides_near(what, &got, &want, tolerance);
	if (options.deterministic)
		sides_equal(what, &again, &got);
	side_end(&want);
	side_end(&got);
	side_end(&again);
}

/* Shapes of an operation that are also done with buffers that are not aligned:
 * whether they are does not depend on the shape. */
#define SKEWED 3

static void check_op(const struct op *op)
{
	size_t t, i, skew;

	for (t = 0; t < COUNT(types); t++) {
		struct backend *const want = cpu(types[t].dtype);
		struct backend *const got = cuda(types[t].dtype);

		for (i = 0; i < op->nshapes; i++)
			for (skew = 0; skew <= (i < SKEWED); skew++)
				check_shape(want, got, op, i, skew,
					    types[t].name, types[t].tolerance);
		want->ops->destroy(want);
		got->ops->destroy(got);
	}
}

static void is_the_cpus(void **state)
{
	check_op(*state);
}

static const struct op *op_named(const char *name)
{
	size_t i;

	for (i = 0; strcmp(ops[i].name, name) != 0; i++)
		;
	return &ops[i];
}

/* In a run that need not be repeatable, all of it is by cuDNN where it can. */
static void attention_is_the_cpus_by_cudnn(void **state)
{
	(void)state;
	options.deterministic = false;
	check_op(op_named("attention"));
	options.deterministic = true;
}

static void attention_is_the_cpus_by_our_kernels(void **state)
{
	(void)state;
	options.no_cudnn = true;
	check_op(op_named("attention"));
	options.no_cudnn = false;
}

#ifdef CUDA_EMULATED
/* How many graphs cuDNN runs for a shape. */
static unsigned runs_of(const struct shape *h, enum dtype dtype)
{
	struct backend *const b = cuda(dtype);
	const unsigned before = cudaemu_cudnn.runs;
	struct errmsg err = { "" };
	struct side s;

	side_begin(&s, b, 0);
	attention(&s, h);
	assert_int_equal(b->ops->sync(b, &err), 0);
	side_end(&s);
	b->ops->destroy(b);
	return cudaemu_cudnn.runs - before;
}

#define SOME .shape = { .n = { 1, 70, 2, 16 } }
#define BF16 .dtype = DTYPE_BF16

static void cudnn_is_asked_for_what_it_can(void **state)
{
	static const struct {
		const char *what;
		struct shape shape;
		enum dtype dtype;
		unsigned runs;
		bool deterministic, no_cudnn;
		struct cudaemu_cudnn library;
	} cases[] = {
		{ .what = "both ways", SOME, BF16, .runs = 2 },
		{ .what = "float16", SOME, .dtype = DTYPE_F16, .runs = 2 },
		{ .what = "sums in one order",
		  SOME,
		  BF16,
		  .runs = 1,
		  .deterministic = true },
		{ .what = "--no_cudnn", SOME, BF16, .no_cudnn = true },
		{ .what = "float32", SOME, .dtype = DTYPE_F32 },
		{ .what = "dropout",
		  BF16,
		  .shape = { .n = { 1, 70, 2, 16 }, .drop = 0.1f } },
		{ .what = "heads of odd width",
		  BF16,
		  .shape = { .n = { 1, 70, 2, 12 } } },
		{ .what = "wide heads",
		  BF16,
		  .shape = { .n = { 1, 70, 1, 136 } } },
		{ .what = "few positions",
		  BF16,
		  .shape = { .n = { 1, 63, 2, 16 } } },
		{ .what = "no library", SOME, BF16, .library = { .absent = true } },
		{ .what = "one that is too old",
		  BF16,
		  .shape = { .n = { 1, 128, 2, 16 } },
		  .library = { .version = 91002 } },
		{ .what = "an old one",
		  BF16,
		  .shape = { .n = { 1, 128, 2, 16 } },
		  .library = { .version = 91200 },
		  .runs = 2 },
		{ .what = "what that cannot",
		  SOME,
		  BF16,
		  .library = { .version = 91200 } },
		{ .what = "one that does not begin", SOME, BF16,
		  .library = { .broken = true } },
		{ .what = "one that refuses",
		  SOME,
		  BF16,
		  .library = { .refuses = true } },
	};
	size_t i;

	(void)state;
	for (i = 0; i < COUNT(cases); i++) {
		unsigned runs;

		cudaemu_cudnn = cases[i].library;
		options.deterministic = cases[i].deterministic;
		options.no_cudnn = cases[i].no_cudnn;
		runs = runs_of(&cases[i].shape, cases[i].dtype);
		if (runs != cases[i].runs)
			fail_msg("%s: %u runs", cases[i].what, runs);
	}
	cudaemu_cudnn = (struct cudaemu_cudnn){ 0 };
	options.no_cudnn = false;
	options.deterministic = true;
}

static void attention_is_the_cpus_where_cudnn_fails(void **state)
{
	cudaemu_cudnn = (struct cudaemu_cudnn){ .fails = true };
	attention_is_the_cpus_by_cudnn(state);
	assert_true(cudaemu_cudnn.runs > 0);
	cudaemu_cudnn = (struct cudaemu_cudnn){ 0 };
}

/* As where cuBLASLt has no epilogue: the same, by other kernels. */
static void linear_needs_no_epilogues(void **state)
{
	(void)state;
	cudaemu_refuse_epilogues(true);
	check_op(op_named("linear"));
	cudaemu_refuse_epilogues(false);
}

/* Products with sums in them are Ampere's, which later devices are better
 * without. */
static void columns_are_summed_in_products_before_hopper(void **state)
{
	static const struct {
		int capability;
		bool in_products;
	} of[] = { { 8, true }, { 9, false }, { 10, false } };

	(void)state;
	for (size_t i = 0; i < COUNT(of); i++) {
		const unsigned before = cudaemu_products_with_sums();

		cudaemu_be(of[i].capability);
		check_op(op_named("linear"));
		assert_int_equal(cudaemu_products_with_sums() > before,
				 of[i].in_products);
	}
	cudaemu_be(8);
}

static void out_of_memory_is_told(void **state)
{
	struct backend *const b = cuda(DTYPE_F32);
	struct errmsg err = { "" };
	struct side s;

	(void)state;
	side_begin(&s, b, 0);
	cudaemu_limit_memory(0);
	assert_null(b->ops->alloc(b, 1 << 20));
	cudaemu_limit_memory(SIZE_MAX);
	assert_int_equal(b->ops->sync(b, &err), 0);
	norm(&s, &norms[0]); /* so that nothing is left to be allocated */
	cudaemu_limit_memory(0);
	b->ops->sum_squares(b, NULL, NULL, 1 << 20);
	assert_int_equal(b->ops->sync(b, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "cudaMallocAsync"));
	cudaemu_limit_memory(SIZE_MAX);
	side_end(&s);
	b->ops->destroy(b);
}
#endif

/* --- a whole model ---------------------------------------------------------- */

#ifdef CUDA_EMULATED
#define STEPS 20
#else
#define STEPS 100
#endif
#define PART 10 /* steps whose losses are compared as one */
#define BATCH ((size_t)2)
#define SEQ ((size_t)24)

/* Of steps that can be told from each other. */
static void set_tokens(int32_t *tokens, size_t step)
{
	size_t k;

	for (k = 0; k < BATCH * SEQ; k++)
		tokens[k] = (int32_t)((step + k * k / 7) % 97);
}

static void learn(struct backend *b, double *losses, size_t steps)
{
	static const struct gpt2_config config = {
		.n_layer = 2,
		.n_head = 2,
		.n_embd = 32,
		.vocab_size = 97,
		.n_positions = SEQ,
		.layer_norm_epsilon = 1e-5f,
		.dropout = 0.1f,
	};
	const struct optimizer_config optimizer = {
		.kind = OPTIMIZER_ADAMW,
		.lr = 5e-3,
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8,
		.weight_decay = 0.01,
	};
	struct comm alone = { .size = 1, .local_size = 1 };
	struct network_weights weights;
	struct network *net = NULL;
	struct errmsg err = { "" };
	struct gpt2 model;
	struct zero z;
	size_t i;

	assert_int_equal(gpt2_init(&model, &config, &err), 0);
	if (network_new(&net, &model, b, BATCH, SEQ, false, &err) ||
	    zero_init(&z, &model, &alone, b, 1, &optimizer, &err) ||
	    zero_init_weights(&z, 3, &err))
		fail_msg("%s", err.text);
	weights = zero_weights(&z);
	for (i = 0; i < steps; i++) {
		struct zero_update u = { .lr = optimizer.lr,
					 .clip = 1,
					 .grad_scale = 1 };
		int32_t tokens[BATCH * SEQ];

		set_tokens(tokens, i);
		if (network_train(net, &weights, tokens, 1, i, &losses[i], &err) ||
		    zero_update(&z, &u, &err))
			fail_msg("%s", err.text);
	}
	zero_done(&z);
	network_free(net);
	gpt2_done(&model);
	b->ops->destroy(b);
}

/* Rounding differs with the order of sums, and what comes of that grows: after
 * 100 steps of bfloat16 a step's loss is 3 % more or less, without a GPU too.
 * But the curves do not part: the mean of some steps stays. */
static void curves_are_near(const double *got, const double *want,
			    double tolerance, const char *type)
{
	for (size_t i = 0; i < STEPS; i += PART) {
		double g = 0, w = 0;

		for (size_t k = i; k < i + PART; k++) {
			g += got[k] / PART;
			w += want[k] / PART;
		}
		if (!(fabs(g - w) <= tolerance * w))
			fail_msg("%s, from step %zu on: %g, not %g", type, i, g,
				 w);
	}
}

static void a_model_learns_as_on_the_cpu(void **state)
{
	static const struct {
		enum dtype dtype;
		double tolerance; /* of the loss */
	} of[] = { { DTYPE_F32, 1e-3 }, { DTYPE_BF16, 0.03 } };
	double want[STEPS], got[STEPS];
	size_t t;

	(void)state;
	for (t = 0; t < COUNT(of); t++) {
		learn(cpu(of[t].dtype), want, STEPS);
		learn(cuda(of[t].dtype), got, STEPS);
		assert_true(want[STEPS - 1] < want[0]);
		curves_are_near(got, want, of[t].tolerance,
				dtype_name(of[t].dtype));
	}
}

static void runs_are_equal_bit_for_bit(void **state)
{
	double first[STEPS / 2], again[STEPS / 2];

	(void)state;
	learn(cuda(DTYPE_BF16), first, STEPS / 2);
	run_otherwise(true);
	learn(cuda(DTYPE_BF16), again, STEPS / 2);
	run_otherwise(false);
	assert_memory_equal(first, again, sizeof(first));
}

/* --- queues ----------------------------------------------------------------- */

/* In by one queue, twice as much by the computation, out by another. */
static void queues_wait_for_each_other(void **state)
{
	const size_t n = 5000000, bytes = n * sizeof(float);
	struct backend *b = cuda(DTYPE_F32);
	const struct backend_ops *o = b->ops;
	float *in = o->host_alloc(b, bytes), *out = o->host_alloc(b, bytes);
	float *x = o->alloc(b, bytes);
	struct backend_event *there = o->event_new(b), *done = o->event_new(b);
	struct errmsg err = { "" };

	(void)state;
	assert_true(in && out && x && there && done);
	o->event_wait(b, there); /* it was never recorded */
	for (size_t i = 0; i < n; i++)
		in[i] = (float)i;
	o->event_record(b, there, QUEUE_COMPUTE); /* x has been zeroed */
	o->queue_wait(b, QUEUE_COPY, there);
	o->copy(b, QUEUE_COPY, x, in, bytes);
	o->event_record(b, there, QUEUE_COPY);
	o->queue_wait(b, QUEUE_COMPUTE, there);
	o->accumulate(b, x, x, n);
	o->event_record(b, done, QUEUE_COMPUTE);
	o->queue_wait(b, QUEUE_COMM, done);
	o->copy(b, QUEUE_COMM, out, x, bytes);
	o->event_record(b, done, QUEUE_COMM);
	o->event_wait(b, done);
	for (size_t i = 0; i < n; i++)
		assert_true(out[i] == 2 * (float)i);
	assert_non_null(o->native_queue(b, QUEUE_COMM));
	assert_ptr_not_equal(o->native_queue(b, QUEUE_COMM),
			     o->native_queue(b, QUEUE_COPY));
	o->event_free(b, there);
	o->event_free(b, done);
	o->free(b, x);
	o->host_free(b, in);
	o->host_free(b, out);
	assert_int_equal(o->sync(b, &err), 0);
	o->destroy(b);
}

/* --------------------------------------------------------------------------- */

/* 77 where there is no GPU. */
static int look_for_device(void)
{
	struct errmsg err = { "" };
	struct backend *b;
	const int rc = backend_cuda_new(&b, DTYPE_F32, &options, &err);

	if (!rc)
		b->ops->destroy(b);
	else
		fprintf(stderr, "%s: %s\n",
			rc == -ENODEV ? "skipped" : "failed", err.text);
	return rc == -ENODEV ? 77 : rc != 0;
}

int main(void)
{
	struct CMUnitTest tests[COUNT(ops) + 10];
	char names[COUNT(ops)][32];
	const int rc = look_for_device();
	size_t n = 0;

	if (rc)
		return rc;
	for (; n < COUNT(ops); n++) {
		snprintf(names[n], sizeof(names[n]), "%s_is_the_cpus",
			 ops[n].name);
		tests[n] = (struct CMUnitTest){ names[n], is_the_cpus, NULL,
						NULL, (void *)&ops[n] };
	}
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		attention_is_the_cpus_by_cudnn);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		attention_is_the_cpus_by_our_kernels);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		a_model_learns_as_on_the_cpu);
	tests[n++] =
		(struct CMUnitTest)cmocka_unit_test(runs_are_equal_bit_for_bit);
	tests[n++] =
		(struct CMUnitTest)cmocka_unit_test(queues_wait_for_each_other);
#ifdef CUDA_EMULATED
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		cudnn_is_asked_for_what_it_can);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		attention_is_the_cpus_where_cudnn_fails);
	tests[n++] =
		(struct CMUnitTest)cmocka_unit_test(linear_needs_no_epilogues);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(
		columns_are_summed_in_products_before_hopper);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(out_of_memory_is_told);
#endif
	return _cmocka_run_group_tests("cuda", tests, n, NULL, NULL);
}
