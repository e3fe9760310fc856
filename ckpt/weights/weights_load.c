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
#include "ckpt/zero/checkpoint.h"

/* Bytes of each of two ranks' tensors that are compared at a time. */
#define COMPARED_MAX (64u << 10)

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

struct loader {
	struct weights *w;
	struct zero_checkpoint *r;
	struct shardcache *shards;
	struct errmsg *err;
	void *names; /* search tree of weights by name */
	/* The rank whose file is open, and its contents: */
	const struct rank_params *params;
	uint32_t shard; /* the file's number */
	const struct ptfile *pt;
	const struct value_dict *module; /* NULL for a pipeline */
	const char *file;
	struct arena arena;
	struct listed *listed; /* sorted by name */
	size_t nlisted, listed_cap;
	void *places;     /* search tree of the module's tensors, by place */
	struct tie *ties; /* of shared_params, then in the order of `module` */
	size_t nties, ties_cap;
};

static struct weight *find_weight(const struct loader *l, const char *name)
{
	void *const *const found = tfind(&name, &l->names, array_by_text);

	return found ? *found : NULL;
}

/* Append a weight without elements.  The caller has checked that the product of the
 * shape does not overflow.  NULL if memory is short. */
static struct weight *new_weight(struct loader *l, const char *name,
				 const uint64_t *shape, size_t ndim,
				 enum dtype dtype, bool requires_grad)
{
	struct weights *const w = l->w;
	struct weight *const x = arena_alloc(&w->arena, sizeof(*x));

	if (!x || !arena_reserve(&w->arena, &w->v, w->n, &w->cap, w->n + 1,
				 sizeof(*w->v)))
		return NULL;
	x->name = arena_strdup(&w->arena, name);
	x->same = w->n;
	x->dtype = dtype;
	x->requires_grad = requires_grad;
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

static int nomem(const struct loader *l)
{
	return errmsg_nomem(l->err, l->r->dir.path);
}

/* For tdestroy: the nodes of the search trees have other owners. */
static void keep(void *node)
{
	(void)node;
}

/* Add a warning: "NAME: WHAT". -ENOMEM. */
static int warn(struct loader *l, const char *what, const char *name)
{
	struct weights *const w = l->w;
	char text[ERRMSG_MAX];
	const char *copy;

	snprintf(text, sizeof(text), "%s: %s", name, what);
	copy = arena_strdup(&w->arena, text);
	if (!copy || !arena_reserve(&w->arena, &w->warnings, w->nwarnings,
				    &w->warnings_cap, w->nwarnings + 1,
				    sizeof(*w->warnings)))
		return nomem(l);
	w->warnings[w->nwarnings++] = copy;
	return 0;
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

static bool is_listed(const struct loader *l, const char *name, unsigned lists)
{
	const struct listed *const x =
		array_find(l->listed, l->nlisted, sizeof(*l->listed), name);

	return x && x->lists & lists;
}

static int compare_bytes(const struct loader *l, const struct weight *x,
			 uint64_t at, struct errmsg *err)
{
	const uint64_t len = extent_size(&x->map);
	uint8_t *const a = malloc(2 * COMPARED_MAX);
	int rc = a ? 0 : errmsg_nomem(err, NULL);

	for (uint64_t off = 0, n; !rc && off < len; off += n) {
		n = len - off < COMPARED_MAX ? len - off : COMPARED_MAX;
		rc = shardcache_read_map(l->shards, &x->map, a, (size_t)n, off,
					 err);
		if (!rc)
			rc = shardcache_read(l->shards, l->shard,
					     a + COMPARED_MAX, (size_t)n,
					     at + off, err);
		if (!rc && memcmp(a, a + COMPARED_MAX, (size_t)n) != 0)
			rc = -EBADMSG;
	}
	free(a);
	return rc;
}

static bool same_form(const struct weight *x, const struct tensor *t)
{
	const size_t bytes = t->ndim * sizeof(*t->shape);

	if (x->dtype != t->dtype || x->ndim != t->ndim ||
	    memcmp(x->shape, t->shape, bytes) != 0)
		return false;
	return x->view ? memcmp(x->view->stride, t->stride, bytes) == 0
		       : tensor_is_contiguous(t);
}

/*
 * Check that a tensor of `module` equals that of an earlier rank.  How a
 * parameter is cut follows from the optimizer's shards; for other tensors
 * nothing records a cut, so the ranks' copies must be equal.
 */
static int check_same(const struct loader *l, const struct weight *x,
		      const struct tensor *t, uint64_t at)
{
	struct errmsg why = { "" };
	const int rc = same_form(x, t) ? compare_bytes(l, x, at, &why) : -EBADMSG;

	if (rc == -EBADMSG)
		return errmsg_set(l->err, -ENOTSUP,
				  "%s: %s: differs between ranks, and the"
				  " checkpoint does not record how to merge it",
				  l->file, x->name);
	return rc ? errmsg_set(l->err, rc, "%s", why.text) : 0;
}

/* Add a weight whose elements are tensor `t` of a file. */
static int add_weight(struct loader *l, const char *name, const struct tensor *t,
		      uint32_t shard, uint64_t storage)
{
	struct weight *const x = new_weight(l, name, t->shape, t->ndim, t->dtype,
					    t->requires_grad);

	return x && weights_place(l->w, x, t, shard, storage) ? 0 : nomem(l);
}

/* Read where a tensor of the open file is.  Returns 1, with a warning, for one that has no
 * plain form, as a sparse or a quantized one, or an unknown type. */
static int read_tensor(struct loader *l, const char *name, const struct value *v,
		       struct tensor *t, uint64_t *storage)
{
	char text[ERRMSG_MAX];
	struct errmsg why;
	int rc = tensor_from_value(v, "left out", t, &why);

	if (!rc && t->dtype == DTYPE_OTHER)
		rc = errmsg_set(&why, -ENOTSUP, "left out: elements of unknown type");
	if (!rc)
		return ptfile_tensor(l->pt, v, name, t, storage, l->err);
	if (rc != -ENOTSUP)
		return ERRMSG_FILE(l, rc, "%s: %s", name, why.text);
	snprintf(text, sizeof(text), "%s", why.text);
	return warn(l, text, name) ?: 1;
}

/* Add a weight whose elements are a tensor of the open file. */
static int add_tensor(struct loader *l, const char *name, const struct value *v)
{
	const struct weight *const x = find_weight(l, name);
	struct tensor t;
	uint64_t storage;
	const int rc = read_tensor(l, name, v, &t, &storage);

	if (rc)
		return rc < 0 ? rc : 0;
	if (x)
		return x->param || x->map.n == 0
			       ? 0
			       : check_same(l, x, &t,
					    storage + t.storage_offset *
							      dtype_size(t.dtype));
	return add_weight(l, name, &t, l->shard, storage);
}

static int load_buffers(struct loader *l)
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
			rc = warn(l,
				  "left out: buffers of pipeline layers are not"
				  " supported",
				  l->listed[i].name);
	return rc;
}

/* Experts have files of their own, and names that differ from rank to rank. */
static bool is_expert(const struct loader *l, const char *name)
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
static int add_frozen3(struct loader *l, struct frozen *f, const char *name)
{
	const struct frozen_param *const p = frozen_find(f, name);
	struct weight *x;

	if (find_weight(l, name))
		return ERRMSG_FILE(l, -EBADMSG, "%s is listed twice", name);
	x = new_weight(l, name, p->shape, p->ndim, p->dtype, false);
	return x ? frozen_add(f, p, 0, p->numel, &x->map, l->err) : nomem(l);
}

static int load_frozen(struct loader *l)
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
static const struct placed *place(struct loader *l, const struct tensor *t,
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

static int tie(struct loader *l, const char *name, const char *of)
{
	if (!arena_reserve(&l->arena, &l->ties, l->nties, &l->ties_cap,
			   l->nties + 1, sizeof(*l->ties)))
		return nomem(l);
	l->ties[l->nties++] = (struct tie){ name, of };
	return 0;
}

/* Add an entry of `module` that is no buffer.  Tied parameters are one tensor,
 * pickled once, so two names at one place are a tie. */
static int add_rest(struct loader *l, const char *name, const struct value *v)
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
		   : read_tensor(l, name, v, &t, &storage);
	if (rc)
		return owned || rc > 0 ? 0 : rc;
	if (t.numel) {
		first = place(l, &t, storage, name);
		if (!first)
			return nomem(l);
		if (!owned && first->name != name)
			return tie(l, name, first->name);
		if (is_listed(l, name, SHARED))
			return 0;
	}
	return owned ? 0 : add_tensor(l, name, v);
}

/* Add a frozen expert's weight. */
static int add_expert(struct loader *l, const struct param *p)
{
	const struct module_tensor *const m = p->module;
	struct tensor t = {
		.dtype = m->dtype,
		.ndim = m->ndim,
		.numel = m->numel,
		.storage_offset = m->storage_offset,
		.requires_grad = m->requires_grad,
	};

	if (m->file < l->r->dir.nmodel || find_weight(l, p->name))
		return 0;
	memcpy(t.shape, m->shape, m->ndim * sizeof(*t.shape));
	memcpy(t.stride, m->stride, m->ndim * sizeof(*t.stride));
	return add_weight(l, p->name, &t, (uint32_t)l->r->dir.noptim + m->file,
			  m->storage);
}

/*
 * Load what no list names: stage 1 does not list frozen parameters, and no
 * stage lists parameters that were not passed to the optimizer.
 */
static int load_rest(struct loader *l)
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

static int add_param(struct loader *l, const struct param *p)
{
	const struct shard_group *g;
	uint64_t shape[TENSOR_DIMS_MAX];
	struct weight *x;
	int rc;

	if (find_weight(l, p->name))
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
	x = new_weight(l, p->name, shape, p->ndim, g->fp32.dtype,
		       g->fp32.requires_grad);
	if (!x)
		return nomem(l);
	x->param = p;
	return 0;
}

/* DeepSpeed's own experts are listed under rank-local names; the model knows
 * them by their global ones. */
static int add_experts(struct loader *l, const struct slice *s)
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
static int add_listed(struct loader *l, const struct slice *s)
{
	const struct param *p;

	if (s->layer && !s->layer->fused)
		return add_experts(l, s);
	p = model_find(&l->r->model, s->name);
	if (p && !p->module)
		return add_param(l, p);
	/* The universal tree does not have it either. */
	if (s->numel)
		return warn(l,
			    "left out: recorded as shared with the first"
			    " pipeline stage, which does not have it",
			    s->name);
	return find_weight(l, s->name) ||
			       new_weight(l, s->name, s->shape, s->ndim,
					  DTYPE_F32, false)
		       ? 0
		       : nomem(l);
}

static int load_trainable(struct loader *l)
{
	const struct rank_params *const c = l->params;
	int rc = 0;

	for (size_t g = 0; !rc && g < c->ngroups; g++)
		for (size_t i = 0; !rc && i < c->groups[g].n; i++)
			rc = add_listed(l, c->groups[g].slices[i]);
	return rc;
}

static int load_ties(struct loader *l)
{
	for (size_t i = 0; i < l->nties; i++) {
		const struct tie *const t = &l->ties[i];
		const struct weight *const x = find_weight(l, t->of);
		struct weight *w;

		/* A name with a tensor of its own is not really tied. */
		if (!x || find_weight(l, t->name))
			continue;
		w = new_weight(l, t->name, x->shape, x->ndim, x->dtype,
			       x->requires_grad);
		if (!w)
			return nomem(l);
		w->same = x->same;
	}
	return 0;
}

static int list(struct loader *l, const char *name, unsigned lists)
{
	if (!arena_reserve(&l->arena, &l->listed, l->nlisted, &l->listed_cap,
			   l->nlisted + 1, sizeof(*l->listed)))
		return nomem(l);
	l->listed[l->nlisted++] = (struct listed){ name, lists };
	return 0;
}

/* Read the names that the open file lists. */
static int read_names(struct loader *l)
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
static int load_rank(struct loader *l, unsigned mp)
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

int weights_load(struct weights *w, struct zero_checkpoint *r,
		 struct shardcache *shards, struct errmsg *err)
{
	struct loader l = { .w = w, .r = r, .shards = shards, .err = err };
	int rc = 0;

	*w = (struct weights){ 0 };
	for (unsigned mp = 0; !rc && mp < r->dir.mp_degree; mp++) {
		struct loader of_rank = l;

		rc = load_rank(&of_rank, mp);
		l.names = of_rank.names;
	}
	tdestroy(l.names, keep);
	if (rc)
		weights_done(w);
	return rc;
}
