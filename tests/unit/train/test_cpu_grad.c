/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The gradient of every CPU operation is the slope of the operation: central differences along
 * random directions, with randomly weighted outputs, dropout included.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "tests/support/unit.h"

#define MOST 2048 /* capacity of the arrays below, in elements */
#define DIRECTIONS 8
#define STEP 1e-3f
#define SEED 11

/*
 * A function of one array, which may hold several arguments end to end, as does its gradient.
 * `backward` follows `forward` of the same x, and accumulates into zeros.
 */
struct function {
	const char *name;
	size_t n, n_out;
	float drop;
	void (*forward)(struct backend *b, float drop, const float *x, float *out);
	void (*backward)(struct backend *b, float drop, const float *x, const float *dout,
			 float *dx);
};

/* Saved by `forward` for `backward`. */
static float stats[MOST], kept[MOST], kept_pre[MOST];

/* rows[5][7], weight[7], bias[7] */
#define NORM_ROWS 5
#define NORM_C 7
#define NORM_X (NORM_ROWS * NORM_C)

static void norm(struct backend *b, float drop, const float *x, float *out)
{
	(void)drop;
	b->ops->norm(b, out, stats, x, x + NORM_X, x + NORM_X + NORM_C, NORM_ROWS, NORM_C, 1e-5f);
}

static void norm_grad(struct backend *b, float drop, const float *x, const float *dout, float *dx)
{
	(void)drop;
	b->ops->norm_grad(b, dx, dx + NORM_X, dx + NORM_X + NORM_C, NULL, NULL, dout, x, stats,
			  x + NORM_X, NORM_ROWS, NORM_C, false);
}

/* gelu(rows[3][5] * w[5][9] + b[9]) * w'[9][4] + b'[4] */
#define MLP_ROWS 3
#define MLP_IN 5
#define MLP_MID 9
#define MLP_OUT 4
#define MLP_W (MLP_ROWS * MLP_IN)
#define MLP_B (MLP_W + MLP_IN * MLP_MID)
#define MLP_W2 (MLP_B + MLP_MID)
#define MLP_B2 (MLP_W2 + MLP_MID * MLP_OUT)
#define MLP_N (MLP_B2 + MLP_OUT)

static void mlp(struct backend *b, float drop, const float *x, float *out)
{
	(void)drop;
	b->ops->linear(b, kept, kept_pre, x, x + MLP_W, x + MLP_B, NULL, MLP_ROWS, MLP_IN, MLP_MID);
	b->ops->linear(b, out, NULL, kept, x + MLP_W2, x + MLP_B2, NULL, MLP_ROWS, MLP_MID,
		       MLP_OUT);
}

static void mlp_grad(struct backend *b, float drop, const float *x, const float *dout, float *dx)
{
	float middle[MLP_ROWS * MLP_MID];

	(void)drop;
	b->ops->linear_grad(b, middle, dx + MLP_W2, dx + MLP_B2, dout, kept, kept_pre, x + MLP_W2,
			    MLP_ROWS, MLP_MID, MLP_OUT, false);
	b->ops->linear_grad(b, dx, dx + MLP_W, dx + MLP_B, middle, x, NULL, x + MLP_W, MLP_ROWS,
			    MLP_IN, MLP_MID, false);
}

static struct backend_dropout drop_of(float p)
{
	return (struct backend_dropout){ .p = p, .skip = SEED };
}

/* qkv[2 * 9][3 * 2 * 3] */
#define ATT_BATCH 2
#define ATT_SEQ 9
#define ATT_HEADS 2
#define ATT_C 6
#define ATT_OUT (ATT_BATCH * ATT_SEQ * ATT_C)

static void attention(struct backend *b, float drop, const float *x, float *out)
{
	b->ops->attention(b, out, stats, x, ATT_BATCH, ATT_SEQ, ATT_HEADS, ATT_C, drop_of(drop));
	memcpy(kept, out, ATT_OUT * sizeof(*out));
}

static void attention_grad(struct backend *b, float drop, const float *x, const float *dout,
			   float *dx)
{
	b->ops->attention_grad(b, dx, dout, kept, stats, x, ATT_BATCH, ATT_SEQ, ATT_HEADS, ATT_C,
			       drop_of(drop));
}

static void dropout(struct backend *b, float drop, const float *x, float *out)
{
	memcpy(out, x, 100 * sizeof(*x));
	b->ops->dropout(b, out, 100, 0, drop_of(drop));
}

static void dropout_grad(struct backend *b, float drop, const float *x, const float *dout,
			 float *dx)
{
	(void)x;
	memcpy(dx, dout, 100 * sizeof(*x));
	b->ops->dropout(b, dx, 100, 0, drop_of(drop));
}

/* rows[5][3], wte[6][3]; the output is the loss. */
#define HEAD_ROWS 5
#define HEAD_C 3
#define HEAD_VOCAB 6
#define HEAD_WTE (HEAD_ROWS * HEAD_C)

static const int32_t targets[HEAD_ROWS] = { 3, -1, 0, 5, 3 };

static void cross_entropy(struct backend *b, float drop, const float *x, float *out)
{
	double loss = 0;

	(void)drop;
	b->ops->cross_entropy(b, &loss, NULL, NULL, x, x + HEAD_WTE, targets, HEAD_ROWS, HEAD_C,
			      HEAD_VOCAB, NULL, false, NULL);
	*out = (float)loss;
}

static void cross_entropy_grad(struct backend *b, float drop, const float *x, const float *dout,
			       float *dx)
{
	double loss = 0;

	(void)drop;
	b->ops->cross_entropy(b, &loss, dx, dx + HEAD_WTE, x, x + HEAD_WTE, targets, HEAD_ROWS,
			      HEAD_C, HEAD_VOCAB, dout, false, NULL);
}

/* wte[4][5], wpe[3][5] */
#define EMBED_C 5
#define EMBED_WPE (4 * EMBED_C)

static const int32_t tokens[2 * 3] = { 2, 0, 2, 2, 1, 0 };

static void embed(struct backend *b, float drop, const float *x, float *out)
{
	(void)drop;
	b->ops->embed(b, out, x, x + EMBED_WPE, tokens, 2, 3, EMBED_C);
}

static void embed_grad(struct backend *b, float drop, const float *x, const float *dout, float *dx)
{
	(void)drop;
	(void)x;
	b->ops->embed_grad(b, dx, dx + EMBED_WPE, dout, tokens, 2, 3, EMBED_C);
}

static const struct function functions[] = {
	{ "norm", NORM_X + 2 * NORM_C, NORM_X, 0, norm, norm_grad },
	{ "mlp", MLP_N, MLP_ROWS *MLP_OUT, 0, mlp, mlp_grad },
	{ "attention", 3 * ATT_OUT, ATT_OUT, 0, attention, attention_grad },
	{ "attention_with_dropout", 3 * ATT_OUT, ATT_OUT, 0.3f, attention, attention_grad },
	{ "dropout", 100, 100, 0.4f, dropout, dropout_grad },
	{ "cross_entropy", HEAD_WTE + HEAD_VOCAB *HEAD_C, 1, 0, cross_entropy, cross_entropy_grad },
	{ "embed", EMBED_WPE + 3 * EMBED_C, 2 * 3 * EMBED_C, 0, embed, embed_grad },
};

static void random_floats(float *x, size_t n)
{
	size_t i;

	for (i = 0; i < n; i++)
		x[i] = (float)rand() / (float)RAND_MAX * 2 - 1;
}

static double dot(const float *a, const float *b, size_t n)
{
	double sum = 0;
	size_t i;

	for (i = 0; i < n; i++)
		sum += (double)a[i] * b[i];
	return sum;
}

/* Return the outputs at x + by * direction, summed with `weights`. */
static double value_at(struct backend *b, const struct function *f, const float *x,
		       const float *direction, float by, const float *weights)
{
	float moved[MOST], out[MOST];
	size_t i;

	for (i = 0; i < f->n; i++)
		moved[i] = x[i] + by * direction[i];
	f->forward(b, f->drop, moved, out);
	return dot(out, weights, f->n_out);
}

static void gradient_is_the_slope(void **state)
{
	const struct function *const f = *state;
	float x[MOST], weights[MOST], direction[MOST], dx[MOST] = { 0 };
	struct errmsg err = { "" };
	struct backend *b;
	int i;

	assert_int_equal(backend_cpu_new(&b, DTYPE_F32, 2, &err), 0);
	srand(1);
	random_floats(x, f->n);
	random_floats(weights, f->n_out);
	f->forward(b, f->drop, x, direction);
	f->backward(b, f->drop, x, weights, dx);
	for (i = 0; i < DIRECTIONS; i++) {
		double slope, want;

		random_floats(direction, f->n);
		want = dot(dx, direction, f->n);
		slope = (value_at(b, f, x, direction, STEP, weights) -
			 value_at(b, f, x, direction, -STEP, weights)) /
			(2 * STEP);
		if (!(fabs(slope - want) <= 2e-3 * (1 + sqrt(dot(dx, dx, f->n)))))
			fail_msg("slope %g, gradient %g", slope, want);
	}
	b->ops->destroy(b);
}

int main(void)
{
	struct CMUnitTest tests[COUNT(functions)];
	size_t i;

	for (i = 0; i < COUNT(functions); i++)
		tests[i] = (struct CMUnitTest){ functions[i].name, gradient_is_the_slope, NULL,
						NULL, (void *)&functions[i] };
	return cmocka_run_group_tests(tests, NULL, NULL);
}
