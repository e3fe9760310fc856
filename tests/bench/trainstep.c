/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The trainer's arithmetic alone, without data and ranks: training steps on random tokens in one
 * process, as zero.c does them (forward, backward, norm, AdamW, new weights, gradients cleared).
 *
 *     trainstep MODEL BATCH SEQ STEPS     median tokens/s (stderr: each step);
 *                                         processor milliseconds per step
 *     trainstep -p MODEL BATCH SEQ STEPS  fraction of the machine's SGEMM peak
 *                                         reached by all GEMMs within a step; by
 *                                         the operations around them; and the
 *                                         peak, in GFLOP/s
 */
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "tests/support/whole.h"

#define THREADS_DEFAULT 2
#define PEAK_SIZE 2048

struct training {
	struct whole w;
	float *master, *exp_avg, *exp_avg_sq;
	double *norm;
	float *factor;
	unsigned step;
};

static unsigned threads(void)
{
	const char *const n = getenv("OMP_NUM_THREADS");

	return n ? (unsigned)atoi(n) : THREADS_DEFAULT;
}

/* Set weights of a new model's magnitude, and random tokens. */
static void fill(struct training *t)
{
	struct whole *const w = &t->w;
	size_t i;

	srand(1);
	for (i = 0; i < w->model.numel; i++)
		t->master[i] = 0.04f * ((float)rand() / (float)RAND_MAX - 0.5f);
	w->b->ops->round(w->b, w->weights, t->master, w->model.numel);
	for (i = 0; i < w->batch * w->seq; i++)
		w->tokens[i] = rand() % (int)w->model.config.vocab_size;
}

static int training_init(struct training *t, const char *model, size_t batch, size_t seq,
			 struct errmsg *err)
{
	struct gpt2_config c = { .layer_norm_epsilon = 1e-5f };
	struct backend *b;
	size_t bytes;
	int rc = gpt2_preset(model, &c, err);

	if (!rc)
		rc = whole_init(&t->w, &c, batch, seq, DTYPE_F32, threads(), err);
	if (rc)
		return rc;
	b = t->w.b;
	bytes = t->w.model.numel * sizeof(float);
	t->master = b->ops->alloc(b, bytes);
	t->exp_avg = b->ops->alloc(b, bytes);
	t->exp_avg_sq = b->ops->alloc(b, bytes);
	t->norm = b->ops->alloc(b, sizeof(*t->norm));
	t->factor = b->ops->alloc(b, sizeof(*t->factor));
	if (!t->master || !t->exp_avg || !t->exp_avg_sq || !t->norm || !t->factor)
		return errmsg_set(err, -1, "out of memory");
	fill(t);
	return 0;
}

static void training_done(struct training *t)
{
	struct backend *const b = t->w.b;

	if (b) {
		b->ops->free(b, t->master);
		b->ops->free(b, t->exp_avg);
		b->ops->free(b, t->exp_avg_sq);
		b->ops->free(b, t->norm);
		b->ops->free(b, t->factor);
	}
	whole_done(&t->w);
}

static int training_step(struct training *t, struct errmsg *err)
{
	struct whole *const w = &t->w;
	const struct backend_ops *const o = w->b->ops;
	const size_t n = w->model.numel;
	const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, scale = 1;
	double loss;
	int rc = whole_train(w, 1, t->step, &loss, err);

	if (rc)
		return rc;
	t->step++;

	const struct backend_adam adam = {
		.beta1 = beta1,
		.beta2 = beta2,
		.eps = 1e-8f,
	};
	const struct backend_rate rate = {
		.decay = (float)(1 - lr * 0.01),
		.step_size = (float)(lr / (1 - pow(beta1, t->step))),
		.denom = (float)sqrt(1 - pow(beta2, t->step)),
	};

	o->zero(w->b, t->norm, sizeof(*t->norm));
	o->sum_squares(w->b, t->norm, w->grads, n);
	o->clip(w->b, t->factor, t->norm, &scale, 0);
	o->adam(w->b, &adam, &rate, t->factor, w->weights, t->master, t->exp_avg, t->exp_avg_sq,
		w->grads, n);
	o->zero(w->b, w->grads, n * sizeof(float));
	return o->sync(w->b, err);
}

/* Return the processor time of all threads. */
static double processor_time(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int run(struct training *t, unsigned steps, struct errmsg *err)
{
	double *const rates = calloc(steps, sizeof(*rates));
	double spent;
	unsigned i;
	int rc = rates ? training_step(t, err) : -1;

	spent = processor_time();
	for (i = 0; i < steps && !rc; i++) {
		const double start = clock_seconds();

		rc = training_step(t, err);
		rates[i] = (double)(t->w.batch * t->w.seq) / (clock_seconds() - start);
		fprintf(stderr, "%.0f ", rates[i]);
	}
	spent = processor_time() - spent;
	fprintf(stderr, "\n");
	if (!rc) {
		qsort(rates, steps, sizeof(*rates), by_size);
		printf("%.1f %.0f\n", rates[steps / 2], 1e3 * spent / steps);
	}
	free(rates);
	return rc;
}

/* All GEMMs since the last reset; seconds are summed over threads. */
static struct gemm_cache {
	double gflop, seconds;
} gemm_cache;

dnnl_status_t __real_dnnl_sgemm(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n,
				dnnl_dim_t k, float alpha, const float *a, dnnl_dim_t lda,
				const float *b, dnnl_dim_t ldb, float beta, float *c,
				dnnl_dim_t ldc);
dnnl_status_t __wrap_dnnl_sgemm(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n,
				dnnl_dim_t k, float alpha, const float *a, dnnl_dim_t lda,
				const float *b, dnnl_dim_t ldb, float beta, float *c,
				dnnl_dim_t ldc);

/* Wraps oneDNN's function (-Wl,--wrap, tests/bench/local.mk). */
dnnl_status_t __wrap_dnnl_sgemm(char trans_a, char trans_b, dnnl_dim_t m, dnnl_dim_t n,
				dnnl_dim_t k, float alpha, const float *a, dnnl_dim_t lda,
				const float *b, dnnl_dim_t ldb, float beta, float *c,
				dnnl_dim_t ldc)
{
	const double start = clock_seconds();
	const dnnl_status_t rc =
		__real_dnnl_sgemm(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
	const double seconds = clock_seconds() - start;

#pragma omp atomic
	gemm_cache.seconds += seconds;
#pragma omp atomic
	gemm_cache.gflop += 2e-9 * (double)m * (double)n * (double)k;
	return rc;
}

/* Return the GFLOP/s of large GEMMs, one per thread. */
static double peak(void)
{
	const size_t n = PEAK_SIZE;
	float *const x = malloc((threads() + 2) * n * n * sizeof(*x));
	double start;
	unsigned t;

	if (!x)
		return NAN;
	memset(x, 0, (threads() + 2) * n * n * sizeof(*x));
	start = clock_seconds();
#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < threads(); t++)
		dnnl_sgemm('N', 'N', (dnnl_dim_t)n, (dnnl_dim_t)n, (dnnl_dim_t)n, 1, x,
			   (dnnl_dim_t)n, x + n * n, (dnnl_dim_t)n, 0, x + (2 + t) * n * n,
			   (dnnl_dim_t)n);
	start = clock_seconds() - start;
	free(x);
	return 2e-9 * threads() * (double)(n * n * n) / start;
}

/* Get the input and output width of layer `i` of a block's four. */
static void layer_shape(size_t c, size_t i, size_t *ic, size_t *oc)
{
	const size_t shapes[][2] = { { c, 3 * c }, { c, c }, { c, 4 * c }, { 4 * c, c } };

	*ic = shapes[i % 4][0];
	*oc = shapes[i % 4][1];
}

/* Return the GFLOP of a step: each GEMM once in the forward pass, twice in backward. */
static double gflop(const struct training *t)
{
	const struct gpt2_config *const m = &t->w.model.config;
	const double c = m->n_embd;

	return 6e-9 * (double)(t->w.batch * t->w.seq) *
	       (m->n_layer * 12 * c * c + m->vocab_size * c);
}

/* Operands of the GEMMs: real weights, so that no number becomes denormal. */
struct operands {
	const float *w;
	float *out, *din;
};

static void operands_done(struct operands *x)
{
	free(x->out);
	free(x->din);
}

static int operands_init(struct operands *x, const struct training *t)
{
	const size_t wide = t->w.batch * t->w.seq * t->w.model.config.n_embd * 4;

	x->w = t->w.weights;
	x->out = calloc(wide, sizeof(float));
	x->din = calloc(wide, sizeof(float));
	return x->out && x->din ? 0 : -1;
}

/* Return the GFLOP/s of all operations of a step that multiply by weights. */
static double operations(struct training *t, const struct operands *x)
{
	const struct gpt2_config *const m = &t->w.model.config;
	const size_t rows = t->w.batch * t->w.seq, c = m->n_embd;
	const struct backend_ops *const o = t->w.b->ops;
	const double start = clock_seconds();
	const float one = 1;
	double loss = 0;
	size_t i, ic, oc;

	for (i = 0; i < 4 * m->n_layer; i++) {
		layer_shape(c, i, &ic, &oc);
		o->linear(t->w.b, x->out, NULL, x->w, x->w, x->w, NULL, rows, ic, oc);
		o->linear_grad(t->w.b, x->din, t->w.grads, t->exp_avg, x->w, x->w, NULL, x->w, rows,
			       ic, oc, false);
	}
	o->cross_entropy(t->w.b, &loss, x->din, t->w.grads, x->w, x->w, t->w.tokens, rows, c,
			 m->vocab_size, &one, false, NULL);
	return gflop(t) / (clock_seconds() - start);
}

/* Take the best of several rounds: interference only slows down. */
static int compare_to_peak(struct training *t, unsigned rounds, struct errmsg *err)
{
	double most = 0, alone = 0, around = 0;
	struct operands x;
	int rc = operands_init(&x, t);
	unsigned i;

	for (i = 0; i < rounds && !rc; i++) {
		most = fmax(most, peak());
		gemm_cache = (struct gemm_cache){ 0 };
		rc = training_step(t, err);
		alone = fmax(alone, threads() * gemm_cache.gflop / gemm_cache.seconds);
		around = fmax(around, operations(t, &x));
	}
	printf("%.3f %.3f %.1f\n", alone / most, around / most, most);
	operands_done(&x);
	return rc;
}

int main(int argc, char **argv)
{
	const bool of_peak = argc > 1 && strcmp(argv[1], "-p") == 0;
	char **const args = argv + of_peak;
	struct training t = { .step = 0 };
	struct errmsg err = { "out of memory" };
	int rc;

	if (argc - of_peak != 5 || atoi(args[4]) < 1) {
		fprintf(stderr, "usage: trainstep [-p] MODEL BATCH SEQ STEPS\n");
		return 2;
	}
	rc = training_init(&t, args[1], (size_t)atoi(args[2]), (size_t)atoi(args[3]), &err);
	if (!rc && of_peak)
		rc = compare_to_peak(&t, (unsigned)atoi(args[4]), &err);
	else if (!rc)
		rc = run(&t, (unsigned)atoi(args[4]), &err);
	if (rc)
		fprintf(stderr, "trainstep: %s\n", err.text);
	training_done(&t);
	return rc ? 1 : 0;
}
