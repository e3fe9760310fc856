/* SPDX-License-Identifier: Apache-2.0 */
#include "ckpt/zero/stage1.h"

#include "ckpt/base/array.h"
#include "ckpt/format/names.h"

struct value *stage1_config(struct arena *a, struct value *config)
{
	const struct value_field none = { "zero_optimization", NULL };
	const struct value_field stage = { "stage", value_new_int(a, 1) };
	struct value *out =
		value_pairs(config) ? value_edit(a, config, &none, 1) : value_new(a, VALUE_DICT);

	value_dict_set(a, out, none.key, value_new_fields(a, &stage, 1));
	return out;
}

/* A group's options, but for its parameters, with the number of the flat group for them. */
static struct value *options_value(const struct value *group, size_t number, struct arena *a)
{
	const struct value_dict *d = value_pairs(group);
	struct value *out = value_new(a, VALUE_DICT);
	struct value *params = value_new(a, VALUE_LIST);

	for (size_t i = 0; d && i < d->n; i++)
		if (value_is_cstr(d->v[i].key) && !value_is_str(d->v[i].key, "params") &&
		    value_is_plain(d->v[i].val))
			value_put(a, out, d->v[i].key, d->v[i].val);
	value_append(a, params, value_new_int(a, (int64_t)number));
	value_dict_set(a, out, "params", params);
	return out;
}

struct value *stage1_optimizer(struct arena *a, const struct stage1_group *groups, size_t n,
			       const struct value_field *scaler, struct value *config)
{
	struct value *state = value_new(a, VALUE_DICT), *options = value_new(a, VALUE_LIST);
	struct value *counts = value_new(a, VALUE_LIST), *paddings = value_new(a, VALUE_LIST);

	for (size_t g = 0; g < n; g++) {
		value_put(a, state, value_new_int(a, (int64_t)g), groups[g].states);
		value_append(a, options, options_value(groups[g].options, g, a));
		value_append(a, counts, value_new_int(a, 1));
		value_append(a, paddings, value_new_int(a, 0));
	}

	const struct value_field base[] = { { "state", state }, { KEY_PARAM_GROUPS, options } };
	const struct value_field fields[] = {
		{ KEY_BASE_OPTIMIZER_STATE, value_new_fields(a, base, COUNT(base)) },
		{ KEY_FP32_GROUPS, value_new(a, VALUE_LIST) },
		{ KEY_ZERO_STAGE, value_new_int(a, 1) },
		scaler[0],
		scaler[1],
		scaler[2],
		{ KEY_GROUP_PADDINGS, paddings },
		{ KEY_PARTITION_COUNT, counts },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
		{ KEY_PARAM_SLICE_MAPPINGS, value_new(a, VALUE_LIST) },
	};
	const struct value_field root[] = {
		{ KEY_OPTIMIZER_STATE_DICT, value_new_fields(a, fields, COUNT(fields)) },
		{ KEY_DS_CONFIG, stage1_config(a, config) },
		{ KEY_DS_VERSION, value_new_str(a, NAMES_DS_VERSION) },
	};

	return value_new_fields(a, root, COUNT(root));
}
