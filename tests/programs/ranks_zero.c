/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results that must not depend on the distribution; run by mpirun on any number of ranks
 * (cases/train/zero.sh).  A model is trained for a few steps with gradients given by a formula
 * whose sums are exact in any order: all stages must end with the same master weights, bit for
 * bit, on any number of ranks.  With zero_sum_exactly, gradients may be anything.  Prints a
 * digest of the masters for each stage.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/topology.h"
#include "gpu/model/gpt2.h"
#include "gpu/watch/watch.h"
#include "gpu/zero/zero.h"
#include "tests/support/apart.h"
#include "tests/support/update.h"

/* Six messages of comm_mpi.c as it is built for this program (local.mk). */
#define EXCHANGED ((size_t)5 * 65536 + 7)

#define MICRO_BATCHES 12u /* micro-batches of a step, over all ranks; divisible by 1 to 4 */
#define STEPS 3u
#define LR 0.05
#define SEED 7

static int failures;

static void check(const struct comm *c, int ok, const char *what)
{
	if (!ok) {
		fprintf(stderr, "rank %u of %u: %s\n", c->rank, c->size, what);
		failures++;
	}
}

static void sums_of_floats(struct comm *c)
{
	float x[7];
	bool right = true;

	for (unsigned i = 0; i < 7; i++)
		x[i] = (float)(i + 10 * c->rank);
	comm_sum(c, x, 7, DTYPE_F32);
	for (unsigned i = 0; i < 7; i++)
		right &= x[i] == (float)(i * c->size + 5 * c->size * (c->size - 1));
	check(c, right, "sum of floats");
}

/* Rank r's part has r elements; rank 0's is empty. */
static void parts_of_any_length(struct comm *c)
{
	size_t n[64] = { 0 }, bytes[64], total = 0, start = 0;
	float parts[64 * 64] = { 0 }, mine[64], all[64 * 64];
	bool right = true;

	for (unsigned r = 0; r < c->size; r++) {
		n[r] = r;
		bytes[r] = r * sizeof(float);
		start += r < c->rank ? r : 0;
		total += r;
	}
	for (size_t i = 0; i < total; i++)
		parts[i] = (float)i;
	comm_reduce_scatter(c, parts, n, DTYPE_F32, mine);
	for (size_t i = 0; i < n[c->rank]; i++)
		right &= mine[i] == (float)((start + i) * c->size);
	check(c, right, "reduce-scatter");

	comm_all_gather(c, mine, bytes, all);
	for (size_t i = 0; i < total; i++)
		right &= all[i] == (float)(i * c->size);
	check(c, right, "all-gather");
}

static void agreement(struct comm *c)
{
	struct errmsg err = { "" };
	char last[32] = "the last";
	int rc;

	check(c, comm_agree(c, 0, &err) == 0, "agree that all is well");
	rc = comm_agree(c, errmsg_set(&err, -EIO, "all"), &err);
	check(c, rc == -EIO && !strcmp(err.text, "all"), "where all fail, no rank is named");
	if (c->size > 1)
		snprintf(last, sizeof(last), "rank %u: the last", c->size - 1);
	rc = c->rank == c->size - 1 ? errmsg_set(&err, -EIO, "the last") : 0;
	rc = comm_agree(c, rc, &err);
	check(c, rc == -EIO && !strcmp(err.text, last), "one rank's failure is everybody's");
}

/* Exchange more bytes than one message has, as for activations beyond 1 GiB.  One rank sends and
 * receives in one call; its neighbour needs two. */
static void exchange(struct comm *c)
{
	const size_t bytes = EXCHANGED;
	const unsigned peer = c->rank ^ 1;
	uint8_t *const out = malloc(bytes), *const in = calloc(1, bytes);
	bool right = true;

	for (size_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(i * 7 + c->rank);
	if (peer >= c->size) {
		/* this rank has no neighbour */
	} else if (c->rank > peer) {
		comm_exchange(c, peer, NULL, in, bytes);
		comm_exchange(c, peer, out, NULL, bytes);
	} else {
		comm_exchange(c, peer, out, in, bytes);
	}
	for (size_t i = 0; peer < c->size && i < bytes; i++)
		right &= in[i] == (uint8_t)(i * 7 + peer);
	check(c, right, "exchange");
	comm_broadcast(c, memset(in, (int)c->rank + 1, bytes), bytes, 0);
	check(c, in[0] == 1 && in[bytes - 1] == 1, "broadcast of many messages");
	free(out);
	free(in);
}

static void others(struct comm *c)
{
	double x[2] = { c->rank + 1, -(double)c->rank };
	double y = c->rank;
	int root = c->rank == c->size - 1 ? 42 : 0;

	comm_sum_double(c, x, 2);
	check(c, x[0] == c->size * (c->size + 1) / 2.0, "sum of doubles");
	comm_max_double(c, &y, 1);
	check(c, y == c->size - 1, "maximum");
	comm_broadcast(c, &root, sizeof(root), c->size - 1);
	check(c, root == 42, "broadcast");
	check(c, c->local_size == c->size, "all are on this machine");
}

/* Return the gradient of element e of the whole model in a micro-batch: a small integer, so that
 * sums are exact, or a fraction, so that float sums depend on the order. */
static float known_gradient(bool fraction, unsigned step, unsigned micro, uint64_t e)
{
	const float x = (float)((int)((e * 7 + micro * 5 + step * 3) % 23) - 11);

	return fraction ? x / (float)(3 + 4 * micro) : x;
}

static void add_gradients(struct zero *z, const struct network_weights *w, bool fractions,
			  unsigned step, unsigned micro)
{
	const struct gpt2 *m = z->model;
	uint64_t end = m->numel;

	/* Visit units like backward: the last one first, the embeddings also in between. */
	bool fresh_embed = false;
	float *embed = w->gradient(w->ctx, 0, &fresh_embed);

	for (size_t u = m->nunits; u-- > 0;) {
		const uint64_t n = m->units[u].numel;
		bool fresh = fresh_embed;
		float *g = u ? w->gradient(w->ctx, (unsigned)u, &fresh) : embed;
		float *add = malloc(n * sizeof(*add));

		end -= n;
		for (uint64_t i = 0; i < n; i++)
			add[i] = known_gradient(fractions, step, micro, end + i);
		for (uint64_t i = 0; !fresh && i < n; i++) {
			float old;

			z->backend->ops->to_host(z->backend, &old, g + i, sizeof(old));
			add[i] += old;
		}
		z->backend->ops->to_device(z->backend, g, add, n * sizeof(*add));
		free(add);
		w->complete(w->ctx, (unsigned)u);
	}
}

/* Gather all masters on every rank. */
static void collect(struct zero *z, float *all)
{
	uint64_t at = 0;

	for (size_t i = 0; i < z->model->nparams; i++) {
		const struct fragment f = zero_fragment(z, i);
		const uint64_t n = z->model->params[i].numel;
		float *x = calloc(n, sizeof(*x));

		z->backend->ops->to_host(z->backend, x + f.first, z->master + f.start,
					 f.numel * sizeof(*x));
		if (z->stage)
			comm_sum(z->comm, x, n, DTYPE_F32);
		memcpy(all + at, x, n * sizeof(*x));
		at += n;
		free(x);
	}
}

/* Acquired units have the values of the masters. */
static void check_weights(struct zero *z, const struct network_weights *w, const float *all)
{
	bool right = true;

	for (unsigned u = 0; u < z->model->nunits; u++) {
		const uint64_t n = z->model->units[u].numel;
		float *x = malloc(n * sizeof(*x));
		const void *unit = w->acquire(w->ctx, u);

		right &= w->acquire(w->ctx, u) == unit;
		z->backend->ops->to_host(z->backend, x, unit, n * sizeof(*x));
		w->release(w->ctx, u);
		w->release(w->ctx, u);
		right &= memcmp(x, all, n * sizeof(*x)) == 0;
		all += n;
		free(x);
	}
	check(z->comm, right, "weights are the masters");
}

static uint64_t digest(const void *p, size_t n)
{
	uint64_t h = UINT64_C(0xcbf29ce484222325);

	for (size_t i = 0; i < n; i++)
		h = (h ^ ((const uint8_t *)p)[i]) * UINT64_C(0x100000001b3);
	return h;
}

struct run {
	unsigned stage;
	enum dtype comm_dtype;
	bool at_boundary;
	double clip;
	bool exactly; /* sums fractions */
	float *all;   /* output: masters at the end */
	double norm;
};

static void train(struct topology *t, struct backend *b, const struct gpt2 *model, struct run *run)
{
	const struct zero_options o = {
		.stage = run->stage,
		.reduce_at_boundary = run->at_boundary,
		.comm_dtype = run->comm_dtype,
		.optimizer = { .kind = OPTIMIZER_ADAMW,
			       .beta1 = 0.9,
			       .beta2 = 0.999,
			       .eps = 1e-8,
			       .weight_decay = 0.01 },
	};
	struct comm *const c = t->world;
	struct network_weights w;
	struct zero_update u = { .lr = LR,
				 .clip = run->clip,
				 .grad_scale = MICRO_BATCHES / c->size };
	uint64_t before;
	struct zero z;

	check(c, !zero_init(&z, model, t, b, &o, NULL), "init");
	check(c, !run->exactly || !zero_sum_exactly(&z, NULL), "sums");
	check(c, !zero_init_weights(&z, SEED, NULL), "initial weights");
	before = z.memory.bytes;
	w = zero_weights(&z);
	for (unsigned step = 0; step < STEPS; step++) {
		for (unsigned k = c->rank; k < MICRO_BATCHES; k += c->size) {
			/* Reductions may start early, or only later. */
			if (step && k + c->size >= MICRO_BATCHES)
				zero_expect_last(&z);
			add_gradients(&z, &w, run->exactly, step, k);
		}
		check(c, !update_all(&z, &u, NULL), "update");
		check(c, !u.overflow, "no overflow");
	}
	run->norm = u.grad_norm;
	collect(&z, run->all);
	check_weights(&z, &w, run->all);

	/* A NaN in any gradient skips the step. */
	add_gradients(&z, &w, run->exactly, STEPS, c->rank);
	bool fresh;
	float *g = w.gradient(w.ctx, 1, &fresh);

	if (fresh)
		b->ops->zero(b, g, model->units[1].numel * sizeof(*g));
	if (c->rank == c->size - 1)
		b->ops->to_device(b, g, &(float){ NAN }, sizeof(*g));
	w.complete(w.ctx, 1);
	check(c, !update_all(&z, &u, NULL) && u.overflow && z.step == STEPS,
	      "overflow is found by all");
	check_weights(&z, &w, run->all);
	check(c, z.memory.bytes == before, "nothing was allocated on the way");
	zero_done(&z);
	check(c, z.memory.bytes == 0, "memory is given back");
}

/* Return the number of elements in units used at once: the embeddings, a block, between devices the
 * next one, and the last norm. */
static uint64_t in_use(const struct gpt2 *m, const struct comm *c, const struct backend *b)
{
	const bool direct = c->size > 1 && strncmp(b->device, "gpu", 3) == 0 && b->device[3];

	return m->units[0].numel + m->units[1].numel * (direct ? 2 : 1) +
	       m->units[m->nunits - 1].numel;
}

/* Print a rank's memory in bytes per parameter, and per parameter used at once. */
static void memory(struct topology *t, struct backend *b)
{
	static const struct {
		double whole, cut, used;
	} bytes[] = {
		{ 12 + 4 + 4, 0, 0 }, { 4 + 4, 12, 0 }, { 4, 12 + 4, 4 }, { 0, 12 + 4 + 4, 4 + 4 }
	};
	const struct gpt2_config config = {
		.n_layer = 2, .n_head = 2, .n_embd = 64, .vocab_size = 300, .n_positions = 16
	};
	struct comm *const c = t->world;
	struct gpt2 model;

	check(c, !gpt2_init(&model, &config, NULL), "model");
	for (unsigned stage = 0; stage < 4; stage++) {
		const double want =
			bytes[stage].whole + bytes[stage].cut / c->size +
			bytes[stage].used * (double)in_use(&model, c, b) / (double)model.numel;
		const struct zero_options o = { .stage = stage, .comm_dtype = DTYPE_F32 };
		struct zero z;
		double got;

		check(c, !zero_init(&z, &model, t, b, &o, NULL), "init");
		got = (double)z.memory.bytes / (double)model.numel;
		check(c, got < want * 1.01, "memory falls with the stage");
		check(c, got > want * 0.99, "all of it from the start");
		zero_done(&z);
	}
	gpt2_done(&model);
}

static void all_stages(struct topology *t, struct backend *b)
{
	/* Some parameters have fewer elements than there are ranks. */
	const struct gpt2_config config = {
		.n_layer = 2, .n_head = 1, .n_embd = 2, .vocab_size = 5, .n_positions = 3
	};
	struct run plain = { .comm_dtype = DTYPE_F32 };
	struct run clipped = { .comm_dtype = DTYPE_F32, .clip = 0.5 };
	struct run exact = { .comm_dtype = DTYPE_F32, .clip = 0.5, .exactly = true };
	/* 16 bits hold sums of small integers. */
	struct run bf16 = { .comm_dtype = DTYPE_BF16 };
	/* Stages 0 and 1 always do this; stage 3 refuses it. */
	struct run once = { .stage = 2, .comm_dtype = DTYPE_F32, .at_boundary = true };
	struct run fp16 = { .comm_dtype = DTYPE_F16, .clip = 0.5 };
	struct comm *const c = t->world;
	struct gpt2 model;
	float *first;

	check(c, !gpt2_init(&model, &config, NULL), "model");
	plain.all = calloc(model.numel, sizeof(float));
	clipped.all = calloc(model.numel, sizeof(float));
	exact.all = calloc(model.numel, sizeof(float));
	bf16.all = calloc(model.numel, sizeof(float));
	fp16.all = calloc(model.numel, sizeof(float));
	once.all = calloc(model.numel, sizeof(float));
	first = calloc(model.numel, sizeof(float));
	for (unsigned stage = 0; stage < 4; stage++) {
		plain.stage = clipped.stage = exact.stage = stage;
		train(t, b, &model, &plain);
		if (c->rank == 0)
			printf("stage %u: %016" PRIx64 " norm %.9g", stage,
			       digest(plain.all, model.numel * sizeof(float)), plain.norm);
		train(t, b, &model, &clipped);
		if (c->rank == 0)
			printf(" clipped %016" PRIx64,
			       digest(clipped.all, model.numel * sizeof(float)));
		train(t, b, &model, &exact);
		if (c->rank == 0)
			printf(" exactly %016" PRIx64 "\n",
			       digest(exact.all, model.numel * sizeof(float)));
		if (stage == 0)
			memcpy(first, plain.all, model.numel * sizeof(float));
		check(c, !memcmp(first, plain.all, model.numel * sizeof(float)),
		      "all stages agree");
		bf16.stage = fp16.stage = stage;
		train(t, b, &model, &bf16);
		check(c,
		      !memcmp(bf16.all, plain.all, model.numel * sizeof(float)) &&
			      bf16.norm == plain.norm,
		      "reduced in bfloat16");
		train(t, b, &model, &fp16);
		check(c, !memcmp(fp16.all, clipped.all, model.numel * sizeof(float)),
		      "reduced in float16");
	}
	free(plain.all);
	free(clipped.all);
	free(exact.all);
	free(bf16.all);
	train(t, b, &model, &once);
	check(c, !memcmp(once.all, first, model.numel * sizeof(float)), "reduced once per step");
	free(fp16.all);
	free(once.all);
	free(first);
	gpt2_done(&model);
}

/* Open the backend `name`. */
static int open_backend(struct backend **b, const char *name, unsigned rank, struct errmsg *err)
{
	if (strcmp(name, "cpu") == 0)
		return backend_cpu_new(b, DTYPE_F32, 1, err);
	*b = apart_backend(DTYPE_F32);
	/* Choose a device for each rank, or one that all share. */
	if (strcmp(name, "own") == 0)
		snprintf((*b)->device, sizeof((*b)->device), "gpu%u", rank);
	if (strcmp(name, "shared") == 0)
		snprintf((*b)->device, sizeof((*b)->device), "gpu");
	return 0;
}

int main(int argc, char **argv)
{
	struct errmsg err = { "" };
	struct backend *b = NULL;
	struct topology t;
	struct comm c;
	double failed;

	if (comm_init(&c, &argc, &argv, &err) ||
	    topology_init(&t, &c, &(struct topology_sizes){ 1, 1, 1 }, &err) ||
	    open_backend(&b, argc > 1 ? argv[1] : "cpu", c.rank, &err)) {
		fprintf(stderr, "%s\n", err.text);
		return 1;
	}
	/* The case has its own, longer limit. */
	if (getenv("NCCL_EMULATED_STUCK") && watch_start(c.rank, 8, &err))
		return 1;
	if (topology_connect(&t, b, &err))
		comm_abort(&c, &err);
	sums_of_floats(&c);
	parts_of_any_length(&c);
	agreement(&c);
	others(&c);
	exchange(&c);
	memory(&t, b);
	all_stages(&t, b);
	topology_disconnect(&t);
	topology_done(&t);
	b->ops->destroy(b);
	failed = failures;
	comm_sum_double(&c, &failed, 1);
	watch_stop();
	comm_done(&c);
	return failed > 0;
}
