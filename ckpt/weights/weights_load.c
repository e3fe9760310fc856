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
#include "ckpt/format/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/model/experts.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/pickle/value.h"
#include "ckpt/vfile/shardcache.h"
#include "ckpt/weights/frozen.h"
#include "ckpt/weights/weights_build.h"
#include "ckpt/zero/checkpoint.h"

/* The lists of a file that have a name. */
enum { BUFFER = 1, OWNED = 2, SHARED = 4 };

struct listed {
	const char *name; /* first: array_by_text */
	unsigned lists;
};

/* The place of a tensor in the open file, and its form. */
struct placed {
	uint64_t at;
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *dims; /* sizes, then strides */
	const char *name;
};

/* Another name of a weight. */
struct tie {
	const char *name, *of;
};

/* For tdestroy: the nodes of the search trees have other owners. */
static void keep(void *node)
{
	(void)node;
}

/* Iterate over the entries of a dict (NULL: an empty one) that have a text as name.
 * Start with `*pos` 0.  Returns the name, or NULL at the end. */
static const char *next_named(const struct value_dict *d, size_t *pos,
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

static bool is_listed(const struct weights_loader *l, const char *name, unsigned lists)
{
	const struct listed *const x =
		array_find(l->listed, l->nlisted, sizeof(*l->listed), name);

	return x && x->lists & lists;
}

/* Add a weight whose elements are a tensor of the open file. */
static int add_tensor(struct weights_loader *l, const char *name, const struct value *v)
{
	const struct weight *const x = weights_find(l, name);
	struct tensor t;
	uint64_t storage;
	const int rc = weights_read(l, name, v, &t, &storage);

	if (rc)
		return rc < 0 ? rc : 0;
	if (x)
		return x->param || x->map.n == 0
			       ? 0
			       : weights_check_same(l, x, &t,
					    storage + t.storage_offset *
							      dtype_size(t.dtype));
	return weights_new(l, name, &t, l->shard, storage);
}

/* Note a buffer that a layer's file must have. */
static int want(struct weights_loader *l, const char *name)
{
	struct arena *const a = &l->w->arena;
	const char *const copy = arena_strdup(a, name);

	if (!copy || !arena_reserve(a, &l->wanted, l->nwanted, &l->wanted_cap,
				    l->nwanted + 1, sizeof(*l->wanted)))
		return weights_nomem(l);
	l->wanted[l->nwanted++] = copy;
	return 0;
}

static int load_buffers(struct weights_loader *l)
{
	const struct value *v;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	while (!rc && (name = next_named(l->module, &pos, &v)))
		if (is_listed(l, name, BUFFER))
			rc = add_tensor(l, name, v);
	/* A pipeline keeps its layers in separate files. */
	for (size_t i = 0; !rc && !l->module && i < l->nlisted; i++)
		if (l->listed[i].lists & BUFFER)
			rc = want(l, l->listed[i].name);
	return rc;
}

/* Experts have files of their own, and names that differ from rank to rank. */
static bool is_expert(const struct weights_loader *l, const char *name)
{
	const struct experts *const x = &l->params->experts;
	unsigned expert;
	const char *rest;

	for (size_t i = 0; i < x->n; i++)
		if (!x->layers[i].fused && x->layers[i].prefix &&
		    experts_parse(&x->layers[i], name, &expert, &rest))
			return true;
	return false;
}

/* Add a parameter of ZeRO-3, whose elements are in all ranks' files. */
static int add_frozen3(struct weights_loader *l, struct frozen *f, const char *name)
{
	const struct frozen_param *const p = frozen_find(f, name);
	struct weight *x;

	if (weights_find(l, name))
		return ERRMSG_FILE(l, -EBADMSG, "%s is listed twice", name);
	if (p->odd)
		return weights_warn(l, p->odd, name);
	x = weights_append(l, name, p->shape, p->ndim, p->dtype, false);
	return x ? frozen_add(f, p, 0, p->numel, &x->map, l->err) : weights_nomem(l);
}

static int load_frozen(struct weights_loader *l)
{
	const struct value_dict *const shapes =
		value_find_pairs(l->pt->root, KEY_FROZEN_SHAPES);
	const struct value *v;
	struct frozen f = { 0 };
	const char *name;
	size_t pos = 0;
	int rc = 0;

	if (l->r->dir.zero3)
		rc = frozen_init(&f, &l->r->dir, l->params->mp, 0, l->pt, l->err);
	if (f.n && l->r->model.tp > 1)
		rc = ERRMSG_FILE(l, -ENOTSUP,
				 "%s: is frozen, and the checkpoint does not"
				 " record how tensor-parallel ranks cut it",
				 f.v->name);
	while (!rc && (name = next_named(shapes, &pos, &v)))
		if (l->r->dir.zero3)
			rc = add_frozen3(l, &f, name);
		else if (!is_expert(l, name))
			rc = frozen_part(l->pt, name, pos - 1, &v, l->err)
				     ?: add_tensor(l, name, v);
	frozen_done(&f);
	return rc;
}

static int by_place(const void *a, const void *b)
{
	const struct placed *const x = a, *const y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	if (x->ndim != y->ndim)
		return x->ndim < y->ndim ? -1 : 1;
	return memcmp(x->dims, y->dims, 2 * x->ndim * sizeof(*x->dims));
}

/* Return the first tensor of this form at this place; NULL if memory is short. */
static const struct placed *place(struct weights_loader *l, const struct tensor *t,
				  uint64_t storage, const char *name)
{
	const size_t bytes = t->ndim * sizeof(*t->shape);
	uint64_t *const dims = arena_alloc(&l->arena, 2 * bytes + 1);
	const struct placed new = {
		storage + t->storage_offset * dtype_size(t->dtype), t->dtype,
		t->ndim, dims, name
	};
	struct placed *const x = arena_copy(&l->arena, &new, sizeof(new));
	struct placed **found;

	if (!dims || !x)
		return NULL;
	memcpy(dims, t->shape, bytes);
	memcpy(dims + t->ndim, t->stride, bytes);
	found = tsearch(x, &l->places, by_place);
	return found ? *found : NULL;
}

static int tie(struct weights_loader *l, const char *name, const char *of)
{
	if (!arena_reserve(&l->arena, &l->ties, l->nties, &l->ties_cap,
			   l->nties + 1, sizeof(*l->ties)))
		return weights_nomem(l);
	l->ties[l->nties++] = (struct tie){ name, of };
	return 0;
}

/* Add an entry of `module` that is no buffer.  Tied parameters are one tensor,
 * pickled once, so two names at one place are a tie. */
static int add_rest(struct weights_loader *l, const char *name, const struct value *v)
{
	const bool owned = is_listed(l, name, OWNED);
	const struct placed *first;
	struct tensor t;
	uint64_t storage;
	int rc;

	/* Megatron keeps other objects in `module`, too.  The optimizer's parameters are
	 * read from its shards. */
	if (!tensor_is_any(v))
		return 0;
	rc = owned ? ptfile_tensor(l->pt, v, name, &t, &storage, NULL)
		   : weights_read(l, name, v, &t, &storage);
	if (rc)
		return owned || rc > 0 ? 0 : rc;
	if (t.numel) {
		first = place(l, &t, storage, name);
		if (!first)
			return weights_nomem(l);
		if (!owned && first->name != name)
			return tie(l, name, first->name);
		if (is_listed(l, name, SHARED))
			return 0;
	}
	return owned ? 0 : add_tensor(l, name, v);
}

/* Add a frozen expert's weight. */
static int add_expert(struct weights_loader *l, const struct param *p)
{
	const struct stored *const m = p->module;
	struct tensor t;

	if (m->file < l->r->dir.noptim + l->r->dir.nmodel || weights_find(l, p->name))
		return 0;
	stored_describe(m, &t);
	return weights_new(l, p->name, &t, m->file, m->storage);
}

/*
 * Load what no list names: stage 1 does not list frozen parameters, and no
 * stage lists parameters that were not passed to the optimizer.
 */
static int load_rest(struct weights_loader *l)
{
	const struct model *const m = &l->r->model;
	const struct value *v;
	const char *name;
	size_t pos = 0;
	int rc = 0;

	if (l->r->dir.zero3 || !l->module)
		return 0;
	while (!rc && (name = next_named(l->module, &pos, &v)))
		if (!is_listed(l, name, BUFFER))
			rc = add_rest(l, name, v);
	for (size_t i = 0; !rc && i < m->nparams; i++)
		if (m->params[i].module)
			rc = add_expert(l, &m->params[i]);
	return rc;
}

static int add_param(struct weights_loader *l, const struct param *p)
{
	const struct param_states *states;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct weight *x;
	int rc;

	if (weights_find(l, p->name))
		return 0;
	rc = l->r->c.ops->states(&l->r->c, p, &states, l->err);
	if (rc)
		return rc;
	assert(p->ndim <= TENSOR_DIMS_MAX);
	memcpy(shape, p->shape, p->ndim * sizeof(*shape));
	/* The number of padding rows depends on the number of ranks, so they
	 * are cut off.  A single rank keeps them, because the script does not
	 * know about padding. */
	if (p->merge.vocab && l->r->dir.mp_degree > 1)
		shape[0] = p->merge.vocab_rows;
	x = weights_append(l, p->name, shape, p->ndim, states->v->dtype,
			   states->v->requires_grad);
	if (!x)
		return weights_nomem(l);
	x->param = p;
	x->master = states->v;
	return 0;
}

/* DeepSpeed's own experts are listed under rank-local names; the model knows
 * them by their global ones. */
static int add_experts(struct weights_loader *l, const struct slice *s)
{
	const struct expert_layer *const layer = s->layer;
	int rc = 0;

	for (unsigned ep = 0; !rc && ep < experts_degree(layer); ep++) {
		char key[EXPERT_NAME_MAX];
		const struct param *p;

		experts_key(layer, ep * layer->local + s->expert, s->rest, key);
		p = model_find(&l->r->model, key);
		rc = p && !p->module ? add_param(l, p) : 0;
	}
	return rc;
}

/* Add an entry of param_shapes. */
static int add_listed(struct weights_loader *l, const struct slice *s)
{
	const struct param *p;

	if (s->layer && !s->layer->fused)
		return add_experts(l, s);
	p = model_find(&l->r->model, s->name);
	if (p && !p->module)
		return add_param(l, p);
	/* The universal tree does not have it either. */
	if (s->numel)
		return weights_warn(l,
			    "left out: recorded as shared with the first"
			    " pipeline stage, which does not have it",
			    s->name);
	return weights_find(l, s->name) ||
			       weights_append(l, s->name, s->shape, s->ndim,
					  DTYPE_F32, false)
		       ? 0
		       : weights_nomem(l);
}

static int load_trainable(struct weights_loader *l)
{
	const struct rank_params *const c = l->params;
	int rc = 0;

	for (size_t g = 0; !rc && g < c->ngroups; g++)
		for (size_t i = 0; !rc && i < c->groups[g].n; i++)
			rc = add_listed(l, c->groups[g].slices[i]);
	return rc;
}

static int load_ties(struct weights_loader *l)
{
	for (size_t i = 0; i < l->nties; i++) {
		const struct tie *const t = &l->ties[i];
		const struct weight *const x = weights_find(l, t->of);
		struct weight *w;

		/* A name with a tensor of its own is not really tied. */
		if (!x || weights_find(l, t->name))
			continue;
		w = weights_append(l, t->name, x->shape, x->ndim, x->dtype,
			       x->requires_grad);
		if (!w)
			return weights_nomem(l);
		w->same = x->same;
	}
	return 0;
}

static int list(struct weights_loader *l, const char *name, unsigned lists)
{
	if (!arena_reserve(&l->arena, &l->listed, l->nlisted, &l->listed_cap,
			   l->nlisted + 1, sizeof(*l->listed)))
		return weights_nomem(l);
	l->listed[l->nlisted++] = (struct listed){ name, lists };
	return 0;
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
	size_t pos = 0, n = 0;
	int rc = 0;

	for (size_t g = 0; !rc && g < l->params->ngroups; g++)
		for (size_t i = 0; !rc && i < l->params->groups[g].n; i++)
			rc = list(l, l->params->groups[g].slices[i]->name,
				  OWNED);
	for (size_t i = 0; !rc && buffers && i < buffers->n; i++)
		if (value_is_cstr(buffers->v[i]))
			rc = list(l, buffers->v[i]->str.p, BUFFER);
	while (!rc && (name = next_named(shared, &pos, &of))) {
		rc = list(l, name, SHARED);
		if (!rc && value_is_cstr(of))
			rc = tie(l, name, of->str.p);
	}
	if (l->nlisted)
		qsort(l->listed, l->nlisted, sizeof(*l->listed), array_by_text);
	for (size_t i = 0; i < l->nlisted; i++)
		if (n && strcmp(l->listed[n - 1].name, l->listed[i].name) == 0)
			l->listed[n - 1].lists |= l->listed[i].lists;
		else
			l->listed[n++] = l->listed[i];
	l->nlisted = n;
	return rc;
}

/* Add the weights of one model-parallel rank. */
static int load_rank(struct weights_loader *l, unsigned mp)
{
	const struct tagdir *const d = &l->r->dir;
	const size_t number = tagdir_model_number(d, mp);
	struct ptfile pt;
	int rc;

	assert(number < d->nmodel);
	l->params = &l->r->model.ranks[mp];
	l->shard = (uint32_t)(d->noptim + number);
	l->file = d->model[number].path;
	rc = tagdir_open_file(&d->model[number], &pt, l->err);
	if (rc)
		return rc;
	l->pt = &pt;
	rc = module_dict(pt.root, l->file, &l->arena, &l->module, l->err) ?:
	     read_names(l) ?:
	     load_buffers(l) ?:
	     load_frozen(l) ?:
	     load_rest(l) ?:
	     load_trainable(l) ?:
	     load_ties(l);
	tdestroy(l->places, keep);
	arena_done(&l->arena);
	ptfile_close(&pt);
	return rc;
}

int weights_load(struct weights *w, struct checkpoint *c, struct errmsg *err)
{
	struct zero_checkpoint *const r = zckpt_of(c);
	struct weights_loader l = { .w = w, .r = r, .err = err };
	bool layers = false;
	int rc;

	*w = (struct weights){ 0 };
	rc = r ? 0 : weights_take_rows(w, c, err);
	for (unsigned mp = 0; !rc && r && mp < r->dir.mp_degree; mp++) {
		struct weights_loader of_rank = l;

		rc = load_rank(&of_rank, mp);
		l.names = of_rank.names;
		l.wanted = of_rank.wanted;
		l.nwanted = of_rank.nwanted;
		l.wanted_cap = of_rank.wanted_cap;
		layers |= !of_rank.module;
	}
	/* Other files of layers are of a former save. */
	if (!rc && layers)
		rc = weights_load_layers(&l);
	tdestroy(l.names, keep);
	if (rc)
		weights_done(w);
	return rc;
}
