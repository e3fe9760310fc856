/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module's tensors.
 *
 * Stages 1 and 2 save the weights as views of the flat groups, whose padding depends
 * on the number of ranks; a tensor with another layout is kept.  Stage 3 saves empty
 * tensors in place of parameters.  Towards stages 1 and 2 the weights are cast from
 * the master weights, as DeepSpeed does after each step.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/interval.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_ids.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/zero/checkpoint.h"

/* A flat group of the module, as one storage. */
struct flat_module {
	const char *old_key;  /* of its storage in the old file, or NULL */
	uint64_t old_storage; /* offset in that file */
	struct tensor t;      /* the new storage; its shape is not used */
	bool added;
};

/* The module while it is built. */
struct module_builder {
	struct reshard_builder *b;
	const struct reshard_places *places;
	const struct value_dict *old;
	struct flat_module *flat; /* of each new group */
};

static const struct partition *old_partition(const struct reshard_builder *b,
					     const struct slice *s)
{
	return &b->s->r->layouts[b->mp].groups[s->group];
}

static const struct slice *slice_at(const struct reshard_builder *b,
				    const struct reshard_place *p)
{
	return b->m->groups[p->group].params[p->index].slice;
}

/* --- stages 1 and 2 ------------------------------------------------------- */

/* Is the tensor its parameter's view of the old flat group? */
static bool is_in_place(const struct reshard_builder *b, const struct slice *s,
			const struct tensor *t)
{
	const struct partition *const p = old_partition(b, s);

	return t->storage_numel == p->size * p->ranks &&
	       t->storage_offset == p->start[s->index] &&
	       t->numel == s->numel && tensor_is_contiguous(t);
}

/* Find the groups whose parameters all are views of one storage. */
static bool find_flat_groups(struct module_builder *x)
{
	struct reshard_builder *const b = x->b;

	for (size_t i = 0; i < x->old->n; i++) {
		const struct value_pair *const pair = &x->old->v[i];
		const struct reshard_place *const p =
			value_is_cstr(pair->key)
				? reshard_place(x->places, pair->key->str.p)
				: NULL;
		struct flat_module *f;
		uint64_t storage;
		struct tensor t;

		if (!p || !tensor_is(pair->val))
			continue;
		if (!b->rc)
			b->rc = ptfile_tensor(&b->pt, pair->val, p->name, &t,
					      &storage, b->err);
		if (b->rc)
			return false;
		f = &x->flat[p->group];
		if (!is_in_place(b, slice_at(b, p), &t) ||
		    (f->old_key && strcmp(f->old_key, t.storage_key) != 0)) {
			f->old_key = "";
			continue;
		}
		if (!f->old_key)
			*f = (struct flat_module){ .old_key = t.storage_key,
						   .old_storage = storage,
						   .t = t };
	}
	return true;
}

/* Add the storage of a new group, copied parameter by parameter. */
static bool add_flat_storage(struct module_builder *x, size_t group)
{
	struct reshard_builder *const b = x->b;
	const struct reshard_group *const g = &b->m->groups[group];
	struct flat_module *const f = &x->flat[group];
	const uint64_t item = dtype_size(f->t.dtype);
	const uint64_t total = g->part.size * g->part.ranks;
	struct extent_map *map;
	uint64_t at = 0;
	bool ok;

	f->added = true;
	f->t.storage_numel = total;
	ok = reshard_add_storage(b, &f->t, &map);
	for (size_t i = 0; ok && b->extents && i < g->n; i++) {
		const struct slice *const s = g->params[i].slice;

		if (!s)
			continue;
		ok = extent_add(map, EXTENT_ZERO, (g->part.start[i] - at) * item,
				0, 0, f->t.dtype) &&
		     extent_add(map, EXTENT_SHARD, s->numel * item, b->number,
				f->old_storage +
					old_partition(b, s)->start[s->index] *
						item,
				f->t.dtype);
		at = g->part.start[i] + s->numel;
	}
	return ok &&
	       (!b->extents || extent_add(map, EXTENT_ZERO, (total - at) * item,
					  0, 0, f->t.dtype));
}

/* Find the parameter that element `at` of an old group belongs to, or NULL. */
static const struct slice *find_slice(const struct reshard_builder *b,
				      uint32_t group, uint64_t at)
{
	const struct slice_group *const g =
		&b->s->r->model.ranks[b->mp].groups[group];
	const struct partition *const p = &b->s->r->layouts[b->mp].groups[group];
	const size_t i = interval_find(p->start, g->n, sizeof(*p->start), at);

	return g->n && at - p->start[i] < p->numel[i] ? g->slices[i] : NULL;
}

/* Move a view of an old flat group to the new one. */
static struct value *move_view(struct module_builder *x, size_t group,
			       const struct value *v, struct tensor *t)
{
	struct reshard_builder *const b = x->b;
	struct flat_module *const f = &x->flat[group];
	const struct slice *const s = find_slice(
		b, b->m->groups[group].params[0].group, t->storage_offset);
	const struct reshard_place *const p =
		s ? reshard_place(x->places, s->name) : NULL;

	if (!p || (!f->added && !add_flat_storage(x, group)))
		return NULL;
	t->storage_offset += b->m->groups[p->group].part.start[p->index] -
			     old_partition(b, s)->start[s->index];
	t->storage_key = f->t.storage_key;
	t->storage_numel = f->t.storage_numel;
	return tensor_to_value_like(&b->a, v, t);
}

/* Can a group's storage be replaced?  Every view of it must lie in a parameter. */
static bool can_move(struct module_builder *x, size_t group)
{
	const struct flat_module *const f = &x->flat[group];
	const uint32_t old = x->b->m->groups[group].n
				     ? x->b->m->groups[group].params[0].group
				     : 0;
	struct tensor t;

	if (!f->old_key || !*f->old_key)
		return false;
	for (size_t i = 0; i < x->old->n; i++)
		if (tensor_is(x->old->v[i].val) &&
		    tensor_from_value(x->old->v[i].val, "module", &t, NULL) == 0 &&
		    strcmp(t.storage_key, f->old_key) == 0 &&
		    (!t.numel || !find_slice(x->b, old, t.storage_offset)))
			return false;
	return true;
}

static struct value *relaid_tensor(struct module_builder *x,
				   const struct value_pair *pair)
{
	struct tensor t;

	if (!tensor_is(pair->val) ||
	    tensor_from_value(pair->val, "module", &t, NULL))
		return pair->val;
	for (size_t g = 0; g < x->b->m->ngroups; g++)
		if (x->flat[g].old_key &&
		    strcmp(x->flat[g].old_key, t.storage_key) == 0)
			return move_view(x, g, pair->val, &t);
	return pair->val;
}

static bool begin_relaid(struct module_builder *x)
{
	if (!find_flat_groups(x))
		return false;
	for (size_t g = 0; g < x->b->m->ngroups; g++)
		if (!can_move(x, g))
			x->flat[g].old_key = NULL;
	return true;
}

/* --- from stages 1 and 2 to stage 3 --------------------------------------- */

static struct value *without_elements(struct module_builder *x,
				      const struct value_pair *pair)
{
	struct reshard_builder *const b = x->b;
	static const uint64_t none = 0;
	struct extent_map *map;
	struct tensor old, t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    reshard_is_buffer(b->pt.root, pair->key->str.p))
		return pair->val;
	if (!b->rc)
		b->rc = tensor_from_value(pair->val, pair->key->str.p, &old,
					  b->err);
	if (b->rc)
		return NULL;
	tensor_init(&t, old.dtype, &none, 1, false);
	return reshard_add_storage(b, &t, &map) ? tensor_to_value(&b->a, &t)
						: NULL;
}

/* --- from stage 3 to stages 1 and 2 --------------------------------------- */

/* Add the storage of a new group, cast from the master weights. */
static bool add_cast_storage(struct module_builder *x, size_t group,
			     enum dtype to)
{
	struct reshard_builder *const b = x->b;
	const struct reshard_group *const g = &b->m->groups[group];
	const enum dtype from =
		zckpt_shard(b->s->r, b->mp, 0)->groups[g->like].fp32.dtype;
	struct flat_module *const f = &x->flat[group];
	struct reshard_runs runs = { 0 };
	uint64_t at = 0;
	bool ok = true;

	f->added = true;
	f->t = (struct tensor){ .dtype = to,
				.storage_numel = g->part.size * g->part.ranks };
	for (size_t i = 0; ok && b->extents && i < g->n; i++) {
		struct reshard_run gap = { .zeros = true,
					   .numel = g->part.start[i] - at };

		ok = !reshard_add_run(&runs, gap) &&
		     !reshard_find_param(b->s, b->mp, &g->params[i], &runs);
		at = g->part.start[i] + g->part.numel[i];
	}
	if (ok && b->extents)
		ok = !reshard_add_run(
			&runs, (struct reshard_run){
				       .zeros = true,
				       .numel = f->t.storage_numel - at });
	if (ok) {
		struct extent_map *map;

		ok = reshard_add_storage(b, &f->t, &map) &&
		     (!b->extents ||
		      reshard_add_runs(b, &runs, NULL, from, to, map));
	}
	reshard_runs_done(&runs);
	return ok;
}

/* Return a parameter as a view of its flat group. */
static struct value *filled_view(struct module_builder *x,
				 const struct reshard_place *p, enum dtype to)
{
	const struct slice *const s = slice_at(x->b, p);
	struct flat_module *const f = &x->flat[p->group];
	struct tensor t;

	if (!cast_knows(to) && !x->b->rc)
		x->b->rc = errmsg_set(x->b->err, -EBADMSG,
				      "%s: %.100s: no cast from the master"
				      " weights to %s is known",
				      x->b->file->path, p->name, dtype_name(to));
	if (x->b->rc)
		return NULL;
	if (!f->added && !add_cast_storage(x, p->group, to))
		return NULL;
	tensor_init(&t, f->t.dtype, s->shape, s->ndim, false);
	t.storage_offset = x->b->m->groups[p->group].part.start[p->index];
	t.storage_key = f->t.storage_key;
	t.storage_numel = f->t.storage_numel;
	return tensor_to_value(&x->b->a, &t);
}

/* Return a frozen parameter, joined from the old ranks' slots. */
static struct value *joined_frozen(struct module_builder *x, const char *name,
				   enum dtype dtype)
{
	struct reshard_builder *const b = x->b;
	struct extent_map *map;
	struct tensor t;

	if (!reshard_frozen_shape(b, name, dtype, &t) ||
	    !reshard_add_storage(b, &t, &map) ||
	    (b->extents &&
	     !reshard_add_frozen(b, name, t.numel, 0, t.numel, dtype, map)))
		return NULL;
	return tensor_to_value(&b->a, &t);
}

static struct value *filled_tensor(struct module_builder *x,
				   const struct value_pair *pair)
{
	const struct value *const root = x->b->pt.root;
	const struct reshard_place *p;
	const struct value *shared;
	const char *name;
	struct tensor t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    tensor_from_value(pair->val, "module", &t, NULL))
		return pair->val;
	name = pair->key->str.p;
	shared = value_find_path(root, KEY_SHARED_PARAMS, name, NULL);
	if (value_is_cstr(shared))
		name = shared->str.p;
	p = reshard_place(x->places, name);
	if (p)
		return filled_view(x, p, t.dtype);
	return value_find_path(root, "frozen_param_shapes", name, NULL)
		       ? joined_frozen(x, name, t.dtype)
		       : pair->val;
}

/* --- the module ----------------------------------------------------------- */

struct value *reshard_module(struct reshard_builder *b,
			     const struct reshard_places *places)
{
	struct value *const module = value_find(b->pt.root, "module");
	struct value *(*const tensor)(struct module_builder *,
				      const struct value_pair *) =
		!reshard_crosses(b->s) ? relaid_tensor
		: reshard_zero3(b->s)  ? without_elements
				       : filled_tensor;
	struct module_builder x = {
		.b = b,
		.places = places,
		.old = value_pairs(module),
		.flat = arena_alloc(&b->a, (b->m->ngroups + 1) * sizeof(*x.flat)),
	};
	struct value *out;
	bool ok;

	/* Pipelines have no module; that of stage 3 does not depend on ranks. */
	if (!x.old || (reshard_zero3(b->s) && !reshard_crosses(b->s)))
		return module;
	out = module->kind == VALUE_DICT ? value_new(&b->a, VALUE_DICT)
					 : reshard_new_dict(b);
	ok = x.flat && out && (reshard_crosses(b->s) || begin_relaid(&x));
	for (size_t i = 0; ok && i < x.old->n; i++)
		ok = value_dict_add(&b->a,
				    out->kind == VALUE_DICT ? &out->dict
							    : &out->obj->pairs,
				    x.old->v[i].key, tensor(&x, &x.old->v[i]));
	if (ok && out->kind != VALUE_DICT)
		out->obj->state = module->obj->state;
	return ok ? out : NULL;
}
