/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new rank's optimizer shard.  zero/shard.c describes its format; state_dict of
 * deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and
 * runtime/bf16_optimizer.py writes it.
 */
#include "ckpt/base/array.h"
#include "ckpt/reshard/reshard_impl.h"

struct value *reshard_zero_dict(const struct reshard_builder *b)
{
	return value_find(b->d->old.root, KEY_OPTIMIZER_STATE_DICT);
}

static struct value *group_ranks(struct reshard_builder *b,
				 const struct reshard_group *g)
{
	return value_new_int(b->a, g->stripe.ranks);
}

static struct value *partition_count(struct reshard_builder *b,
				     struct value *old)
{
	(void)old;
	return b->s->stage == 3 ? value_new_int(b->a, b->s->ranks)
				: reshard_list_groups(b, group_ranks);
}

static struct value *group_padding(struct reshard_builder *b,
				   const struct reshard_group *g)
{
	return value_new_int(b->a, (int64_t)reshard_recorded_padding(b, g));
}

static struct value *group_paddings(struct reshard_builder *b, struct value *old)
{
	(void)old;
	return reshard_list_groups(b, group_padding);
}

static struct value *alignment(struct reshard_builder *b,
			       const struct reshard_group *g)
{
	struct value *const v = value_new(b->a, VALUE_LIST);

	for (size_t i = 0; i < g->n; i++)
		value_append(b->a, v,
			     value_new_int(b->a, g->padding ? (int64_t)g->padding[i]
							    : 0));
	return v;
}

/* param_alignment_paddings, in the order of each group. */
static struct value *alignment_paddings(struct reshard_builder *b,
					struct value *old)
{
	return b->m->same_order ? old : reshard_list_groups(b, alignment);
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
	struct value *const state = value_new(b->a, VALUE_DICT);

	value_dict_set(b->a, state, "numel",
		       value_new_int(b->a, (int64_t)f->numel));
	value_dict_set(b->a, state, "start",
		       value_new_int(b->a, (int64_t)f->start));
	return value_new_object(
		b->a,
		like ? like->obj->callable
		     : value_new_global(b->a, "deepspeed.utils.tensor_fragment",
					"fragment_address"),
		state);
}

static struct value *mapping(struct reshard_builder *b,
			     const struct reshard_group *g)
{
	const struct value *const like = find_fragment(b);
	const struct partition *const p =
		g->recorded_order ? &g->recorded : &g->part;
	const unsigned part = reshard_part_of(b, g);
	struct value *const out = value_new_ordered(b->a);
	size_t k, end;

	partition_params(p, part, &k, &end);
	for (; k < end; k++) {
		const size_t i = g->recorded_order ? g->recorded_order[k] : k;
		const struct fragment f = partition_fragment(p, k, part);

		if (f.numel)
			value_dict_set(b->a, out, g->params[i].slice->name,
				       fragment_value(b, like, &f));
	}
	return out;
}

static struct value *mappings(struct reshard_builder *b, struct value *old)
{
	(void)old;
	return reshard_list_groups(b, mapping);
}

/* ZeroStageEnum(n), or a number if the old file has one. */
static struct value *stage_value(struct reshard_builder *b, struct value *old)
{
	struct value *const n = value_new_int(b->a, b->s->stage);
	struct value *const args = value_new(b->a, VALUE_TUPLE);

	if (old && old->kind != VALUE_REDUCE)
		return n;
	value_append(b->a, args, n);
	return value_new_reduce(
		b->a,
		old ? old->obj->callable
		    : value_new_global(b->a, "deepspeed.runtime.zero.config",
				       "ZeroStageEnum"),
		args);
}

static struct value *if_any(struct reshard_builder *b, struct value *old)
{
	(void)b;
	return old ? old : reshard_left_out;
}

/* Stages 2 and 3 require a loss scaler; BF16_Optimizer has none. */
static struct value *loss_scaler(struct reshard_builder *b, struct value *old)
{
	struct value *const state = value_new(b->a, VALUE_DICT);

	if (old)
		return old;
	value_dict_set(b->a, state, "cur_scale", value_new_float(b->a, 1));
	value_dict_set(b->a, state, "dynamic", value_new_bool(b->a, false));
	return value_new_object(
		b->a,
		value_new_global(b->a, "deepspeed.runtime.fp16.loss_scaler",
				 "LossScaler"),
		state);
}

/* A flag that goes with the loss scaler. */
static struct value *scaler_flag(struct reshard_builder *b, struct value *old)
{
	return value_find(reshard_zero_dict(b), "loss_scaler")
		       ? if_any(b, old)
		       : value_new_bool(b->a, false);
}

/* Stage 3 stores ds_version beside the dict, where stages 1 and 2 do not look. */
static struct value *version(struct reshard_builder *b, struct value *old)
{
	(void)old;
	return if_any(b, value_find(b->d->old.root, KEY_DS_VERSION));
}

/* Return a new dict with all fields in this order. */
static struct value *new_fields(struct reshard_builder *b,
				const struct value *from,
				const struct reshard_field *fields, size_t n)
{
	struct value *const out = value_new(b->a, VALUE_DICT);

	for (size_t i = 0; i < n && !draft_failed(b->d); i++) {
		struct value *const v =
			fields[i].make(b, value_find(from, fields[i].key));

		if (v != reshard_left_out)
			value_dict_set(b->a, out, fields[i].key, v);
	}
	return out;
}

/* Return the dict, `old`, for the new ranks and stage. */
static struct value *zero_dict(struct reshard_builder *b, struct value *old)
{
	static const struct reshard_field same[] = {
		{ KEY_BASE_OPTIMIZER_STATE, reshard_base_optimizer },
		{ KEY_OPTIMIZER_STATE_DICT, reshard_base_optimizer },
		{ KEY_FP32_GROUPS, reshard_master_weights },
		{ KEY_FP32_FLAT_GROUPS, reshard_master_weights },
		{ KEY_ZERO_STAGE, stage_value },
		{ KEY_PARTITION_COUNT, partition_count },
		{ KEY_GROUP_PADDINGS, group_paddings },
		{ "param_alignment_paddings", alignment_paddings },
		{ KEY_PARAM_SLICE_MAPPINGS, mappings },
	};
	static const struct reshard_field stage3[] = {
		{ KEY_ZERO_STAGE, stage_value },
		{ "loss_scaler", loss_scaler },
		{ "dynamic_loss_scale", scaler_flag },
		{ "overflow", scaler_flag },
		{ KEY_PARTITION_COUNT, partition_count },
		{ KEY_OPTIMIZER_STATE_DICT, reshard_base_optimizer },
		{ KEY_FP32_FLAT_GROUPS, reshard_master_weights },
	};
	/* Stage 3 has no clip_grad: an engine then keeps its own.
	 * param_alignment_paddings is left out: an engine then pads what it loads
	 * as it is configured to. */
	static const struct reshard_field stage12[] = {
		{ "loss_scaler", loss_scaler },
		{ "dynamic_loss_scale", scaler_flag },
		{ "overflow", scaler_flag },
		{ "clip_grad", if_any },
		{ KEY_BASE_OPTIMIZER_STATE, reshard_base_optimizer },
		{ KEY_FP32_GROUPS, reshard_master_weights },
		{ KEY_ZERO_STAGE, stage_value },
		{ KEY_GROUP_PADDINGS, group_paddings },
		{ KEY_PARTITION_COUNT, partition_count },
		{ KEY_DS_VERSION, version },
		{ KEY_PARAM_SLICE_MAPPINGS, mappings },
	};
	const struct reshard *const s = b->s;

	/* BF16_Optimizer writes no stage; its dict lacks fields that stage 2 needs. */
	if (s->stage == s->old_stage ||
	    (!reshard_crosses(s) && value_find(old, KEY_ZERO_STAGE)))
		return reshard_edit(b, old, same, COUNT(same));
	return s->stage == 3 ? new_fields(b, old, stage3, COUNT(stage3))
			     : new_fields(b, old, stage12, COUNT(stage12));
}

struct value *reshard_optim_root(struct reshard_builder *b)
{
	static const struct reshard_field fields[] = {
		{ KEY_OPTIMIZER_STATE_DICT, zero_dict },
		{ KEY_DS_CONFIG, reshard_config },
	};

	return reshard_edit(b, b->d->old.root, fields, COUNT(fields));
}
