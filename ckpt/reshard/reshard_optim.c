/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's optimizer shard.  What it has is in shard_zero12.c and
 * shard_zero3.c; who writes it: deepspeed/runtime/zero/stage_1_and_2.py,
 * stage3.py and runtime/bf16_optimizer.py, state_dict.
 *
 * Stages 1 and 2 store master weights without the padding at the group's end,
 * as a view of the whole partition, and states with it (elastic_checkpoint:
 * without).  BF16_Optimizer stores both with it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

/* A group on its new rank. */
struct group_builder {
	struct reshard_builder *b;
	const struct reshard_group *g;
	const struct shard_group *profile; /* of the old rank 0 */
	size_t number;		   /* of the group */
	struct reshard_runs runs;  /* of master weights, and of most states */
	struct reshard_runs whole; /* of states that are kept whole */
};

static const struct value *old_dict(const struct reshard_builder *b)
{
	return value_find(b->pt.root, KEY_OPTIMIZER_STATE_DICT);
}

static unsigned part_of(const struct reshard_builder *b,
			const struct reshard_group *g)
{
	unsigned which;

	return rank_stripe_part(&g->stripe, b->rank, &which);
}

/* The padding that group_paddings records, and that is left out. */
static uint64_t recorded_padding(const struct reshard_builder *b,
				 const struct reshard_group *g)
{
	if ((b->s->last_padded || b->m->bf16) &&
	    part_of(b, g) + 1 < g->stripe.ranks)
		return 0;
	return reshard_padding(g, b->rank);
}

/* --- tensors ------------------------------------------------------------------- */

/* A flat tensor of `numel` elements in a storage of `size`; `like` may be NULL:
 * then it has no more than that. */
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
	return like ? tensor_to_value_like(&b->a, like, &t) :
		      tensor_to_value(&b->a, &t);
}

static struct value *master_weights(struct group_builder *x,
				    const struct value *like)
{
	const uint64_t size = x->g->part.size;
	const bool padded = reshard_zero3(x->b->s) || x->b->m->bf16;

	return flat_tensor(x, like, NULL, &x->profile->fp32,
			   padded ? size :
				    size - recorded_padding(x->b, x->g),
			   size);
}

static struct value *flat_state(struct group_builder *x,
				const struct value *like,
				const struct shard_state *st)
{
	const struct reshard_group *const g = x->g;
	const uint64_t size =
		x->profile->replicated ?
			partition_whole_size(&g->part, part_of(x->b, g)) :
			g->part.size;
	const uint64_t left_out =
		x->b->m->elastic && !x->profile->replicated ?
			recorded_padding(x->b, g) :
			0;

	return flat_tensor(x, like, st->name, &st->flat, size - left_out, size);
}

/* --- states of a group ------------------------------------------------------------ */

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
	/* A tensor of each group's own: torch adds to it in place. */
	if (!st || st->kind != STATE_FLAT)
		return reshard_copy_tensor(x->b, p->val);
	return flat_state(x, p->val, st);
}

/* States where the model has none: Muon keeps none of a rank without
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

/* The states of a group, `old` those of the model: NULL if it has none, and
 * `*none` if there are none to have. */
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
	    !partition_filled(&x->g->part, part_of(x->b, x->g)))
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
	const struct value *const dict = old_dict(b);
	const struct value *const base = value_find(
		dict, b->s->r->dir.zero3 ? KEY_OPTIMIZER_STATE_DICT :
					   KEY_BASE_OPTIMIZER_STATE);
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
		.number = g,
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

/* --- what all stages have ----------------------------------------------------------- */

/* {group: states}, or with elastic_checkpoint [states]. */
static bool add_states(struct reshard_builder *b, struct value *to)
{
	bool ok = true;

	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		struct group_builder x;
		struct value *states = NULL;
		bool none = false;

		ok = begin_group(&x, b, g);
		if (ok) {
			states = new_states(&x, old_states(b, x.g->like),
					    &none);
			ok = states || none;
		}
		end_group(&x);
		if (ok && to->kind == VALUE_LIST)
			ok = value_seq_add(&b->a, &to->seq,
					   none ? value_new(&b->a, VALUE_DICT) :
						  states);
		else if (ok && !none)
			ok = value_dict_add(&b->a, &to->dict,
					    value_new_int(&b->a, (int64_t)g),
					    states);
	}
	return ok;
}

/* A group of the optimizer with other numbers in its "params". */
static struct value *param_group(struct reshard_builder *b,
				 const struct value *old, uint32_t k)
{
	struct reshard_edit params = { "params",
				       value_new(&b->a, VALUE_LIST) };
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

/* torch's own dict: {state, param_groups}. */
static struct value *base_optimizer(struct reshard_builder *b)
{
	const struct value *const dict = old_dict(b);
	const struct value *const old = value_find(
		dict, b->s->r->dir.zero3 ? KEY_OPTIMIZER_STATE_DICT :
					   KEY_BASE_OPTIMIZER_STATE);
	struct reshard_edit edits[2] = {
		{ "state", value_new(&b->a, VALUE_DICT) },
		{ KEY_PARAM_GROUPS, NULL },
	};

	if (b->m->elastic) {
		struct value *const list = value_new(&b->a, VALUE_LIST);

		return list && add_states(b, list) ? list : NULL;
	}
	edits[1].value = param_groups(b, value_find(old, KEY_PARAM_GROUPS));
	if (!edits[0].value || !edits[1].value ||
	    !add_states(b, edits[0].value))
		return NULL;
	return reshard_edit(b, old, edits, 2);
}

/* --- stage 3 -------------------------------------------------------------------------- */

/* "<number of the first parameter>_<that of the last>", or NULL. */
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

/* A tensor with that attribute, as of _rebuild_from_type_v2. */
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
	return tensor_attribute(v, "ds_id") ?
		       tensor_with_attribute(&b->a, v, "ds_id", id) :
		       v;
}

/* The master weights of all groups. */
static struct value *all_weights(struct reshard_builder *b)
{
	const struct value_seq *old = value_items(value_find(
		old_dict(b), b->s->r->dir.zero3 ? KEY_FP32_FLAT_GROUPS :
						  KEY_FP32_GROUPS));
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
				reshard_zero3(b->s) ?
					sub_group_weights(&x, old) :
					master_weights(&x,
						       old ? old->v[x.g->like] :
							     NULL));
		end_group(&x);
	}
	return ok ? out : NULL;
}

/* --- stages 1 and 2 --------------------------------------------------------------------- */

/* A new list with a number for each group. */
static struct value *list_of(struct reshard_builder *b,
			     uint64_t (*number)(const struct reshard_builder *b,
						const struct reshard_group *g))
{
	struct value *const list = value_new(&b->a, VALUE_LIST);
	bool ok = list;

	for (size_t g = 0; ok && g < b->m->ngroups; g++)
		ok = value_seq_add(
			&b->a, &list->seq,
			value_new_int(&b->a,
				      (int64_t)number(b, &b->m->groups[g])));
	return ok ? list : NULL;
}

static uint64_t partition_count(const struct reshard_builder *b,
				const struct reshard_group *g)
{
	(void)b;
	return g->stripe.ranks;
}

/* The paddings in the order of the group: those of entries without elements are
 * part of others'. */
static struct value *alignment_paddings(struct reshard_builder *b)
{
	struct value *const list = value_new(&b->a, VALUE_LIST);
	bool ok = list;

	for (size_t g = 0; ok && g < b->m->ngroups; g++) {
		const struct reshard_group *const x = &b->m->groups[g];
		struct value *const v = value_new(&b->a, VALUE_LIST);

		ok = value_seq_add(&b->a, &list->seq, v);
		for (size_t i = 0; ok && i < x->n; i++)
			ok = value_seq_add(
				&b->a, &v->seq,
				value_new_int(&b->a,
					      x->padding ?
						      (int64_t)x->padding[i] :
						      0));
	}
	return ok ? list : NULL;
}

/* A fragment_address that some shard has, for its class; NULL if none of the
 * model's groups has one. */
static const struct value *find_fragment(const struct reshard_builder *b)
{
	const struct value_seq *const list =
		value_items(value_find(old_dict(b), KEY_PARAM_SLICE_MAPPINGS));

	for (size_t g = 0; list && g < list->n; g++) {
		const struct value_dict *const d = value_pairs(list->v[g]);

		if (d && d->n && d->v[0].val->kind == VALUE_NEWOBJ)
			return d->v[0].val;
	}
	return NULL;
}

static struct value *fragment_value(struct reshard_builder *b,
				    const struct value *like,
				    const struct fragment *f)
{
	struct arena *const a = &b->a;
	struct value *const none = value_new(a, VALUE_TUPLE);
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const cls =
		like ? like->obj->callable :
		       value_new_global(a, "deepspeed.utils.tensor_fragment",
					"fragment_address");
	struct value *const out =
		cls && none ? value_new_reduce(a, cls, none) : NULL;

	if (!out || !state ||
	    !value_dict_set(a, state, "numel",
			    value_new_int(a, (int64_t)f->numel)) ||
	    !value_dict_set(a, state, "start",
			    value_new_int(a, (int64_t)f->start)))
		return NULL;
	out->kind = VALUE_NEWOBJ;
	out->obj->state = state;
	return out;
}

static struct value *mapping(struct reshard_builder *b,
			     const struct value *fragment,
			     const struct reshard_group *g)
{
	struct value *const out = reshard_new_dict(b);
	const struct partition *const p =
		g->recorded_order ? &g->recorded : &g->part;
	bool ok = out;

	for (size_t k = 0; ok && k < g->n; k++) {
		const size_t i = g->recorded_order ? g->recorded_order[k] : k;
		const struct fragment f =
			partition_fragment(p, k, part_of(b, g));

		if (f.numel)
			ok = value_dict_add(
				&b->a, &out->obj->pairs,
				value_new_str(&b->a, g->params[i].slice->name),
				fragment_value(b, fragment, &f));
	}
	return ok ? out : NULL;
}

static struct value *mappings(struct reshard_builder *b)
{
	const struct value *const fragment = find_fragment(b);
	struct value *const list = value_new(&b->a, VALUE_LIST);
	bool ok = list;

	for (size_t g = 0; ok && g < b->m->ngroups; g++)
		ok = value_seq_add(&b->a, &list->seq,
				   mapping(b, fragment, &b->m->groups[g]));
	return ok ? list : NULL;
}

/* --- the optimizer's dict ------------------------------------------------------------------ */

/* ZeroStageEnum(n), or a number where the old file has one. */
static struct value *stage_value(struct reshard_builder *b)
{
	struct arena *const a = &b->a;
	const struct value *const old = value_find(old_dict(b), KEY_ZERO_STAGE);
	struct value *const n = value_new_int(a, b->s->stage);
	struct value *const args = value_new(a, VALUE_TUPLE);
	struct value *cls;

	if (old && old->kind != VALUE_REDUCE)
		return n;
	cls = old ? old->obj->callable :
		    value_new_global(a, "deepspeed.runtime.zero.config",
				     "ZeroStageEnum");
	if (!args || !value_seq_add(a, &args->seq, n) || !cls)
		return NULL;
	return value_new_reduce(a, cls, args);
}

static struct value *same_dict(struct reshard_builder *b)
{
	const bool zero3 = reshard_zero3(b->s);
	const struct reshard_edit edits[] = {
		{ zero3 ? KEY_OPTIMIZER_STATE_DICT : KEY_BASE_OPTIMIZER_STATE,
		  base_optimizer(b) },
		{ zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS,
		  all_weights(b) },
		{ KEY_ZERO_STAGE, stage_value(b) },
		{ KEY_PARTITION_COUNT,
		  zero3 ? value_new_int(&b->a, b->s->ranks) :
			  list_of(b, partition_count) },
		{ KEY_GROUP_PADDINGS, list_of(b, recorded_padding) },
		{ "param_alignment_paddings",
		  b->m->same_order ? value_find(old_dict(b),
						"param_alignment_paddings") :
				     alignment_paddings(b) },
		{ KEY_PARAM_SLICE_MAPPINGS, zero3 ? NULL : mappings(b) },
	};

	return reshard_edit(b, old_dict(b), edits,
			    sizeof(edits) / sizeof(*edits));
}

/* BF16_Optimizer has no loss scaler, which stages 2 and 3 ask for. */
static bool add_loss_scaler(struct reshard_builder *b, struct value *to)
{
	struct arena *const a = &b->a;
	struct value *const none = value_new(a, VALUE_TUPLE);
	struct value *const state = value_new(a, VALUE_DICT);
	struct value *const scale = value_new(a, VALUE_FLOAT);
	struct value *const cls = value_new_global(
		a, "deepspeed.runtime.fp16.loss_scaler", "LossScaler");
	struct value *const scaler =
		none && cls ? value_new_reduce(a, cls, none) : NULL;

	if (!scaler || !state || !scale)
		return false;
	scale->f = 1.0;
	scaler->kind = VALUE_NEWOBJ;
	scaler->obj->state = state;
	return value_dict_set(a, state, "cur_scale", scale) &&
	       value_dict_set(a, state, "dynamic", value_new_bool(a, false)) &&
	       value_dict_set(a, to, "loss_scaler", scaler) &&
	       value_dict_set(a, to, "dynamic_loss_scale",
			      value_new_bool(a, false)) &&
	       value_dict_set(a, to, "overflow", value_new_bool(a, false));
}

static bool take_loss_scaler(struct reshard_builder *b, struct value *to)
{
	const struct value *const dict = old_dict(b);

	if (!value_find(dict, "loss_scaler"))
		return add_loss_scaler(b, to);
	return reshard_take(b, to, dict, "loss_scaler") &&
	       reshard_take(b, to, dict, "dynamic_loss_scale") &&
	       reshard_take(b, to, dict, "overflow");
}

static struct value *to_stage3(struct reshard_builder *b)
{
	struct arena *const a = &b->a;
	struct value *const out = value_new(a, VALUE_DICT);

	return out && value_dict_set(a, out, KEY_ZERO_STAGE, stage_value(b)) &&
			       take_loss_scaler(b, out) &&
			       value_dict_set(a, out, KEY_PARTITION_COUNT,
					      value_new_int(a, b->s->ranks)) &&
			       value_dict_set(a, out, KEY_OPTIMIZER_STATE_DICT,
					      base_optimizer(b)) &&
			       value_dict_set(a, out, KEY_FP32_FLAT_GROUPS,
					      all_weights(b)) ?
		       out :
		       NULL;
}

/* The version is one that engines of stages 1 and 2 ask for; stage 3 keeps it
 * outside.  Without clip_grad, which it does not have, they keep their own. */
static struct value *to_stage12(struct reshard_builder *b)
{
	struct arena *const a = &b->a;
	const struct value *const version =
		value_find(b->pt.root, KEY_DS_VERSION);
	struct value *const out = value_new(a, VALUE_DICT);
	bool ok = out && take_loss_scaler(b, out) &&
		  reshard_take(b, out, old_dict(b), "clip_grad");

	ok = ok &&
	     value_dict_set(a, out, KEY_BASE_OPTIMIZER_STATE,
			    base_optimizer(b)) &&
	     value_dict_set(a, out, KEY_FP32_GROUPS, all_weights(b)) &&
	     value_dict_set(a, out, KEY_ZERO_STAGE, stage_value(b)) &&
	     value_dict_set(a, out, KEY_GROUP_PADDINGS,
			    list_of(b, recorded_padding)) &&
	     value_dict_set(a, out, KEY_PARTITION_COUNT,
			    list_of(b, partition_count));
	if (ok && version)
		ok = value_dict_set(a, out, KEY_DS_VERSION,
				    (struct value *)version);
	return ok && value_dict_set(a, out, KEY_PARAM_SLICE_MAPPINGS,
				    mappings(b)) ?
		       out :
		       NULL;
}

struct value *reshard_optim_root(struct reshard_builder *b)
{
	const struct reshard *const s = b->s;
	struct reshard_edit edits[2] = {
		{ KEY_OPTIMIZER_STATE_DICT, NULL },
		{ KEY_DS_CONFIG, NULL },
	};

	/* BF16_Optimizer, which writes no stage, is of stage 1. */
	if (s->stage == s->old_stage ||
	    (!reshard_crosses(s) && value_find(old_dict(b), KEY_ZERO_STAGE)))
		edits[0].value = same_dict(b);
	else
		edits[0].value = reshard_zero3(s) ? to_stage3(b)
						  : to_stage12(b);
	if (!edits[0].value)
		return NULL;
	if (s->stage != s->old_stage)
		edits[1].value = reshard_config(b);
	return reshard_edit(b, b->pt.root, edits,
			    s->stage != s->old_stage ? 2 : 1);
}
