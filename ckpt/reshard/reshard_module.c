/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module's tensors, and its frozen parameters.
 *
 * Stages 1 and 2 save the weights as views of the flat groups, which are padded
 * for the number of ranks; whatever is laid out otherwise stays as it is.  Stage 3
 * saves tensors without elements in place of parameters.  To bring them back, they
 * are cast from the master weights, as DeepSpeed does after each step.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_ids.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/zero/checkpoint.h"

/* A flat group of the module, as one storage. */
struct flat_module {
	const char *old_key; /* its storage in the old file; NULL: it has none */
	uint64_t old_storage; /* where that lies in the file */
	struct tensor t; /* of the new storage; a view has its own shape */
	bool added;
};

/* The module while it is made. */
struct module_builder {
	struct reshard_builder *b;
	const struct reshard_places *places;
	const struct value_dict *old;
	struct flat_module *flat; /* of each new group */
};

static bool fail_bad(struct reshard_builder *b, const char *what,
		     const char *name)
{
	if (!b->rc)
		b->rc = errmsg_set(b->err, -EBADMSG, "%s: %s: %.100s",
				   b->file->path, what, name);
	return false;
}

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

/* --- stages 1 and 2, as they were ---------------------------------------------------- */

/* Is the tensor where its parameter is in the old flat group? */
static bool is_in_place(const struct reshard_builder *b, const struct slice *s,
			const struct tensor *t)
{
	const struct partition *const p = old_partition(b, s);

	return t->storage_numel == p->size * p->ranks &&
	       t->storage_offset == p->start[s->index] &&
	       t->numel == s->numel && tensor_is_contiguous(t);
}

/* Look whether each group is one storage, whose views are its parameters. */
static bool find_flat_groups(struct module_builder *x)
{
	struct reshard_builder *const b = x->b;

	for (size_t i = 0; i < x->old->n; i++) {
		const struct value_pair *const pair = &x->old->v[i];
		const struct reshard_place *const p =
			value_is_cstr(pair->key) ?
				reshard_place(x->places, pair->key->str.p) :
				NULL;
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

/* The storage of a new group, put together from the old one. */
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
		ok = extent_add(map, EXTENT_ZERO,
				(g->part.start[i] - at) * item, 0, 0,
				f->t.dtype) &&
		     extent_add(map, EXTENT_SHARD, s->numel * item, b->number,
				f->old_storage +
					old_partition(b, s)->start[s->index] *
						item,
				f->t.dtype);
		at = g->part.start[i] + s->numel;
	}
	return ok && (!b->extents ||
		      extent_add(map, EXTENT_ZERO, (total - at) * item, 0, 0,
				 f->t.dtype));
}

/* The parameter of an old group that element `at` belongs to, or NULL. */
static const struct slice *find_slice(const struct reshard_builder *b,
				      uint32_t group, uint64_t at)
{
	const struct slice_group *const g =
		&b->s->r->model.ranks[b->mp].groups[group];
	const struct partition *const p =
		&b->s->r->layouts[b->mp].groups[group];
	size_t lo = 0, hi = g->n;

	while (hi - lo > 1) {
		const size_t mid = lo + (hi - lo) / 2;

		if (p->start[mid] <= at)
			lo = mid;
		else
			hi = mid;
	}
	return g->n && at - p->start[lo] < p->numel[lo] ? g->slices[lo] : NULL;
}

/* A view of a flat group, where it is in the new one. */
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
	t->storage_offset +=
		b->m->groups[p->group].part.start[p->index] -
		old_partition(b, s)->start[s->index];
	t->storage_key = f->t.storage_key;
	t->storage_numel = f->t.storage_numel;
	return tensor_to_value_like(&b->a, v, t);
}

/* Can a group's storage be replaced?  Every view must be of a parameter. */
static bool can_move(struct module_builder *x, size_t group)
{
	const struct flat_module *const f = &x->flat[group];
	const uint32_t old = x->b->m->groups[group].n ?
				     x->b->m->groups[group].params[0].group :
				     0;
	struct tensor t;

	if (!f->old_key || !*f->old_key)
		return false;
	for (size_t i = 0; i < x->old->n; i++)
		if (tensor_is(x->old->v[i].val) &&
		    tensor_from_value(x->old->v[i].val, "module", &t, NULL) ==
			    0 &&
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

/* --- from stages 1 and 2 to stage 3 ----------------------------------------------------- */

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
	return reshard_add_storage(b, &t, &map) ? tensor_to_value(&b->a, &t) :
						  NULL;
}

/* --- from stage 3 to stages 1 and 2 ------------------------------------------------------- */

/* A new group's weights in the type of the module. */
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
				.storage_numel =
					g->part.size * g->part.ranks };
	for (size_t i = 0; ok && b->extents && i < g->n; i++) {
		struct reshard_run gap = { .zeros = true,
					   .numel = g->part.start[i] - at };

		ok = !reshard_add_run(&runs, gap) &&
		     !reshard_find_param(b->s, b->mp, &g->params[i], &runs);
		at = g->part.start[i] + g->part.numel[i];
	}
	if (ok && b->extents)
		ok = !reshard_add_run(&runs, (struct reshard_run){
			.zeros = true, .numel = f->t.storage_numel - at });
	if (ok) {
		struct extent_map *map;

		ok = reshard_add_storage(b, &f->t, &map) &&
		     (!b->extents ||
		      reshard_add_runs(b, &runs, NULL, from, to, map));
	}
	reshard_runs_done(&runs);
	return ok;
}

/* A parameter of the optimizer, as a view of its flat group. */
static struct value *filled_view(struct module_builder *x,
				 const struct reshard_place *p, enum dtype to)
{
	const struct slice *const s = slice_at(x->b, p);
	struct flat_module *const f = &x->flat[p->group];
	struct tensor t;

	if (!cast_knows(to)) {
		fail_bad(x->b, "the module has no type to cast to", p->name);
		return NULL;
	}
	if (!f->added && !add_cast_storage(x, p->group, to))
		return NULL;
	tensor_init(&t, f->t.dtype, s->shape, s->ndim, false);
	t.storage_offset =
		x->b->m->groups[p->group].part.start[p->index];
	t.storage_key = f->t.storage_key;
	t.storage_numel = f->t.storage_numel;
	return tensor_to_value(&x->b->a, &t);
}

/* A frozen parameter, put together. */
static struct value *filled_frozen(struct module_builder *x, const char *name,
				   const struct value *shape, enum dtype dtype)
{
	struct reshard_builder *const b = x->b;
	struct extent_map *map;
	struct tensor t;

	if (!reshard_read_shape(shape, &t, dtype)) {
		fail_bad(b, "frozen_param_shapes: no shape", name);
		return NULL;
	}
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents && !reshard_add_frozen(b, name, t.numel, 0, t.numel,
					       dtype, map)))
		return NULL;
	return tensor_to_value(&b->a, &t);
}

static struct value *filled_tensor(struct module_builder *x,
				   const struct value_pair *pair)
{
	const struct value *const root = x->b->pt.root;
	const struct reshard_place *p;
	const struct value *shared, *shape;
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
	shape = value_find_path(root, "frozen_param_shapes", name, NULL);
	return shape ? filled_frozen(x, name, shape, t.dtype) : pair->val;
}

/* --- the module ------------------------------------------------------------------------------ */

struct value *reshard_module(struct reshard_builder *b,
			     const struct reshard_places *places)
{
	struct value *const module = value_find(b->pt.root, "module");
	struct value *(*const tensor)(struct module_builder *,
				      const struct value_pair *) =
		!reshard_crosses(b->s) ? relaid_tensor :
		reshard_zero3(b->s)    ? without_elements :
					 filled_tensor;
	struct module_builder x = {
		.b = b,
		.places = places,
		.old = value_pairs(module),
		.flat = arena_alloc(&b->a, (b->m->ngroups + 1) *
						   sizeof(*x.flat)),
	};
	struct value *out;
	bool ok;

	/* Pipelines have none; what stage 3 has depends on nothing. */
	if (!x.old || (reshard_zero3(b->s) && !reshard_crosses(b->s)))
		return module;
	out = module->kind == VALUE_DICT ? value_new(&b->a, VALUE_DICT) :
					   reshard_new_dict(b);
	ok = x.flat && out &&
	     (reshard_crosses(b->s) || begin_relaid(&x));
	for (size_t i = 0; ok && i < x.old->n; i++)
		ok = value_dict_add(&b->a,
				    out->kind == VALUE_DICT ?
					    &out->dict :
					    &out->obj->pairs,
				    x.old->v[i].key, tensor(&x, &x.old->v[i]));
	if (ok && out->kind != VALUE_DICT)
		out->obj->state = module->obj->state;
	return ok ? out : NULL;
}

/* --- frozen parameters -------------------------------------------------------------------------- */

/* Of a module with all weights: parameters that the optimizer does not own. */
static bool is_frozen(const struct reshard_builder *b,
		      const struct reshard_places *places,
		      const struct value_pair *pair)
{
	const char *const name =
		value_is_cstr(pair->key) ? pair->key->str.p : NULL;

	return name && tensor_is(pair->val) && !reshard_place(places, name) &&
	       !reshard_is_buffer(b->pt.root, name) &&
	       !value_find_path(b->pt.root, KEY_SHARED_PARAMS, name, NULL);
}

/* The values of module[frozen], each as `of` makes it. */
static struct value *map_frozen(struct reshard_builder *b,
				const struct reshard_places *places,
				const struct value *module,
				struct value *(*of)(struct reshard_builder *b,
						    const struct value *v))
{
	const struct value_dict *const d = value_pairs(module);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	for (size_t i = 0; ok && d && i < d->n; i++)
		if (is_frozen(b, places, &d->v[i]))
			ok = value_dict_add(&b->a, &out->obj->pairs,
					    d->v[i].key, of(b, d->v[i].val));
	return ok ? out : NULL;
}

static struct value *shape_of(struct reshard_builder *b, const struct value *v)
{
	struct value *const dims = value_new(&b->a, VALUE_TUPLE);
	struct value *const args = value_new(&b->a, VALUE_TUPLE);
	struct value *const cls = value_new_global(&b->a, "torch", "Size");
	struct tensor t;
	bool ok = dims && args && cls;

	if (!b->rc)
		b->rc = tensor_from_value(v, "module", &t, b->err);
	for (unsigned i = 0; ok && !b->rc && i < t.ndim; i++)
		ok = value_seq_add(&b->a, &dims->seq,
				   value_new_int(&b->a, (int64_t)t.shape[i]));
	return ok && !b->rc && value_seq_add(&b->a, &args->seq, dims) ?
		       value_new_reduce(&b->a, cls, args) :
		       NULL;
}

/* Stage 2 keeps the parameter itself. */
static struct value *itself(struct reshard_builder *b, const struct value *v)
{
	(void)b;
	return (struct value *)v;
}

/* This rank's part of a whole tensor. */
static struct value *part_of_tensor(struct reshard_builder *b,
				    const struct value *v)
{
	struct extent_map *map;
	struct tensor old, t;
	uint64_t storage, q, first, n;
	size_t item;

	if (!b->rc)
		b->rc = ptfile_tensor(&b->pt, v, "module", &old, &storage,
				      b->err);
	if (b->rc)
		return NULL;
	if (!tensor_is_contiguous(&old)) {
		fail_bad(b, "module", "a frozen parameter is not contiguous");
		return NULL;
	}
	item = dtype_size(old.dtype);
	q = old.numel / b->s->ranks + (old.numel % b->s->ranks != 0);
	first = b->rank * q < old.numel ? b->rank * q : old.numel;
	n = old.numel - first < q ? old.numel - first : q;
	tensor_init(&t, old.dtype, &q, 1, false);
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents &&
	     (!extent_add(map, EXTENT_SHARD, n * item, b->number,
			  storage + (old.storage_offset + first) * item,
			  old.dtype) ||
	      !extent_add(map, EXTENT_ZERO, (q - n) * item, 0, 0, old.dtype))))
		return NULL;
	return tensor_to_value(&b->a, &t);
}

/* This rank's part of a parameter of which the old ranks have parts, as `like`. */
static struct value *recut_fragment(struct reshard_builder *b, const char *name,
				    const struct value *like)
{
	struct extent_map *map;
	struct tensor old, whole, t;
	uint64_t q, first, n;

	if (!b->rc)
		b->rc = tensor_from_value(like, name, &old, b->err);
	if (b->rc)
		return NULL;
	if (!reshard_read_shape(value_find_path(b->pt.root,
						"frozen_param_shapes", name,
						NULL),
				&whole, old.dtype)) {
		fail_bad(b, "frozen_param_shapes: no shape", name);
		return NULL;
	}
	q = whole.numel / b->s->ranks + (whole.numel % b->s->ranks != 0);
	first = b->rank * q < whole.numel ? b->rank * q : whole.numel;
	n = whole.numel - first < q ? whole.numel - first : q;
	tensor_init(&t, old.dtype, &q, 1, false);
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents &&
	     (!reshard_add_frozen(b, name, whole.numel, first, n, old.dtype,
				  map) ||
	      !extent_add(map, EXTENT_ZERO, (q - n) * dtype_size(old.dtype), 0,
			  0, old.dtype))))
		return NULL;
	return tensor_to_value_like(&b->a, like, &t);
}

static struct value *recut_fragments(struct reshard_builder *b,
				     const struct value *old)
{
	const struct value_dict *const d = value_pairs(old);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	if (!d)
		return (struct value *)old;
	for (size_t i = 0; ok && i < d->n; i++) {
		const struct value *const key = d->v[i].key;

		if (!value_is_cstr(key)) {
			fail_bad(b, "frozen_param_fragments", "no name");
			return NULL;
		}
		ok = value_dict_add(&b->a, &out->obj->pairs, d->v[i].key,
				    recut_fragment(b, key->str.p, d->v[i].val));
	}
	return ok ? out : NULL;
}

/* Of the frozen parameters in a module that was stage 3's. */
static struct value *filled_fragments(struct reshard_builder *b,
				      const struct value *module,
				      const struct value *old)
{
	const struct value_dict *const d = value_pairs(old);
	struct value *const out = reshard_new_dict(b);
	bool ok = out;

	for (size_t i = 0; ok && d && i < d->n; i++) {
		struct value *const v =
			value_is_cstr(d->v[i].key) ?
				value_find(module, d->v[i].key->str.p) :
				NULL;

		if (v)
			ok = value_dict_add(&b->a, &out->obj->pairs,
					    d->v[i].key, v);
	}
	return ok ? out : NULL;
}

struct value *reshard_frozen_shapes(struct reshard_builder *b,
				    const struct reshard_places *places)
{
	struct value *const old = value_find(b->pt.root, "frozen_param_shapes");

	if (b->s->stage == 1 && b->s->old_stage != 1)
		return value_new(&b->a, VALUE_NONE);
	if (b->s->old_stage != 1 || b->s->stage == 1)
		return old;
	return map_frozen(b, places, value_find(b->pt.root, "module"),
			  shape_of);
}

struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       const struct reshard_places *places,
				       const struct value *module)
{
	struct value *const old =
		value_find(b->pt.root, "frozen_param_fragments");
	const struct value *const weights = value_find(b->pt.root, "module");

	if (b->s->stage == b->s->old_stage)
		return b->s->stage == 3 ? recut_fragments(b, old) : old;
	if (b->s->stage == 1)
		return value_new(&b->a, VALUE_NONE);
	if (b->s->stage == 3)
		return map_frozen(b, places, weights, part_of_tensor);
	return b->s->old_stage == 3 ? filled_fragments(b, module, old) :
				      map_frozen(b, places, module, itself);
}
