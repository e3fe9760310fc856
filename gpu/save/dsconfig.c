/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Readers of a checkpoint look in its ds_config for how it was made: the ZeRO
 * stage, round-robin gradients.  Command-line flags override the configuration
 * file, so their values are written into it.
 */
#include "gpu/save/dsconfig.h"

#include <cJSON.h>
#include <math.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/pickle/value.h"
#include "gpu/config/config.h"
#include "gpu/save/ptsave.h"

#define EXACT_MAX 9007199254740992.0 /* largest exact integer in a double */

static struct value *dsconfig_convert(struct ptsave *s, const cJSON *j);

static const char *dsconfig_keep(struct ptsave *s, const char *text)
{
	const char *copy = arena_strndup(&s->arena, text, strlen(text));

	if (copy)
		return copy;
	s->failed = true;
	return "";
}

static struct value *convert_number(struct ptsave *s, double x)
{
	if (x == floor(x) && fabs(x) <= EXACT_MAX)
		return ptsave_int(s, (int64_t)x);
	return ptsave_float(s, x);
}

static struct value *convert_items(struct ptsave *s, const cJSON *j)
{
	const bool object = cJSON_IsObject(j);
	struct value *v = object ? ptsave_dict(s) : ptsave_list(s);
	const cJSON *item;

	cJSON_ArrayForEach(item, j)
	{
		if (object)
			ptsave_set(s, v, dsconfig_keep(s, item->string),
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
		return ptsave_str(s, dsconfig_keep(s, j->valuestring));
	if (cJSON_IsBool(j))
		return ptsave_bool(s, cJSON_IsTrue(j));
	if (cJSON_IsNumber(j))
		return convert_number(s, j->valuedouble);
	return ptsave_none(s);
}

static bool dsconfig_set(cJSON *object, const char *key, cJSON *item)
{
	bool done;

	if (!item)
		return false;
	done = cJSON_HasObjectItem(object, key)
		       ? cJSON_ReplaceItemInObjectCaseSensitive(object, key,
								item)
		       : cJSON_AddItemToObject(object, key, item);
	if (!done)
		cJSON_Delete(item);
	return done;
}

/* Get the object under `key`, or add an empty one. */
static cJSON *section(cJSON *object, const char *key)
{
	cJSON *have = cJSON_GetObjectItemCaseSensitive(object, key);

	if (cJSON_IsObject(have))
		return have;
	return dsconfig_set(object, key, cJSON_CreateObject())
		       ? cJSON_GetObjectItemCaseSensitive(object, key)
		       : NULL;
}

static bool set_enabled(cJSON *root, const char *key, bool enabled)
{
	cJSON *of = enabled || cJSON_HasObjectItem(root, key)
			    ? section(root, key)
			    : NULL;

	return !of ? !enabled
		   : dsconfig_set(of, "enabled", cJSON_CreateBool(enabled));
}

static bool set_all(cJSON *root, const struct config *c)
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
	cJSON *zero = section(root, "zero_optimization");
	bool ok = zero && dsconfig_set(zero, "stage",
				       cJSON_CreateNumber(c->zero_stage));

	for (size_t i = 0; i < COUNT(numbers); i++)
		ok = ok && dsconfig_set(root, numbers[i].key,
					cJSON_CreateNumber(numbers[i].value));
	return ok && set_enabled(root, "bf16", c->dtype == DTYPE_BF16) &&
	       set_enabled(root, "fp16", c->dtype == DTYPE_F16);
}

struct value *dsconfig_value(struct ptsave *s, const struct config *c)
{
	cJSON *root = c->deepspeed_json ? cJSON_Parse(c->deepspeed_json) : NULL;
	struct value *v;

	if (!cJSON_IsObject(root)) {
		cJSON_Delete(root);
		root = cJSON_CreateObject();
	}
	if (!root || !set_all(root, c))
		s->failed = true;
	v = root ? dsconfig_convert(s, root) : ptsave_dict(s);
	cJSON_Delete(root);
	return v;
}
