/* SPDX-License-Identifier: Apache-2.0 */
/* Keys are in DeepSpeed's order, which is part of a pickle. */
#include "ckpt/format/deepspeed.h"

#include "ckpt/base/array.h"

struct value *deepspeed_shard_dict(struct arena *a, const struct deepspeed_shard *s)
{
	const bool zero3 = s->zero3;
	const struct value_field fields[] = {
		{ KEY_ZERO_STAGE, zero3 ? s->stage : NULL },
		{ "loss_scaler", s->loss_scaler },
		{ "dynamic_loss_scale", s->dynamic_loss_scale },
		{ "overflow", s->overflow },
		{ "clip_grad", s->clip_grad },
		{ KEY_PARTITION_COUNT, zero3 ? s->counts : NULL },
		{ zero3 ? KEY_OPTIMIZER_STATE_DICT : KEY_BASE_OPTIMIZER_STATE, s->base },
		{ zero3 ? KEY_FP32_FLAT_GROUPS : KEY_FP32_GROUPS, s->masters },
		{ KEY_ZERO_STAGE, zero3 ? NULL : s->stage },
		{ KEY_GROUP_PADDINGS, s->paddings },
		{ "param_alignment_paddings", s->alignments },
		{ KEY_PARTITION_COUNT, zero3 ? NULL : s->counts },
		{ KEY_DS_VERSION, s->version },
		{ KEY_PARAM_SLICE_MAPPINGS, s->slices },
	};

	return value_new_fields(a, fields, COUNT(fields));
}

struct value *deepspeed_shard_file(struct arena *a, struct value *dict, struct value *config)
{
	return value_dict_of(a, KEY_OPTIMIZER_STATE_DICT, dict, KEY_DS_CONFIG, config,
			     KEY_DS_VERSION, NAMES_DS_VERSION);
}

struct value *deepspeed_scaler_object(struct arena *a, const struct deepspeed_scaler *s)
{
	const struct value_field fields[] = {
		{ "cur_scale", s->scale },
		{ "dynamic", value_new_bool(a, s->dynamic) },
		{ "cur_iter", s->iteration },
		{ "last_overflow_iter", s->last_overflow },
		{ "scale_factor", s->factor },
		{ "scale_window", s->window },
		{ "min_scale", s->minimum },
		{ "delayed_shift", s->shift },
		{ "cur_hysteresis", s->hysteresis },
		{ "consecutive_hysteresis", s->consecutive },
		{ "raise_error_at_min_scale", value_new_bool(a, true) },
		{ "dtype", value_new_global(a, "torch", "float16") },
	};

	return value_new_object(a,
				value_new_global(a, "deepspeed.runtime.fp16.loss_scaler",
						 s->dynamic ? "DynamicLossScaler" : "LossScaler"),
				value_new_fields(a, fields, s->dynamic ? COUNT(fields) : 2));
}

struct value *deepspeed_stage(struct arena *a, struct value *class, unsigned stage)
{
	return value_new_reduce(
		a, class ?: value_new_global(a, "deepspeed.runtime.zero.config", "ZeroStageEnum"),
		value_tuple_of(a, stage));
}

struct value *deepspeed_fragment(struct arena *a, struct value *class, uint64_t start,
				 uint64_t numel)
{
	return value_new_object(
		a,
		class ?: value_new_global(a, "deepspeed.utils.tensor_fragment", "fragment_address"),
		value_dict_of(a, "numel", numel, "start", start));
}

struct value *deepspeed_stage1_config(struct arena *a, struct value *config)
{
	const struct value_field none = { "zero_optimization", NULL };
	struct value *out =
		value_pairs(config) ? value_edit(a, config, &none, 1) : value_new(a, VALUE_DICT);

	value_put(a, out, none.key, value_dict_of(a, "stage", 1u));
	return out;
}

/* A group's options without its parameters, and with the number of its flat group. */
static struct value *options_value(const struct value *group, size_t number, struct arena *a)
{
	const struct value_dict *d = value_pairs(group);
	struct value *out = value_new(a, VALUE_DICT);
	struct value *params = value_new(a, VALUE_LIST);

	for (size_t i = 0; d && i < d->n; i++)
		if (value_is_cstr(d->v[i].key) && !value_is_str(d->v[i].key, "params") &&
		    value_is_plain(d->v[i].val))
			value_put(a, out, d->v[i].key, d->v[i].val);
	value_append(a, params, number);
	value_put(a, out, "params", params);
	return out;
}

struct value *deepspeed_stage1_file(struct arena *a, const struct deepspeed_stage1_group *groups,
				    size_t n, struct deepspeed_shard shard, struct value *config)
{
	struct value *state = value_new(a, VALUE_DICT), *options = value_new(a, VALUE_LIST);

	shard.counts = value_new(a, VALUE_LIST);
	shard.paddings = value_new(a, VALUE_LIST);
	for (size_t g = 0; g < n; g++) {
		value_put(a, state, g, groups[g].states);
		value_append(a, options, options_value(groups[g].options, g, a));
		value_append(a, shard.counts, 1u);
		value_append(a, shard.paddings, 0u);
	}
	shard.base = value_dict_of(a, "state", state, KEY_PARAM_GROUPS, options);
	shard.masters = value_new(a, VALUE_LIST);
	shard.stage = value_new_int(a, 1);
	shard.version = value_new_str(a, NAMES_DS_VERSION);
	shard.slices = value_new(a, VALUE_LIST);
	return deepspeed_shard_file(a, deepspeed_shard_dict(a, &shard),
				    deepspeed_stage1_config(a, config));
}
