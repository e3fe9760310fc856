/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/zero/stage1.h"

struct value *stage1_config(struct arena *a, struct value *config)
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

struct value *stage1_optimizer(struct arena *a, const struct stage1_group *groups, size_t n,
			       struct deepspeed_shard shard, struct value *config)
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
	return deepspeed_shard_file(a, deepspeed_shard_dict(a, &shard), stage1_config(a, config));
}
