/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts of a re-cut.  They are spread over as many expert-parallel ranks as before or, if the new
 * number of ranks is no multiple of that, over the greatest common divisor, which must be the
 * `ep_size` of the model that loads them.  A new rank then has the experts of several old ones: it
 * has more native experts, or AutoEP's tensors grow.  Layers with equal ep_size then share a group,
 * in the order of the model (deepspeed/moe/utils.py,
 * split_params_into_different_moe_groups_for_optimizer).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/experts.h"
#include "ckpt/views/recut_impl.h"

/* max_group_size: larger groups are split. */
#define GROUP_ELEMENTS_MAX 178956971u

unsigned recut_degree(unsigned degree, unsigned ranks)
{
	unsigned a = degree, b = ranks;

	while (b) {
		const unsigned rest = a % b;

		a = b;
		b = rest;
	}
	return a;
}

static unsigned new_degree(const struct recutter *b, const struct slice_group *g)
{
	return recut_degree(g->degree, b->s->ranks * g->lanes);
}

static int refuse(const struct recutter *b, const char *why)
{
	return errmsg_set(b->err, -ENOTSUP,
			  "%s: the experts cannot be spread over other ranks: %s", b->s->c->path, why);
}

/* Are an AutoEP layer's experts numbered rank after rank, as they would be on fewer ranks? */
static bool is_plain(const struct expert_layer *l)
{
	if (l->maps || (l->fused && l->local * l->degree != l->n))
		return false;
	for (unsigned e = 0; l->places && e < l->n; e++)
		if (l->places[e].rank != e / l->local || l->places[e].index != e % l->local)
			return false;
	return true;
}

static int check_group(const struct recutter *b, const struct slice_group *g)
{
	for (size_t i = 0; i < g->n; i++)
		if (!g->slices[i]->layer)
			return refuse(b, "one has a parameter without elements");
		else if (!is_plain(g->slices[i]->layer))
			return refuse(b, "expert_placement is not in the order of their numbers");
	return 0;
}

static int merge_groups(struct recutter *b)
{
	const struct slice_group *v = b->t->groups;
	bool fewer = false;
	int rc = 0;

	for (size_t g = 0; !rc && g < b->t->ngroups; g++)
		if (new_degree(b, &v[g]) != v[g].degree) {
			fewer = true;
			rc = check_group(b, &v[g]);
		}
	for (uint32_t g = 0; !rc && fewer && g < b->t->ngroups; g++)
		for (uint32_t h = 0; !rc && v[g].n && v[g].slices[0]->layer && h < g; h++) {
			if (!v[h].n || !v[h].slices[0]->layer ||
			    new_degree(b, &v[g]) != new_degree(b, &v[h]))
				continue;
			if (v[g].degree == v[h].degree || (b->s->c->facts.round_robin && !b->bf16))
				return refuse(b, "their groups are several of one ep_size, or dealt"
						 " (round_robin_gradients)");
			b->param_group[g] = b->param_group[h];
			break;
		}
	return rc;
}

static int by_layer(const void *a, const void *b)
{
	const struct recut_param *x = a, *y = b;
	const struct expert_layer *l = x->slice->layer, *m = y->slice->layer;

	return ORDER(l, m) ?: ORDER(x->slice->index, y->slice->index);
}

/* Append the parameters [i, end) of a layer as they are on a rank that replaces `k` old ones. */
static void add_layer(struct recut_group *g, const struct recut_param *from, size_t i, size_t end,
		      unsigned k)
{
	const bool fused = from[i].slice->layer->fused;

	for (unsigned ep = 0; ep < (fused ? 1 : k); ep++)
		for (size_t j = i; j < end; j++) {
			struct recut_param *p = &g->params[g->n++];

			*p = from[j];
			p->ep = ep;
			p->times = fused ? k : 1;
		}
}

int recut_widen(const struct recutter *b, struct recut_group *g)
{
	const unsigned degree = recut_degree(g->stripe.degree, b->s->ranks * g->stripe.lanes);
	struct recut_param *from = g->params;
	const size_t n = g->n;
	uint64_t numel = 0;
	size_t most = 0;

	g->stripe.degree = degree;
	for (size_t i = 0; i < n; i++)
		most += b->t->groups[from[i].slice->group].degree / degree;
	if (most == n)
		return 0;
	g->params = recut_alloc(b, most, sizeof(*g->params));
	if (!g->params)
		return -ENOMEM;
	g->n = 0;
	/* Joined groups follow each other. */
	if (from[0].slice->group != from[n - 1].slice->group)
		qsort(from, n, sizeof(*from), by_layer);
	for (size_t i = 0, end; i < n; i = end) {
		const unsigned k = b->t->groups[from[i].slice->group].degree / degree;

		for (end = i; end < n && from[end].slice->layer == from[i].slice->layer; end++)
			numel += from[end].slice->numel * k;
		add_layer(g, from, i, end, k);
	}
	return numel <= GROUP_ELEMENTS_MAX ? 0 : refuse(b, "DeepSpeed would divide their group");
}

const char *recut_param_name(const struct recut_param *p, char name[EXPERT_NAME_MAX])
{
	const struct expert_layer *l = p->slice->layer;

	if (!p->ep)
		return p->slice->name;
	experts_key(l, experts_number(l, p->ep, p->slice->expert), p->slice->rest, name);
	return name;
}

/* Check that the files of experts exist that the ranks of a tensor-parallel rank would load.  If
 * all ranks share the experts, DeepSpeed's own layers have one file, named after the rank that
 * saved it. */
static int check_layer(const struct recutter *b, const struct experts *x, size_t layer)
{
	const struct checkpoint *c = b->s->c;
	const struct expert_layer *l = &x->layers[layer];
	const unsigned degree = recut_degree(experts_degree(l), b->s->ranks * l->lanes);
	const unsigned k = experts_degree(l) / degree; /* old ranks that a new one replaces */
	const struct rank_stripe stripe =
		rank_stripe_of(b->s->ranks, degree, l->lanes, x->data_first);
	struct ckname id = { .kind = CKPT_FILE_EXPERT, .mp = b->mp, .layer = (unsigned)layer };
	char name[NAME_MAX + 1];

	for (unsigned d = 0; l->lanes > 1 && d < b->s->ranks; d++) {
		const unsigned which = rank_stripe_place(&stripe, b->mp, d).which;

		for (id.expert = 0; id.expert < l->n; id.expert++)
			if (experts_place(l, id.expert).rank / k == which &&
			    !ckpt_files_find(c->experts, c->nexperts, &id)) {
				names_format(id, false, name);
				return errmsg_set(b->err, -ENOTSUP,
					"%s/%s is missing: %u data-parallel ranks load it, which those that saved do not write",
					c->path, name, b->s->ranks);
			}
		/* From here on the ranks repeat. */
		if (!stripe.data_first && d == degree)
			break;
	}
	return 0;
}

int recut_check_experts(struct recutter *b)
{
	const struct checkpoint *c = b->s->c;
	const struct experts *x = c->moe ? c->moe[b->mp / c->tp] : NULL;
	int rc = 0;

	for (size_t g = 0; b->s->stage == 3 && g < b->t->ngroups; g++)
		if (new_degree(b, &b->t->groups[g]) != b->t->groups[g].degree)
			return errmsg_set(b->err, -ENOTSUP,
					  "%s: the experts are spread over %u ranks: with ZeRO-3, %u"
					  " must be a multiple of that",
					  c->path, b->t->groups[g].degree,
					  b->s->ranks * b->t->groups[g].lanes);
	for (size_t i = 0; !rc && b->s->stage != 3 && x && i < x->n; i++)
		rc = check_layer(b, x, i);
	return rc || b->s->stage == 3 ? rc : merge_groups(b);
}
