/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the trainer's arithmetic is, without its data and its ranks:
 * training steps on random tokens in one process, as zero.c would do them
 * (forward, backward, norm, AdamW, new weights, gradients back to zero).
 *
 *     trainstep MODEL BATCH SEQ STEPS      tokens/s of each step, and the median
 *     trainstep peak                       SGEMM of large matrices, GFLOP/s
 */
#include <cblas.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "ckpt/errmsg.h"
#include "tests/whole.h"

#define THREADS_DEFAULT 2
#define PEAK_SIZE 2048
#define PEAK_ROUNDS 10

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

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static int run(struct training *t, unsigned steps, struct errmsg *err)
{
	double *const rates = calloc(steps, sizeof(*rates));
	unsigned i;
	int rc = rates ? training_step(t, err) : -1;

	for (i = 0; i < steps && !rc; i++) {
		const double start = now();

		rc = training_step(t, err);
		rates[i] = (double)(t->w.batch * t->w.seq) / (now() - start);
		fprintf(stderr, "%.0f ", rates[i]);
	}
	fprintf(stderr, "\n");
	if (!rc) {
		qsort(rates, steps, sizeof(*rates), by_size);
		printf("%.1f\n", rates[steps / 2]);
	}
	free(rates);
	return rc;
}

static int peak(void)
{
	const size_t n = PEAK_SIZE;
	float *const x = calloc(3 * n * n, sizeof(*x));
	double best = 0;
	int i;

	if (!x)
		return 1;
	openblas_set_num_threads((int)threads());
	for (i = 0; i < PEAK_ROUNDS; i++) {
		const double start = now();

		cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n,
			    1, x, n, x + n * n, n, 0, x + 2 * n * n, n);
		best = fmax(best, 2e-9 * (double)(n * n * n) / (now() - start));
	}
	printf("%.1f\n", best);
	free(x);
	return 0;
}

int main(int argc, char **argv)
{
	struct training t = { .step = 0 };
	struct errmsg err = { "out of memory" };
	int rc;

	if (argc == 2 && strcmp(argv[1], "peak") == 0)
		return peak();
	if (argc != 5 || atoi(argv[4]) < 1) {
		fprintf(stderr, "usage: trainstep MODEL BATCH SEQ STEPS\n"
				"       trainstep peak\n");
		return 2;
	}
	rc = training_init(&t, argv[1], (size_t)atoi(argv[2]),
			   (size_t)atoi(argv[3]), &err);
	if (!rc)
		rc = run(&t, (unsigned)atoi(argv[4]), &err);
	if (rc)
		fprintf(stderr, "trainstep: %s\n", err.text);
	training_done(&t);
	return rc ? 1 : 0;
}
