/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The CUDA backend computes what the CPU's does: each operation, for a table of shapes, in every
 * type, with aligned and unaligned buffers; and a whole model has the same learning curve.
 *
 * Built twice. test_cuda runs on a GPU, and is skipped without one. test_cuda_emulated runs
 * everywhere, on tests/cudaemu: it tests indices, bounds, alignment, reductions, barriers, and
 * races that change the result when threads of a block run in the opposite order; it does not
 * test the hardware's arithmetic, cuBLASLt, the memory model, or speed.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/topology.h"
#include "gpu/cuda/backend_cuda.h"
#include "gpu/zero/zero.h"
#include "tests/support/ops.h"
#include "tests/support/unit.h"
#include "tests/support/update.h"
#ifdef CUDA_EMULATED
#include "cudaemu.h"
#endif

/* An emulated device accesses the same memory in both 16-bit types and in any order of threads, and
 * sanitizers are slow. */
#if defined(CUDA_EMULATED) && defined(__SANITIZE_ADDRESS__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* float32 has 24 bits, of which sums of some hundred terms in another order keep 17. 16-bit types
 * have 8 or 11: results round to one or the other neighbour, computed from factors that were
 * rounded as well, such as attention weights. */
static const struct {
	const char *name;
	enum dtype dtype;
	double tolerance;
} types[] = {
	{ "f32", DTYPE_F32, 1e-5 },
	{ "bf16", DTYPE_BF16, 1.0 / 64 },
#if !SANITIZED
	{ "f16", DTYPE_F16, 1.0 / 512 },
#endif
};

/* Holds the logits of a few rows of the largest vocabulary above. */
static size_t logits_bytes = (size_t)1 << 14;

static struct backend_cuda_options options = { .deterministic = true };

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
	b->logits_bytes = logits_bytes;
	return b;
}

static void sync_side(const struct side *s, const char *what)
{
	struct errmsg err = { "" };

	if (s->b->ops->sync(s->b, &err))
		fail_msg("%s: %s", what, err.text);
}

static void do_op(struct side *s, struct backend *b, const struct op *op, const struct shape *h,
		  size_t skew, const char *what)
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
	(void)otherwise; /* the order of a GPU's threads cannot be set */
#endif
}

static void check_shape(struct backend *want_by, struct backend *got_by, const struct op *op,
			size_t i, size_t skew, const char *type, double tolerance)
{
	struct side want, got;
	char what[96];

	snprintf(what, sizeof(what), "%s %zu of %s, %zu beside", op->name, i, type, skew);
	do_op(&want, want_by, op, &op->shapes[i], skew, what);
	do_op(&got, got_by, op, &op->shapes[i], skew, what);
	sides_near(what, &got, &want, tolerance);
	side_end(&want);
	if (options.deterministic && !SANITIZED) {
		struct side again;

		run_otherwise(true);
		do_op(&again, got_by, op, &op->shapes[i], skew, what);
		run_otherwise(false);
		sides_equal(what, &again, &got);
		side_end(&again);
	}
	side_end(&got);
}

/* Shapes that are also tested with unaligned buffers. */
#define SKEWED 3

/* Check `op` for all shapes and types. */
static void check_op(const struct op *op)
{
	size_t t, i, skew;

	for (t = 0; t < COUNT(types); t++) {
		struct backend *const want = cpu(types[t].dtype);
		struct backend *const got = cuda(types[t].dtype);

		for (i = 0; i < op->nshapes; i++) {
			for (skew = 0; skew <= (i < SKEWED); skew++)
				check_shape(want, got, op, i, skew, types[t].name,
					    types[t].tolerance);
		}
		want->ops->destroy(want);
		got->ops->destroy(got);
	}
}

static void is_the_cpus(void **state)
{
	check_op(*state);
}

static void numbers_are_narrowed_as_by_the_cpu(void **state)
{
	check_op(&narrowing);
}

#ifndef CUDA_EMULATED
/* Shapes of GPT-2 124M: cuBLASLt has kernels that it uses only for large shapes. As in a run, the
 * algorithm that measures fastest is used. */
static void large_shapes_are_the_cpus(void **state)
{
	static const struct shape linears[] = {
		{ .n = { 2048, 768, 2304 } },
		{ .n = { 2048, 768, 768 }, .how = 1 },
		{ .n = { 2048, 768, 3072 }, .how = 2, .fresh = true },
		{ .n = { 2048, 3072, 768 }, .how = 1, .fresh = true },
	};
	static const struct shape heads[] = { { .n = { 512, 768, 50257 }, .fresh = true } };
	static const struct shape attentions[] = { { .n = { 2, 1024, 12, 64 } } };
	const struct {
		const char *op;
		const struct shape *shapes;
		size_t n;
	} of[] = { { "linear", linears, COUNT(linears) },
		   { "cross_entropy", heads, COUNT(heads) },
		   { "attention", attentions, COUNT(attentions) } };
	const size_t usual = logits_bytes;

	options.deterministic = false;
	logits_bytes = (size_t)1 << 30;
	for (size_t i = 0; i < COUNT(of); i++) {
		struct op large = *op_named(of[i].op);

		large.shapes = of[i].shapes;
		large.nshapes = of[i].n;
		check_op(&large);
	}
	options.deterministic = true;
	logits_bytes = usual;
}
#endif

static void the_peak_of_memory_is_counted(void **state)
{
	const size_t bytes = (size_t)8 << 20;
	struct backend *const b = cuda(DTYPE_F32);
	uint64_t before;

	b->ops->free(b, b->ops->alloc(b, bytes));
	assert_true(b->ops->memory_peak(b, true) >= bytes);
	before = b->ops->memory_peak(b, false);
	b->ops->free(b, b->ops->alloc(b, bytes));
	assert_true(b->ops->memory_peak(b, false) >= before + bytes / 2);
	assert_non_null(strstr(b->library, "cuBLASLt 1"));
	b->ops->destroy(b);
}

#ifdef CUDA_EMULATED
/* Without cuBLASLt's epilogues, other kernels give the same results. */
static void linear_needs_no_epilogues(void **state)
{
	cudaemu_refuse_epilogues(true);
	check_op(op_named("linear"));
	cudaemu_refuse_epilogues(false);
}

/* Only Ampere uses GEMMs with column sums; later devices do not. */
static void columns_are_summed_in_products_before_hopper(void **state)
{
	static const struct {
		int capability;
		bool in_products;
	} of[] = { { 8, true }, { 9, false }, { 10, false } };

	for (size_t i = 0; i < COUNT(of); i++) {
		const unsigned before = cudaemu_products_with_sums();

		cudaemu_be(of[i].capability);
		check_op(op_named("linear"));
		assert_int_equal(cudaemu_products_with_sums() > before, of[i].in_products);
	}
	cudaemu_be(8);
}

/* Norm gradients process columns in strips that fit in shared memory; the widest attention heads
 * just fit. */
static void kernels_need_little_shared_memory(void **state)
{
	const size_t usual = cudaemu_shared_limit;

	cudaemu_shared_limit = 99 << 10; /* the least of all devices, sm_86's */
	check_op(op_named("norm"));
	check_op(op_named("attention"));
	cudaemu_shared_limit = usual;
}

static void old_devices_are_refused(void **state)
{
	struct errmsg err = { "" };
	struct backend *b = NULL;

	cudaemu_be(7);
	assert_int_equal(backend_cuda_new(&b, DTYPE_F32, &options, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "compute capability 7"));
	cudaemu_be(8);
}

static unsigned group_failures, group_gathers;

static void count_gather(const struct backend_group *g, const float *mine, size_t n, float *all)
{
	group_gathers++;
}

static void count_failure(const struct backend_group *g, struct backend *b)
{
	group_failures++;
}

/* A rank that cannot join the gather of a row's sums reports this, since the others wait for it. */
static void failures_end_a_group(void **state)
{
	const struct backend_group g = { .size = 2, .gather = count_gather, .fail = count_failure };
	const size_t bytes = 4096;

	for (int products = 0; products < 2; products++) {
		struct backend *const b = cuda(DTYPE_F32);
		struct errmsg err = { "" };
		void *const x = b->ops->alloc(b, bytes);

		if (products)
			cudaemu_offer(1, 0, true);
		else
			cudaemu_limit_memory(0);
		b->ops->cross_entropy(b, x, NULL, NULL, x, x, x, 4, 8, 16, x, true, &g);
		cudaemu_offer(1, 0, false);
		cudaemu_limit_memory(SIZE_MAX);
		assert_true(b->ops->sync(b, &err) < 0);
		assert_int_equal(group_failures, products + 1);
		assert_int_equal(group_gathers, 0);
		b->ops->free(b, x);
		b->ops->destroy(b);
	}
}

static void out_of_memory_is_told(void **state)
{
	struct backend *const b = cuda(DTYPE_F32);
	struct errmsg err = { "" };
	struct side s;

	side_begin(&s, b, 0);
	cudaemu_limit_memory(0);
	assert_null(b->ops->alloc(b, 1 << 20));
	cudaemu_limit_memory(SIZE_MAX);
	assert_int_equal(b->ops->sync(b, &err), 0);
	/* leaves no allocation for later */
	op_named("norm")->work(&s, op_named("norm")->shapes);
	cudaemu_limit_memory(0);
	b->ops->sum_squares(b, NULL, NULL, 1 << 20);
	assert_int_equal(b->ops->sync(b, &err), -ENOMEM);
	assert_non_null(strstr(err.text, "cudaMallocAsync"));
	cudaemu_limit_memory(SIZE_MAX);
	side_end(&s);
	b->ops->destroy(b);
}
#endif

#if SANITIZED
#define STEPS 10
#elif defined(CUDA_EMULATED)
#define STEPS 20
#else
#define STEPS 100
#endif
#define BATCH ((size_t)2)
#define SEQ ((size_t)24)

/* Set tokens that differ in every step. */
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
	const struct zero_options o = {
		.stage = 1,
		.comm_dtype = DTYPE_F32,
		.optimizer = { .kind = OPTIMIZER_ADAMW,
			       .lr = 5e-3,
			       .beta1 = 0.9,
			       .beta2 = 0.999,
			       .eps = 1e-8,
			       .weight_decay = 0.01 },
	};
	struct comm alone = { .size = 1, .local_size = 1 };
	struct topology ranks;
	struct network_weights weights;
	struct network *net = NULL;
	struct errmsg err = { "" };
	struct gpt2 model;
	struct zero z;
	struct network_pass *now;
	int32_t *ints;
	double *loss;
	size_t i;

	assert_int_equal(gpt2_init(&model, &config, &err), 0);
	if (topology_init(&ranks, &alone, &(struct topology_sizes){ 1, 1, 1 }, &err) ||
	    topology_connect(&ranks, b, &err) ||
	    network_new(&net, &model, b, NULL, BATCH, SEQ, false, &err) ||
	    zero_init(&z, &model, &ranks, b, &o, &err) || zero_init_weights(&z, 3, &err))
		fail_msg("%s", err.text);
	weights = zero_weights(&z);
	ints = b->ops->alloc(b, network_ints(net) * sizeof(*ints));
	loss = b->ops->alloc(b, sizeof(*loss));
	now = b->ops->alloc(b, sizeof(*now));
	for (i = 0; i < steps; i++) {
		struct zero_update u = { .lr = o.optimizer.lr, .clip = 1, .grad_scale = 1 };
		const struct network_pass pass = network_pass_of(net, 1, i);
		int32_t tokens[BATCH * SEQ], prepared[2 * BATCH * SEQ];

		set_tokens(tokens, i);
		network_prepare(net, tokens, prepared);
		b->ops->to_device(b, ints, prepared, sizeof(prepared));
		b->ops->to_device(b, now, &pass, sizeof(pass));
		b->ops->zero(b, loss, sizeof(*loss));
		network_train(net, &weights, ints, now, loss);
		if (update_all(&z, &u, &err))
			fail_msg("%s", err.text);
		b->ops->to_host(b, &losses[i], loss, sizeof(*loss));
		losses[i] /= (double)network_predictions(net);
	}
	b->ops->free(b, ints);
	b->ops->free(b, loss);
	b->ops->free(b, now);
	zero_done(&z);
	network_free(net);
	gpt2_done(&model);
	topology_disconnect(&ranks);
	topology_done(&ranks);
	b->ops->destroy(b);
}

/* Compare the means over every `part` steps. */
static void curves_are_near(const double *got, const double *want, size_t part, double tolerance,
			    const char *type)
{
	for (size_t i = 0; i < STEPS; i += part) {
		double g = 0, w = 0;

		for (size_t k = i; k < i + part; k++) {
			g += got[k] / (double)part;
			w += want[k] / (double)part;
		}
		if (!(fabs(g - w) <= tolerance * w))
			fail_msg("%s, from step %zu on: %g, not %g", type, i, g, w);
	}
}

/*
 * Rounding depends on the order of sums, and its effects grow: invisible in float32; in bfloat16
 * a step's loss differs by up to 3 % after a hundred steps, also without a GPU. The curve as a
 * whole must stay the same, without drift.
 */
static void a_model_learns_as_on_the_cpu(void **state)
{
	static const struct {
		enum dtype dtype;
		size_t part;
		double tolerance;
	} of[] = {
		{ DTYPE_F32, 1, 1e-4 },
		{ DTYPE_BF16, 10, 0.02 },
		{ DTYPE_BF16, STEPS, 0.005 },
	};
	double want[STEPS], got[STEPS];

	for (size_t t = 0; t < COUNT(of); t++) {
		if (!t || of[t].dtype != of[t - 1].dtype) {
			learn(cpu(of[t].dtype), want, STEPS);
			learn(cuda(of[t].dtype), got, STEPS);
		}
		assert_true(want[STEPS - 1] < want[0]);
		curves_are_near(got, want, of[t].part, of[t].tolerance, dtype_name(of[t].dtype));
	}
}

static void runs_are_equal_bit_for_bit(void **state)
{
	double first[STEPS / 2], again[STEPS / 2];

	learn(cuda(DTYPE_BF16), first, STEPS / 2);
	run_otherwise(true);
	learn(cuda(DTYPE_BF16), again, STEPS / 2);
	run_otherwise(false);
	assert_memory_equal(first, again, sizeof(first));
}

/* Waits that a test can leave out. */
enum { FOR_ZEROS, FOR_INPUT, FOR_SUMS, FOR_OUTPUT, NONE };

/* One queue copies in, the compute queue doubles, another copies out. Return whether the result is
 * right. */
static bool is_doubled(struct backend *b, size_t n, int left_out)
{
	const struct backend_ops *const o = b->ops;
	const size_t bytes = n * sizeof(float);
	float *const in = o->host_alloc(b, bytes);
	float *const out = o->host_alloc(b, bytes);
	float *const x = o->alloc(b, bytes);
	struct backend_event *const there = o->event_new(b);
	struct backend_event *const done = o->event_new(b);
	struct errmsg err = { "" };
	bool right = true;

	assert_true(in && out && x && there && done);
	o->event_wait(b, there); /* the event was never recorded */
	memset(out, 0, bytes);
	for (size_t i = 0; i < n; i++)
		in[i] = (float)i;
	o->event_record(b, there, QUEUE_COMPUTE); /* x has been zeroed */
	if (left_out != FOR_ZEROS)
		o->queue_wait(b, QUEUE_COPY, there);
	o->copy(b, QUEUE_COPY, x, in, bytes);
	o->event_record(b, there, QUEUE_COPY);
	if (left_out != FOR_INPUT)
		o->queue_wait(b, QUEUE_COMPUTE, there);
	o->accumulate(b, x, x, n);
	o->event_record(b, done, QUEUE_COMPUTE);
	if (left_out != FOR_SUMS)
		o->queue_wait(b, QUEUE_COMM, done);
	o->copy(b, QUEUE_COMM, out, x, bytes);
	o->event_record(b, done, QUEUE_COMM);
	if (left_out != FOR_OUTPUT)
		o->event_wait(b, done);
	for (size_t i = 0; i < n; i++)
		right &= out[i] == 2 * (float)i;
	o->event_wait(b, there);
	o->event_wait(b, done);
	o->event_free(b, there);
	o->event_free(b, done);
	o->free(b, x);
	o->host_free(b, in);
	o->host_free(b, out);
	assert_int_equal(o->sync(b, &err), 0);
	return right;
}

static void queues_wait_for_each_other(void **state)
{
	struct backend *const b = cuda(DTYPE_F32);
	const struct backend_ops *const o = b->ops;

	assert_true(is_doubled(b, 5000000, NONE));
	assert_non_null(o->native_queue(b, QUEUE_COMM));
	assert_ptr_not_equal(o->native_queue(b, QUEUE_COMM), o->native_queue(b, QUEUE_COPY));
	o->destroy(b);
}

#ifdef CUDA_EMULATED
/* For each wait, some order of the queues fails without it; with all waits, every order works. */
static void waits_that_are_missing_show(void **state)
{
	struct backend *const b = cuda(DTYPE_F32);

	for (int left_out = 0; left_out <= NONE; left_out++) {
		unsigned wrong = 0;

		for (unsigned seed = 0; seed < 32; seed++) {
			cudaemu_seed(seed);
			wrong += !is_doubled(b, 100, left_out);
		}
		assert_int_equal(wrong > 0, left_out != NONE);
	}
	b->ops->destroy(b);
}
#endif


/* Return 77 without a GPU. */
static int look_for_device(void)
{
	struct errmsg err = { "" };
	struct backend *b;
	const int rc = backend_cuda_new(&b, DTYPE_F32, &options, &err);

	if (!rc)
		b->ops->destroy(b);
	else
		fprintf(stderr, "%s: %s\n", rc == -ENODEV ? "skipped" : "failed", err.text);
	return rc == -ENODEV ? 77 : rc != 0;
}

int main(void)
{
	struct CMUnitTest tests[OPS + 12];
	char names[OPS][32];
	const int rc = look_for_device();
	size_t n = 0;

	if (rc)
		return rc;
	for (; n < OPS; n++) {
		snprintf(names[n], sizeof(names[n]), "%s_is_the_cpus", ops[n].name);
		tests[n] =
			(struct CMUnitTest){ names[n], is_the_cpus, NULL, NULL, (void *)&ops[n] };
	}
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(numbers_are_narrowed_as_by_the_cpu);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(a_model_learns_as_on_the_cpu);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(runs_are_equal_bit_for_bit);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(queues_wait_for_each_other);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(the_peak_of_memory_is_counted);
#ifndef CUDA_EMULATED
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(large_shapes_are_the_cpus);
#endif
#ifdef CUDA_EMULATED
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(linear_needs_no_epilogues);
	tests[n++] =
		(struct CMUnitTest)cmocka_unit_test(columns_are_summed_in_products_before_hopper);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(kernels_need_little_shared_memory);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(waits_that_are_missing_show);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(old_devices_are_refused);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(failures_end_a_group);
	tests[n++] = (struct CMUnitTest)cmocka_unit_test(out_of_memory_is_told);
#endif
	return _cmocka_run_group_tests("cuda", tests, n, NULL, NULL);
}
