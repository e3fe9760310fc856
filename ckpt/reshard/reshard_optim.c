/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's optimizer shard.  zero/shard_zero12.c and zero/shard_zero3.c describe
 * its format; state_dict of deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and
 * runtime/bf16_optimizer.py writes it.
 */
#include "ckpt/pickle/value.h"
#include "ckpt/reshard/reshard_impl.h"
#include "ckpt/zero/checkpoint.h"

/* --- stages 1 and 2 ------------------------------------------------------- */

/* Return a list with a number for each group. */
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

/* param_alignment_paddings, in the order of each group. */
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
					      x->padding ? (int64_t)x->padding[i]
							 : 0));
	}
	return ok ? list : NULL;
}

/* Find a fragment_address, for its class; NULL if the old file has none. */
static const struct value *find_fragment(const struct reshard_builder *b)
{
	const struct value_seq *const list = value_items(
		value_find(reshard_zero_dict(b), KEY_PARAM_SLICE_MAPPINGS));

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
		like ? like->obj->callable
		     : value_new_global(a, "deepspeed.utils.tensor_fragment",
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
			partition_fragment(p, k, reshard_part_of(b, g));

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

/* --- the optimizer's dict ------------------------------------------------- */

/* ZeroStageEnum(n), or a number if the old file has one. */
static struct value *stage_value(struct reshard_builder *b)
{
	struct arena *const a = &b->a;
	const struct value *const old =
		value_find(reshard_zero_dict(b), KEY_ZERO_STAGE);
	struct value *const n = value_new_int(a, b->s->stage);
	struct value *const args = value_new(a, VALUE_TUPLE);
	struct value *cls;

	if (old && old->kind != VALUE_REDUCE)
		return n;
	cls = old ? old->obj->callable
		  : value_new_global(a, "deepspeed.runtime.zero.config",
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
		  reshard_base_optimizer(b) },
		{ zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS,
		  reshard_master_weights(b) },
		{ KEY_ZERO_STAGE, stage_value(b) },
		{ KEY_PARTITION_COUNT, zero3 ? value_new_int(&b->a, b->s->ranks)
					     : list_of(b, partition_count) },
		{ KEY_GROUP_PADDINGS, list_of(b, reshard_recorded_padding) },
		{ "param_alignment_paddings",
		  b->m->same_order ? value_find(reshard_zero_dict(b),
						"param_alignment_paddings")
				   : alignment_paddings(b) },
		{ KEY_PARAM_SLICE_MAPPINGS, zero3 ? NULL : mappings(b) },
	};

	return reshard_edit(b, reshard_zero_dict(b), edits,
			    sizeof(edits) / sizeof(*edits));
}

/* Stages 2 and 3 require a loss scaler; BF16_Optimizer has none. */
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
	const struct value *const dict = reshard_zero_dict(b);

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
					      reshard_base_optimizer(b)) &&
			       value_dict_set(a, out, KEY_FP32_FLAT_GROUPS,
					      reshard_master_weights(b))
		       ? out
		       : NULL;
}

/* Stage 3 stores ds_version beside the dict, where stages 1 and 2 do not look.  It
 * has no clip_grad: an engine then keeps its own.  param_alignment_paddings is left
 * out: an engine then pads what it loads as it is configured to. */
static struct value *to_stage12(struct reshard_builder *b)
{
	struct arena *const a = &b->a;
	const struct value *const version =
		value_find(b->pt.root, KEY_DS_VERSION);
	struct value *const out = value_new(a, VALUE_DICT);
	bool ok = out && take_loss_scaler(b, out) &&
		  reshard_take(b, out, reshard_zero_dict(b), "clip_grad");

	ok = ok &&
	     value_dict_set(a, out, KEY_BASE_OPTIMIZER_STATE,
			    reshard_base_optimizer(b)) &&
	     value_dict_set(a, out, KEY_FP32_GROUPS, reshard_master_weights(b)) &&
	     value_dict_set(a, out, KEY_ZERO_STAGE, stage_value(b)) &&
	     value_dict_set(a, out, KEY_GROUP_PADDINGS,
			    list_of(b, reshard_recorded_padding)) &&
	     value_dict_set(a, out, KEY_PARTITION_COUNT,
			    list_of(b, partition_count));
	if (ok && version)
		ok = value_dict_set(a, out, KEY_DS_VERSION,
				    (struct value *)version);
	return ok && value_dict_set(a, out, KEY_PARAM_SLICE_MAPPINGS,
				    mappings(b))
		       ? out
		       : NULL;
}

struct value *reshard_optim_root(struct reshard_builder *b)
{
	const struct reshard *const s = b->s;
	struct reshard_edit edits[2] = {
		{ KEY_OPTIMIZER_STATE_DICT, NULL },
		{ KEY_DS_CONFIG, NULL },
	};

	/* BF16_Optimizer writes no stage; its dict lacks fields that stage 2 needs. */
	if (s->stage == s->old_stage ||
	    (!reshard_crosses(s) &&
	     value_find(reshard_zero_dict(b), KEY_ZERO_STAGE)))
		edits[0].value = same_dict(b);
	else
		edits[0].value = reshard_zero3(s) ? to_stage3(b) : to_stage12(b);
	if (!edits[0].value)
		return NULL;
	if (s->stage != s->old_stage)
		edits[1].value = reshard_config(b);
	return reshard_edit(b, b->pt.root, edits,
			    s->stage != s->old_stage ? 2 : 1);
}
