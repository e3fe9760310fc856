/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the trainer's arithmetic is, without its data and its ranks:
 * training steps on random tokens in one process, as zero.c would do them
 * (forward, backward, norm, AdamW, new weights, gradients back to zero).
 *
 *     trainstep MODEL BATCH SEQ STEPS     tokens/s, the median (stderr: each);
 *                                         processor milliseconds of a step
 *     trainstep -p MODEL BATCH SEQ STEPS  of the machine's SGEMM peak, what the
 *                                         operations with products reach, all
 *                                         that they do besides included; then
 *                                         the peak in GFLOP/s
 */
#include <cblas.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/errmsg.h"
#include "tests/whole.h"

#define THREADS_DEFAULT 2
#define PEAK_SIZE 2048

struct training {
	struct whole w;
	float *master, *exp_avg, *exp_avg_sq;
	double *norm;
	unsigned step;
};

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static unsigned threads(void)
{
	const char *const n = getenv("OMP_NUM_THREADS");

	return n ? (unsigned)atoi(n) : THREADS_DEFAULT;
}

/* Weights about as large as those of a new model, tokens of all kinds. */
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

static int training_init(struct training *t, const char *model, size_t batch,
			 size_t seq, struct errmsg *err)
{
	struct gpt2_config c = { .layer_norm_epsilon = 1e-5f };
	struct backend *b;
	size_t bytes;
	int rc = gpt2_preset(model, &c, err);

	if (!rc)
		rc = whole_init(&t->w, &c, batch, seq, DTYPE_F32, threads(),
				err);
	if (rc)
		return rc;
	b = t->w.b;
	bytes = t->w.model.numel * sizeof(float);
	t->master = b->ops->alloc(b, bytes);
	t->exp_avg = b->ops->alloc(b, bytes);
	t->exp_avg_sq = b->ops->alloc(b, bytes);
	t->norm = b->ops->alloc(b, sizeof(*t->norm));
	if (!t->master || !t->exp_avg || !t->exp_avg_sq || !t->norm)
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
	}
	whole_done(&t->w);
}

static int training_step(struct training *t, struct errmsg *err)
{
	struct whole *const w = &t->w;
	const struct backend_ops *const o = w->b->ops;
	const size_t n = w->model.numel;
	const double lr = 1e-3, beta1 = 0.9, beta2 = 0.999;
	double loss;
	int rc = whole_train(w, 1, t->step, &loss, err);

	if (rc)
		return rc;
	t->step++;

	const struct backend_adam adam = {
		.beta1 = beta1,
		.beta2 = beta2,
		.eps = 1e-8f,
		.grad_scale = 1,
		.decay = (float)(1 - lr * 0.01),
		.step_size = (float)(lr / (1 - pow(beta1, t->step))),
		.denom = (float)sqrt(1 - pow(beta2, t->step)),
	};

	o->zero(w->b, t->norm, sizeof(*t->norm));
	o->sum_squares(w->b, t->norm, w->grads, n);
	o->adam(w->b, &adam, t->master, t->exp_avg, t->exp_avg_sq, w->grads, n);
	o->round(w->b, w->weights, t->master, n);
	o->zero(w->b, w->grads, n * sizeof(float));
	return o->sync(w->b, err);
}

/* Of all threads. */
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
		const double start = now();

		rc = training_step(t, err);
		rates[i] = (double)(t->w.batch * t->w.seq) / (now() - start);
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

/* GFLOP/s of the BLAS on large matrices, one for each thread. */
static double peak(void)
{
	const size_t n = PEAK_SIZE;
	float *const x = malloc((threads() + 2) * n * n * sizeof(*x));
	double start;
	unsigned t;

	if (!x)
		return NAN;
	memset(x, 0, (threads() + 2) * n * n * sizeof(*x));
	start = now();
#pragma omp parallel for schedule(static, 1)
	for (t = 0; t < threads(); t++)
		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)n,
			    (int)n, (int)n, 1, x, (int)n, x + n * n, (int)n, 0,
			    x + (2 + t) * n * n, (int)n);
	start = now() - start;
	free(x);
	return 2e-9 * threads() * (double)(n * n * n) / start;
}

/* GFLOP/s of all operations of a step that are products.  In and out of them:
 * weights, whatever they are, so that no number gets too small. */
static double products(struct training *t, float *out, float *din)
{
	const struct gpt2_config *const m = &t->w.model.config;
	const size_t rows = t->w.batch * t->w.seq, c = m->n_embd;
	const size_t shapes[][2] = {
		{ c, 3 * c }, { c, c }, { c, 4 * c }, { 4 * c, c }
	};
	const struct backend_ops *const o = t->w.b->ops;
	const float *const w = t->w.weights;
	const double start = now();
	double loss = 0;
	size_t i;

	for (i = 0; i < 4 * m->n_layer; i++) {
		const size_t ic = shapes[i % 4][0], oc = shapes[i % 4][1];

		o->linear(t->w.b, out, NULL, w, w, w, NULL, rows, ic, oc);
		o->linear_grad(t->w.b, din, t->w.grads, t->exp_avg, w, w, NULL,
			       w, rows, ic, oc);
	}
	o->classify(t->w.b, &loss, din, t->w.grads, w, w, t->w.tokens, rows, c,
		    m->vocab_size, 1);
	return 6e-9 * (double)rows *
	       ((double)m->n_layer * 12.0 * (double)(c * c) +
		(double)m->vocab_size * (double)c) /
	       (now() - start);
}

/* Both are the best of as many rounds: what disturbs only slows down. */
static int compare_to_peak(struct training *t, unsigned rounds)
{
	const size_t wide = t->w.batch * t->w.seq * t->w.model.config.n_embd * 4;
	float *const out = calloc(wide, sizeof(*out));
	float *const din = calloc(wide, sizeof(*din));
	double most = 0, got = 0;
	unsigned i;

	for (i = 0; i < rounds && out && din; i++) {
		most = fmax(most, peak());
		got = fmax(got, products(t, out, din));
	}
	printf("%.3f %.1f\n", got / most, most);
	free(out);
	free(din);
	return out && din ? 0 : -1;
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
	rc = training_init(&t, args[1], (size_t)atoi(args[2]),
			   (size_t)atoi(args[3]), &err);
	if (!rc && of_peak)
		rc = compare_to_peak(&t, (unsigned)atoi(args[4]));
	else if (!rc)
		rc = run(&t, (unsigned)atoi(args[4]), &err);
	if (rc)
		fprintf(stderr, "trainstep: %s\n", err.text);
	training_done(&t);
	return rc ? 1 : 0;
}
