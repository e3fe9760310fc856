/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank's elements in Megatron's flat groups differ from ours: Megatron has two groups instead of
 * one (except in stage 3), transposed matrices, and another row order of query_key_value.  For each
 * parameter, all data-parallel ranks gather the whole, and each keeps its own elements in
 * Megatron's order.
 *
 * The embedding is a module of the first and of the last stage.  They share only the token
 * embedding: the last stage's position embedding is unused, without gradient and moments, but it is
 * in the stage's groups.
 */
#include <assert.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/save/save_impl.h"

static void add_tensor(struct state_order *f, const struct gpt2 *m, size_t i, bool dead)
{
	struct order_tensor *const x = &f->tensors[f->ntensors++];

	naming_tensor(&x->t, &f->naming, m, &m->params[i]);
	x->param = dead ? FORM_DEAD : i;
}

/* Every rank has the whole position embedding. */
static int add_dead_positions(struct state_order *f, struct errmsg *err)
{
	struct gpt2 whole;
	const int rc = gpt2_init(&whole, &f->zero->model->config, err);

	if (rc)
		return rc;
	add_tensor(f, &whole, GPT2_WPE, true);
	gpt2_done(&whole);
	return 0;
}

static int add_tensors(struct state_order *f, struct errmsg *err)
{
	const struct gpt2 *const m = f->zero->model;
	const bool dead = f->naming.family != NAMING_HF && m->part.stage &&
			  m->part.stage + 1 == m->part.stages;
	int rc = 0;

	f->tensors = arena_alloc(&f->memory, (m->nparams + 1) * sizeof(*f->tensors));
	if (!f->tensors)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < m->nparams && !rc; i++) {
		add_tensor(f, m, i, false);
		if (dead && i == GPT2_WTE)
			rc = add_dead_positions(f, err);
	}
	return rc;
}

static int partition_group(struct state_order *f, struct order_group *g, struct errmsg *err)
{
	const struct zero *const z = f->zero;
	uint64_t *const numel = arena_alloc(&f->memory, f->ntensors * sizeof(*numel));
	int rc;

	if (!numel)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < g->n; i++)
		numel[i] = f->tensors[g->tensors[i]].t.numel;
	rc = partition_init(&g->partition, z->stage == 3, numel, NULL, g->n,
			    z->stage ? z->comm->size : 1);
	return rc ? errmsg_set(err, rc, "the groups cannot be partitioned") : 0;
}

/* Allocate this rank's part of a state of the group. */
static float *alloc_state(struct state_order *f, const struct order_group *g)
{
	return arena_alloc(&f->memory, g->partition.size * sizeof(float));
}

/* Megatron distinguishes matrices by a parameter's shape when it builds the groups.  In stage 3 all
 * parameters are empty vectors at that time, so there is one group. */
static int add_groups(struct state_order *f, struct errmsg *err)
{
	const bool one = f->zero->stage == 3;
	int rc = 0;

	f->ngroups = one ? 1 : naming_groups(f->naming.family);
	f->groups = arena_alloc(&f->memory, f->ngroups * sizeof(*f->groups));
	for (unsigned k = 0; f->groups && k < f->ngroups && !rc; k++) {
		struct order_group *const g = &f->groups[k];

		g->tensors = arena_alloc(&f->memory, f->ntensors * sizeof(*g->tensors));
		for (size_t i = 0; g->tensors && i < f->ntensors; i++)
			if (one || f->tensors[i].t.group == k)
				g->tensors[g->n++] = i;
		rc = partition_group(f, g, err);
		if (rc || f->from)
			continue;
		g->master = alloc_state(f, g);
		g->exp_avg = alloc_state(f, g);
		g->exp_avg_sq = alloc_state(f, g);
	}
	return !rc && f->memory.failed ? errmsg_nomem(err, NULL) : rc;
}

/* Does this rank write the weights of a tensor? */
static bool writes_weights(const struct state_order *f, const struct order_tensor *x)
{
	const struct gpt2 *const m = f->zero->model;

	/* The first stage writes the embedding.  In ZeRO-3 the shards have the weights.
	 * Data-parallel ranks take turns with the layers of a pipeline, as in DeepSpeed. */
	if (x->param == FORM_DEAD || f->zero->stage == 3 ||
	    (m->params[x->param].unit == GPT2_UNIT_EMBED && m->part.stage))
		return false;
	return f->zero->comm->rank ==
	       (f->naming.family == NAMING_MEGATRON ? x->t.layer % f->zero->comm->size : 0);
}

/* Buffers for a tensor: in our order, and in the files' order. */
struct scratch {
	float *ours, *theirs;
};

static int alloc_copies(struct state_order *f, struct scratch *s, struct arena *a, struct errmsg *err)
{
	uint64_t most = 0;

	for (size_t i = 0; i < f->ntensors; i++) {
		struct order_tensor *const x = &f->tensors[i];

		if (x->t.numel > most)
			most = x->t.numel;
		if (writes_weights(f, x))
			x->weights = arena_alloc(&f->memory, x->t.numel * sizeof(*x->weights));
	}
	s->ours = arena_alloc(a, most * sizeof(*s->ours));
	s->theirs = arena_alloc(a, most * sizeof(*s->theirs));
	return a->failed || f->memory.failed ? errmsg_nomem(err, NULL) : 0;
}

/* Copy a state of a group's i-th tensor to its place in `part`. */
static void copy_state(const struct state_order *f, const struct order_group *g, size_t i,
		       const float *state, const struct scratch *s, float *part)
{
	const struct order_tensor *const x = &f->tensors[g->tensors[i]];
	const struct fragment own = partition_fragment(&g->partition, i, f->zero->part);

	zero_collect(f->zero, state, x->param, s->ours);
	naming_arrange(&x->t, s->theirs, s->ours);
	memcpy(part + own.start, s->theirs + own.first, own.numel * sizeof(*part));
}

/* Masters and moments of dead parameters stay zero. */
static void copy_all(const struct state_order *f, const struct scratch *s)
{
	const struct zero *const z = f->zero;

	for (unsigned k = 0; k < f->ngroups; k++) {
		const struct order_group *const g = &f->groups[k];

		for (size_t i = 0; i < g->n; i++) {
			struct order_tensor *const x = &f->tensors[g->tensors[i]];

			if (x->param == FORM_DEAD)
				continue;
			copy_state(f, g, i, z->exp_avg, s, g->exp_avg);
			copy_state(f, g, i, z->exp_avg_sq, s, g->exp_avg_sq);
			copy_state(f, g, i, z->master, s, g->master);
			if (x->weights)
				memcpy(x->weights, s->theirs, x->t.numel * sizeof(*x->weights));
		}
	}
}

static int make_copies(struct state_order *f, struct errmsg *err)
{
	struct arena a = { 0 };
	struct scratch s;
	const int rc = comm_agree(f->zero->world, alloc_copies(f, &s, &a, err), err);

	if (!rc)
		copy_all(f, &s);
	arena_done(&a);
	return rc;
}

/* Use the device's memory, which has Hugging Face's single group. */
static void borrow(struct state_order *f)
{
	const struct zero *const z = f->zero;

	assert(f->ngroups == 1);
	f->groups->master = z->master;
	f->groups->exp_avg = z->exp_avg;
	f->groups->exp_avg_sq = z->exp_avg_sq;
}

int state_order_init(struct state_order *f, const struct zero *z, const struct naming *n, struct errmsg *err)
{
	int rc;

	*f = (struct state_order){
		.naming = *n,
		.zero = z,
		.from = n->family == NAMING_HF ? z->backend : NULL,
	};
	rc = comm_agree(z->world, add_tensors(f, err) ?: add_groups(f, err), err);
	if (!rc && f->from)
		borrow(f);
	else if (!rc)
		rc = make_copies(f, err);
	if (rc)
		state_order_done(f);
	return rc;
}

void state_order_done(struct state_order *f)
{
	for (unsigned k = 0; f->groups && k < f->ngroups; k++)
		partition_done(&f->groups[k].partition);
	arena_done(&f->memory);
	*f = (struct state_order){ 0 };
}
