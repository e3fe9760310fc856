/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tensors of a new rank's optimizer shard: master weights, and torch's dict of
 * states and parameter groups.
 *
 * Stages 1 and 2 store master weights without the padding at the group's end, as a
 * view of the whole partition, but states with it (elastic_checkpoint: without).
 * BF16_Optimizer stores both with it.
 */
#include <errno.h>
#include <inttypes.h>

#include "ckpt/base/array.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"

/* The states of a group, as old rank 0 has them. */
static const struct shard_group *profile_of(const struct reshard_builder *b,
					    const struct reshard_group *g)
{
	return &zckpt_shard(b->s->r, b->mp, 0)->groups[g->like];
}

unsigned reshard_part_of(const struct reshard_builder *b,
			 const struct reshard_group *g)
{
	unsigned which;

	return rank_stripe_part(&g->stripe, b->rank, &which);
}

uint64_t reshard_recorded_padding(const struct reshard_builder *b,
				  const struct reshard_group *g)
{
	const unsigned part = reshard_part_of(b, g);

	if ((b->s->last_padded || b->m->bf16) && part + 1 < g->stripe.ranks)
		return 0;
	return g->part.size - partition_filled(&g->part, part);
}

/* Load at once the shard maps of all old ranks that have elements of the new one. */
static void load_shards(struct reshard_builder *b,
		       const struct reshard_group *g, unsigned part,
		       unsigned which)
{
	const struct layout *const l = &b->s->r->layouts[b->mp];
	const struct rank_stripe *const stripe = &l->stripe[g->like];
	unsigned first = UINT_MAX, end = 0;
	size_t i, params_end;

	partition_params(&g->part, part, &i, &params_end);
	for (; i < params_end; i++) {
		const struct reshard_param *const p = &g->params[i];
		const struct fragment f = partition_fragment(&g->part, i, part);
		unsigned from, to;

		if (!f.numel)
			continue;
		partition_ranks_of(&l->groups[p->group], p->slice->index,
				   f.first, f.numel, &from, &to);
		first = from < first ? from : first;
		end = to > end ? to : end;
	}
	if (first < end)
		draft_try(b->d, zckpt_load_shards(
					b->s->r, b->mp,
					rank_stripe_rank(stripe, which, first),
					rank_stripe_rank(stripe, which, end - 1) + 1,
					rank_stripe_step(stripe), b->d->err));
}

/*
 * Append the new rank's elements of a state: the
 * fragments of the parameters, and zeros between them (alignment, the end of the
 * group, the end of stage 3's slots).  `whole`: the rank keeps whole parameters.
 */
static void add_elements(struct reshard_builder *b,
			 const struct reshard_group *g,
			 const struct param_state *state, bool whole,
			 struct extent_map *map)
{
	const size_t item = dtype_size(state->dtype);
	struct draft *const d = b->d;
	unsigned which;
	const unsigned part = rank_stripe_part(&g->stripe, b->rank, &which);
	uint64_t at = 0;
	size_t i, end;

	load_shards(b, g, part, which);
	partition_params(&g->part, part, &i, &end);
	for (; i < end && !draft_failed(d); i++) {
		const struct fragment f = partition_fragment(&g->part, i, part);
		const struct zckpt_run run = {
			.slice = g->params[i].slice,
			.ep = which,
			.state = state,
			.first = whole ? 0 : f.first,
			.numel = whole ? g->part.numel[i] : f.numel,
			.to = state->dtype,
		};

		if (!f.numel)
			continue;
		if (!whole)
			draft_add_zeros(d, map, (f.start - at) * item);
		draft_try(d, zckpt_add(b->s->r, &run, map, d->err));
		at = f.start + f.numel;
	}
	if (!whole)
		draft_add_zeros(d, map, (g->part.size - at) * item);
}

/*
 * Return a flat tensor of `numel` elements in a storage of `size`.  What else the old one
 * was pickled with, such as the attribute ds_id that stage 3 has since 0.14, is about the
 * old group: loaders copy the elements and look at nothing else.
 */
static struct value *flat_tensor(struct reshard_builder *b,
				 const struct reshard_group *g,
				 const struct param_state *st, uint64_t numel,
				 uint64_t size)
{
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, st->dtype, &numel, 1, st->requires_grad);
	t.storage_numel = size;
	map = draft_add_storage(b->d, &t);
	if (b->d->extents)
		add_elements(b, g, st,
			     st != profile_of(b, g)->states.v &&
				     profile_of(b, g)->replicated,
			     map);
	return tensor_to_value(b->a, &t);
}

static struct value *flat_state(struct reshard_builder *b,
				const struct reshard_group *g,
				const struct param_state *st)
{
	uint64_t size = g->part.size, left_out = 0;

	if (profile_of(b, g)->replicated)
		size = partition_whole_size(&g->part, reshard_part_of(b, g));
	else if (b->m->elastic)
		left_out = reshard_recorded_padding(b, g);
	return flat_tensor(b, g, st, size - left_out, size);
}

/* Return a copy of an old tensor in a new storage that holds nothing else. */
static struct value *copy_tensor(struct reshard_builder *b,
				 const struct value *v)
{
	struct extent_map *map;
	struct tensor old, t;
	uint64_t storage;
	size_t item;

	if (!draft_try(b->d, ptfile_tensor(&b->d->old, v, "tensor", &old, &storage,
					   b->d->err)))
		return NULL;
	item = dtype_size(old.dtype);
	tensor_init(&t, old.dtype, old.shape, old.ndim, old.requires_grad);
	map = draft_add_storage(b->d, &t);
	draft_add_old(b->d, map, t.numel * item,
		      storage + old.storage_offset * item);
	return tensor_to_value(b->a, &t);
}

static struct value *state_value(struct reshard_builder *b, void *ctx,
				 const struct value_pair *pair)
{
	const struct reshard_group *const g = ctx;
	const struct shard_group *const profile = profile_of(b, g);

	if (!tensor_is(pair->val))
		return pair->val;
	for (size_t i = 1; i < profile->states.n; i++) {
		const struct param_state *const st = &profile->states.v[i];

		if (st->kind == STATE_FLAT && value_is_str(pair->key, st->name))
			return flat_state(b, g, st);
	}
	/* torch updates such a tensor in place, so groups must not share it. */
	return copy_tensor(b, pair->val);
}

/* Make states where the old file has none: Muon keeps none on a rank without
 * parameters. */
static struct value *missing_states(struct reshard_builder *b,
				    const struct reshard_group *g)
{
	const struct shard_group *const profile = profile_of(b, g);
	struct value *const out = value_new(b->a, VALUE_DICT);

	for (size_t i = 1; i < profile->states.n && !draft_failed(b->d); i++) {
		const struct param_state *const st = &profile->states.v[i];

		if (st->kind != STATE_FLAT)
			return RESHARD_FAIL(b, -EBADMSG,
					    "has no states of group %" PRIu32,
					    g->like);
		value_dict_set(b->a, out, st->name, flat_state(b, g, st));
	}
	return out;
}

/* Return the states of a group, made like those of the old file. */
static struct value *new_states(struct reshard_builder *b,
				struct reshard_group *g, const struct value *all)
{
	const struct shard_group *const profile = profile_of(b, g);
	const struct value *const old = shard_find_group_state(all, g->like);
	const struct value_dict *const d = value_pairs(old);

	if (profile->states.n == 1 && !d)
		return reshard_left_out;
	if (profile->replicated &&
	    !partition_filled(&g->part, reshard_part_of(b, g)))
		return value_new(b->a, VALUE_DICT);
	if (!d || (!d->n && profile->states.n > 1))
		return missing_states(b, g);
	return reshard_map(b, value_new(b->a, VALUE_DICT), old, state_value, g);
}

/* Add the states of all groups, by group or, for elastic_checkpoint, in a list.
 * `all` has the old ones. */
static struct value *add_states(struct reshard_builder *b, struct value *to,
				const struct value *all)
{
	for (size_t g = 0; g < b->m->ngroups && !draft_failed(b->d); g++) {
		struct value *const v = new_states(b, &b->m->groups[g], all);

		if (to && to->kind == VALUE_LIST)
			value_append(b->a, to, v == reshard_left_out
						       ? value_new(b->a, VALUE_DICT)
						       : v);
		else if (v != reshard_left_out)
			value_put(b->a, to, value_new_int(b->a, (int64_t)g), v);
	}
	return to;
}

static struct value *state_dict(struct reshard_builder *b, struct value *old)
{
	return add_states(b, value_new(b->a, VALUE_DICT), old);
}

/* Return the parameter groups, each with its new flat groups as "params". */
static struct value *param_groups(struct reshard_builder *b, struct value *old)
{
	const struct value_seq *const list = value_items(old);
	struct value *const out = value_new(b->a, VALUE_LIST);
	size_t g = 0;

	if (b->m->same_groups || !list)
		return old;
	for (size_t k = 0; k < list->n && !draft_failed(b->d); k++) {
		struct value *const params = value_new(b->a, VALUE_LIST);

		for (; g < b->m->ngroups && b->m->groups[g].param_group == k;
		     g++)
			value_append(b->a, params,
				     value_new_int(b->a, (int64_t)g));
		value_append(b->a, out,
			     reshard_set(b, list->v[k], "params", params));
	}
	return out;
}

struct value *reshard_base_optimizer(struct reshard_builder *b,
				     struct value *old)
{
	static const struct reshard_field fields[] = {
		{ "state", state_dict },
		{ KEY_PARAM_GROUPS, param_groups },
	};

	(void)old; /* the key may be of the new stage */
	old = value_find(reshard_zero_dict(b),
			 b->s->r->dir.zero3 ? KEY_OPTIMIZER_STATE_DICT
					    : KEY_BASE_OPTIMIZER_STATE);
	return b->m->elastic ? add_states(b, value_new(b->a, VALUE_LIST), old)
			     : reshard_edit(b, old, fields, COUNT(fields));
}

static struct value *master_weights(struct reshard_builder *b,
				    const struct reshard_group *g)
{
	const uint64_t left_out = b->s->stage == 3 || b->m->bf16
					  ? 0
					  : reshard_recorded_padding(b, g);

	return flat_tensor(b, g, profile_of(b, g)->states.v, g->part.size - left_out,
			   g->part.size);
}

struct value *reshard_master_weights(struct reshard_builder *b,
				     struct value *old)
{
	(void)old;
	return reshard_list_groups(b, master_weights);
}
