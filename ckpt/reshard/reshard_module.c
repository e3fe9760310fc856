/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module's tensors.
 *
 * Stages 1 and 2 save the weights as views of the flat groups, whose padding depends
 * on the number of ranks; a tensor with another layout is kept.  Stage 3 saves empty
 * tensors in place of parameters.  Towards stages 1 and 2 the weights are cast from
 * the master weights, as DeepSpeed does after each step.
 */
#include <errno.h>
#include <string.h>

#include "ckpt/base/interval.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/tensor/cast.h"

/* A new flat group of the module, as one storage. */
struct flat_module {
	const char *old_key;  /* of its storage in the old file, or NULL */
	bool scattered;       /* not all its parameters are views of that */
	uint64_t old_storage; /* offset in that file */
	struct tensor t;      /* the new storage; its shape is not used */
	bool added;
};

/* The module while it is built. */
struct module_builder {
	struct flat_module *flat;  /* of each new group */
	struct reshard_names keys; /* of storages that are replaced */
};

static const struct partition *old_partition(const struct reshard_builder *b,
					     const struct slice *s)
{
	return &b->s->r->layouts[b->mp].groups[s->group];
}

static const struct param_state *master_of(const struct reshard_builder *b,
					   const struct reshard_group *g)
{
	return zckpt_shard(b->s->r, b->mp, 0)->groups[g->like].states.v;
}

/* Append a parameter: a copy from the old storage, or a cast of the master weights. */
static void add_param(struct reshard_builder *b, const struct flat_module *f,
		      const struct reshard_group *g, const struct slice *s,
		      struct extent_map *map)
{
	const struct zckpt_run run = {
		.slice = s,
		.state = master_of(b, g),
		.numel = s->numel,
		.to = f->t.dtype,
	};
	const uint64_t item = dtype_size(f->t.dtype);
	const uint64_t start = old_partition(b, s)->start[s->index];

	if (f->old_key)
		draft_add_old(b->d, map, s->numel * item,
			      f->old_storage + start * item);
	else
		draft_try(b->d, zckpt_add(b->s->r, &run, map, b->d->err));
}

/* Add the storage of a new group: its parameters, with zeros between them. */
static void add_flat_storage(struct reshard_builder *b, struct flat_module *f,
			     const struct reshard_group *g)
{
	const uint64_t item = dtype_size(f->t.dtype);
	struct extent_map *map;
	uint64_t at = 0;

	f->added = true;
	f->t.storage_numel = g->part.size * g->part.ranks;
	map = draft_add_storage(b->d, &f->t);
	if (!b->d->extents)
		return;
	for (size_t i = 0; i < g->n && !draft_failed(b->d); i++) {
		const struct slice *const s = g->params[i].slice;

		if (!s)
			continue;
		draft_add_zeros(b->d, map, (g->part.start[i] - at) * item);
		at = g->part.start[i] + s->numel;
		add_param(b, f, g, s, map);
	}
	draft_add_zeros(b->d, map, (f->t.storage_numel - at) * item);
}

/* Place `t` in its group's new storage, `by` elements after the parameter's start. */
static void place(struct reshard_builder *b, struct module_builder *x,
		  const struct reshard_name *p, uint64_t by, struct tensor *t)
{
	const struct reshard_group *const g = &b->m->groups[p->group];
	struct flat_module *const f = &x->flat[p->group];

	if (!f->added)
		add_flat_storage(b, f, g);
	t->storage_offset = g->part.start[p->index] + by;
	t->storage_key = f->t.storage_key;
	t->storage_numel = f->t.storage_numel;
}

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
static void find_flat_groups(struct reshard_builder *b, struct module_builder *x,
			     const struct value_dict *old)
{
	for (size_t i = 0; i < old->n; i++) {
		const struct value_pair *const pair = &old->v[i];
		const struct reshard_name *const p =
			value_is_cstr(pair->key)
				? reshard_names_find(&b->places,
						     pair->key->str.p)
				: NULL;
		const struct slice *s;
		struct flat_module *f;
		uint64_t storage;
		struct tensor t;

		if (!p || !tensor_is(pair->val))
			continue;
		if (!draft_try(b->d, ptfile_tensor(&b->d->old, pair->val, p->name,
						   &t, &storage, b->d->err)))
			return;
		f = &x->flat[p->group];
		s = b->m->groups[p->group].params[p->index].slice;
		if (!f->old_key)
			*f = (struct flat_module){ .old_key = t.storage_key,
						   .old_storage = storage,
						   .t = t };
		f->scattered |= !is_in_place(b, s, &t) ||
				strcmp(f->old_key, t.storage_key) != 0;
	}
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

/* Describe a tensor of the module in a storage that is replaced; NULL if it is in
 * none. */
static const struct reshard_name *find_view(const struct module_builder *x,
					    const struct value *v,
					    struct tensor *t)
{
	return tensor_is(v) && !tensor_from_value(v, "module", t, NULL)
		       ? reshard_names_find(&x->keys, t->storage_key)
		       : NULL;
}

/* A group's storage cannot be replaced if a view of it does not lie in a
 * parameter. */
static void begin_relaid(struct reshard_builder *b, struct module_builder *x,
			 const struct value_dict *old)
{
	struct tensor t;

	x->keys.v = arena_alloc(b->a, (b->m->ngroups + 1) * sizeof(*x->keys.v));
	find_flat_groups(b, x, old);
	for (size_t g = 0; x->keys.v && g < b->m->ngroups; g++)
		if (x->flat[g].old_key && !x->flat[g].scattered)
			x->keys.v[x->keys.n++] = (struct reshard_name){
				.name = x->flat[g].old_key, .group = (uint32_t)g
			};
	reshard_names_sort(&x->keys);
	for (size_t i = 0; i < old->n; i++) {
		const struct reshard_name *const k =
			find_view(x, old->v[i].val, &t);

		if (k && (!t.numel || !find_slice(b, b->m->groups[k->group].like,
						  t.storage_offset)))
			x->flat[k->group].scattered = true;
	}
}

/* Move a view of an old flat group to the new one. */
static struct value *relaid_tensor(struct reshard_builder *b, void *ctx,
				   const struct value_pair *pair)
{
	struct module_builder *const x = ctx;
	struct tensor t;
	const struct reshard_name *const k = find_view(x, pair->val, &t);
	const struct reshard_name *p;
	const struct slice *s;

	if (!k || x->flat[k->group].scattered)
		return pair->val;
	s = find_slice(b, b->m->groups[k->group].like, t.storage_offset);
	p = reshard_names_find(&b->places, s->name);
	if (!p)
		return RESHARD_FAIL(b, -EBADMSG, "%.100s: is in no flat group",
				    s->name);
	place(b, x, p, t.storage_offset - old_partition(b, s)->start[s->index],
	      &t);
	return tensor_to_value_like(b->a, pair->val, &t);
}

static struct value *without_elements(struct reshard_builder *b, void *ctx,
				      const struct value_pair *pair)
{
	static const uint64_t none = 0;
	struct tensor old, t;

	(void)ctx;
	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    reshard_names_find(&b->entries.buffers, pair->key->str.p))
		return pair->val;
	if (!draft_try(b->d, tensor_from_value(pair->val, pair->key->str.p,
					       &old, b->d->err)))
		return NULL;
	tensor_init(&t, old.dtype, &none, 1, false);
	draft_add_storage(b->d, &t);
	return tensor_to_value(b->a, &t);
}

/* Return a parameter as a view of its flat group. */
static struct value *filled_view(struct reshard_builder *b,
				 struct module_builder *x,
				 const struct reshard_name *p, enum dtype to)
{
	const struct slice *const s =
		b->m->groups[p->group].params[p->index].slice;
	struct flat_module *const f = &x->flat[p->group];
	const enum dtype from = master_of(b, &b->m->groups[p->group])->dtype;
	struct tensor t;

	if (from != to && !(cast_knows(from) && cast_makes(to)))
		return RESHARD_FAIL(b, -EBADMSG,
				    "%.100s: no cast from the master weights to"
				    " %s is known",
				    p->name, dtype_name(to));
	if (!f->added)
		f->t.dtype = to;
	tensor_init(&t, f->t.dtype, s->shape, s->ndim, false);
	place(b, x, p, 0, &t);
	return tensor_to_value(b->a, &t);
}

/* Does an empty tensor stand for a frozen parameter that was excluded from the save?  Of
 * those, DeepSpeed leaves the names out but for further names of one parameter. */
static bool is_excluded(const struct reshard_builder *b, const char *name,
			const struct tensor *t)
{
	const struct value *const root = b->d->old.root;
	const struct value_seq *const groups =
		value_find_items(root, "param_shapes");

	if (t->numel || value_find_pairs(root, KEY_FROZEN_SHAPES) ||
	    reshard_names_find(&b->entries.buffers, name))
		return false;
	for (size_t g = 0; groups && g < groups->n; g++)
		if (value_find(groups->v[g], name))
			return false;
	return true;
}

static struct value *filled_tensor(struct reshard_builder *b, void *ctx,
				   const struct value_pair *pair)
{
	const struct reshard_name *p, *tied;
	const char *name;
	struct tensor t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    tensor_from_value(pair->val, "module", &t, NULL))
		return pair->val;
	name = pair->key->str.p;
	tied = reshard_names_find(&b->entries.shared, name);
	if (tied && value_is_cstr(tied->value))
		name = tied->value->str.p;
	p = reshard_names_find(&b->places, name);
	if (p)
		return filled_view(b, ctx, p, t.dtype);
	if (frozen_find(&b->frozen, name))
		return reshard_frozen_tensor(b, name, pair->val, NULL);
	return is_excluded(b, name, &t) ? reshard_left_out : pair->val;
}

struct value *reshard_module(struct reshard_builder *b, struct value *old)
{
	const bool crosses = reshard_crosses(b->s);
	reshard_make *const tensor = !crosses           ? relaid_tensor
				     : b->s->stage == 3 ? without_elements
							: filled_tensor;
	const struct value_dict *const d = value_pairs(old);
	struct module_builder x = {
		.flat = arena_alloc(b->a, (b->m->ngroups + 1) * sizeof(*x.flat)),
	};

	/* Pipelines have no module; that of stage 3 does not depend on ranks. */
	if (!d || (b->s->stage == 3 && !crosses))
		return old;
	if (b->module || !x.flat)
		return b->module;
	if (!crosses)
		begin_relaid(b, &x, d);
	b->module = reshard_map(b, reshard_new_like(b, old), old, tensor, &x);
	return b->module;
}
