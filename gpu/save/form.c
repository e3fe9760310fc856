/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Megatron's flat groups have other elements on a rank than ours: two groups
 * instead of one, but in stage 3, transposed matrices, and rows of query_key_value in
 * another order.  Parameter by parameter, all data-parallel ranks get the whole of it, and
 * each keeps what is its own in Megatron's order.
 *
 * The embedding is a module of the first and of the last stage.  They share the
 * token embedding alone: the last stage's positions have no use, no gradient and
 * no moments, but are in its groups.
 */
#include "gpu/save/form.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/zero/zero.h"

static void add_tensor(struct form *f, const struct gpt2 *m, size_t i, bool dead)
{
	struct form_tensor *const x = &f->tensors[f->ntensors++];

	naming_tensor(&x->t, &f->naming, m, &m->params[i]);
	x->param = dead ? FORM_DEAD : i;
}

/* The embedding of positions is whole on every rank. */
static int add_dead_positions(struct form *f, struct errmsg *err)
{
	struct gpt2 whole;
	const int rc = gpt2_init(&whole, &f->zero->model->config, err);

	if (rc)
		return rc;
	add_tensor(f, &whole, GPT2_WPE, true);
	gpt2_done(&whole);
	return 0;
}

static int add_tensors(struct form *f, struct errmsg *err)
{
	const struct gpt2 *const m = f->zero->model;
	const bool dead = f->naming.family != NAMING_HF && m->part.stage &&
			  m->part.stage + 1 == m->part.stages;
	int rc = 0;

	f->tensors = calloc(m->nparams + 1, sizeof(*f->tensors));
	if (!f->tensors)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < m->nparams && !rc; i++) {
		add_tensor(f, m, i, false);
		if (dead && i == GPT2_WTE)
			rc = add_dead_positions(f, err);
	}
	return rc;
}

static int partition_group(struct form *f, struct form_group *g,
			   struct errmsg *err)
{
	const struct zero *const z = f->zero;
	uint64_t *const numel = calloc(f->ntensors, sizeof(*numel));
	int rc;

	if (!numel)
		return errmsg_nomem(err, NULL);
	for (size_t i = 0; i < g->n; i++)
		numel[i] = f->tensors[g->tensors[i]].t.numel;
	rc = partition_init(&g->partition, z->stage == 3, numel, NULL, g->n,
			    z->stage ? z->comm->size : 1);
	free(numel);
	return rc ? errmsg_set(err, rc, "the groups cannot be partitioned") : 0;
}

static int alloc_group(struct form_group *g, struct errmsg *err)
{
	const uint64_t n = g->partition.size;

	g->master = calloc(n, sizeof(*g->master));
	g->exp_avg = calloc(n, sizeof(*g->exp_avg));
	g->exp_avg_sq = calloc(n, sizeof(*g->exp_avg_sq));
	return g->master && g->exp_avg && g->exp_avg_sq
		       ? 0
		       : errmsg_nomem(err, NULL);
}

/* Megatron tells matrices from others by the shape that a parameter has when its
 * groups are made.  In stage 3 all are empty vectors then, in one group. */
static int add_groups(struct form *f, struct errmsg *err)
{
	const bool one = f->zero->stage == 3;
	int rc = 0;

	f->ngroups = one ? 1 : naming_groups(f->naming.family);
	f->groups = calloc(f->ngroups, sizeof(*f->groups));
	if (!f->groups)
		return errmsg_nomem(err, NULL);
	for (unsigned k = 0; k < f->ngroups && !rc; k++) {
		struct form_group *const g = &f->groups[k];

		g->tensors = calloc(f->ntensors, sizeof(*g->tensors));
		if (!g->tensors)
			return errmsg_nomem(err, NULL);
		for (size_t i = 0; i < f->ntensors; i++)
			if (one || f->tensors[i].t.group == k)
				g->tensors[g->n++] = i;
		rc = partition_group(f, g, err);
		if (!rc && !f->from)
			rc = alloc_group(g, err);
	}
	return rc;
}

struct fragment form_fragment(const struct form *f, const struct form_group *g,
			      size_t i)
{
	return partition_fragment(&g->partition, i, f->zero->part);
}

bool form_writes_layer(const struct form *f, unsigned layer)
{
	return layer % f->zero->comm->size == f->zero->comm->rank;
}

/* Does this rank write the weights of a tensor? */
static bool writes_weights(const struct form *f, const struct form_tensor *x)
{
	const struct gpt2 *const m = f->zero->model;

	/* The first stage writes the embedding.  In ZeRO-3 the shards have the
	 * weights. */
	if (x->param == FORM_DEAD || f->zero->stage == 3 ||
	    (m->params[x->param].unit == GPT2_UNIT_EMBED && m->part.stage))
		return false;
	return f->naming.family == NAMING_MEGATRON
		       ? form_writes_layer(f, x->t.layer)
		       : f->zero->comm->rank == 0;
}

/* A tensor, in our order and in that of the files. */
struct scratch {
	float *ours, *theirs;
};

static int alloc_copies(struct form *f, struct scratch *s, struct errmsg *err)
{
	uint64_t most = 0;

	for (size_t i = 0; i < f->ntensors; i++) {
		struct form_tensor *const x = &f->tensors[i];

		if (x->t.numel > most)
			most = x->t.numel;
		if (!writes_weights(f, x))
			continue;
		x->weights = malloc(x->t.numel * sizeof(*x->weights));
		if (!x->weights)
			return errmsg_nomem(err, NULL);
	}
	s->ours = malloc(most * sizeof(*s->ours));
	s->theirs = malloc(most * sizeof(*s->theirs));
	return s->ours && s->theirs ? 0 : errmsg_nomem(err, NULL);
}

/* Copy one state of a group's i-th tensor to its place in `part`. */
static void copy_state(const struct form *f, const struct form_group *g,
		       size_t i, const float *state, const struct scratch *s,
		       float *part)
{
	const struct form_tensor *const x = &f->tensors[g->tensors[i]];
	const struct fragment own = form_fragment(f, g, i);

	zero_collect(f->zero, state, x->param, s->ours);
	naming_arrange(&x->t, s->theirs, s->ours);
	memcpy(part + own.start, s->theirs + own.first,
	       own.numel * sizeof(*part));
}

/* Moments and masters of what is dead stay zero. */
static void copy_all(const struct form *f, const struct scratch *s)
{
	const struct zero *const z = f->zero;

	for (unsigned k = 0; k < f->ngroups; k++) {
		const struct form_group *const g = &f->groups[k];

		for (size_t i = 0; i < g->n; i++) {
			struct form_tensor *const x = &f->tensors[g->tensors[i]];

			if (x->param == FORM_DEAD)
				continue;
			copy_state(f, g, i, z->exp_avg, s, g->exp_avg);
			copy_state(f, g, i, z->exp_avg_sq, s, g->exp_avg_sq);
			copy_state(f, g, i, z->master, s, g->master);
			if (x->weights)
				memcpy(x->weights, s->theirs,
				       x->t.numel * sizeof(*x->weights));
		}
	}
}

static int make_copies(struct form *f, struct errmsg *err)
{
	struct scratch s = { NULL, NULL };
	const int rc = comm_agree(f->zero->world, alloc_copies(f, &s, err), err);

	if (!rc)
		copy_all(f, &s);
	free(s.ours);
	free(s.theirs);
	return rc;
}

/* The device's memory has Hugging Face's one group. */
static void borrow(struct form *f)
{
	const struct zero *const z = f->zero;

	assert(f->ngroups == 1);
	f->groups->master = z->master;
	f->groups->exp_avg = z->exp_avg;
	f->groups->exp_avg_sq = z->exp_avg_sq;
}

int form_init(struct form *f, const struct zero *z, const struct naming *n,
	      struct errmsg *err)
{
	int rc;

	*f = (struct form){
		.naming = *n,
		.zero = z,
		.from = n->family == NAMING_HF ? z->backend : NULL,
	};
	rc = add_tensors(f, err);
	if (!rc)
		rc = add_groups(f, err);
	rc = comm_agree(z->world, rc, err);
	if (!rc && f->from)
		borrow(f);
	else if (!rc)
		rc = make_copies(f, err);
	if (rc)
		form_done(f);
	return rc;
}

void form_done(struct form *f)
{
	for (unsigned k = 0; f->groups && k < f->ngroups; k++) {
		struct form_group *const g = &f->groups[k];

		free(g->tensors);
		partition_done(&g->partition);
		if (f->from)
			continue;
		free(g->master);
		free(g->exp_avg);
		free(g->exp_avg_sq);
	}
	for (size_t i = 0; i < f->ntensors; i++)
		free(f->tensors[i].weights);
	free(f->tensors);
	free(f->groups);
	*f = (struct form){ 0 };
}
