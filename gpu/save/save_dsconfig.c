/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of a checkpoint inspect its ds_config to learn how it was saved: the ZeRO stage,
 * round-robin gradients.  Command-line flags override the configuration file, so their values are
 * written into ds_config.
 */
#include <cJSON.h>

#include "ckpt/base/array.h"
#include "gpu/save/save_impl.h"

/* Set a key, replacing any value. */
static void dsconfig_put(struct arena *a, struct value *dict, const char *key, struct value *v)
{
	struct value *old = value_find(dict, key);

	if (old && v)
		*old = *v;
	else
		value_put(a, dict, key, v);
}

/* Get the dict under `key`, or put an empty one there. */
static struct value *section(struct arena *a, struct value *dict, const char *key)
{
	const struct value *v = value_find(dict, key);

	if (!v || v->kind != VALUE_DICT)
		dsconfig_put(a, dict, key, value_new(a, VALUE_DICT));
	return value_find(dict, key);
}

static void set_enabled(struct arena *a, struct value *root, const char *key, bool enabled)
{
	if (enabled || value_find(root, key))
		dsconfig_put(a, section(a, root, key), "enabled", value_new_bool(a, enabled));
}

struct value *save_dsconfig(struct arena *a, const struct config *c)
{
	const struct {
		const char *key;
		double value;
	} numbers[] = {
		{ "train_batch_size", c->batch },
		{ "train_micro_batch_size_per_gpu", c->micro_batch },
		{ "gradient_accumulation_steps", c->accumulation },
		{ "gradient_clipping", c->gradient_clipping },
	};
	cJSON *json = c->deepspeed_json ? cJSON_Parse(c->deepspeed_json) : NULL;
	struct value *root = cJSON_IsObject(json) ? value_from_json(a, json, NULL)
						  : value_new(a, VALUE_DICT);

	a->failed |= c->deepspeed_json && !json;
	cJSON_Delete(json);
	dsconfig_put(a, section(a, root, "zero_optimization"), "stage",
		     value_new_number(a, c->zero_stage));
	for (size_t i = 0; i < COUNT(numbers); i++)
		dsconfig_put(a, root, numbers[i].key, value_new_number(a, numbers[i].value));
	set_enabled(a, root, "bf16", c->dtype == DTYPE_BF16);
	set_enabled(a, root, "fp16", c->dtype == DTYPE_F16);
	return root;
}
