/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model, from the ranks' parameter tables: finds the ranks that hold each parameter, and the
 * rule that merges their slices (DeepSpeed 0.19.8, ds_to_universal.py main, extract_zero_shards,
 * merge_tp_slices). As in the converter, the rules come from the first model-states file.
 */
#include "ckpt/table/model.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/format/value.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/user_rules.h"

struct builder {
	struct model *m;
	const struct zero_dir *dir;
	const struct user_rules *user;
	const struct rank_object *object;
	struct merge_rules *rules;
	struct errmsg *err;
};

/* Return the recorded number of model-parallel ranks, a lower limit, if there are files of `mp`.
 * With DeepSpeed's mpu of Ulysses (parallel_state_sp), tp_degree is the number of sequence-parallel
 * ranks, which have no files of their own; mp_world_size is 1. */
static int64_t recorded_ranks(const struct rank_params *c, unsigned mp)
{
	int64_t n;

	if (c->tp_degree < 1 || c->pp_degree < 1 || (c->mp_world_size == 1 && mp == 1))
		return c->mp_world_size;
	if (__builtin_mul_overflow(c->tp_degree, c->pp_degree, &n))
		return INT64_MAX;
	return n > c->mp_world_size ? n : c->mp_world_size;
}

static size_t count_files(const struct ckpt_file *v, size_t n)
{
	size_t i = 0;

	while (i < n && v[i].id.layer == v[0].id.layer)
		i++;
	return i;
}

/* Each layer of a pipeline has one file per tensor-parallel rank. DeepSpeed's
 * converter counts only those of layer 1. */
static int count_slices(const struct builder *b, unsigned *slices)
{
	const struct ckpt_file *v = b->dir->layer;
	const size_t n = b->dir->nlayer, first = count_files(v, n);

	for (size_t i = first, k; i < n; i += k) {
		k = count_files(&v[i], n - i);
		if (k != first)
			return errmsg_set(b->err, -EBADMSG,
			"%s: layer %u has %zu files (%s, ...), but layer %u has %zu (%s, ...): of"
					  " how many tensor-parallel ranks?",
					  b->dir->path, v[0].id.layer, first, v[0].name,
					  v[i].id.layer, k, v[i].name);
	}
	*slices = (unsigned)first;
	return 0;
}

/* The tensor-parallel degree is recorded since 2026. Before, the number of
 * files of a pipeline's layer gives it. */
static int find_degrees(const struct builder *b)
{
	const struct rank_params *c = &b->m->ranks[0];
	const unsigned mp = b->dir->mp_degree;
	const int64_t ranks = recorded_ranks(c, mp);
	unsigned tp = mp;

	/* Without the last ranks' files the grid still looks complete. */
	if (ranks > mp)
		return errmsg_set(b->err, -EBADMSG, "%s: the files of model-parallel ranks %u to"
				  " %lld are missing: %s says that there were %lld",
				  b->dir->path, mp, (long long)ranks - 1, b->dir->model[0].name,
				  (long long)ranks);
	if (c->tp_degree > 0 && c->pp_degree > 0 && c->tp_degree * c->pp_degree == mp)
		tp = (unsigned)c->tp_degree;
	else if (b->dir->nlayer && count_slices(b, &tp))
		return -EBADMSG;
	if (mp % tp)
		return errmsg_set(b->err, -EBADMSG,
			"%s: %u model-parallel ranks cannot be of tensor-parallel degree %u",
				  b->dir->path, mp, tp);
	b->m->tp = tp;
	b->m->pp = mp / tp;
	/* DeepSpeed's pipeline engine asserts that the stage is below 2 (runtime/pipe/engine.py),
	 * so another program wrote this checkpoint. */
	if (b->m->pp > 1 && b->dir->zero3)
		return errmsg_set(b->err, -ENOTSUP,
			"%s: ZeRO-3 with pipeline parallelism, which DeepSpeed does not have",
				  b->dir->path);
	return 0;
}

static int find_experts(void *ctx, size_t mp, struct errmsg *err)
{
	const struct builder *b = ctx;

	return rank_params_find_experts(&b->m->ranks[mp], b->dir, b->m->tp, err);
}

/* A slice under its name in the whole model, or a tensor that the optimizer does not own. */
struct entry {
	const char *name;
	const struct slice *slice;
	const struct stored *module;
	unsigned mp, ep;
};

struct entries {
	struct entry *v;
	size_t n;
};

/* By name; of equal names the optimizer's come first, then by rank. */
static int model_by_name(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;
	const int order = x->name == y->name ? 0 : strcmp(x->name, y->name);

	return order ?: !y->module - !x->module ?: ORDER(x->mp, y->mp) ?: ORDER(x->ep, y->ep);
}

/* Check that a tensor-parallel rank has an expert's slice at the same place as the first rank of
 * its stage, because all of them share one group. */
static int check_place(const struct builder *b, const struct slice *s)
{
	const struct rank_params *own = &b->m->ranks[s->mp];
	const struct rank_params *first = &b->m->ranks[s->mp - s->mp % b->m->tp];
	const struct slice *x = slice_find(first->slices, first->nslices, s->name);

	if (x && x->layer && experts_degree(x->layer) == experts_degree(s->layer) &&
	    x->group == s->group && x->index == s->index &&
	    first->groups[x->group].n == own->groups[s->group].n && !SHAPE_ORDER(x, s))
		return 0;
	return errmsg_set(b->err, -EBADMSG,
		"parameter %s: model-parallel rank %u has it in another shape or at another place"
			  " than the others",
			  s->name, s->mp);
}

/* List an expert's slice once for each expert-parallel rank.  Every rank uses the same
 * names for its native experts; in the whole model they are numbered rank after
 * rank. */
static int list_expert(const struct builder *b, struct entries *to, const struct slice *s)
{
	struct arena *a = &b->m->arena;
	const struct expert_layer *l = s->layer;

	if (l->lanes > 1 && s->mp % b->m->tp)
		return check_place(b, s);

	for (unsigned ep = 0; ep < experts_degree(l); ep++) {
		struct slice *copy = arena_copy(a, s, sizeof(*s));
		const char *name = s->name;
		char key[EXPERT_NAME_MAX];

		if (!l->fused) {
			experts_key(l, experts_number(l, ep, s->expert), s->rest, key);
			name = arena_strdup(a, key);
		}
		if (!copy || !name)
			return errmsg_nomem(b->err, b->dir->path);
		if (!names_is_param(name))
			return errmsg_set(b->err, -ENOTSUP, "parameter %s: cannot be a file name",
					  name);
		copy->ep = ep;
		to->v[to->n++] = (struct entry){ name, copy, NULL, s->mp, ep };
	}
	return 0;
}

static int list_rank(const struct builder *b, struct entries *to, const struct rank_params *c)
{
	int rc = 0;

	for (size_t i = 0; rc >= 0 && i < c->nslices; i++) {
		const struct slice *s = &c->slices[i];

		rc = 0;
		if (s->layer)
			rc = list_expert(b, to, s);
		else if (c->mp >= b->m->tp)
			rc = merge_is_pipeline_replica(b->rules, s->name, b->err);
		if (!rc && !s->layer)
			to->v[to->n++] = (struct entry){ s->name, s, NULL, c->mp, 0 };
	}
	for (size_t i = 0; i < c->rest.n; i++) {
		const struct rank_entry *e = c->rest.v[i];

		if (e->universal)
			to->v[to->n++] = (struct entry){ e->name, NULL, e->stored, c->mp, 0 };
	}
	return rc < 0 ? rc : 0;
}

/* Add the parameter of `n` entries with the same name.  The first rank that has a tensor of the
 * module provides it, as in the converter. */
static int add_param(const struct builder *b, const struct entry *v, size_t n)
{
	struct model *m = b->m;
	const struct slice *first = v->slice;
	const struct expert_layer *l;
	struct param *p = &m->params[m->nparams++];

	*p = (struct param){ .name = v->name, .first = first, .module = v->module };
	if (v->module) {
		p->ndim = v->module->ndim;
		p->shape = v->module->shape;
		p->numel = v->module->numel;
		return 0;
	}
	l = first->layer;
	p->nslices = !l || l->lanes < m->tp ? m->tp : l->fused ? experts_degree(l) : 1;
	p->slices = arena_alloc(&m->arena, p->nslices * sizeof(*p->slices));
	for (size_t i = 0; p->slices && i < n; i++) {
		const struct slice *s = v[i].slice;
		const unsigned at = l && l->fused ? v[i].ep : p->nslices > 1 ? v[i].mp % m->tp : 0;

		/* A later pipeline stage that repeats a parameter is ignored. */
		if (!s || s->mp / m->tp != first->mp / m->tp)
			break;
		if (at >= p->nslices || p->slices[at])
			return errmsg_set(b->err, -EBADMSG,
			"parameter %s: several tensors of a rank have this name in the whole model",
					  p->name);
		p->slices[at] = s;
	}
	return p->slices ? 0 : errmsg_nomem(b->err, b->dir->path);
}

/* Return the largest number of entries that a rank can have. */
static size_t count_entries(const struct rank_params *c)
{
	size_t n = c->nslices + c->rest.n;

	for (size_t i = 0; i < c->nslices; i++)
		if (c->slices[i].layer)
			n += experts_degree(c->slices[i].layer);
	return n;
}

static int model_collect(const struct builder *b)
{
	struct model *m = b->m;
	const unsigned mp = b->dir->mp_degree;
	struct entries e = { 0 };
	size_t total = 0;
	int rc = 0;

	for (unsigned i = 0; i < mp; i++)
		total += count_entries(&m->ranks[i]);
	assert(m->tp * m->pp == mp);
	if (total > MODEL_PARAMS_MAX)
		return errmsg_set(b->err, -E2BIG, "%zu parameters", total);
	m->params = arena_alloc(&m->arena, (total + 1) * sizeof(*m->params));
	e.v = malloc((total + 1) * sizeof(*e.v));
	if (!m->params || !e.v)
		rc = errmsg_nomem(b->err, b->dir->path);
	for (unsigned i = 0; !rc && i < mp; i++)
		rc = list_rank(b, &e, &m->ranks[i]);
	if (!rc)
		qsort(e.v, e.n, sizeof(*e.v), model_by_name);
	for (size_t i = 0, end; !rc && i < e.n; i = end) {
		for (end = i + 1; end < e.n; end++)
			if (strcmp(e.v[i].name, e.v[end].name) != 0)
				break;
		rc = add_param(b, &e.v[i], end - i);
	}
	free(e.v);
	return rc;
}

/* Set the shape that universal files show. (Files of ZeRO-3 without tensor
 * parallelism are 1-D and do not use it.) */
static int model_set_shape(struct param *p, struct arena *a, const struct param **scaled,
			   struct errmsg *err)
{
	struct geometry g;
	int rc = geometry_init(&g, p, err);

	if (rc)
		return rc;
	p->shape = arena_copy(a, g.shape, g.ndim * sizeof(*g.shape));
	p->ndim = g.ndim;
	p->numel = g.numel;
	p->replicas = g.replicas;
	p->computed = g.mean || g.nscales;
	if (g.nscales)
		*scaled = p;
	geometry_done(&g);
	if (!p->shape)
		return errmsg_nomem(err, p->name);
	if (!p->merge.vocab)
		return 0;
	if (p->ndim != 2)
		return errmsg_set(err, -EBADMSG,
				  "parameter %s: is a vocabulary parameter of %u dimensions",
				  p->name, p->ndim);
	/* Python's slice [:n] stops at the last row. */
	if (p->merge.vocab_rows > p->shape[0])
		p->merge.vocab_rows = p->shape[0];
	return 0;
}

int model_override(struct merge_rules *rules, const struct user_rules *u, struct errmsg *err)
{
	int rc = 0;

	if (u && u->preset.info)
		rc = merge_rules_override(rules, u->preset.info, u->preset.name, true, err);
	if (!rc && u && u->file.info)
		rc = merge_rules_override(rules, u->file.info, u->file.name, false, err);
	return rc;
}

/* Refuse a row whose slices no rule joins; it gets the first slice's shape. */
static int refuse(struct param *p, const char *file, struct arena *a, struct errmsg *err)
{
	char text[ERRMSG_MAX];

	snprintf(text, sizeof(text),
		 "%s: %s: nothing says how %u tensor-parallel ranks share it: the checkpoint has no"
		 " universal_checkpoint_info, and no preset or rule names it",
		 file, p->name, p->nslices);
	p->merge = (struct merge){ .rule = MERGE_CAT };
	p->ndim = p->first->ndim;
	p->shape = p->first->shape;
	p->numel = p->first->numel;
	p->refused = arena_strdup(a, text);
	return p->refused ? 0 : errmsg_nomem(err, p->name);
}

int model_match(struct param *v, size_t n, struct merge_rules *rules, const char *file, bool flat,
		struct arena *a, const struct param **scaled, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; !rc && i < n; i++) {
		struct param *p = &v[i];

		if (!p->first)
			continue;
		/* ZeRO-3 without tensor parallelism ignores the patterns; so do
		 * AutoEP's experts. */
		if (!flat)
			rc = merge_rules_match(rules, p->name, &p->merge, err);
		if (p->first->layer && p->first->layer->fused)
			p->merge = (struct merge){
				.rule = MERGE_EXPERTS,
				.experts = p->first->layer,
				.spec = value_find(p->first->layer->maps, p->name),
			};
		if (!rc && p->nslices > 1 && p->merge.rule == MERGE_CAT && !p->merge.from_user &&
		    !merge_rules_have_default(rules))
			rc = refuse(p, file, a, err);
		else if (!rc)
			rc = model_set_shape(p, a, scaled, err);
	}
	return rc;
}

/* Make an empty model with room for the ranks' tables. */
static int model_init(const struct builder *b)
{
	struct model *m = b->m;
	const unsigned mp = b->dir->mp_degree;

	*m = (struct model){ .tp = mp, .pp = 1 };
	m->ranks = arena_alloc(&m->arena, mp * sizeof(*m->ranks));
	return m->ranks ? 0 : errmsg_nomem(b->err, b->dir->path);
}

static int model_load_rank(void *ctx, size_t mp, struct errmsg *err)
{
	const struct builder *b = ctx;

	return rank_params_load(&b->m->ranks[mp], b->dir, (unsigned)mp, b->object, err);
}

int model_load(struct model *m, const struct zero_dir *dir, const struct user_rules *user,
	       const struct rank_object *object, struct errmsg *err)
{
	struct builder b = { .m = m, .dir = dir, .user = user, .object = object, .err = err };
	struct errmsg why = { "" };
	int rc = model_init(&b) ?:
		 parallel_steps(dir->u, "reading model states", parallel_far, dir->mp_degree,
			   parallel_width(), model_load_rank, &b, err) ?:
		 find_degrees(&b) ?:
		 parallel_steps(dir->u, "looking at experts", parallel_far, dir->mp_degree,
			   parallel_width(), find_experts, &b, err);

	if (!rc) {
		/* Messages from here on name parameters; the caller prepends the file. */
		b.err = &why;
		b.rules = m->ranks[0].rules;
		rc = model_override(b.rules, user, &why) ?:
		     model_collect(&b) ?:
		     model_match(m->params, m->nparams, b.rules, dir->model[0].path,
				 dir->zero3 && m->tp == 1, &m->arena, &m->scaled, &why);
		if (rc)
			errmsg_set(err, rc, "%s: %s", dir->model[0].path, why.text);
	}
	if (rc)
		model_done(m);
	return rc;
}

void model_done(struct model *m)
{
	for (unsigned i = 0; m->ranks && i < m->tp * m->pp; i++)
		rank_params_done(&m->ranks[i]);
	arena_done(&m->arena);
	*m = (struct model){ 0 };
}
