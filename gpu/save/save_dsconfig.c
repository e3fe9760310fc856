/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of a checkpoint look in its ds_config for how it was made: the ZeRO stage, round-robin
 * gradients.  Command-line flags override the configuration file, so their values are written
 * into it.
 */
#include <cJSON.h>
#include <math.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "gpu/save/save_impl.h"

#define EXACT_MAX 9007199254740992.0 /* largest exact integer in a double */

static struct value *dsconfig_convert(struct ptsave *s, const cJSON *j);

static struct value *convert_number(struct ptsave *s, double x)
{
	if (x == floor(x) && fabs(x) <= EXACT_MAX)
		return value_new_int(&s->arena, (int64_t)x);
	return value_new_float(&s->arena, x);
}

static struct value *convert_items(struct ptsave *s, const cJSON *j)
{
	const bool object = cJSON_IsObject(j);
	struct value *v = object ? ptsave_dict(s) : ptsave_list(s);
	const cJSON *item;

	cJSON_ArrayForEach(item, j)
	{
		if (object)
			ptsave_set(s, v, arena_strdup(&s->arena, item->string),
				   dsconfig_convert(s, item));
		else
			ptsave_add(s, v, dsconfig_convert(s, item));
	}
	return v;
}

/* Recursive: cJSON limits the depth. */
static struct value *dsconfig_convert(struct ptsave *s, const cJSON *j)
{
	if (cJSON_IsObject(j) || cJSON_IsArray(j))
		return convert_items(s, j);
	if (cJSON_IsString(j))
		return value_new_str(&s->arena, arena_strdup(&s->arena, j->valuestring));
	if (cJSON_IsBool(j))
		return value_new_bool(&s->arena, cJSON_IsTrue(j));
	if (cJSON_IsNumber(j))
		return convert_number(s, j->valuedouble);
	return ptsave_none(s);
}

/* Set a key, which may have a value. */
static void dsconfig_put(struct ptsave *s, struct value *dict, const char *key, struct value *v)
{
	struct value *const old = value_find(dict, key);

	if (old && v)
		*old = *v;
	else
		ptsave_set(s, dict, key, v);
}

/* Get the dict under `key`, or put an empty one there. */
static struct value *section(struct ptsave *s, struct value *dict, const char *key)
{
	const struct value *const v = value_find(dict, key);

	if (!v || v->kind != VALUE_DICT)
		dsconfig_put(s, dict, key, ptsave_dict(s));
	return value_find(dict, key);
}

static void set_enabled(struct ptsave *s, struct value *root, const char *key, bool enabled)
{
	if (enabled || value_find(root, key))
		dsconfig_put(s, section(s, root, key), "enabled",
			     value_new_bool(&s->arena, enabled));
}

struct value *save_dsconfig(struct ptsave *s, const struct config *c)
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
	cJSON *const json = c->deepspeed_json ? cJSON_Parse(c->deepspeed_json) : NULL;
	struct value *root = cJSON_IsObject(json) ? convert_items(s, json) : ptsave_dict(s);

	s->arena.failed |= c->deepspeed_json && !json;
	cJSON_Delete(json);
	dsconfig_put(s, section(s, root, "zero_optimization"), "stage",
		     convert_number(s, c->zero_stage));
	for (size_t i = 0; i < COUNT(numbers); i++)
		dsconfig_put(s, root, numbers[i].key, convert_number(s, numbers[i].value));
	set_enabled(s, root, "bf16", c->dtype == DTYPE_BF16);
	set_enabled(s, root, "fp16", c->dtype == DTYPE_F16);
	return root;
}
