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
#include <stdio.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

/* One group of the new rank, while its tensors are made. */
struct group_builder {
	struct reshard_builder *b;
	const struct reshard_group *g;
	const struct shard_group *profile; /* of old rank 0 */
	struct reshard_runs runs;  /* of master weights and most states */
	struct reshard_runs whole; /* of replicated states */
};

const struct value *reshard_zero_dict(const struct reshard_builder *b)
{
	return value_find(b->pt.root, KEY_OPTIMIZER_STATE_DICT);
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
	if ((b->s->last_padded || b->m->bf16) &&
	    reshard_part_of(b, g) + 1 < g->stripe.ranks)
		return 0;
	return reshard_padding(g, b->rank);
}

/* --- tensors -------------------------------------------------------------- */

/* Return a flat tensor of `numel` elements in a storage of `size`.  It gets the
 * attributes of `like`, unless that is NULL. */
static struct value *flat_tensor(struct group_builder *x,
				 const struct value *like, const char *state,
				 const struct flat *flat, uint64_t numel,
				 uint64_t size)
{
	struct reshard_builder *const b = x->b;
	const bool whole = state && x->profile->replicated;
	struct extent_map *map;
	struct tensor t;

	tensor_init(&t, flat->dtype, &numel, 1, flat->requires_grad);
	t.storage_numel = size;
	if (!reshard_add_storage(b, &t, &map) ||
	    (b->extents &&
	     !reshard_add_runs(b, whole ? &x->whole : &x->runs, state,
			       flat->dtype, flat->dtype, map)))
		return NULL;
	return like ? tensor_to_value_like(&b->a, like, &t)
		    : tensor_to_value(&b->a, &t);
}

static struct value *master_weights(struct group_builder *x,
				    const struct value *like)
{
	const uint64_t size = x->g->part.size;
	const bool padded = reshard_zero3(x->b->s) || x->b->m->bf16;

	return flat_tensor(x, like, NULL, &x->profile->fp32,
			   padded ? size
				  : size - reshard_recorded_padding(x->b, x->g),
			   size);
}

static struct value *flat_state(struct group_builder *x,
				const struct value *like,
				const struct shard_state *st)
{
	const struct reshard_group *const g = x->g;
	const uint64_t size =
		x->profile->replicated
			? partition_whole_size(&g->part,
					       reshard_part_of(x->b, g))
			: g->part.size;
	const uint64_t left_out = x->b->m->elastic && !x->profile->replicated
					  ? reshard_recorded_padding(x->b, g)
					  : 0;

	return flat_tensor(x, like, st->name, &st->flat, size - left_out, size);
}

/* --- states of a group ---------------------------------------------------- */

static const struct shard_state *find_state(const struct shard_group *g,
					    const struct value *name)
{
	for (size_t i = 0; i < g->nstates; i++)
		if (value_is_str(name, g->states[i].name))
			return &g->states[i];
	return NULL;
}

static struct value *state_value(struct group_builder *x,
				 const struct value_pair *p)
{
	const struct shard_state *const st = find_state(x->profile, p->key);

	if (!tensor_is(p->val))
		return p->val;
	/* torch updates such a tensor in place, so groups must not share it. */
	if (!st || st->kind != STATE_FLAT)
		return reshard_copy_tensor(x->b, p->val);
	return flat_state(x, p->val, st);
}

/* Make states where the old file has none: Muon keeps none on a rank without
 * parameters. */
static struct value *missing_states(struct group_builder *x)
{
	struct reshard_builder *const b = x->b;
	struct value *const out = value_new(&b->a, VALUE_DICT);
	bool ok = out;

	for (size_t i = 0; ok && i < x->profile->nstates; i++) {
		const struct shard_state *const st = &x->profile->states[i];

		if (st->kind != STATE_FLAT) {
			if (!b->rc)
				b->rc = errmsg_set(
					b->err, -EBADMSG,
					"%s: has no states of group %" PRIu32,
					b->file->path, x->g->like);
			return NULL;
		}
		ok = value_dict_set(&b->a, out, st->name,
				    flat_state(x, NULL, st));
	}
	return ok ? out : NULL;
}

/* Return the states of a group, made like those of the old file (`old`, NULL if it
 * has none).  Sets `*none` and returns NULL if the group has no states. */
static struct value *new_states(struct group_builder *x,
				const struct value *old, bool *none)
{
	const struct value_dict *const d = value_pairs(old);
	struct value *out;
	bool ok;

	*none = !x->profile->nstates && !d;
	if (*none)
		return NULL;
	if (x->profile->replicated &&
	    !partition_filled(&x->g->part, reshard_part_of(x->b, x->g)))
		return value_new(&x->b->a, VALUE_DICT);
	if (!d || (!d->n && x->profile->nstates))
		return missing_states(x);
	out = value_new(&x->b->a, VALUE_DICT);
	ok = out;
	for (size_t i = 0; ok && i < d->n; i++)
		ok = value_dict_add(&x->b->a, &out->dict, d->v[i].key,
				    state_value(x, &d->v[i]));
	return ok ? out : NULL;
}

static const struct value *old_states(const struct reshard_builder *b,
				      uint32_t group)
{
	const struct value *const dict = reshard_zero_dict(b);
	const struct value *const base =
		value_find(dict, b->s->r->dir.zero3 ? KEY_OPTIMIZER_STATE_DICT
						    : KEY_BASE_OPTIMIZER_STATE);
	const struct value_seq *const list = value_items(base);

	if (list)
		return group < list->n ? list->v[group] : NULL;
	return shard_find_group_state(value_find(base, "state"), group);
}

static bool begin_group(struct group_builder *x, struct reshard_builder *b,
			size_t g)
{
	int rc = 0;

	*x = (struct group_builder){
		.b = b,
		.g = &b->m->groups[g],
		.profile = &zckpt_shard(b->s->r, b->mp, 0)
				    ->groups[b->m->groups[g].like],
	};
	if (b->extents)
		rc = reshard_find_runs(b->s, b->mp, x->g, b->rank, false,
				       &x->runs);
	if (!rc && b->extents && x->profile->replicated)
		rc = reshard_find_runs(b->s, b->mp, x->g, b->rank, true,
				       &x->whole);
	if (rc)
		reshard_nomem(b);
	return !rc;
}

static void end_group(struct group_builder *x)
{
	reshard_runs_done(&x->runs);
	reshard_runs_done(&x->whole);
}

/* --- torch's dict --------------------------------------------------------- */

/* Add {group: states}, or for elastic_checkpoint [states]. */
static bool add_states(struct reshard_builder *b, struct value *to)
{
	bool ok = true;

	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		struct group_builder x;
		struct value *states = NULL;
		bool none = false;

		ok = begin_group(&x, b, g);
		if (ok) {
			states = new_states(&x, old_states(b, x.g->like), &none);
			ok = states || none;
		}
		end_group(&x);
		if (ok && to->kind == VALUE_LIST)
			ok = value_seq_add(&b->a, &to->seq,
					   none ? value_new(&b->a, VALUE_DICT)
						: states);
		else if (ok && !none)
			ok = value_dict_add(&b->a, &to->dict,
					    value_new_int(&b->a, (int64_t)g),
					    states);
	}
	return ok;
}

/* Return a parameter group whose "params" are its new flat groups. */
static struct value *param_group(struct reshard_builder *b,
				 const struct value *old, uint32_t k)
{
	struct reshard_edit params = { "params", value_new(&b->a, VALUE_LIST) };
	bool ok = params.value;

	for (size_t g = 0; ok && g < b->m->ngroups; g++)
		if (b->m->groups[g].param_group == k)
			ok = value_seq_add(&b->a, &params.value->seq,
					   value_new_int(&b->a, (int64_t)g));
	return ok ? reshard_edit(b, old, &params, 1) : NULL;
}

static struct value *param_groups(struct reshard_builder *b,
				  const struct value *old)
{
	const struct value_seq *const list = value_items(old);
	struct value *const out = value_new(&b->a, VALUE_LIST);
	bool ok = out;

	if (b->m->same_groups || !list)
		return (struct value *)old;
	for (size_t k = 0; ok && k < list->n; k++)
		ok = value_seq_add(&b->a, &out->seq,
				   param_group(b, list->v[k], (uint32_t)k));
	return ok ? out : NULL;
}

struct value *reshard_base_optimizer(struct reshard_builder *b)
{
	const struct value *const dict = reshard_zero_dict(b);
	const struct value *const old =
		value_find(dict, b->s->r->dir.zero3 ? KEY_OPTIMIZER_STATE_DICT
						    : KEY_BASE_OPTIMIZER_STATE);
	struct reshard_edit edits[2] = {
		{ "state", value_new(&b->a, VALUE_DICT) },
		{ KEY_PARAM_GROUPS, NULL },
	};

	if (b->m->elastic) {
		struct value *const list = value_new(&b->a, VALUE_LIST);

		return list && add_states(b, list) ? list : NULL;
	}
	edits[1].value = param_groups(b, value_find(old, KEY_PARAM_GROUPS));
	if (!edits[0].value || !edits[1].value || !add_states(b, edits[0].value))
		return NULL;
	return reshard_edit(b, old, edits, 2);
}

/* --- master weights ------------------------------------------------------- */

/* "<ds_id of the first parameter>_<ds_id of the last>". */
static struct value *ds_id(struct reshard_builder *b,
			   const struct reshard_group *g)
{
	const struct reshard_param *const first = &g->params[0];
	const struct reshard_param *const last = &g->params[g->n - 1];
	char text[64];
	int n;

	if (!b->m->ids)
		return NULL;
	n = snprintf(text, sizeof(text), "%" PRId64 "_%" PRId64,
		     b->m->ids[b->m->ids_start[first->group] + first->listed],
		     b->m->ids[b->m->ids_start[last->group] + last->listed]);
	return value_new_str(&b->a, arena_strndup(&b->a, text, (size_t)n));
}

/* Return the tensor with the attribute ds_id, by _rebuild_from_type_v2. */
static struct value *with_ds_id(struct reshard_builder *b, struct value *tensor,
				struct value *id)
{
	struct arena *const a = &b->a;
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const args = value_new(a, VALUE_TUPLE);

	if (!state || !args || !value_dict_set(a, state, "ds_id", id) ||
	    !value_seq_add(a, &args->seq, tensor->obj->callable) ||
	    !value_seq_add(a, &args->seq,
			   value_new_global(a, "torch", "Tensor")) ||
	    !value_seq_add(a, &args->seq, tensor->obj->args) ||
	    !value_seq_add(a, &args->seq, state))
		return NULL;
	return value_new_reduce(
		a, value_new_global(a, "torch._tensor", "_rebuild_from_type_v2"),
		args);
}

static struct value *sub_group_weights(struct group_builder *x,
				       const struct value_seq *old)
{
	struct reshard_builder *const b = x->b;
	const struct value *const like = old ? old->v[x->g->like] : NULL;
	struct value *const v = master_weights(x, like);
	struct value *id;

	if (!v || b->m->same_groups || !b->m->ids || !x->g->n)
		return v;
	id = ds_id(b, x->g);
	if (!id)
		return NULL;
	if (!like)
		return with_ds_id(b, v, id);
	return tensor_attribute(v, "ds_id")
		       ? tensor_with_attribute(&b->a, v, "ds_id", id)
		       : v;
}

struct value *reshard_master_weights(struct reshard_builder *b)
{
	const struct value_seq *old = value_items(value_find(
		reshard_zero_dict(b),
		b->s->r->dir.zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS));
	struct value *const out = value_new(&b->a, VALUE_LIST);
	bool ok = out;

	if (reshard_crosses(b->s))
		old = NULL;
	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		struct group_builder x;

		ok = begin_group(&x, b, g);
		if (ok)
			ok = value_seq_add(
				&b->a, &out->seq,
				reshard_zero3(b->s)
					? sub_group_weights(&x, old)
					: master_weights(&x,
							 old ? old->v[x.g->like]
							     : NULL));
		end_group(&x);
	}
	return ok ? out : NULL;
}
