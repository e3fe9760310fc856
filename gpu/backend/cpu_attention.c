/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Causal attention, one head and one block of queries at a time: the weights of a block are
 * computed, used and discarded; the backward pass recomputes them from the logarithm of each
 * row's sum.
 *
 * Rows of qkv are c_attn's output, 3 * c wide: queries, keys and values of all heads.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "gpu/backend/cpu.h"
#include "gpu/backend/cpu_math.h"
#include "gpu/backend/dropout.h"
#include "gpu/backend/splitmix.h"

#define QUERIES ((size_t)64) /* per block */

/* One head of one row of the batch. */
struct head {
	const float *q, *k, *v; /* rows `pitch` apart */
	size_t seq, width, pitch;
	float scale;
	float drop;
	uint64_t seed;
	struct cpu *cpu;
};

/* Replace a query's scores of the first `n` keys by weights.  Returns the logarithm of the sum of
 * exponentials. */
CPU_CLONES static float softmax_row(float *x, size_t n)
{
	const float top = cpu_largest(x, n);
	const float sum = cpu_exponentials(x, x, n, top);

	for (size_t i = 0; i < n; i++)
		x[i] /= sum;
	return top + logf(sum);
}

CPU_CLONES static void weights_again(float *x, size_t n, float log_sum)
{
	for (size_t i = 0; i < n; i++)
		x[i] = cpu_exp(x[i] - log_sum);
}

/* Drop weights of query `q`, or their gradients, by the same mask. */
static void drop_row(const struct head *h, float *x, size_t q)
{
	if (h->drop > 0)
		cpu_drop(x, q + 1, h->drop, splitmix64(h->seed, q), 0);
}

/* Scores of queries [q, q + n) against the first q + n keys. */
static void scores(const struct head *h, size_t q, size_t n, float *out, size_t ldo)
{
	cpu_gemm(h->cpu, NO_TRANS, TRANS, n, q + n, h->width, h->scale, h->q + q * h->pitch,
		 h->pitch, h->k, h->pitch, 0, out, ldo);
}

/* An operation on all heads.  The forward pass has no gradients. */
struct job {
	struct backend *b;
	size_t batch, seq, heads, c;
	const float *qkv, *out, *dout;
	float *dqkv, *written, *made_stats;
	const float *stats;
	struct backend_dropout drop;
};

/* Call `work` for every head, with `each` floats of scratch memory. */
static void for_each_head(const struct job *j, size_t each,
			  void (*work)(const struct job *j, size_t i, float *scratch))
{
	struct cpu *const cpu = (struct cpu *)j->b;
	const size_t parts = cpu->threads, all = j->batch * j->heads;
	float *const scratch = cpu_scratch(cpu, parts * each * sizeof(float));

	if (!scratch)
		return;
#pragma omp parallel for schedule(static, 1)
	for (size_t t = 0; t < parts; t++) {
		for (size_t i = all * t / parts; i < all * (t + 1) / parts; i++)
			work(j, i, scratch + t * each);
	}
}

static struct head head_of(const struct job *j, size_t i)
{
	const size_t width = j->c / j->heads;
	const float *const base = j->qkv + i / j->heads * j->seq * 3 * j->c + i % j->heads * width;

	return (struct head){
		.q = base,
		.k = base + j->c,
		.v = base + 2 * j->c,
		.seq = j->seq,
		.width = width,
		.pitch = 3 * j->c,
		.scale = 1.0f / sqrtf((float)width),
		.drop = j->drop.p,
		.seed = splitmix64(dropout_seed(&j->drop), i),
		.cpu = (struct cpu *)j->b,
	};
}

/* The offset of head i in a matrix with rows of `c`. */
static size_t head_start(const struct job *j, size_t i)
{
	assert(i < j->batch * j->heads);
	return i / j->heads * j->seq * j->c + i % j->heads * (j->c / j->heads);
}

static void attend(const struct job *j, size_t i, float *w)
{
	const struct head h = head_of(j, i);
	float *const out = j->written + head_start(j, i);
	float *const stats = j->made_stats + i * j->seq;

	for (size_t q = 0; q < h.seq; q += QUERIES) {
		const size_t n = h.seq - q < QUERIES ? h.seq - q : QUERIES;
		const size_t keys = q + n;

		scores(&h, q, n, w, h.seq);
		for (size_t k = 0; k < n; k++) {
			float *const row = w + k * h.seq;

			stats[q + k] = softmax_row(row, q + k + 1);
			drop_row(&h, row, q + k);
			memset(row + q + k + 1, 0, (keys - q - k - 1) * sizeof(*row));
		}
		cpu_gemm(h.cpu, NO_TRANS, NO_TRANS, n, h.width, keys, 1, w, h.seq, h.v, h.pitch, 0,
			 out + q * j->c, j->c);
		for (size_t k = 0; k < n; k++)
			cpu_round_to(h.cpu->base.dtype, out + (q + k) * j->c, h.width);
	}
}

void cpu_attention(struct backend *b, void *out, float *stats, const void *qkv, size_t batch,
		   size_t seq, size_t heads, size_t c, struct backend_dropout drop)
{
	const struct job j = {
		.b = b,
		.batch = batch,
		.seq = seq,
		.heads = heads,
		.c = c,
		.qkv = qkv,
		.written = out,
		.made_stats = stats,
		.drop = drop,
	};

	for_each_head(&j, QUERIES * seq, attend);
}

/* d = p * (d - delta) * scale: softmax and scaling, backward. */
CPU_CLONES static void softmax_row_grad(float *d, const float *p, size_t n, float delta,
					float scale)
{
	for (size_t i = 0; i < n; i++)
		d[i] = p[i] * (d[i] - delta) * scale;
}

CPU_CLONES static float dot(const float *a, const float *b, size_t n)
{
	float sum = 0;

#pragma omp simd reduction(+ : sum)
	for (size_t i = 0; i < n; i++)
		sum += a[i] * b[i];
	return sum;
}

/* Gradients `d` of the scores of queries [q, q + n) of a head, from the weights `p`.  On return
 * `p` has dropout applied. */
static void scores_grad(const struct head *h, const struct job *j, size_t head, size_t q, size_t n,
			float *p, float *d)
{
	const float *const out = j->out + head_start(j, head);
	const float *const dout = j->dout + head_start(j, head);
	const size_t keys = q + n;

	scores(h, q, n, p, h->seq);
	cpu_gemm(h->cpu, NO_TRANS, TRANS, n, keys, h->width, 1, dout + q * j->c, j->c, h->v,
		 h->pitch, 0, d, h->seq);
	for (size_t i = 0; i < n; i++) {
		const size_t valid = q + i + 1, row = q + i;
		float *const pr = p + i * h->seq, *const dr = d + i * h->seq;

		weights_again(pr, valid, j->stats[head * j->seq + row]);
		drop_row(h, dr, row);
		softmax_row_grad(dr, pr, valid, dot(out + row * j->c, dout + row * j->c, h->width),
				 h->scale);
		drop_row(h, pr, row);
		memset(pr + valid, 0, (keys - valid) * sizeof(*pr));
		memset(dr + valid, 0, (keys - valid) * sizeof(*dr));
	}
}

/* Go from the last block to the first: the last block sees all keys and overwrites their gradients,
 * and the others add to them. */
static void attend_grad(const struct job *j, size_t head, float *scratch)
{
	const struct head h = head_of(j, head);
	float *const dq = j->dqkv + (h.q - j->qkv);
	float *const dk = dq + j->c, *const dv = dk + j->c;
	const float *const dout = j->dout + head_start(j, head);
	float *const p = scratch, *const d = scratch + QUERIES * h.seq;
	size_t q = (h.seq - 1) / QUERIES * QUERIES, i;
	float beta = 0;

	for (;; q -= QUERIES) {
		const size_t n = h.seq - q < QUERIES ? h.seq - q : QUERIES;
		const size_t keys = q + n;

		scores_grad(&h, j, head, q, n, p, d);
		cpu_gemm(h.cpu, NO_TRANS, NO_TRANS, n, h.width, keys, 1, d, h.seq, h.k, h.pitch, 0,
			 dq + q * h.pitch, h.pitch);
		cpu_gemm(h.cpu, TRANS, NO_TRANS, keys, h.width, n, 1, d, h.seq, h.q + q * h.pitch,
			 h.pitch, beta, dk, h.pitch);
		cpu_gemm(h.cpu, TRANS, NO_TRANS, keys, h.width, n, 1, p, h.seq, dout + q * j->c,
			 j->c, beta, dv, h.pitch);
		beta = 1;
		if (q == 0)
			break;
	}
	for (i = 0; i < h.seq; i++) {
		cpu_round_to(h.cpu->base.dtype, dq + i * h.pitch, h.width);
		cpu_round_to(h.cpu->base.dtype, dk + i * h.pitch, h.width);
		cpu_round_to(h.cpu->base.dtype, dv + i * h.pitch, h.width);
	}
}

void cpu_attention_grad(struct backend *b, void *dqkv, const void *dout, const void *out,
			const float *stats, const void *qkv, size_t batch, size_t seq, size_t heads,
			size_t c, struct backend_dropout drop)
{
	const struct job j = {
		.b = b,
		.batch = batch,
		.seq = seq,
		.heads = heads,
		.c = c,
		.qkv = qkv,
		.out = out,
		.dout = dout,
		.dqkv = dqkv,
		.stats = stats,
		.drop = drop,
	};

	for_each_head(&j, 2 * QUERIES * seq, attend_grad);
}
