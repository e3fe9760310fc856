/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model, from the ranks' parameter tables: which ranks hold a parameter, and
 * the rule that merges their slices (DeepSpeed 0.19.8, ds_to_universal.py main,
 * extract_zero_shards, merge_tp_slices). As in the converter, the rules come from
 * the first model-states file.
 */
#include "ckpt/model/model.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/model/geometry.h"
#include "ckpt/model/user_rules.h"
#include "ckpt/sys/parallel.h"

struct builder {
	struct model *m;
	const struct tagdir *dir;
	const struct user_rules *user;
	struct merge_rules *rules;
	struct errmsg *err;
};

/* --- degrees ----------------------------------------------------------------- */

/* The recorded number of model-parallel ranks, at least. */
static int64_t recorded_ranks(const struct rank_params *c)
{
	int64_t n;

	if (c->tp_degree < 1 || c->pp_degree < 1)
		return c->mp_world_size;
	if (__builtin_mul_overflow(c->tp_degree, c->pp_degree, &n))
		return INT64_MAX;
	return n > c->mp_world_size ? n : c->mp_world_size;
}

static size_t count_files(const struct tag_file *v, size_t n)
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
	const struct tag_file *const v = b->dir->layer;
	const size_t n = b->dir->nlayer, first = count_files(v, n);

	for (size_t i = first, k; i < n; i += k) {
		k = count_files(&v[i], n - i);
		if (k != first)
			return errmsg_set(b->err, -EBADMSG,
					  "%s: layer %u has %zu files (%s, ...),"
					  " but layer %u has %zu (%s, ...): of"
					  " how many tensor-parallel ranks?",
					  b->dir->path, v[0].id.layer, first,
					  v[0].name, v[i].id.layer, k,
					  v[i].name);
	}
	*slices = (unsigned)first;
	return 0;
}

/* The tensor-parallel degree is recorded since 2026. Before, the number of
 * files of a pipeline's layer gives it. */
static int find_degrees(const struct builder *b)
{
	const struct rank_params *const c = &b->m->ranks[0];
	const unsigned mp = b->dir->mp_degree;
	const int64_t ranks = recorded_ranks(c);

	/* Without the last ranks' files the grid still looks complete. */
	if (ranks > mp)
		return errmsg_set(b->err, -EBADMSG,
				  "%s: the files of model-parallel ranks %u to"
				  " %lld are missing: %s says that there were"
				  " %lld", b->dir->path, mp,
				  (long long)ranks - 1, b->dir->model[0].name,
				  (long long)ranks);
	b->m->tp = mp;
	if (c->tp_degree > 0 && c->pp_degree > 0 &&
	    c->tp_degree * c->pp_degree == mp)
		b->m->tp = (unsigned)c->tp_degree;
	else if (b->dir->nlayer && count_slices(b, &b->m->tp))
		return -EBADMSG;
	if (mp % b->m->tp)
		return errmsg_set(b->err, -EBADMSG,
				  "%s: %u model-parallel ranks cannot be of"
				  " tensor-parallel degree %u", b->dir->path,
				  mp, b->m->tp);
	b->m->pp = mp / b->m->tp;
	/* DeepSpeed's pipeline engine asserts that the stage is below 2
	 * (runtime/pipe/engine.py): whatever this is, it did not write it. */
	if (b->m->pp > 1 && b->dir->zero3)
		return errmsg_set(b->err, -ENOTSUP,
				  "%s: ZeRO-3 with pipeline parallelism, which"
				  " DeepSpeed does not have",
				  b->dir->path);
	return 0;
}

/* --- parameters of the optimizer --------------------------------------------- */

/* Sort after a rank has added to the first `sorted` parameters: names within one
 * rank are distinct. */
static void sort_params(struct model *m, size_t sorted)
{
	if (m->nparams > sorted)
		qsort(m->params, m->nparams, sizeof(*m->params), array_by_text);
}

/* Add a parameter with room for `n` slices. */
static struct param *model_add_param(const struct builder *b, const char *name,
				     unsigned n)
{
	struct model *const m = b->m;
	struct param *const p = &m->params[m->nparams];

	*p = (struct param){ .name = name, .nslices = n };
	p->slices = arena_alloc(&m->arena, n * sizeof(*p->slices));
	if (!p->slices)
		return NULL;
	m->nparams++;
	return p;
}

/* Find a name among the sorted parameters of earlier ranks. Names are asked for
 * in order, so `*at` only moves forward. */
static struct param *find_next(struct model *m, size_t sorted, size_t *at,
			       const char *name)
{
	for (; *at < sorted; (*at)++) {
		struct param *const p = &m->params[*at];
		const int order =
			p->name == name ? 0 : strcmp(p->name, name);

		if (order >= 0)
			return order ? NULL : p;
	}
	return NULL;
}

static int add_slice(const struct builder *b, size_t sorted, size_t *at,
		     const struct slice *s)
{
	struct model *const m = b->m;
	struct param *p = find_next(m, sorted, at, s->name);

	if (!p && !(p = model_add_param(b, s->name, m->tp)))
		return errmsg_nomem(b->err, b->dir->path);
	/* A later pipeline stage that repeats a parameter is ignored. */
	if (p->first && p->first->mp / m->tp != s->mp / m->tp)
		return 0;
	assert(s->mp < m->tp * m->pp && !p->slices[s->mp % m->tp]);
	p->slices[s->mp % m->tp] = s;
	if (!p->first)
		p->first = s;
	return 0;
}

/* --- experts ------------------------------------------------------------------- */

/* Set slice `at` of a parameter to a copy of `s` for expert-parallel rank
 * `ep`. */
static int set_expert(const struct builder *b, struct param *p, unsigned at,
		      const struct slice *s, unsigned ep)
{
	struct slice *const copy = arena_copy(&b->m->arena, s, sizeof(*s));

	assert(at < p->nslices && !p->slices[at]);
	if (!copy)
		return errmsg_nomem(b->err, b->dir->path);
	copy->ep = ep;
	p->slices[at] = copy;
	p->first = p->slices[0];
	return 0;
}

static int add_fused(const struct builder *b, const struct slice *s)
{
	const unsigned n = experts_degree(s->layer);
	struct param *const p = model_add_param(b, s->name, n);
	int rc = p ? 0 : errmsg_nomem(b->err, b->dir->path);

	for (unsigned ep = 0; !rc && ep < n; ep++)
		rc = set_expert(b, p, ep, s, ep);
	return rc;
}

/* Every rank uses the same names for its experts; in the whole model they are
 * numbered rank after rank. */
static int add_native(const struct builder *b, const struct slice *s)
{
	const struct expert_layer *const l = s->layer;
	int rc = 0;

	for (unsigned ep = 0; !rc && ep < experts_degree(l); ep++) {
		char key[EXPERT_NAME_MAX];
		struct param *p;
		const char *name;

		experts_key(l, ep * l->local + s->expert, s->rest, key);
		name = arena_strdup(&b->m->arena, key);
		p = name ? model_add_param(b, name, 1) : NULL;
		rc = p ? set_expert(b, p, 0, s, ep)
		       : errmsg_nomem(b->err, b->dir->path);
	}
	return rc;
}

/* --- all of them ----------------------------------------------------------------- */

static int add_owned(const struct builder *b, const struct rank_params *c)
{
	const size_t sorted = b->m->nparams;
	size_t at = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < c->nslices; i++) {
		const struct slice *const s = &c->slices[i];
		int replica = 0;

		if (s->module)
			continue;
		if (s->layer) {
			rc = s->layer->fused ? add_fused(b, s)
					     : add_native(b, s);
			continue;
		}
		if (c->mp >= b->m->tp)
			replica = merge_is_pipeline_replica(b->rules, s->name,
							    b->err);
		if (replica < 0)
			rc = replica;
		else if (!replica)
			rc = add_slice(b, sorted, &at, s);
	}
	sort_params(b->m, sorted);
	return rc;
}

/* The first rank that has the tensor provides it, as in the converter. */
static void add_modules(const struct builder *b, const struct rank_params *c)
{
	const size_t sorted = b->m->nparams;

	for (size_t i = 0; i < c->nslices; i++) {
		const struct slice *const s = &c->slices[i];

		if (!s->module ||
		    array_find(b->m->params, sorted, sizeof(struct param), s->name))
			continue;
		b->m->params[b->m->nparams++] = (struct param){
			.name = s->name,
			.ndim = s->ndim,
			.shape = s->shape,
			.numel = s->numel,
			.module = s->module,
		};
	}
	sort_params(b->m, sorted);
}

/* The most parameters that a rank's slices can become. */
static size_t count_params(const struct rank_params *c)
{
	size_t n = c->nslices;

	for (size_t i = 0; i < c->nslices; i++)
		if (c->slices[i].layer)
			n += experts_degree(c->slices[i].layer);
	return n;
}

static int model_collect(const struct builder *b)
{
	struct model *const m = b->m;
	const unsigned mp = b->dir->mp_degree;
	size_t total = 0;
	int rc = 0;

	for (unsigned i = 0; i < mp; i++)
		total += count_params(&m->ranks[i]);
	assert(m->tp * m->pp == mp);
	if (total > MODEL_PARAMS_MAX)
		return errmsg_set(b->err, -E2BIG, "%zu parameters", total);
	m->params = arena_alloc(&m->arena, (total + 1) * sizeof(*m->params));
	if (!m->params)
		return errmsg_nomem(b->err, b->dir->path);
	for (unsigned i = 0; !rc && i < mp; i++)
		rc = add_owned(b, &m->ranks[i]);
	for (unsigned i = 0; !rc && i < mp; i++)
		add_modules(b, &m->ranks[i]);
	return rc;
}

/* --- rules and shapes --------------------------------------------------------- */

bool model_is_flat(const struct model *m)
{
	return m->ranks[0].zero3 && m->tp == 1;
}

int model_geometry(const struct param *p, struct geometry *g,
		   struct errmsg *err)
{
	struct geometry_slice *const s = calloc(p->nslices, sizeof(*s));
	int rc;

	if (!s)
		return errmsg_nomem(err, NULL);
	for (unsigned t = 0; t < p->nslices; t++)
		if (p->slices[t])
			s[t] = (struct geometry_slice){
				true, p->slices[t]->ndim, p->slices[t]->shape,
				p->slices[t]->numel
			};
	rc = geometry_init(g, &p->merge, p->name, s, p->nslices, err);
	free(s);
	return rc;
}

/* Set the shape that universal files show. (Files of ZeRO-3 without tensor
 * parallelism are 1-D and do not use it.) */
static int model_set_shape(const struct builder *b, struct param *p)
{
	struct geometry g;
	int rc = model_geometry(p, &g, b->err);

	if (rc)
		return rc;
	p->shape = arena_copy(&b->m->arena, g.shape, g.ndim * sizeof(*g.shape));
	p->ndim = g.ndim;
	p->numel = g.numel;
	p->holders = g.holders;
	p->computed = g.mean || g.nscales;
	if (g.nscales)
		b->m->scaled = p;
	geometry_done(&g);
	if (!p->shape)
		return errmsg_nomem(b->err, b->dir->path);
	if (!p->merge.vocab)
		return 0;
	if (p->ndim != 2)
		return errmsg_set(b->err, -EBADMSG,
				  "parameter %s: is a vocabulary parameter of"
				  " %u dimensions", p->name, p->ndim);
	/* Python's slice [:n] stops at the last row. */
	if (p->merge.vocab_rows > p->shape[0])
		p->merge.vocab_rows = p->shape[0];
	return 0;
}

/* The checkpoint's rules and, before them, the user's. */
static int gather_rules(struct builder *b)
{
	const struct user_rules *const u = b->user;
	int rc = 0;

	b->rules = b->m->ranks[0].rules;
	if (u && u->preset.info)
		rc = merge_rules_override(b->rules, u->preset.info,
					  u->preset.name, true, b->err);
	if (!rc && u && u->file.info)
		rc = merge_rules_override(b->rules, u->file.info, u->file.name,
					  false, b->err);
	return rc;
}

static int match_rules(const struct builder *b)
{
	struct model *const m = b->m;
	int rc = 0;

	for (size_t i = 0; !rc && i < m->nparams; i++) {
		struct param *const p = &m->params[i];

		if (p->module)
			continue;
		/* ZeRO-3 without tensor parallelism ignores the patterns; so do
		 * AutoEP's experts. */
		if (p->first->layer && p->first->layer->fused)
			p->merge = (struct merge){
				.rule = MERGE_EXPERTS,
				.experts = p->first->layer
			};
		else if (!model_is_flat(m))
			rc = merge_rules_match(b->rules, p->name, &p->merge,
					       b->err);
		if (!rc)
			rc = model_set_shape(b, p);
	}
	return rc;
}

static int list_unused(const struct builder *b)
{
	struct model *const m = b->m;
	size_t pos = 0, cap = 0;
	const char *text;

	if (model_is_flat(m))
		return 0;
	while ((text = merge_rules_next_unused(b->rules, &pos))) {
		const char *const copy = arena_strdup(&m->arena, text);

		if (!copy || !arena_reserve(&m->arena, &m->unused, m->nunused,
					    &cap, m->nunused + 1,
					    sizeof(*m->unused)))
			return errmsg_nomem(b->err, b->dir->path);
		m->unused[m->nunused++] = copy;
	}
	return 0;
}

/* An empty model with room for the ranks' tables. */
static int model_init(const struct builder *b)
{
	struct model *const m = b->m;
	const unsigned mp = b->dir->mp_degree;

	*m = (struct model){ .tp = mp, .pp = 1 };
	m->ranks = arena_alloc(&m->arena, mp * sizeof(*m->ranks));
	return m->ranks ? 0 : errmsg_nomem(b->err, b->dir->path);
}

static int model_load_rank(void *ctx, size_t mp, struct errmsg *err)
{
	const struct builder *const b = ctx;

	return rank_params_load(&b->m->ranks[mp], b->dir, (unsigned)mp, err);
}

int model_load(struct model *m, const struct tagdir *dir,
	       const struct user_rules *user, struct errmsg *err)
{
	struct builder b = { .m = m, .dir = dir, .user = user, .err = err };
	struct errmsg why = { "" };
	int rc = model_init(&b) ?:
		 parallel_far(dir->mp_degree, parallel_width(), model_load_rank,
			      &b, err) ?:
		 find_degrees(&b);

	if (!rc) {
		/* Messages from here on name parameters; prepend the file. */
		b.err = &why;
		rc = gather_rules(&b) ?: model_collect(&b) ?: match_rules(&b) ?:
		     list_unused(&b);
		if (rc)
			errmsg_set(err, rc, "%s: %s", dir->model[0].path,
				   why.text);
	}
	if (rc) {
		m->tp = dir->mp_degree;
		m->pp = 1;
		model_done(m);
	}
	return rc;
}

void model_done(struct model *m)
{
	for (unsigned i = 0; m->ranks && i < m->tp * m->pp; i++)
		rank_params_done(&m->ranks[i]);
	arena_done(&m->arena);
	*m = (struct model){ 0 };
}

const struct param *model_find(const struct model *m, const char *name)
{
	return array_find(m->params, m->nparams, sizeof(struct param), name);
}
