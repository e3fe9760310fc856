/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time of a training step by operation: each operation of a device alone, with the shapes of
 * GPT-2 124M in bfloat16 (or of width -w), its calls per step, and its rate in TFLOP/s and in
 * GB/s of the bytes that it must read and write.
 *
 *     gpuops [-d] [-c] [-b BATCH] [-s SEQ] [-w WIDTH]
 *
 * -d: as with --deterministic; -c: on the CPU.
 * Heads have 64 elements.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/system.h"
#include "gpu/backend/backend.h"
#include "gpu/cuda/backend_cuda.h"

#define LAYERS_OF(c) ((c) == 1600 ? 48 : 12)
#define VOCAB 50257
#define VOCAB_EVEN 50304
#define CALLS 10
#define FILL ((size_t)1 << 20)

static struct backend *b;
static size_t batch = 32, seq = 1024, width = 768, rows, vocab;
/* Activations of 4 * width per row, or wte; a float gradient of that size. */
static void *x, *y, *z, *d, *w, *small, *weights;
static float *grad, *stats, *more[3], *factor, *scale;
static int32_t *tokens;
static struct backend_rate *rate;
static double *sum;
static double all; /* seconds per step */

static void finish(void)
{
	struct errmsg err = { "" };

	if (b->ops->sync(b, &err)) {
		fprintf(stderr, "gpuops: %s\n", err.text);
		exit(1);
	}
}

static void *alloc(size_t bytes)
{
	void *const p = b->ops->alloc(b, bytes);

	if (!p) {
		fprintf(stderr, "gpuops: no memory for %zu MiB\n", bytes >> 20);
		exit(1);
	}
	return p;
}

/* Random numbers: a GPU is faster on zeros. */
static float *floats(size_t n)
{
	float *const p = alloc(n * sizeof(*p)), *const some = malloc(FILL * 4);

	for (size_t i = 0; i < FILL; i++)
		some[i] = 0.1f * ((float)rand() / (float)RAND_MAX - 0.5f);
	for (size_t at = 0; at < n; at += FILL)
		b->ops->to_device(b, p + at, some, (n - at < FILL ? n - at : FILL) * sizeof(*p));
	free(some);
	return p;
}

static void *acts(size_t n)
{
	float *const from = floats(n);
	void *const p = alloc(n * b->act_size);

	b->ops->round(b, p, from, n);
	b->ops->free(b, from);
	return p;
}

static void *unaligned(void *p)
{
	return (char *)p + b->act_size;
}

static void qkv(void)
{
	b->ops->linear(b, y, NULL, x, w, small, NULL, rows, width, 3 * width);
}

static void attn_proj(void)
{
	b->ops->linear(b, y, NULL, x, w, small, z, rows, width, width);
}

static void fc(void)
{
	b->ops->linear(b, y, z, x, w, small, NULL, rows, width, 4 * width);
}

static void fc_unfused(void)
{
	b->ops->linear(b, y, z, x, w, unaligned(small), NULL, rows, width, 4 * width);
}

static void mlp_proj(void)
{
	b->ops->linear(b, y, NULL, x, w, small, z, rows, 4 * width, width);
}

static void mlp_proj_unfused(void)
{
	b->ops->linear(b, y, NULL, x, w, unaligned(small), z, rows, 4 * width, width);
}

static void qkv_grad(void)
{
	b->ops->linear_grad(b, d, grad, stats, y, x, NULL, w, rows, width, 3 * width, true);
}

static void attn_proj_grad(void)
{
	b->ops->linear_grad(b, d, grad, stats, y, x, NULL, w, rows, width, width, true);
}

static void fc_grad(void)
{
	b->ops->linear_grad(b, d, grad, stats, y, x, NULL, w, rows, width, 4 * width, true);
}

static void mlp_proj_grad(void)
{
	b->ops->linear_grad(b, d, grad, stats, y, x, z, w, rows, 4 * width, width, true);
}

static void attention(void)
{
	b->ops->attention(b, z, stats, x, batch, seq, width / 64, width,
			  (struct backend_dropout){ 0 });
}

static void attention_grad(void)
{
	b->ops->attention_grad(b, d, y, z, stats, x, batch, seq, width / 64, width,
			       (struct backend_dropout){ 0 });
}

static void norm(void)
{
	b->ops->norm(b, y, stats, x, small, small, rows, width, 1e-5f);
}

static void norm_grad(void)
{
	b->ops->norm_grad(b, d, grad, grad + width, NULL, NULL, y, x, stats, small, rows, width,
			  true);
}

static void embed(void)
{
	b->ops->embed(b, y, w, x, tokens, batch, seq, width);
}

static void embed_grad(void)
{
	b->ops->embed_grad(b, grad, grad + VOCAB * width, y, tokens, batch, seq, width);
}

static void head(void)
{
	b->ops->cross_entropy(b, sum, d, grad, x, w, tokens, rows, width, vocab, scale, true, NULL);
}

static void head_odd(void)
{
	vocab = VOCAB;
	head();
}

static void head_even(void)
{
	vocab = VOCAB_EVEN;
	head();
}

static size_t numel(void)
{
	return 12 * LAYERS_OF(width) * width * width + VOCAB * width;
}

static void squares(void)
{
	b->ops->sum_squares(b, sum, more[0], numel());
}

static void adam(void)
{
	const struct backend_adam a = { .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8f };

	/* Any buffer serves as the gradient: it is only read. */
	b->ops->adam(b, &a, rate, factor, weights, more[0], more[1], more[2], more[0], numel());
}

static void zero(void)
{
	b->ops->zero(b, more[1], numel() * sizeof(float));
}

static void measure(const char *name, void (*op)(void), size_t times, double flop, double bytes)
{
	double start, took;

	op();
	op();
	finish();
	start = clock_seconds();
	for (int i = 0; i < CALLS; i++)
		op();
	finish();
	took = (clock_seconds() - start) / CALLS;
	all += took * (double)times;
	printf("%-28s %8.3f ms  x%3zu = %8.2f ms  %7.1f TFLOP/s  %7.0f GB/s\n", name, took * 1e3,
	       times, took * 1e3 * (double)times, flop / took / 1e12, bytes / took / 1e9);
	fflush(stdout);
}

static void measure_all(void)
{
	const double n = (double)rows * (double)width, c = (double)width;
	const double product = 2 * n * c, params = (double)numel();
	const double scores = 2 * n * (double)seq; /* a product of attention */
	const double logits = 2 * n * VOCAB;
	const size_t l = LAYERS_OF(width);

	measure("c_attn", qkv, l, 3 * product, 8 * n);
	measure("attn.c_proj + residual", attn_proj, l, product, 6 * n);
	measure("c_fc + gelu", fc, l, 4 * product, 18 * n);
	measure("c_fc, gelu by our kernel", fc_unfused, 0, 4 * product, 18 * n);
	measure("mlp.c_proj + residual", mlp_proj, l, 4 * product, 12 * n);
	measure("mlp.c_proj, bias by ours", mlp_proj_unfused, 0, 4 * product, 12 * n);
	measure("c_attn grad", qkv_grad, l, 6 * product, 10 * n);
	measure("attn.c_proj grad", attn_proj_grad, l, 2 * product, 6 * n);
	measure("c_fc grad", fc_grad, l, 8 * product, 12 * n);
	measure("mlp.c_proj grad + gelu", mlp_proj_grad, l, 8 * product, 26 * n);
	measure("attention, causal", attention, l, scores, 8 * n);
	measure("attention grad, causal", attention_grad, l, 2.5 * scores, 16 * n);
	measure("norm", norm, 2 * l + 1, 0, 4 * n);
	measure("norm grad", norm_grad, 2 * l + 1, 0, 8 * n);
	measure("embed", embed, 1, 0, 4 * n);
	measure("embed grad", embed_grad, 1, 0, 2 * n);
	measure("head and loss, 50257", head_odd, 1, 3 * logits, 0);
	measure("head and loss, 50304", head_even, 0, 3 * logits, 0);
	measure("sum of squares", squares, 1, 0, 4 * params);
	measure("adam", adam, 1, 0, 30 * params);
	measure("zero gradients", zero, 1, 0, 4 * params);
}

static void make_operands(void)
{
	const struct backend_rate slow = { .decay = 1, .step_size = 1e-9f, .denom = 1 };
	const size_t most =
		4 * width * rows > VOCAB_EVEN * width ? 4 * width * rows : VOCAB_EVEN * width;
	int32_t *const t = malloc(rows * sizeof(*t));

	/* Every 25th token is the same, as in text. */
	for (size_t i = 0; i < rows; i++)
		t[i] = rand() % 25 ? rand() % VOCAB : 0;
	tokens = alloc(rows * sizeof(*t));
	b->ops->to_device(b, tokens, t, rows * sizeof(*t));
	free(t);
	x = acts(most);
	y = acts(most);
	z = acts(most);
	d = acts(most);
	w = acts(VOCAB_EVEN * width);
	small = acts(4 * width + 1);
	grad = floats((VOCAB_EVEN + seq) * width);
	stats = floats(rows * (2 + width / 64) + 4 * width);
	sum = alloc(sizeof(*sum));
	factor = floats(FILL);
	scale = factor;
	rate = alloc(sizeof(*rate));
	b->ops->to_device(b, rate, &slow, sizeof(slow));
	for (size_t i = 0; i < 3; i++)
		more[i] = floats(numel());
	weights = acts(numel());
}

int main(int argc, char **argv)
{
	struct backend_cuda_options options = { 0 };
	struct errmsg err = { "" };
	bool on_cpu = false;
	int o, rc;

	while ((o = getopt(argc, argv, "dcb:s:w:")) != -1) {
		options.deterministic |= o == 'd';
		on_cpu |= o == 'c';
		if (o == 'b')
			batch = strtoul(optarg, NULL, 10);
		else if (o == 's')
			seq = strtoul(optarg, NULL, 10);
		else if (o == 'w')
			width = strtoul(optarg, NULL, 10);
		else if (o == '?')
			return 2;
	}
	rows = batch * seq;
	rc = on_cpu ? backend_cpu_new(&b, DTYPE_BF16, 0, &err)
		    : backend_cuda_new(&b, DTYPE_BF16, &options, &err);
	if (rc) {
		fprintf(stderr, "gpuops: %s\n", err.text);
		return rc == -ENODEV ? 77 : 1;
	}
	make_operands();
	measure_all();
	printf("%-28s %25.2f ms: %.0f tokens/s\n", "a step, of these alone", all * 1e3,
	       (double)rows / all);
	return 0;
}
