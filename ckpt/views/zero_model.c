/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's model states, which deepspeed/runtime/engine.py
 * (_common_checkpoint_state) writes.  These fields depend on the number of ranks:
 *
 *   dp_world_size
 *   param_shapes		one dict for each flat group
 *   frozen_param_fragments	stage 3: this rank's slots
 *   shared_params		only the first rank fills it in
 *   ds_autoep_layers	the ranks that share an expert
 *   folding		see zero_folding.c
 *
 * and these on the stage: module, frozen_param_shapes, frozen_param_fragments, ds_config.
 *
 * Stages 1 and 2 save the module's weights as views of flat groups, whose padding depends
 * on the number of ranks: loaders copy what the views show, so the module stays as it is.
 * Stage 3 saves empty tensors in place of parameters.  From there to stages 1 and 2, the
 * weights are cast from the master weights, as DeepSpeed does after each step.
 *
 * Frozen parameters are, by stage
 *
 *   1	None, None
 *   2	the shapes, and the module's own tensors
 *   3	the shapes, and each rank's part: the parameter, padded to a multiple
 *	of the ranks, in equal slots
 *
 * They are None, too, if they were excluded from the save.  DeepSpeed asks a dict for every
 * parameter that is frozen as it loads, and None for nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/format/cast.h"
#include "ckpt/table/frozen.h"
#include "ckpt/table/module_entries.h"
#include "ckpt/views/zero_object.h"

#define KEY_AUTOEP_LAYERS "ds_autoep_layers"

/* Model states while they are made. */
struct model_states {
	struct zero_object *o;
	struct module_entries entries; /* kinds of the old module's names */
	struct frozen frozen;        /* of an old stage 3 */
	struct value **made;         /* for each slice, its tensor once it has been made under some
				      * name */
	struct recut_names module;   /* names of the new module */
};

/* Return the name under which DeepSpeed saves a tensor of the module that has several names; or
 * NULL. */
static const char *name_saved(const struct model_states *x, const char *name)
{
	const struct module_entry *e = module_entries_find(&x->entries, name);

	return e ? e->same : NULL;
}

/* The new name and shape of a parameter; `old` is its old shape. */
static struct value *param_name(const struct zero_object *o, const struct recut_param *p,
				struct value *old)
{
	char name[EXPERT_NAME_MAX];

	return p->ep ? value_new_str(o->a, arena_strdup(o->a, recut_param_name(p, name))) : old;
}

static struct value *param_size(const struct zero_object *o, const struct recut_param *p,
				struct value *old)
{
	uint64_t shape[TENSOR_DIMS_MAX];

	if (p->times == 1)
		return old;
	memcpy(shape, p->slice->shape, p->slice->ndim * sizeof(*shape));
	shape[0] *= p->times;
	return tensor_size_to_value(o->a, shape, p->slice->ndim);
}

/* The entries of param_shapes by new group. */
static struct value *param_shapes(struct zero_object *o, struct value *old)
{
	struct value *list = value_new(o->a, VALUE_LIST);

	if (o->m->same_order)
		return old;
	for (size_t g = 0; g < o->m->ngroups; g++) {
		const struct recut_group *x = &o->m->groups[g];
		struct value *dict = value_new_ordered(o->a);

		for (size_t i = 0; i < x->n; i++) {
			const struct recut_param *p = &x->params[i];
			const struct value_dict *d = value_pairs(value_item(old, p->slice->group));

			if (!d || p->slice->index >= d->n)
				return ZERO_OBJECT_FAIL(o, -EBADMSG,
							"param_shapes is not that of other ranks");
			value_put(o->a, dict, param_name(o, p, d->v[p->slice->index].key),
				  param_size(o, p, d->v[p->slice->index].val));
		}
		value_append(o->a, list, dict);
	}
	return list;
}

/* Only the first rank lists tied names. */
static struct value *shared_params(const struct zero_object *o, struct value *old)
{
	return o->rank == 0 || !old || old->kind != VALUE_DICT ? old : value_new(o->a, VALUE_DICT);
}

/* AutoEP's records of its layers, each with the new number of ranks that share an expert. */
static struct value *autoep_layers(const struct zero_object *o, struct value *old)
{
	const struct value_seq *list = value_items(old);
	const struct checkpoint *c = o->s->c;
	const struct experts *x = c->moe ? c->moe[o->mp / c->tp] : NULL;
	struct value *out = value_new(o->a, VALUE_LIST);
	char name[32];

	for (size_t i = 0; list && i < list->n; i++) {
		int64_t ep = 1, n = 1;

		value_get_int(value_find(list->v[i], "ep_size"), &ep);
		value_get_int(value_find(list->v[i], "num_experts"), &n);

		const unsigned degree = recut_degree(
			ep > 0 ? (unsigned)ep : 1, o->s->ranks * c->tp);
		const int64_t local = n / degree;
		const struct rank_stripe stripe =
			rank_stripe_of(o->s->ranks, degree, c->tp, x && x->data_first);
		const struct rank_place own = rank_stripe_place(&stripe, o->mp, o->rank);

		snprintf(name, sizeof(name), "ep_size_%u", degree);

		const struct value_field fields[] = {
			{ "expert_data_parallel_world_size", value_new_int(o->a, stripe.ranks) },
			{ "expert_data_parallel_rank", value_new_int(o->a, own.part) },
			{ "ep_rank", value_new_int(o->a, own.which) },
			{ "global_expert_start", value_new_int(o->a, own.which * local) },
			{ "global_expert_end", value_new_int(o->a, (own.which + 1) * local) },
			/* Of fewer ranks.  Without a placement it is the default, too. */
			{ "ep_size", value_new_int(o->a, degree) },
			{ "num_local_experts", value_new_int(o->a, local) },
			{ "ep_group_name", value_new_str(o->a, arena_strdup(o->a, name)) },
			{ "expert_placement", NULL },
			{ "affine_maps", NULL },
		};

		value_append(o->a, out,
			     value_edit(o->a, list->v[i], fields, degree == ep ? 5 : COUNT(fields)));
	}
	return list ? out : old;
}

/* universal_checkpoint_info has a copy of these records. */
static struct value *uc_info(const struct zero_object *o, struct value *old)
{
	const struct value_field layers = { KEY_AUTOEP_LAYERS,
					    autoep_layers(o, value_find(old, KEY_AUTOEP_LAYERS)) };

	return layers.val ? value_edit(o->a, old, &layers, 1) : old;
}

/* Return the optimizer's parameter with this name, or NULL. */
static const struct slice *find_trained(const struct zero_object *o, const char *name)
{
	return slice_find(o->s->c->ranks[o->mp].slices, o->s->c->ranks[o->mp].nslices, name);
}

/* Make a trained parameter, whole, rounded from its master weights. */
static struct value *whole_param(struct zero_object *o, const struct slice *s, enum dtype to)
{
	const struct part_run run = {
		.slice = s,
		.state = o->s->c->ranks[o->mp].groups[s->group].states->v,
		.numel = s->numel,
		.to = to,
	};
	const enum dtype from = run.state->dtype;
	struct extent_map *map;
	struct tensor t;

	if (from != to && !(cast_knows(from) && cast_makes(to)))
		return ZERO_OBJECT_FAIL(o, -EBADMSG,
					"%.100s: no cast from the master weights to %s is known",
					s->name, dtype_name(to));
	tensor_init(&t, to, s->shape, s->ndim, false);
	map = layout_add_storage(o->d, &t);
	if (o->d->extents)
		layout_note(o->d,
			    o->s->c->ops->parts(o->s->c, &run, 1, map, &o->d->gathers, o->d->err));
	return tensor_to_value(o->a, &t);
}

/* Append elements [first, first + numel) of a frozen parameter of stages 1 and 2: tensor `t` of
 * the old file, whose storage begins at `at`. */
static void add_frozen(const struct zero_object *o, const struct param *row, const struct tensor *t,
		       uint64_t at, uint64_t first, uint64_t numel, struct extent_map *map)
{
	const size_t item = dtype_size(t->dtype);
	struct extent_map storage = { 0 }, whole = { 0 };
	struct file_layout *d = o->d;

	if (row) {
		layout_note(d, checkpoint_module(o->s->c, row, t->dtype, &whole, &d->gathers,
						 d->err));
	} else if (tensor_is_contiguous(t)) {
		layout_add_old(d, &whole, t->numel * item, at + t->storage_offset * item);
	} else {
		layout_add_old(d, &storage, t->storage_numel * item, at);
		layout_need_memory(d, gathers_add_view(&d->gathers, t, &storage, &whole));
	}
	layout_need_memory(d, layout_failed(d) ||
				      extent_add_range(map, &whole, first * item, numel * item,
						       t->dtype, t->dtype));
	extent_done(&storage);
	extent_done(&whole);
}

/* Return the row of a tensor of any type. */
static const struct param *find_row(const struct checkpoint *c, const char *name)
{
	const struct param *p = checkpoint_find(c, name);

	for (size_t i = 0; !p && i < c->norder; i++)
		if (strcmp(c->order[i]->name, name) == 0)
			p = c->order[i];
	return p;
}

/* A frozen parameter in the new stage: the whole, or in stage 3 the new rank's slot.  `old` is
 * its old tensor: the module's, or stage 3's fragment. */
static struct value *frozen_tensor(struct model_states *x, const char *name, const struct value *old)
{
	struct file_layout *d = x->o->d;
	const struct recut *s = x->o->s;
	const struct frozen_param *p = s->old_stage == 3 ? frozen_find(&x->frozen, name) : NULL;
	const struct param *row = d->old.root ? NULL : find_row(s->c, name);
	uint64_t at = 0, slot, first = 0, numel;
	struct extent_map *map;
	struct tensor t, whole;

	if (s->old_stage == 3 && !p)
		return ZERO_OBJECT_FAIL(x->o, -EBADMSG, KEY_FROZEN_SHAPES " does not list %.100s",
					name);
	if (p)
		tensor_init(&whole, p->dtype, p->shape, p->ndim, false);
	else if (row)
		tensor_init(&whole, param_module_dtype(row), row->shape, row->ndim, false);
	else if (!layout_note(d, ptfile_tensor(&d->old, old, name, &whole, &at, d->err)))
		return NULL;
	numel = slot = whole.numel;
	tensor_init(&t, whole.dtype, whole.shape, whole.ndim, false);
	if (s->stage == 3) {
		slot = partition_slot(whole.numel, s->ranks);
		first = x->o->rank * slot < whole.numel ? x->o->rank * slot : whole.numel;
		numel = whole.numel - first < slot ? whole.numel - first : slot;
		tensor_init(&t, whole.dtype, &slot, 1, false);
	}
	map = layout_add_storage(d, &t);
	if (d->extents && p)
		layout_note(d, frozen_add(&x->frozen, p, first, numel, map, d->err));
	else if (d->extents)
		add_frozen(x->o, row, &whole, at, first, numel, map);
	if (d->extents)
		layout_add_zeros(d, map, (slot - numel) * dtype_size(t.dtype));
	return tensor_to_value(x->o->a, &t);
}

/* An entry of stage 3's module. */
static struct value *emptied_entry(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	static const uint64_t none = 0;
	struct model_states *x = ctx;
	struct tensor old, t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    module_entries_is_buffer(&x->entries, pair->key->str.p))
		return pair->val;
	if (!layout_note(o->d, tensor_from_value(pair->val, pair->key->str.p, &old, o->d->err)))
		return NULL;
	tensor_init(&t, old.dtype, &none, 1, false);
	layout_add_storage(o->d, &t);
	return tensor_to_value(o->a, &t);
}

/* An entry of the module of stages 1 and 2, made from stage 3's. */
static struct value *filled_entry(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	struct model_states *x = ctx;
	const struct slice *slices = o->s->c->ranks[o->mp].slices;
	const struct slice *s;
	const char *name;
	struct tensor t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    tensor_from_value(pair->val, "module", &t, NULL))
		return pair->val;
	name = name_saved(x, pair->key->str.p) ?: pair->key->str.p;
	s = find_trained(o, name);
	if (s)
		return x->made[s - slices] = x->made[s - slices] ?: whole_param(o, s, t.dtype);
	if (frozen_find(&x->frozen, name))
		return frozen_tensor(x, name, pair->val);
	/* When frozen parameters are excluded from a save, DeepSpeed omits their first names
	 * only, not further names of one parameter. */
	return !t.numel && !value_find_pairs(o->root, KEY_FROZEN_SHAPES) &&
			       !module_entries_is_buffer(&x->entries, name)
		       ? NULL
		       : pair->val;
}

static struct value *module(struct model_states *x)
{
	struct zero_object *o = x->o;
	struct value *old = value_find(o->root, "module");

	/* Pipelines have no module. */
	return !value_pairs(old) || !recut_crosses(o->s)
		       ? old
		       : zero_object_map(o, value_new_like(o->a, old), old,
					 o->s->stage == 3 ? emptied_entry : filled_entry, x);
}

/* Is it a parameter of stage 1's module that is not the optimizer's? */
static bool is_frozen(const struct model_states *x, const struct value_pair *pair)
{
	const char *name = value_is_cstr(pair->key) ? pair->key->str.p : NULL;

	return name && tensor_is(pair->val) && !find_trained(x->o, name) &&
	       !module_entries_is_buffer(&x->entries, name) && !name_saved(x, name);
}

static struct value *frozen_shape(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	struct tensor t;

	if (!is_frozen(ctx, pair) ||
	    !layout_note(o->d, tensor_from_value(pair->val, "module", &t, o->d->err)))
		return NULL;
	return tensor_size_to_value(o->a, t.shape, t.ndim);
}

/* The new stage's version of an entry of the old fragments, or of stage 1's module. */
static struct value *frozen_fragment(struct zero_object *o, void *ctx, const struct value_pair *pair)
{
	struct model_states *x = ctx;
	const bool named = value_is_cstr(pair->key);
	const struct recut_name *found;

	if (o->s->old_stage == 1 && !is_frozen(x, pair))
		return NULL;
	if (o->s->stage == 3 && named && tensor_is(pair->val))
		return frozen_tensor(x, pair->key->str.p, pair->val);
	if (o->s->stage == 3)
		return ZERO_OBJECT_FAIL(
			o, -ENOTSUP,
			"frozen_param_fragments: %.100s is no plain tensor with a name, and cannot be cut",
			value_cstr(pair->key));
	found = named ? recut_names_find(&x->module, pair->key->str.p) : NULL;
	return found ? found->value : NULL;
}

/* Does the module have a further name of a parameter without its first name, which DeepSpeed
 * omits when it excludes frozen parameters? */
static bool lacks_tied(const struct model_states *x)
{
	const struct value *old = value_find(x->o->root, "module");

	for (size_t i = 0; i < x->entries.n; i++)
		if (x->entries.v[i].same && !value_find(old, x->entries.v[i].same))
			return true;
	return false;
}

/* Make a dict with the results of `make` for each frozen parameter, or None: for stage 1, or if
 * stage 1 has no frozen parameters, since they may have been excluded. */
static struct value *frozen_dict(struct model_states *x, struct value *old, zero_object_make *make)
{
	struct zero_object *o = x->o;
	const bool unlisted = o->s->old_stage == 1;
	struct value *out = value_new_ordered(o->a);
	const struct value_dict *d;

	if (o->s->stage == 1)
		return value_new(o->a, VALUE_NONE);
	if (!unlisted && !value_pairs(old))
		return old;
	if (!unlisted || !lacks_tied(x))
		zero_object_map(o, out, unlisted ? value_find(o->root, "module") : old, make, x);
	d = value_pairs(out);
	return !unlisted || (d && d->n) ? out : value_new(o->a, VALUE_NONE);
}

static struct value *write(struct model_states *x)
{
	struct zero_object *o = x->o;
	struct value *root = o->root;
	struct value *shapes = value_find(root, KEY_FROZEN_SHAPES);
	struct value *fragments = value_find(root, KEY_FROZEN_FRAGMENTS);
	const bool same = o->s->stage == o->s->old_stage;
	struct value *new_module = module(x);

	if (o->s->stage == 2)
		recut_names_init(&x->module, o->a, new_module);

	const struct value_field fields[] = {
		{ "dp_world_size", value_new_int(o->a, o->s->ranks) },
		{ "param_shapes", param_shapes(o, value_find(root, "param_shapes")) },
		{ KEY_SHARED_PARAMS, shared_params(o, value_find(root, KEY_SHARED_PARAMS)) },
		{ "module", new_module },
		{ KEY_FROZEN_FRAGMENTS,
		  same && o->s->stage != 3 ? fragments : frozen_dict(x, fragments, frozen_fragment) },
		{ KEY_FROZEN_SHAPES, same || (o->s->old_stage > 1 && o->s->stage > 1)
					     ? shapes
					     : frozen_dict(x, shapes, frozen_shape) },
		{ KEY_AUTOEP_LAYERS, autoep_layers(o, value_find(root, KEY_AUTOEP_LAYERS)) },
		{ KEY_UC_INFO, uc_info(o, value_find(root, KEY_UC_INFO)) },
		{ KEY_DS_CONFIG, zero_object_config(o) },
		{ KEY_FOLDING, zero_object_folding(o) },
	};

	return value_edit(o->a, root, fields, COUNT(fields));
}

struct value *zero_object_model(struct zero_object *o)
{
	const struct rank_table *c = &o->s->c->ranks[o->mp];
	struct value *root = o->root;
	struct model_states x = { .o = o,
				  .made = arena_alloc(o->a, (c->nslices + 1) * sizeof(*x.made)) };
	struct value *out = NULL;

	if (!value_pairs(root))
		return ZERO_OBJECT_FAIL(o, -EBADMSG, "found %s in place of a dict",
					value_kind_name(root));
	/* The first rank's file has it, but this file may be damaged. */
	if (!o->m->same_order && !value_find(root, "param_shapes"))
		return ZERO_OBJECT_FAIL(o, -EBADMSG, "param_shapes is not that of other ranks");
	module_entries_init(&x.entries, o->a, root, value_find_pairs(root, "module"));
	if (o->s->old_stage != 3 ||
	    layout_note(o->d,
			frozen_init(&x.frozen, o->s->c, o->mp, o->old_rank, &o->d->old, o->d->err)))
		out = x.made ? write(&x) : NULL;
	frozen_done(&x.frozen);
	return out;
}
