/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/ops.h"

#include <math.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "tests/support/unit.h"

enum { UNLIMITED = 1, NOT_FINITE };

static struct backend_dropout drop_of(struct side *s, float p)
{
	static const uint64_t seed = 70;

	return (struct backend_dropout){
		.p = p,
		.seed = side_copy(s, &seed, sizeof(seed)),
		.skip = 7,
	};
}

static const float *half(struct side *s)
{
	static const float x = 0.5f;

	return side_copy(s, &x, sizeof(x));
}

static void flat(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const struct backend_adam adam = {
		.beta1 = 0.9,
		.beta2 = 0.999,
		.eps = 1e-8f,
		.l2 = 0.01f,
	};
	const struct backend_rate rate = {
		.decay = 0.999f,
		.step_size = 0.01f,
		.denom = 0.1f,
	};
	const size_t n = h->n[0];
	void *const x = side_act(s, n, 1), *const y = side_act(s, n, NAN);
	void *const w = side_act(s, n, h->how == NOT_FINITE ? 1 : NAN);
	float *const f = side_floats(s, n, 1), *const g = side_floats(s, n, 1);
	float *const m = side_floats(s, n, 0.1f), *const v = side_floats(s, n, 0);
	double *const sum = side_double(s, 0.5);
	float *const factor = side_floats(s, 1, NAN);

	o->dropout(s->b, x, n, 5, drop_of(s, 0.3f));
	o->round(s->b, y, f, n);
	o->add(s->b, y, x, n);
	side_widen(s, f, y, n);
	o->accumulate(s->b, f, g, n);
	o->sum_squares(s->b, sum, f, n);
	if (h->how == NOT_FINITE)
		o->sum_squares(s->b, sum, side_floats(s, 1, NAN), 1);
	o->clip(s->b, factor, sum, side_double(s, 0.25), h->how == UNLIMITED ? 0 : 0.5);
	o->adam(s->b, &adam, side_copy(s, &rate, sizeof(rate)), factor, w, f, m, v, g, n);
	side_show_act(s, "dropped", x, n);
	side_show_act(s, "sum", y, n);
	if (h->how != NOT_FINITE)
		side_show_double(s, "squares", sum);
	side_show_floats(s, "p", f, n);
	side_show_floats(s, "m", m, n);
	side_show_floats(s, "v", v, n);
	side_show_act(s, "weights", w, n);
	side_show_floats(s, "factor", factor, 1);
}

static const struct shape flats[] = {
	{ .n = { 1 } },
	{ .n = { 9 }, .how = UNLIMITED },
	{ .n = { 10 }, .how = NOT_FINITE },
	{ .n = { 64 } },
	{ .n = { 4099 } },
};

/* Elements: round to both 16-bit types and back, store and add. */
static void narrow(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t n = h->n[0];
	const enum dtype types[] = { DTYPE_BF16, DTYPE_F16 };
	float *const f = side_floats(s, n, 100);
	/* It has room for twice as many 16-bit numbers. */
	void *const half = side_floats(s, n, NAN);

	for (size_t i = 0; i < COUNT(types); i++) {
		float *const to = side_floats(s, n, NAN);
		float *const sum = side_floats(s, n, 1);

		o->narrow(s->b, QUEUE_COMPUTE, half, types[i], f, n);
		o->cast(s->b, QUEUE_COMPUTE, to, half, types[i], n, false);
		o->cast(s->b, QUEUE_COMPUTE, sum, half, types[i], n, true);
		side_show_floats(s, "there and back", to, n);
		side_show_floats(s, "added", sum, n);
	}
}

static const struct shape narrows[] = {
	{ .n = { 1 } },
	{ .n = { 4099 } },
	{ .n = { 8192 } },
};

/* n: rows, columns, elements of each. */
static void transpose(struct side *s, const struct shape *h)
{
	const size_t n = h->n[0] * h->n[1] * h->n[2];
	void *const x = side_act(s, n, 1), *const y = side_act(s, n, NAN);

	s->b->ops->transpose(s->b, y, x, h->n[0], h->n[1], h->n[2]);
	side_show_act(s, "transposed", y, n);
}

static const struct shape transposes[] = {
	{ .n = { 1, 1, 3 } },
	{ .n = { 3, 2, 1 } },
	{ .n = { 5, 4, 7 } },
	{ .n = { 2, 40, 16 } },
};

/* n: batch, positions, width, vocabulary. */
static void embed(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t batch = h->n[0], seq = h->n[1], c = h->n[2];
	const size_t vocab = h->n[3], n = batch * seq * c;
	const int32_t *const tokens = side_ints(s, batch * seq, (unsigned)vocab, false);
	void *const out = side_act(s, n, NAN);
	float *const dwte = side_floats(s, vocab * c, 1);
	float *const dwpe = side_floats(s, (seq + 2) * c, 1);

	o->embed(s->b, out, side_act(s, vocab * c, 1), side_act(s, seq * c, 1), tokens, batch, seq,
		 c);
	o->embed_grad(s->b, dwte, dwpe, side_act(s, n, 1), tokens, batch, seq, c);
	side_show_act(s, "out", out, n);
	side_show_floats(s, "dwte", dwte, vocab * c);
	side_show_floats(s, "dwpe", dwpe, (seq + 2) * c);
}

static const struct shape embeds[] = {
	{ .n = { 1, 1, 8, 2 } },
	{ .n = { 3, 5, 7, 4 } },
	{ .n = { 2, 17, 64, 300 } },
	/* more rows than a tile sorts, and a token in many of them */
	{ .n = { 11, 100, 16, 3 } },
	/* all rows have the same token */
	{ .n = { 3, 111, 40, 1 } },
	/* more than counting sorts: three runs of different lengths */
	{ .n = { 65, 256, 8, 50 } },
};

/* n: rows, width. */
enum { SUM = 1 };

static void norm(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], c = h->n[1], n = rows * c;
	void *const in = side_act(s, n, 1), *const w = side_act(s, c, 1);
	void *const out = side_act(s, n, NAN), *const din = side_act(s, n, 1);
	float *const stats = side_floats(s, 2 * rows, NAN);
	const float old = h->fresh ? NAN : 1;
	float *const dw = side_floats(s, c, old), *const db = side_floats(s, c, old);
	float *const was = h->how == SUM ? side_floats(s, c, old) : NULL;
	float *const is = h->how == SUM ? side_floats(s, c, old) : NULL;

	o->norm(s->b, out, stats, in, w, side_act(s, c, 1), rows, c, 1e-5f);
	o->norm_grad(s->b, din, dw, db, was, is, side_act(s, n, 1), in, stats, w, rows, c,
		     h->fresh);
	side_show_act(s, "out", out, n);
	side_show_act(s, "din", din, n);
	side_show_floats(s, "dweight", dw, c);
	side_show_floats(s, "dbias", db, c);
	if (was)
		side_show_floats(s, "din as it was, summed", was, c);
	if (is)
		side_show_floats(s, "din as it is, summed", is, c);
}

static const struct shape norms[] = {
	{ .n = { 1, 8 } },
	{ .n = { 5, 7 }, .how = SUM },
	{ .n = { 130, 64 }, .how = SUM, .fresh = true },
	{ .n = { 9, 520 }, .fresh = true },
	/* more than one chunk of rows */
	{ .n = { 203, 33 }, .how = SUM },
	/* the sums of this many columns do not fit in shared memory */
	{ .n = { 10, 20488 }, .how = SUM, .fresh = true },
};

/* n: rows, columns in and out. */
enum { PLAIN, RESIDUAL, GELU, NO_BIAS, APART };

static void linear(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], ic = h->n[1], oc = h->n[2];
	void *const in = side_act(s, rows * ic, 1);
	void *const w = side_act(s, ic * oc, 0.5f);
	void *const out = side_act(s, rows * oc, 1);
	void *const pre = h->how == GELU ? side_act(s, rows * oc, NAN) : NULL;
	/* The input of the activation. */
	void *const in_pre = h->how == GELU ? side_act(s, rows * ic, 2) : NULL;
	void *const din = side_act(s, rows * ic, NAN);
	const float old = h->fresh ? NAN : 1;
	float *const dw = side_floats(s, ic * oc, old);
	float *const db = side_floats(s, oc, h->how == NO_BIAS ? 1 : old);
	void *const dout = side_act(s, rows * oc, 1);

	o->linear(s->b, out, pre, in, w, side_act(s, oc, 1), h->how == RESIDUAL ? out : NULL, rows,
		  ic, oc);
	o->linear_grad(s->b, din, h->how == APART ? NULL : dw,
		       h->how == NO_BIAS || h->how == APART ? NULL : db, dout, in, in_pre, w, rows,
		       ic, oc, h->fresh);
	if (h->how == APART)
		o->linear_grad(s->b, NULL, dw, db, dout, in, in_pre, w, rows, ic, oc, h->fresh);
	side_show_act(s, "out", out, rows * oc);
	if (pre)
		side_show_act(s, "pre", pre, rows * oc);
	side_show_act(s, "din", din, rows * ic);
	side_show_floats(s, "dw", dw, ic * oc);
	side_show_floats(s, "dbias", db, oc);
}

static const struct shape linears[] = {
	{ .n = { 1, 8, 8 }, .how = PLAIN },
	{ .n = { 5, 3, 7 }, .how = GELU, .fresh = true },
	{ .n = { 33, 24, 40 }, .how = PLAIN },
	{ .n = { 33, 40, 24 }, .how = RESIDUAL },
	{ .n = { 70, 16, 64 }, .how = GELU },
	{ .n = { 33, 32, 16 }, .how = PLAIN, .fresh = true },
	{ .n = { 9, 16, 24 }, .how = NO_BIAS, .fresh = true },
	{ .n = { 33, 24, 40 }, .how = APART },
};

/* n: batch, positions, heads, elements of a head. */
static void attention(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t batch = h->n[0], seq = h->n[1], heads = h->n[2];
	const size_t c = heads * h->n[3], n = batch * seq * c;
	void *const qkv = side_act(s, 3 * n, 1), *const out = side_act(s, n, NAN);
	void *const dqkv = side_act(s, 3 * n, NAN);
	float *const stats = side_floats(s, batch * heads * seq, NAN);

	o->attention(s->b, out, stats, qkv, batch, seq, heads, c, drop_of(s, h->drop));
	o->attention_grad(s->b, dqkv, side_act(s, n, 1), out, stats, qkv, batch, seq, heads, c,
			  drop_of(s, h->drop));
	side_show_act(s, "out", out, n);
	side_show_act(s, "dqkv", dqkv, 3 * n);
}

static const struct shape attentions[] = {
	{ .n = { 1, 1, 1, 8 } },
	{ .n = { 2, 7, 3, 5 } },
	{ .n = { 1, 33, 2, 16 }, .drop = 0.2f },
	{ .n = { 2, 65, 1, 40 }, .drop = 0.2f },
	{ .n = { 1, 131, 1, 64 } },
	{ .n = { 1, 67, 1, 128 }, .drop = 0.2f },
	{ .n = { 1, 40, 1, 136 } },
	{ .n = { 1, 70, 1, 97 } },
	{ .n = { 1, 37, 1, 255 }, .drop = 0.2f },
	{ .n = { 2, 128, 2, 16 } },
	{ .n = { 3, 70, 1, 24 } },
};

/* Emulates two ranks that share the tokens, one after the other.  Calls for the loss alone record
 * each rank's sums of rows, so that later calls for gradients know those of both. */
struct by_turns {
	struct backend *b;
	float known[2][512];
	size_t at; /* rows of this call so far */
};

static void take_turn(const struct backend_group *g, const float *mine, size_t n, float *all)
{
	struct by_turns *const t = g->ctx;

	assert_true(t->at + n <= COUNT(t->known[0]));
	t->b->ops->to_host(t->b, &t->known[g->rank][t->at], mine, n * sizeof(*mine));
	for (unsigned r = 0; r < 2; r++)
		t->b->ops->to_device(t->b, all + r * n, &t->known[r][t->at], n * sizeof(*all));
	t->at += n;
}

/* Set targets for two ranks with vocab[] tokens each. */
static void share_targets(struct side *s, const int32_t *all, size_t rows, const size_t *vocab,
			  int32_t *const *of)
{
	const struct backend_ops *const o = s->b->ops;
	const int32_t first = (int32_t)vocab[0];
	int32_t x[2][128];

	assert_true(rows <= COUNT(x[0]));
	o->to_host(s->b, x[0], all, rows * sizeof(**x));
	for (size_t i = 0; i < rows; i++) {
		const int32_t t = x[0][i];

		if (t >= first)
			x[0][i] = TOKEN_ELSEWHERE;
		x[1][i] = t == TOKEN_NONE ? TOKEN_NONE : t < first ? TOKEN_ELSEWHERE : t - first;
	}
	for (unsigned r = 0; r < 2; r++)
		o->to_device(s->b, of[r], x[r], rows * sizeof(**x));
}

/* n: rows, width, vocabulary, tokens of the first rank. */
static void shared_cross_entropy(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], c = h->n[1], size = s->b->act_size;
	const size_t vocab[2] = { h->n[3], h->n[2] - h->n[3] };
	void *const din[2] = { side_act(s, rows * c, NAN), side_act(s, rows * c, NAN) };
	float *const dwte = side_floats(s, h->n[2] * c, 1);
	double *const loss[2] = { side_double(s, 0.25), side_double(s, 0.25) };
	const void *const in = side_act(s, rows * c, 1);
	const char *const wte = side_act(s, h->n[2] * c, 1);
	int32_t *const targets[2] = { side_ints(s, rows, 1, false), side_ints(s, rows, 1, false) };
	struct by_turns t = { .b = s->b };
	double *const unused = side_double(s, 0);

	share_targets(s, side_ints(s, rows, (unsigned)h->n[2], true), rows, vocab, targets);
	for (unsigned k = 0; k < 4; k++) {
		const unsigned r = k % 2;
		const size_t first = r ? vocab[0] * c : 0;
		const struct backend_group g = {
			.rank = r, .size = 2, .ctx = &t, .gather = take_turn
		};

		t.at = 0;
		o->cross_entropy(s->b, k < 2 ? unused : loss[r], k < 2 ? NULL : din[r],
				 k < 2 ? NULL : dwte + first, in, wte + first * size, targets[r],
				 rows, c, vocab[r], half(s), false, &g);
	}
	side_show_double(s, "loss", loss[0]);
	side_show_double(s, "the other's loss", loss[1]);
	side_show_floats(s, "dwte", dwte, h->n[2] * c);
	side_show_act(s, "din", din[0], rows * c);
	side_show_act(s, "the other's din", din[1], rows * c);
}

static const struct shape shared_heads[] = {
	{ .n = { 1, 8, 3, 2 } },
	{ .n = { 7, 5, 63, 32 } },
	{ .n = { 70, 16, 65, 1 } },
	{ .n = { 3, 8, 5000, 2504 } },
};

/* n: rows, width, vocabulary; `how`: only the loss. */
static void cross_entropy(struct side *s, const struct shape *h)
{
	const struct backend_ops *const o = s->b->ops;
	const size_t rows = h->n[0], c = h->n[1], vocab = h->n[2];
	void *const din = side_act(s, rows * c, NAN);
	float *const dwte = side_floats(s, vocab * c, h->fresh ? NAN : 1);
	double *const loss = side_double(s, 0.25);
	const void *const in = side_act(s, rows * c, 1);

	o->cross_entropy(s->b, loss, h->how ? NULL : din, h->how ? NULL : dwte, in,
			 side_act(s, vocab * c, 1), side_ints(s, rows, (unsigned)vocab, true), rows,
			 c, vocab, half(s), h->fresh, NULL);
	side_show_double(s, "loss", loss);
	side_show_floats(s, "dwte", dwte, vocab * c);
	if (!h->how)
		side_show_act(s, "din", din, rows * c);
}

static const struct shape heads[] = {
	{ .n = { 1, 8, 2 } },
	{ .n = { 7, 5, 63 }, .fresh = true },
	{ .n = { 70, 16, 65 }, .fresh = true },
	{ .n = { 70, 16, 65 }, .how = 1 },
	{ .n = { 3, 8, 5000 } },
};

const struct op narrowing = { "narrow", narrow, narrows, COUNT(narrows) };

const struct op ops[OPS] = {
	{ "flat", flat, flats, COUNT(flats) },
	{ "transpose", transpose, transposes, COUNT(transposes) },
	{ "embed", embed, embeds, COUNT(embeds) },
	{ "norm", norm, norms, COUNT(norms) },
	{ "linear", linear, linears, COUNT(linears) },
	{ "attention", attention, attentions, COUNT(attentions) },
	{ "cross_entropy", cross_entropy, heads, COUNT(heads) },
	{ "shared_cross_entropy", shared_cross_entropy, shared_heads, COUNT(shared_heads) },
};

const struct op *op_named(const char *name)
{
	size_t i;

	for (i = 0; strcmp(ops[i].name, name) != 0; i++)
		;
	return &ops[i];
}
