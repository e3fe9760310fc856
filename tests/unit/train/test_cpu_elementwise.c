/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ZeRO's operations on the CPU backend give the results of plain C (hostbackend.c, which
 * test_optimizer compares with torch), for arrays of any length and any number of threads.
 */
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "tests/support/hostbackend.h"
#include "tests/support/unit.h"

/* Lengths near the boundaries of vectors, blocks and parts. */
static const size_t lengths[] = { 0, 1, 7, 16, 255, 257, 16383, 16385, 40001 };
static const unsigned threads[] = { 1, 2, 5 };

#define LONGEST 40001

static struct backend *backend(enum dtype dtype, unsigned with_threads)
{
	struct errmsg err = { "" };
	struct backend *b;

	if (backend_cpu_new(&b, dtype, with_threads, &err))
		fail_msg("%s", err.text);
	return b;
}

static float *random_floats(unsigned seed)
{
	float *const x = malloc(LONGEST * sizeof(*x));
	size_t i;

	assert_non_null(x);
	srand(seed);
	for (i = 0; i < LONGEST; i++)
		x[i] = (float)rand() / (float)RAND_MAX * 4 - 2;
	return x;
}

static void near(const float *got, const float *want, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		if (!(fabsf(got[i] - want[i]) <= 1e-6f * (1 + fabsf(want[i]))))
			fail_msg("[%zu] of %zu is %.9g, not %.9g", i, n, got[i], want[i]);
}

/* Call `check` for each length and number of threads. */
static void each(void (*check)(struct backend *cpu, struct backend *host, size_t n))
{
	size_t l, t;

	for (t = 0; t < COUNT(threads); t++) {
		struct backend *const cpu = backend(DTYPE_F32, threads[t]);

		for (l = 0; l < COUNT(lengths); l++)
			check(cpu, hostbackend(DTYPE_F32), lengths[l]);
		cpu->ops->destroy(cpu);
	}
}

static void check_squares(struct backend *cpu, struct backend *host, size_t n)
{
	float *const x = random_floats(1);
	double got = 3, want = 3;

	cpu->ops->sum_squares(cpu, &got, x, n);
	host->ops->sum_squares(host, &want, x, n);
	assert_true(fabs(got - want) <= 1e-12 * want);
	if (n) {
		x[n - 1] = NAN;
		cpu->ops->sum_squares(cpu, &got, x, n);
		assert_true(isnan(got));
	}
	free(x);
}

static void sums_squares(void **state)
{
	each(check_squares);
}

static void check_arrays(struct backend *cpu, struct backend *host, size_t n)
{
	float *const x = random_floats(1), *const y = random_floats(2);
	float *const want = random_floats(1);

	host->ops->accumulate(host, want, y, n);
	cpu->ops->accumulate(cpu, x, y, n);
	assert_memory_equal(x, want, LONGEST * sizeof(*x));
	free(x);
	free(y);
	free(want);
}

static void adds(void **state)
{
	each(check_arrays);
}

/* p, exp_avg, exp_avg_sq, the gradient and the weights, LONGEST elements each. */
struct states {
	float *x[5];
};

static struct states states_new(void)
{
	struct states s;
	size_t i;

	for (i = 0; i < COUNT(s.x); i++)
		s.x[i] = random_floats((unsigned)i);
	for (i = 0; i < LONGEST; i++)
		s.x[2][i] *= s.x[2][i];
	return s;
}

static void states_free(struct states *s)
{
	size_t i;

	for (i = 0; i < COUNT(s->x); i++)
		free(s->x[i]);
}

static void check_adam(struct backend *cpu, struct backend *host, size_t n)
{
	const struct backend_adam a = {
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-3f,
		.l2 = 0.1f,
	};
	const struct backend_rate rate = {
		.decay = 0.99f,
		.step_size = 0.05f,
		.denom = 0.7f,
	};
	const float factor = 0.25f;
	struct states got = states_new(), want = states_new();
	size_t i;

	cpu->ops->adam(cpu, &a, &rate, &factor, got.x[4], got.x[0], got.x[1], got.x[2], got.x[3],
		       n);
	host->ops->adam(host, &a, &rate, &factor, want.x[4], want.x[0], want.x[1], want.x[2],
			want.x[3], n);
	for (i = 0; i < COUNT(got.x); i++) {
		near(got.x[i], want.x[i], n);
		assert_memory_equal(got.x[i] + n, want.x[i] + n, (LONGEST - n) * sizeof(float));
	}
	states_free(&got);
	states_free(&want);
}

static void updates_as_adam(void **state)
{
	each(check_adam);
}

/* Weights in the model's type, with a guard behind them. */
static void rounds_masters(void **state)
{
	size_t l;

	for (l = 0; l < COUNT(lengths); l++) {
		struct backend *const cpu = backend(DTYPE_BF16, 2);
		struct backend *const host = hostbackend(DTYPE_BF16);
		float *const x = random_floats(1);
		float *const got = random_floats(2);
		float *const want = random_floats(2);

		cpu->ops->round(cpu, got, x, lengths[l]);
		host->ops->round(host, want, x, lengths[l]);
		assert_memory_equal(got, want, LONGEST * sizeof(*x));
		cpu->ops->destroy(cpu);
		free(x);
		free(got);
		free(want);
	}
}

static void threads_make_no_difference(void **state)
{
	struct backend *const one = backend(DTYPE_F32, 1);
	struct backend *const many = backend(DTYPE_F32, 7);
	float *const x = random_floats(1);
	double a = 0, b = 0;

	one->ops->sum_squares(one, &a, x, LONGEST);
	many->ops->sum_squares(many, &b, x, LONGEST);
	assert_memory_equal(&a, &b, sizeof(a));
	one->ops->destroy(one);
	many->ops->destroy(many);
	free(x);
}

static void as_many_threads_as_told(void **state)
{
	size_t t;

	for (t = 0; t < COUNT(threads); t++) {
		struct backend *const b = backend(DTYPE_F32, threads[t]);

		assert_int_equal(omp_get_max_threads(), threads[t]);
		b->ops->destroy(b);
	}
}

static void other_types_are_refused(void **state)
{
	struct errmsg err = { "" };
	struct backend *b;

	assert_int_equal(backend_cpu_new(&b, DTYPE_F64, 1, &err), -ENOTSUP);
	assert_non_null(strstr(err.text, "float64"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sums_squares),
		cmocka_unit_test(adds),
		cmocka_unit_test(updates_as_adam),
		cmocka_unit_test(rounds_masters),
		cmocka_unit_test(threads_make_no_difference),
		cmocka_unit_test(as_many_threads_as_told),
		cmocka_unit_test(other_types_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
