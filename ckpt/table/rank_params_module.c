/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tensors that the optimizer does not own (DeepSpeed 0.19.8, utils/zero_to_fp32.py):
 *
 *   buffers    those entries of `module` that buffer_names lists
 *   frozen     frozen_param_shapes; the elements are in frozen_param_fragments,
 * 	        with ZeRO-3 one part in each rank's file
 *   tied       shared_params: a second name of another tensor
 *
 * Stage 1 does not list frozen parameters, and no stage lists parameters that were not
 * passed to the optimizer: they are the rest of `module`.  Tied parameters are one tensor,
 * pickled once, so two names at one place are a tie.
 *
 * For stages 1 and 2 the converter adds an fp32.pt for all of them (ds_to_universal.py main,
 * "parameters that have not received a gradient").
 */
#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/tagdir.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/rank_params_build.h"

enum { BUFFER = 1, OWNED = 2, SHARED = 4 };

struct listed {
	const char *name; /* first: array_by_text */
	unsigned lists;
	const struct rank_entry *entry;
};

/* The place of a tensor in the open file, and its form. */
struct placed {
	const char *name, *key;
	uint64_t at; /* bytes after the beginning of the storage */
	enum dtype dtype;
	unsigned ndim;
	const uint64_t *dims; /* sizes, then strides */
};

struct reader {
	const struct rank_params_loader *l;
	const struct tag_file *file;
	struct arena scratch;
	struct listed *listed; /* sorted by name */
	size_t nlisted, listed_cap;
	void *places; /* search tree of the tensors of `module` that are no buffers */
};

int rank_params_fragment(const struct ptfile *pt, const char *name, size_t index,
			 const struct value **out, struct errmsg *err)
{
	const struct value *parts = value_find(pt->root, KEY_FROZEN_FRAGMENTS);
	const struct value_dict *d = value_pairs(parts);

	*out = d && index < d->n && value_is_str(d->v[index].key, name) ? d->v[index].val
									: value_find(parts, name);
	return *out ? 0
		    : errmsg_set(err, -EBADMSG, "%s: " KEY_FROZEN_FRAGMENTS ": %s is missing",
				 pt->src.name, name);
}

int rank_entry_read(struct rank_entry *e, struct arena *a, const struct ptfile *pt, uint32_t file,
		    const struct value *v, struct tensor *t, struct errmsg *err)
{
	struct errmsg why = { "" };
	struct stored *s = NULL;
	uint64_t storage;

	e->rc = tensor_from_any(v, "left out", t, &why);
	if (e->rc <= 0)
		e->rc = ptfile_tensor(pt, v, e->name, t, &storage, &why);
	if (e->rc)
		e->why = arena_strdup(a, why.text);
	else if ((s = arena_alloc(a, sizeof(*s))) && stored_init(s, a, t, storage))
		s->file = file;
	e->stored = s;
	return a->failed ? errmsg_nomem(err, pt->src.name) : 0;
}

static struct rank_entry *new_entry(struct rank_params *c, const char *name)
{
	struct rank_entry *e = arena_alloc(&c->arena, sizeof(*e));

	if (!e || !arena_reserve(&c->arena, &c->rest.v, c->rest.n, &c->rest.cap, c->rest.n + 1,
				 sizeof(*c->rest.v)))
		return NULL;
	e->name = arena_strdup(&c->arena, name);
	c->rest.v[c->rest.n++] = e;
	return e->name ? e : NULL;
}

int rank_params_add_entry(const struct rank_params_loader *l, const struct ptfile *pt,
			  const struct tag_file *f, const struct value *name, const struct value *v,
			  struct rank_entry **out, struct tensor *t)
{
	struct rank_entry *e = *out = new_entry(l->c, value_cstr(name));
	int rc;

	if (!e)
		return errmsg_nomem(l->err, l->file);
	rc = rank_entry_read(e, &l->c->arena, pt, (uint32_t)(f - l->dir->files), v, t, l->err);
	if (rc || l->c->facts.zero3)
		return rc;
	if (!value_is_cstr(name) || !names_is_param(e->name) || !tensor_is(v))
		return rank_params_warn(l, "module: %s: left out: %s", e->name,
					tensor_is(v) ? "cannot be a directory's name"
						     : "not a tensor");
	if (e->rc < 0)
		return errmsg_set(l->err, e->rc, "%s", e->why);
	e->universal = !e->rc && cast_knows(t->dtype);
	return e->universal ? 0
			    : rank_params_warn(l, "module: %s: left out: %s", e->name,
					       "no plain tensor of real numbers");
}

static struct listed *find_listed(const struct reader *r, const char *name)
{
	return array_find(r->listed, r->nlisted, sizeof(*r->listed), name);
}

static void list(struct reader *r, const char *name, unsigned lists)
{
	if (arena_reserve(&r->scratch, &r->listed, r->nlisted, &r->listed_cap, r->nlisted + 1,
			  sizeof(*r->listed)))
		r->listed[r->nlisted++] = (struct listed){ name, lists, NULL };
}

static void tie(struct reader *r, const char *name, const char *of)
{
	struct arena *a = &r->l->c->arena;
	struct rank_rest *m = &r->l->c->rest;

	if (arena_reserve(a, &m->ties, m->nties, &m->ties_cap, m->nties + 1, sizeof(*m->ties)))
		m->ties[m->nties++] =
			(struct rank_tie){ arena_strdup(a, name), arena_strdup(a, of) };
}

/* Read the names that the open file lists. */
static void read_names(struct reader *r)
{
	const struct rank_params *c = r->l->c;
	const struct value *root = r->l->pt->root;
	const struct value_seq *buffers = value_find_items(root, "buffer_names");
	const struct value_dict *shared = value_find_pairs(root, KEY_SHARED_PARAMS);
	size_t n = 0;

	/* The others are slices. */
	for (size_t g = 0; g < c->ngroups && !c->facts.zero3; g++)
		for (size_t i = 0; i < c->groups[g].n; i++)
			if (!c->groups[g].slices[i]->numel)
				list(r, c->groups[g].slices[i]->name, OWNED);
	for (size_t i = 0; buffers && i < buffers->n; i++)
		if (value_is_cstr(buffers->v[i]))
			list(r, buffers->v[i]->str.p, BUFFER);
	for (size_t i = 0; shared && i < shared->n; i++) {
		const struct value *name = shared->v[i].key, *of = shared->v[i].val;

		if (!value_is_cstr(name))
			continue;
		list(r, name->str.p, SHARED);
		if (value_is_cstr(of))
			tie(r, name->str.p, of->str.p);
	}
	if (r->nlisted)
		qsort(r->listed, r->nlisted, sizeof(*r->listed), array_by_text);
	for (size_t i = 0; i < r->nlisted; i++)
		if (n && strcmp(r->listed[n - 1].name, r->listed[i].name) == 0)
			r->listed[n - 1].lists |= r->listed[i].lists;
		else
			r->listed[n++] = r->listed[i];
	r->nlisted = n;
}

static int by_place(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	if (x->at != y->at)
		return x->at < y->at ? -1 : 1;
	if (x->dtype != y->dtype)
		return x->dtype < y->dtype ? -1 : 1;
	if (x->ndim != y->ndim)
		return x->ndim < y->ndim ? -1 : 1;
	return strcmp(x->key, y->key) ?: memcmp(x->dims, y->dims, 2 * x->ndim * sizeof(*x->dims));
}

/* Return the name of the first tensor of this form at this place: `name`, if there is none
 * before it, or memory is short. */
static const char *place(struct reader *r, const struct tensor *t, const char *name)
{
	const size_t bytes = t->ndim * sizeof(*t->shape);
	uint64_t *dims = arena_alloc(&r->scratch, 2 * bytes + 1);
	struct placed *x = arena_alloc(&r->scratch, sizeof(*x));
	struct placed **found;

	if (!dims || !x || !t->numel)
		return name;
	memcpy(dims, t->shape, bytes);
	memcpy(dims + t->ndim, t->stride, bytes);
	*x = (struct placed){ name,     t->storage_key, t->storage_offset * dtype_size(t->dtype),
			      t->dtype, t->ndim,        dims };
	found = tsearch(x, &r->places, by_place);
	r->scratch.failed |= !found;
	return found ? (*found)->name : name;
}

/* Read an entry of `module`. */
static int read_entry(struct reader *r, const struct value_pair *pair)
{
	const struct rank_params_loader *l = r->l;
	const char *name = value_cstr(pair->key), *first;
	struct listed *x = find_listed(r, name);
	const unsigned lists = x ? x->lists : 0;
	struct rank_entry *e;
	struct tensor t;
	int rc;

	/* The optimizer's parameters are read from its shards. */
	if (slice_find(l->c->slices, l->c->nslices, name)) {
		if (!l->c->facts.zero3 && !tensor_from_value(pair->val, name, &t, NULL))
			place(r, &t, name);
		return 0;
	}
	if (l->c->facts.zero3 && !(lists & BUFFER))
		return 0;
	rc = rank_params_add_entry(l, l->pt, r->file, pair->key, pair->val, &e, &t);
	if (rc)
		return rc;
	if (x)
		x->entry = e;
	/* Megatron keeps other objects in `module`, too. */
	if (lists & BUFFER)
		e->kind = PARAM_BUFFER;
	else if (value_is_cstr(pair->key) && tensor_is_any(pair->val) && !(lists & OWNED))
		e->kind = PARAM_FROZEN;
	if (e->kind == PARAM_FROZEN && !e->rc && t.numel) {
		first = place(r, &t, name);
		if (first != name)
			tie(r, name, first);
		if (first != name || lists & SHARED)
			e->kind = PARAM_ALIAS;
	}
	return 0;
}

/* Read a parameter that frozen_param_shapes lists.  As a rule `module` has it, too. */
static int read_frozen(struct reader *r, const struct value *key, size_t index)
{
	const struct rank_params_loader *l = r->l;
	struct rank_rest *m = &l->c->rest;
	const struct listed *x = find_listed(r, value_cstr(key));
	struct rank_entry *e;
	struct errmsg why = { "" };
	const struct value *v;
	struct tensor t;

	if (!value_is_cstr(key))
		return 0;
	if (x && x->entry) {
		m->frozen[m->nfrozen++] = x->entry;
		return 0;
	}
	m->frozen[m->nfrozen++] = e = new_entry(l->c, key->str.p);
	if (!e)
		return errmsg_nomem(l->err, l->file);
	e->rc = rank_params_fragment(l->pt, key->str.p, index, &v, &why);
	if (!e->rc)
		return rank_entry_read(e, &l->c->arena, l->pt, (uint32_t)(r->file - l->dir->files),
				       v, &t, l->err);
	e->why = arena_strdup(&l->c->arena, why.text);
	return 0;
}

static void list_buffers(struct reader *r)
{
	struct arena *a = &r->l->c->arena;
	struct rank_rest *m = &r->l->c->rest;

	m->buffers = arena_alloc(a, (r->nlisted + 1) * sizeof(*m->buffers));
	for (size_t i = 0; m->buffers && i < r->nlisted; i++)
		if (r->listed[i].lists & BUFFER)
			m->buffers[m->nbuffers++] = arena_strdup(a, r->listed[i].name);
}

/* For tdestroy: the nodes of the search tree have other owners. */
static void keep(void *node)
{
	(void)node;
}

static int read_rest(const struct rank_params_loader *l)
{
	struct rank_params *c = l->c;
	const struct tagdir *d = l->dir;
	const struct value_dict *shapes =
		c->facts.zero3 ? NULL : value_find_pairs(l->pt->root, KEY_FROZEN_SHAPES);
	const size_t n = l->module ? l->module->n : 0, frozen = shapes ? shapes->n : 0;
	struct reader r = { .l = l, .file = &d->model[tagdir_model_number(d, c->mp)] };
	int rc = 0;

	c->rest = (struct rank_rest){
		.frozen = arena_alloc(&c->arena, (frozen + 1) * sizeof(*c->rest.frozen)),
	};
	read_names(&r);
	if (!l->module)
		list_buffers(&r);
	for (size_t i = 0; !rc && !c->arena.failed && i < n; i++)
		rc = read_entry(&r, &l->module->v[i]);
	for (size_t i = 0; !rc && !c->arena.failed && i < frozen; i++)
		rc = read_frozen(&r, shapes->v[i].key, i);
	if (!rc && (c->arena.failed || r.scratch.failed))
		rc = errmsg_nomem(l->err, l->file);
	tdestroy(r.places, keep);
	arena_done(&r.scratch);
	return rc;
}

int rank_params_load_module(const struct rank_params_loader *l)
{
	/* In a pipeline stage `module` is None: the layers have files of their
	 * own, which the converter ignores. */
	return l->module || l->dir->nlayer ? read_rest(l)
					   : ERRMSG_FILE(l, -EBADMSG,
				"has no module, and no layer_* files of a pipeline beside it");
}

int rank_params_read_rest(struct rank_params *c, const struct tagdir *dir, const struct ptfile *pt,
			  struct errmsg *err)
{
	struct rank_params_loader l = {
		.c = c, .pt = pt, .file = pt->src.name, .dir = dir, .err = err
	};

	return module_dict(pt->root, l.file, &c->arena, &l.module, err) ?: read_rest(&l);
}
