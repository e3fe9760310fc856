/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module's tensors.
 *
 * Stages 1 and 2 save the weights as views of flat groups, whose padding depends on the
 * number of ranks: loaders copy what the views show, so the module stays as it is.  Stage 3
 * saves empty tensors in place of parameters.  From there to stages 1 and 2, the weights
 * are cast from the master weights, as DeepSpeed does after each step.
 */
#include <errno.h>

#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/tensor/cast.h"

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

/* Return a parameter, whole. */
static struct value *filled_param(struct reshard_builder *b, const struct slice *s,
				  enum dtype to)
{
	const struct zckpt_run run = {
		.slice = s,
		.state = zckpt_shard(b->s->r, b->mp, 0)->groups[s->group].states.v,
		.numel = s->numel,
		.to = to,
	};
	const enum dtype from = run.state->dtype;
	struct extent_map *map;
	struct tensor t;

	if (from != to && !(cast_knows(from) && cast_makes(to)))
		return RESHARD_FAIL(b, -EBADMSG,
				    "%.100s: no cast from the master weights to"
				    " %s is known",
				    s->name, dtype_name(to));
	tensor_init(&t, to, s->shape, s->ndim, false);
	map = draft_add_storage(b->d, &t);
	if (b->d->extents)
		draft_try(b->d, zckpt_add(b->s->r, &run, map, b->d->err));
	return tensor_to_value(b->a, &t);
}

/* Does an empty tensor stand for a frozen parameter that was excluded from the save?  Of
 * those, DeepSpeed leaves the names out but for further names of one parameter. */
static bool is_excluded(const struct reshard_builder *b, const char *name,
			const struct tensor *t)
{
	const struct value *const root = b->d->old.root;

	return !t->numel && !value_find_pairs(root, KEY_FROZEN_SHAPES) &&
	       !reshard_names_find(&b->entries.buffers, name);
}

static struct value *filled_tensor(struct reshard_builder *b, void *ctx,
				   const struct value_pair *pair)
{
	const struct rank_params *const c = &b->s->r->model.ranks[b->mp];
	struct value **const made = ctx; /* of each slice: names may share it */
	const struct reshard_name *tied;
	const struct slice *s;
	const char *name;
	struct tensor t;

	if (!tensor_is(pair->val) || !value_is_cstr(pair->key) ||
	    tensor_from_value(pair->val, "module", &t, NULL))
		return pair->val;
	name = pair->key->str.p;
	tied = reshard_names_find(&b->entries.shared, name);
	if (tied && value_is_cstr(tied->value))
		name = tied->value->str.p;
	s = reshard_find_param(b, name);
	if (s)
		return made[s - c->slices] = made[s - c->slices]
						     ?: filled_param(b, s, t.dtype);
	if (frozen_find(&b->frozen, name))
		return reshard_frozen_tensor(b, name, pair->val);
	return is_excluded(b, name, &t) ? reshard_left_out : pair->val;
}

struct value *reshard_module(struct reshard_builder *b, struct value *old)
{
	const struct rank_params *const c = &b->s->r->model.ranks[b->mp];
	struct value **const made = arena_alloc(b->a, (c->nslices + 1) * sizeof(*made));

	/* Pipelines have no module. */
	if (!value_pairs(old) || !reshard_crosses(b->s))
		return old;
	if (!b->module && made)
		b->module = reshard_map(b, reshard_new_like(b, old), old,
					b->s->stage == 3 ? without_elements
							 : filled_tensor,
					made);
	return b->module;
}
