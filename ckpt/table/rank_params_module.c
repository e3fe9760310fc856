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
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/cast.h"
#include "ckpt/format/module_dict.h"
#include "ckpt/format/names.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/format/value.h"
#include "ckpt/table/module_entries.h"
#include "ckpt/table/rank_params_build.h"

/* Additional facts about an entry. */
struct known {
	const struct rank_entry *entry; /* once it is read */
	bool owned;                     /* the optimizer lists it but has none of its elements */
	bool sliced;                    /* the optimizer has elements of it; not set with ZeRO-3 */
};

struct reader {
	const struct rank_params_loader *l;
	const struct ckpt_file *file;
	struct arena scratch;
	struct module_entries entries;
	struct known *known; /* additional facts, by entry */
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
			  const struct ckpt_file *f, const struct value *name, const struct value *v,
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
		return RANK_PARAMS_WARN(l, "module: %s: left out: %s", e->name,
					tensor_is(v) ? "cannot be a directory's name"
						     : "not a tensor");
	if (e->rc < 0)
		return errmsg_set(l->err, e->rc, "%s", e->why);
	e->universal = !e->rc && cast_knows(t->dtype);
	return e->universal ? 0
			    : RANK_PARAMS_WARN(l, "module: %s: left out: no plain tensor of real numbers",
					       e->name);
}

/* Return the additional facts about a name, or NULL. */
static struct known *known_of(const struct reader *r, const struct module_entry *x)
{
	return x ? &r->known[x - r->entries.v] : NULL;
}

static void tie(struct reader *r, const char *name, const char *of)
{
	struct arena *a = &r->l->c->arena;

	ties_add(&r->l->c->rest.ties, a, arena_strdup(a, name), arena_strdup(a, of));
}

/* Read the names that the open file lists. */
static void read_names(struct reader *r)
{
	const struct rank_params *c = r->l->c;
	const struct value *root = r->l->pt->root;
	const struct value_dict *shared = value_find_pairs(root, KEY_SHARED_PARAMS);

	module_entries_init(&r->entries, &r->scratch, root, r->l->module);
	r->known = arena_alloc(&r->scratch, (r->entries.n + 1) * sizeof(*r->known));
	for (size_t g = 0; r->known && g < c->ngroups && !c->facts.zero3; g++)
		for (size_t i = 0; i < c->groups[g].n; i++) {
			const struct slice *s = c->groups[g].slices[i];
			struct known *k = known_of(r, module_entries_find(&r->entries, s->name));

			if (k)
				*(s->numel ? &k->sliced : &k->owned) = true;
		}
	for (size_t i = 0; shared && i < shared->n; i++)
		if (value_is_cstr(shared->v[i].key) && value_is_cstr(shared->v[i].val))
			tie(r, shared->v[i].key->str.p, shared->v[i].val->str.p);
}

/* Read an entry of `module`. */
static int read_entry(struct reader *r, const struct value_pair *pair)
{
	const struct rank_params_loader *l = r->l;
	const char *name = value_cstr(pair->key);
	const struct module_entry *x = module_entries_find(&r->entries, name);
	struct known *k = known_of(r, x);
	struct rank_entry *e;
	struct tensor t;
	int rc;

	/* The optimizer's parameters are read from its shards. */
	if (l->c->facts.zero3 ? !(x && x->buffer) || slice_find(l->c->slices, l->c->nslices, name)
			      : k && k->sliced)
		return 0;
	rc = rank_params_add_entry(l, l->pt, r->file, pair->key, pair->val, &e, &t);
	if (rc || !x)
		return rc;
	k->entry = e;
	/* Megatron keeps other objects in `module`, too. */
	if (x->buffer)
		e->kind = PARAM_BUFFER;
	else if (tensor_is_any(pair->val) && !k->owned)
		e->kind = x->same && !e->rc && t.numel ? PARAM_ALIAS : PARAM_FROZEN;
	if (e->kind == PARAM_ALIAS)
		tie(r, name, x->same);
	return 0;
}

/* Read a parameter that frozen_param_shapes lists.  Usually `module` has it, too. */
static int read_frozen(struct reader *r, const struct value *key, size_t index)
{
	const struct rank_params_loader *l = r->l;
	struct rank_rest *m = &l->c->rest;
	const struct known *x = known_of(r, module_entries_find(&r->entries, value_cstr(key)));
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

	m->buffers = arena_alloc(a, (r->entries.n + 1) * sizeof(*m->buffers));
	for (size_t i = 0; m->buffers && i < r->entries.n; i++)
		if (r->entries.v[i].buffer)
			m->buffers[m->nbuffers++] = arena_strdup(a, r->entries.v[i].name);
}

static int read_rest(const struct rank_params_loader *l)
{
	struct rank_params *c = l->c;
	const struct zero_dir *d = l->dir;
	const struct value_dict *shapes =
		c->facts.zero3 ? NULL : value_find_pairs(l->pt->root, KEY_FROZEN_SHAPES);
	const size_t n = l->module ? l->module->n : 0, frozen = shapes ? shapes->n : 0;
	struct reader r = { .l = l, .file = &d->model[zero_dir_model_number(d, c->mp)] };
	int rc = 0;

	c->rest = (struct rank_rest){
		.frozen = arena_alloc(&c->arena, (frozen + 1) * sizeof(*c->rest.frozen)),
	};
	read_names(&r);
	if (!l->module)
		list_buffers(&r);
	if (r.scratch.failed)
		rc = errmsg_nomem(l->err, l->file);
	for (size_t i = 0; !rc && !c->arena.failed && i < n; i++)
		rc = read_entry(&r, &l->module->v[i]);
	for (size_t i = 0; !rc && !c->arena.failed && i < frozen; i++)
		rc = read_frozen(&r, shapes->v[i].key, i);
	if (!rc && c->arena.failed)
		rc = errmsg_nomem(l->err, l->file);
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

int rank_params_read_rest(struct rank_params *c, const struct zero_dir *dir, const struct ptfile *pt,
			  struct errmsg *err)
{
	struct rank_params_loader l = {
		.c = c, .pt = pt, .file = pt->src.name, .dir = dir, .err = err
	};

	return module_dict(pt->root, l.file, &c->arena, &l.module, err) ?: read_rest(&l);
}
