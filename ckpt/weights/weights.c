/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The state dict of zero_to_fp32.py (DeepSpeed 0.19.8, utils/zero_to_fp32.py):
 *
 *   buffers    those entries of `module` that buffer_names lists
 *   frozen     frozen_param_shapes; the elements are in frozen_param_fragments,
 * 	        with ZeRO-3 one part in each rank's file
 *   trainable  param_shapes, from the optimizer's master weights
 *   tied       shared_params: a second name of a tensor that is listed above
 *
 * The script has two bugs that this code does not share.  Stage 1 does not list
 * frozen parameters; they are read from `module`. shared_params ties all
 * parameters without elements to each other, whatever their shapes, because
 * their address is 0.
 *
 * The script refuses several model-parallel ranks.  Here each rank adds the
 * weights that the ranks before it do not have.
 */
#include "ckpt/weights/weights.h"

#include <assert.h>
#include <errno.h>
#include <search.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/model/experts.h"
#include "ckpt/model/module_dict.h"
#include "ckpt/pickle/value.h"
#include "ckpt/vfile/gather.h"
#include "ckpt/weights/weights_impl.h"
#include "ckpt/zero/checkpoint.h"

struct weight *weights_find(const struct weights_loader *l, const char *name)
{
	void *const *const found = tfind(&name, &l->names, array_by_text);

	return found ? *found : NULL;
}

struct weight *weights_new(struct weights_loader *l, const char *name,
			   const uint64_t *shape, size_t ndim)
{
	struct weights *const w = l->w;
	struct weight *const x = arena_alloc(&w->arena, sizeof(*x));

	if (!x || !arena_reserve(&w->arena, &w->v, w->n, &w->cap, w->n + 1,
				 sizeof(*w->v)))
		return NULL;
	x->name = arena_strdup(&w->arena, name);
	x->same = w->n;
	x->shape = arena_copy(&w->arena, shape, ndim * sizeof(*shape));
	x->ndim = (unsigned)ndim;
	x->numel = 1;
	for (size_t i = 0; i < ndim; i++)
		x->numel *= shape[i];
	if (!x->name || !x->shape || !tsearch(x, &l->names, array_by_text))
		return NULL;
	w->v[w->n++] = x;
	return x;
}

int weights_nomem(const struct weights_loader *l)
{
	return errmsg_nomem(l->err, l->r->dir.path);
}

void weights_keep(void *node)
{
	(void)node;
}

int weights_warn(struct weights_loader *l, const char *what, const char *name)
{
	struct weights *const w = l->w;
	char text[ERRMSG_MAX];
	const char *copy;

	snprintf(text, sizeof(text), "%s: %s", name, what);
	copy = arena_strdup(&w->arena, text);
	if (!copy || !arena_reserve(&w->arena, &w->warnings, w->nwarnings,
				    &w->warnings_cap, w->nwarnings + 1,
				    sizeof(*w->warnings)))
		return weights_nomem(l);
	w->warnings[w->nwarnings++] = copy;
	return 0;
}

const char *weights_next(const struct value_dict *d, size_t *pos,
			 const struct value **v)
{
	while (d && *pos < d->n) {
		const struct value_pair *const pair = &d->v[(*pos)++];

		*v = pair->val;
		if (value_is_cstr(pair->key))
			return pair->key->str.p;
	}
	return NULL;
}

bool weights_has_name(const struct weights_names *s, const char *name)
{
	return array_find(s->v, s->n, sizeof(*s->v), name);
}

static int weights_add_param(struct weights_loader *l, const struct param *p)
{
	const struct shard_group *g;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct weight *x;
	int rc;

	if (weights_find(l, p->name))
		return 0;
	rc = zckpt_group(l->r, p, &g, l->err);
	if (rc)
		return rc;
	assert(p->ndim <= TENSOR_DIMS_MAX);
	memcpy(shape, p->shape, p->ndim * sizeof(*shape));
	/* The number of padding rows depends on the number of ranks, so they
	 * are cut off.  A single rank keeps them, because the script does not
	 * know about padding. */
	if (p->merge.vocab && l->r->dir.mp_degree > 1)
		shape[0] = p->merge.vocab_rows;
	x = weights_new(l, p->name, shape, p->ndim);
	if (!x)
		return weights_nomem(l);
	x->param = p;
	x->dtype = g->fp32.dtype;
	x->requires_grad = g->fp32.requires_grad;
	return 0;
}

/* DeepSpeed's own experts are listed under rank-local names; the model knows
 * them by their global ones. */
static int weights_add_experts(struct weights_loader *l, const struct slice *s)
{
	const struct expert_layer *const layer = s->layer;
	int rc = 0;

	for (unsigned ep = 0; !rc && ep < experts_degree(layer); ep++) {
		char key[EXPERT_NAME_MAX];
		const struct param *p;

		experts_key(layer, ep * layer->local + s->expert, s->rest, key);
		p = model_find(&l->r->model, key);
		rc = p ? weights_add_param(l, p) : 0;
	}
	return rc;
}

/* Add a parameter without elements, which no group lists. */
static int add_empty(struct weights_loader *l, const char *name,
		     const struct value *shape)
{
	struct weight *x;
	struct tensor t;

	if (weights_find(l, name))
		return 0;
	if (tensor_set_shape(&t, shape, NULL) || t.numel)
		return ERRMSG_FILE(l, -EBADMSG,
				   "param_shapes lists %s, which no parameter"
				   " group contains", name);
	x = weights_new(l, name, t.shape, t.ndim);
	if (!x)
		return weights_nomem(l);
	x->dtype = DTYPE_F32;
	return 0;
}

static int add_listed(struct weights_loader *l, const struct value_pair *pair)
{
	const struct slice *s;
	const struct param *p;

	if (!value_is_cstr(pair->key))
		return 0;
	s = rank_params_find(&l->r->model.ranks[l->mp], pair->key->str.p);
	if (s && s->layer && !s->layer->fused)
		return weights_add_experts(l, s);
	p = model_find(&l->r->model, pair->key->str.p);
	if (p && !p->module)
		return weights_add_param(l, p);
	/* The universal tree does not have it either. */
	if (s && !s->module)
		return weights_warn(l,
				    "left out: recorded as shared with the first"
				    " pipeline stage, which does not have it",
				    s->name);
	return add_empty(l, pair->key->str.p, pair->val);
}

/* Call `step` for each entry of param_shapes, which is a dict or a list of
 * dicts. */
typedef int (*listed_fn)(struct weights_loader *l,
			 const struct value_pair *pair);

static int for_listed(struct weights_loader *l, listed_fn step)
{
	struct value *const shapes = value_find(l->pt->root, "param_shapes");
	const struct value_seq *const groups = value_items(shapes);
	const size_t n = groups ? groups->n : 1;
	int rc = 0;

	for (size_t g = 0; !rc && g < n; g++) {
		const struct value_dict *const d =
			value_pairs(groups ? groups->v[g] : shapes);

		for (size_t i = 0; !rc && d && i < d->n; i++)
			rc = step(l, &d->v[i]);
	}
	return rc;
}

static int add_tie(struct weights_loader *l, const char *name, const char *of)
{
	const struct weight *const x = weights_find(l, of);
	struct weight *w;

	/* A name with a tensor of its own is not really tied. */
	if (!x || weights_find(l, name))
		return 0;
	w = weights_new(l, name, x->shape, x->ndim);
	if (!w)
		return weights_nomem(l);
	w->same = x->same;
	w->numel = x->numel;
	w->dtype = x->dtype;
	w->requires_grad = x->requires_grad;
	return 0;
}

static int load_ties(struct weights_loader *l)
{
	const struct value_dict *const shared =
		value_find_pairs(l->pt->root, KEY_SHARED_PARAMS);
	const struct value *of;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	while (!rc && (name = weights_next(shared, &pos, &of)))
		if (value_is_cstr(of))
			rc = add_tie(l, name, of->str.p);
	for (size_t i = 0; !rc && i < l->nties; i++)
		rc = add_tie(l, l->ties[i].name, l->ties[i].of);
	return rc;
}

static int add_name(struct weights_loader *l, struct weights_names *s,
		    const char *name)
{
	if (!array_reserve(&s->v, &s->cap, s->n + 1, sizeof(*s->v)))
		return weights_nomem(l);
	s->v[s->n++] = name;
	return 0;
}

static int add_owned(struct weights_loader *l, const struct value_pair *pair)
{
	return value_is_cstr(pair->key)
		       ? add_name(l, &l->owned, pair->key->str.p)
		       : 0;
}

static void sort_names(struct weights_names *s)
{
	if (s->n)
		qsort(s->v, s->n, sizeof(*s->v), array_by_text);
}

/* Read the names that the open file lists. */
static int read_names(struct weights_loader *l)
{
	const struct value_seq *const buffers =
		value_find_items(l->pt->root, "buffer_names");
	const struct value_dict *const shared =
		value_find_pairs(l->pt->root, KEY_SHARED_PARAMS);
	const struct value *of;
	const char *name;
	size_t pos = 0;
	int rc = for_listed(l, add_owned);

	for (size_t i = 0; !rc && buffers && i < buffers->n; i++)
		if (value_is_cstr(buffers->v[i]))
			rc = add_name(l, &l->buffers, buffers->v[i]->str.p);
	while (!rc && (name = weights_next(shared, &pos, &of)))
		rc = add_name(l, &l->shared, name);
	sort_names(&l->owned);
	sort_names(&l->buffers);
	sort_names(&l->shared);
	return rc;
}

static void forget_names(struct weights_loader *l)
{
	free(l->owned.v);
	free(l->buffers.v);
	free(l->shared.v);
	l->owned = l->buffers = l->shared = (struct weights_names){ 0 };
	weights_forget_rest(l);
}

/* Add the weights of one model-parallel rank. */
static int load_rank(struct weights_loader *l, unsigned mp)
{
	const struct tagdir *const d = &l->r->dir;
	struct arena names = { 0 };
	struct ptfile pt;
	int rc;

	l->mp = mp;
	l->model = tagdir_model_number(d, mp);
	assert(l->model < d->nmodel);
	l->file = d->model[l->model].path;
	rc = tagdir_open_file(&d->model[l->model], &pt, l->err);
	if (rc)
		return rc;
	l->pt = &pt;
	rc = module_dict(pt.root, l->file, &names, &l->module, l->err) ?:
	     read_names(l) ?:
	     weights_load_buffers(l) ?:
	     weights_load_frozen(l) ?:
	     weights_load_rest(l) ?:
	     for_listed(l, add_listed) ?:
	     load_ties(l);
	forget_names(l);
	arena_done(&names);
	ptfile_close(&pt);
	return rc;
}

int weights_load(struct weights *w, struct zero_checkpoint *r,
		 struct shardcache *shards, struct errmsg *err)
{
	struct weights_loader l = { .w = w, .r = r, .shards = shards, .err = err };
	int rc = 0;

	*w = (struct weights){ 0 };
	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++)
		rc = load_rank(&l, mp);
	tdestroy(l.names, weights_keep);
	if (rc)
		weights_done(w);
	return rc;
}

void weights_done(struct weights *w)
{
	for (size_t i = 0; i < w->n; i++)
		extent_done(&w->v[i]->map);
	arena_done(&w->arena);
	*w = (struct weights){ 0 };
}

enum dtype weights_dtype(const struct weights *w, size_t i, enum dtype to)
{
	switch (w->v[i]->dtype) {
	case DTYPE_F64:
	case DTYPE_F32:
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F8_E4M3:
	case DTYPE_F8_E5M2: return to;
	default: return w->v[i]->dtype;
	}
}

int weights_add(const struct weights *w, size_t i, struct zero_checkpoint *r,
		enum dtype to, struct extent_map *out, struct gathers *gathers,
		struct errmsg *err)
{
	const struct weight *const x = w->v[w->v[i]->same];
	struct extent_map whole = { 0 }, map = { 0 };
	int rc = 0;

	assert(i < w->n && x->same == w->v[i]->same);
	if (x->param) {
		rc = zckpt_add_param(r, x->param, NULL, x->dtype, &whole,
				     gathers, err);
		/* Cut off rows of padding. */
		if (!rc && !extent_add_range(&map, &whole, 0,
					     x->numel * dtype_size(x->dtype)))
			rc = errmsg_nomem(err, NULL);
	}
	if (!rc && !extent_add_all(out, x->param ? &map : &x->map, x->dtype, to))
		rc = errmsg_nomem(err, NULL);
	extent_done(&whole);
	extent_done(&map);
	return rc;
}
