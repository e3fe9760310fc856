/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's configuration. "auto", which Hugging Face's trainer replaces by
 * its own arguments, counts as not given.
 *
 * If the file has an object, values that the object lacks get DeepSpeed's
 * defaults.
 */
#include "gpu/config/config_impl.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"
#include "gpu/config/settings.h"

#define FILE_LIMIT (1u << 20)
#define PATH_LEN 128

struct json {
	const char *file;
	const cJSON *root;
	struct errmsg unknown; /* keys, comma-separated */
};

static int bad_json(const struct json *j, const char *path, const char *want,
		    struct errmsg *err)
{
	return errmsg_set(err, -EINVAL, "%s: %s must be %s", j->file, path,
			  want);
}

static bool is_given(const cJSON *value)
{
	return value && !cJSON_IsNull(value) &&
	       !(cJSON_IsString(value) &&
		 strcmp(value->valuestring, "auto") == 0);
}

static const struct choice *find_choice(const struct setting *s,
					const char *name)
{
	const struct choice *of = s->choices;

	while (of->name && (s->kind == SETTING_EXACT_CHOICE
				    ? strcmp(name, of->name)
				    : strcasecmp(name, of->name)) != 0)
		of++;
	return of->name ? of : NULL;
}

static bool is_choice(const struct setting *s, const cJSON *value,
		      struct errmsg *want)
{
	errmsg_set(want, 0, "%s", s->choices->name);
	for (const struct choice *of = s->choices + 1; of->name; of++) {
		const struct errmsg sofar = *want;

		errmsg_set(want, 0, "%s%s%s", sofar.text,
			   of[1].name ? ", " : " or ", of->name);
	}
	return cJSON_IsString(value) && find_choice(s, value->valuestring);
}

static bool are_betas(const cJSON *value, struct errmsg *want)
{
	bool ok = cJSON_IsArray(value) && cJSON_GetArraySize(value) == 2;

	errmsg_set(want, 0, "two numbers from 0 to less than 1");
	for (int i = 0; ok && i < 2; i++) {
		const cJSON *const beta = cJSON_GetArrayItem(value, i);

		ok = cJSON_IsNumber(beta) && beta->valuedouble >= 0 &&
		     beta->valuedouble < 1;
	}
	return ok;
}

/* Is it a value that the setting can have?  If not, `want` says which. */
static bool is_allowed(const struct setting *s, const cJSON *value,
		       struct errmsg *want)
{
	switch (s->kind) {
	case SETTING_CHOICE:
	case SETTING_EXACT_CHOICE:
		return is_choice(s, value, want);
	case SETTING_BETAS:
		return are_betas(value, want);
	case SETTING_ON:
		errmsg_set(want, 0, "true or false");
		return cJSON_IsBool(value);
	case SETTING_TEXT:
		errmsg_set(want, 0, "a string");
		return cJSON_IsString(value);
	default:
		return setting_allows(s, value->valuedouble, want) &&
		       cJSON_IsNumber(value);
	}
}

static const struct setting *setting_of(const char *path)
{
	for (const struct setting *s = settings; s < settings + SETTINGS; s++)
		if (s->key && strcmp(s->key, path) == 0)
			return s;
	return NULL;
}

static void note_unknown(struct json *j, const char *path)
{
	struct errmsg sofar = j->unknown;

	errmsg_set(&j->unknown, 0, "%s%s%s", sofar.text,
		   *sofar.text ? ", " : "", path);
}

static int walk(struct json *j, const cJSON *object, const char *prefix,
		struct errmsg *err);

/* `path` is that of `value` in the object `prefix`. */
static int check_item(struct json *j, const cJSON *value, const char *prefix,
		      const char *path, struct errmsg *err)
{
	const struct setting *const s = setting_of(path);
	struct errmsg want;

	if (s)
		return !is_given(value) || is_allowed(s, value, &want)
			       ? 0
			       : bad_json(j, path, want.text, err);
	if (dskeys_is_object(path) && cJSON_IsObject(value))
		return walk(j, value, path, err);
	if (dskeys_is_object(path))
		return cJSON_IsNull(value) || cJSON_IsString(value) /* "auto" */
			       ? 0
			       : bad_json(j, path, "an object", err);
	switch (dskeys_class(prefix, value->string)) {
	case DSKEY_UNSUPPORTED:
		if (cJSON_IsTrue(value))
			return errmsg_set(err, -ENOTSUP, "%s: uctrain has no %s",
					  j->file, path);
		return 0;
	case DSKEY_UNKNOWN:
		note_unknown(j, path);
		return 0;
	case DSKEY_IRRELEVANT:
		return 0;
	}
	return 0;
}

/* Check the values of an object.  Recursion is bounded: it follows only paths of the
 * table of objects. */
static int walk(struct json *j, const cJSON *object, const char *prefix,
		struct errmsg *err)
{
	const cJSON *value;
	char path[PATH_LEN];
	int rc = 0;

	cJSON_ArrayForEach(value, object)
	{
		const int n = snprintf(path, sizeof(path), "%s%s%s", prefix,
				       *prefix ? "." : "", value->string);

		if (n >= (int)sizeof(path))
			note_unknown(j, path);
		else
			rc = check_item(j, value, prefix, path, err);
		if (rc)
			break;
	}
	return rc;
}

/* The value of a path; NULL if it is not given. */
static const cJSON *find(const struct json *j, const char *path)
{
	const cJSON *at = j->root;
	char name[PATH_LEN];

	while (at && *path) {
		const size_t n = strcspn(path, ".");

		snprintf(name, sizeof(name), "%.*s", (int)n, path);
		at = cJSON_GetObjectItemCaseSensitive(at, name);
		path += n + (path[n] == '.');
	}
	return is_given(at) ? at : NULL;
}

static double number(const struct json *j, const char *path, double otherwise)
{
	const cJSON *const value = find(j, path);

	return value ? value->valuedouble : otherwise;
}

static bool is_on(const struct json *j, const char *path)
{
	return cJSON_IsTrue(find(j, path));
}

/* The choice of a path. */
static int choice(const struct json *j, const char *path, int otherwise)
{
	const cJSON *const value = find(j, path);

	return value ? find_choice(setting_of(path), value->valuestring)->value
		     : otherwise;
}

/* Store the values of settings that are stored as they are. */
static void store_all(struct config *c, const struct json *j)
{
	for (const struct setting *s = settings; s < settings + SETTINGS; s++) {
		const cJSON *const value =
			s->key && s->size ? find(j, s->key) : NULL;

		if (!value)
			continue;
		if (s->kind == SETTING_BETAS) {
			c->optimizer.beta1 = value->child->valuedouble;
			c->optimizer.beta2 = value->child->next->valuedouble;
		} else if (s->kind == SETTING_CHOICE) {
			setting_store(c, s, choice(j, s->key, 0));
		} else if (s->kind == SETTING_ON) {
			setting_store(c, s, cJSON_IsTrue(value));
		} else {
			setting_store(c, s, value->valuedouble);
		}
	}
}

static int apply_dtype(struct config *c, const struct json *j,
		       struct errmsg *err)
{
	const bool bf16 =
		is_on(j, "bf16.enabled") || is_on(j, "bfloat16.enabled");
	const bool fp16 = is_on(j, "fp16.enabled");
	const double scale = number(j, "fp16.loss_scale", 0);

	if (bf16 && fp16)
		return errmsg_set(err, -EINVAL,
				  "%s: bf16 and fp16 are both enabled", j->file);
	if (bf16 || fp16)
		c->dtype = bf16 ? DTYPE_BF16 : DTYPE_F16;
	c->scaler.dynamic = scale == 0;
	c->scaler.initial =
		scale != 0 ? scale
			   : exp2(number(j, "fp16.initial_scale_power", 16));
	return 0;
}

/* The kind of Adam that DeepSpeed would choose, which decides how steps are
 * stored. */
static enum optimizer_flavor flavor_of(const struct json *j)
{
	const cJSON *const device =
		find(j, "zero_optimization.offload_optimizer.device");

	if (is_on(j, "optimizer.params.torch_adam"))
		return OPTIMIZER_TORCH;
	if (is_on(j, "zero_optimization.cpu_offload") ||
	    (device && strcmp(device->valuestring, "none") != 0))
		return OPTIMIZER_DEEPSPEED_CPU;
	return OPTIMIZER_APEX;
}

/* DeepSpeed's Adam is AdamW unless adam_w_mode is false.  A named optimizer has
 * its own default for weight decay: torch's AdamW decays, the others do not. */
static void apply_optimizer(struct config *c, const struct json *j)
{
	struct optimizer_config *const o = &c->optimizer;
	const cJSON *const mode = find(j, "optimizer.params.adam_w_mode");
	bool decoupled;

	if (!find(j, "optimizer.type"))
		return;
	decoupled = choice(j, "optimizer.type", 0) == OPTIMIZER_ADAMW ||
		    !mode || cJSON_IsTrue(mode);
	o->kind = decoupled ? OPTIMIZER_ADAMW : OPTIMIZER_ADAM;
	o->flavor = flavor_of(j);
	o->lr = 1e-3;
	o->weight_decay = decoupled && o->flavor == OPTIMIZER_TORCH ? 0.01 : 0;
}

#define PARAMS "scheduler.params."

static void apply_scheduler(struct config *c, struct config_ratios *ratios,
			    const struct json *j)
{
	struct lr_schedule_config *const s = &c->schedule;

	if (!find(j, "scheduler.type"))
		return;
	s->kind = (enum lr_schedule_kind)choice(j, "scheduler.type", 0);
	s->log_warmup = choice(j, PARAMS "warmup_type", true);
	s->warmup = (uint64_t)number(j, PARAMS "warmup_num_steps", 1000);
	s->total = (uint64_t)number(j, PARAMS "total_num_steps", 0);
	if (s->kind == SCHEDULE_COSINE) {
		ratios->start = number(j, PARAMS "warmup_min_ratio", 0);
		ratios->min = number(j, PARAMS "cos_min_ratio", 1e-4);
		return;
	}
	s->start_lr = number(j, PARAMS "warmup_min_lr", 0);
	c->optimizer.lr = number(j, PARAMS "warmup_max_lr",
				 number(j, "optimizer.params.lr", 1e-3));
}

static int config_json_apply(struct config *c, struct config_ratios *ratios,
			     const struct json *j, struct errmsg *err)
{
	apply_optimizer(c, j);
	store_all(c, j);
	apply_scheduler(c, ratios, j);
	/* Where DeepSpeed would default to one micro-batch per step, so do we. */
	if (!c->accumulation && !c->batch != !c->micro_batch)
		c->accumulation = 1;
	return apply_dtype(c, j, err);
}

/* Read the file; the text ends with a NUL, which `len` does not count. */
static int config_json_load(const char *path, char **text, size_t *len,
			    struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	*len = (size_t)src.size;
	if (src.size > FILE_LIMIT)
		rc = errmsg_set(err, -EFBIG,
				"%s: is too large for a configuration", path);
	else if (!(*text = calloc(1, *len + 1)))
		rc = errmsg_nomem(err, path);
	else
		rc = source_read(&src, *text, *len, 0, err);
	source_close(&src);
	return rc;
}

static int no_json(const char *path, const char *text, const char *at,
		   struct errmsg *err)
{
	unsigned line = 1, column = 1;

	for (const char *p = text; p < at; p++) {
		column = *p == '\n' ? 1 : column + 1;
		line += *p == '\n';
	}
	return errmsg_set(err, -EINVAL,
			  "%s: near line %u, column %u: no valid JSON", path,
			  line, column);
}

static int config_json_parse(struct json *j, const char *text, size_t len,
			     cJSON **root, struct errmsg *err)
{
	const char *end = NULL;

	*root = cJSON_ParseWithOpts(text, &end, true);
	j->root = *root;
	/* cJSON stops at a NUL within the text. */
	if (!*root || end != text + len)
		return no_json(j->file, text,
			       end && end < text + len ? end : text + len, err);
	if (!cJSON_IsObject(*root))
		return errmsg_set(err, -EINVAL, "%s: is no JSON object",
				  j->file);
	return walk(j, *root, "", err);
}

int config_read_json(struct config *c, struct config_ratios *ratios,
		     const char *path, bool verbose, struct errmsg *err)
{
	struct json j = { .file = path, .unknown = { "" } };
	struct errmsg why = { "" };
	cJSON *root = NULL;
	char *text = NULL;
	size_t len = 0;
	int rc = config_json_load(path, &text, &len, &why);

	if (!rc)
		rc = config_json_parse(&j, text, len, &root, &why);
	if (!rc)
		rc = config_json_apply(c, ratios, &j, &why);
	if (!rc && verbose && *j.unknown.text)
		fprintf(stderr, "uctrain: %s: unknown keys, ignored: %s\n",
			path, j.unknown.text);
	cJSON_Delete(root);
	if (rc) {
		free(text);
		return errmsg_set(err, rc, "--" CONFIG_JSON_FLAG " %s",
				  why.text);
	}
	free(c->deepspeed_json);
	c->deepspeed_json = text;
	return 0;
}
