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
#include "gpu/config/dskeys.h"
#include "gpu/config/flags.h"

#define FILE_LIMIT (1u << 20)
#define PATH_LEN 128

struct json {
	const char *file;
	struct dskeys v;       /* strings are inside the tree */
	struct errmsg unknown; /* keys, comma-separated */
};

static double number_or(double number, double otherwise)
{
	return isnan(number) ? otherwise : number;
}

static bool is_true(double number)
{
	return number_or(number, 0) != 0;
}

static int bad_json(const struct json *j, const char *path, const char *want,
		    struct errmsg *err)
{
	return errmsg_set(err, -EINVAL,
			  "--" CONFIG_JSON_FLAG " %s: %s must be %s", j->file,
			  path, want);
}

static int config_json_read_number(struct json *j, const struct dskey_rule *k,
				   const cJSON *value, struct errmsg *err)
{
	const double v = value->valuedouble;
	char want[96];

	if (cJSON_IsNumber(value) && v >= k->min && v <= k->max &&
	    (k->type == DS_REAL || v == floor(v))) {
		*(double *)((char *)&j->v + k->at) = v;
		return 0;
	}
	snprintf(want, sizeof(want), "%s from %.16g to %.16g",
		 k->type == DS_REAL ? "a number" : "an integer", k->min, k->max);
	return bad_json(j, k->path, want, err);
}

static int read_betas(struct json *j, const struct dskey_rule *k,
		      const cJSON *value, struct errmsg *err)
{
	for (int i = 0; i < 2; i++) {
		const cJSON *const beta = cJSON_GetArrayItem(value, i);

		if (!cJSON_IsArray(value) || cJSON_GetArraySize(value) != 2 ||
		    !cJSON_IsNumber(beta) || !(beta->valuedouble >= 0) ||
		    !(beta->valuedouble < 1))
			return bad_json(j, k->path,
					"two numbers from 0 to less than 1",
					err);
		j->v.betas[i] = beta->valuedouble;
	}
	return 0;
}

static int read_known(struct json *j, const struct dskey_rule *k,
		      const cJSON *value, struct errmsg *err)
{
	void *const at = (char *)&j->v + k->at;

	if (cJSON_IsNull(value) ||
	    (cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0))
		return 0;
	switch (k->type) {
	case DS_WHOLE:
	case DS_REAL:
		return config_json_read_number(j, k, value, err);
	case DS_BETAS:
		return read_betas(j, k, value, err);
	case DS_BOOL:
		if (!cJSON_IsBool(value))
			return bad_json(j, k->path, "true or false", err);
		*(double *)at = cJSON_IsTrue(value);
		return 0;
	case DS_TEXT:
		if (!cJSON_IsString(value))
			return bad_json(j, k->path, "a string", err);
		*(const char **)at = value->valuestring;
		return 0;
	}
	return 0;
}

static void note_unknown(struct json *j, const char *path)
{
	struct errmsg sofar = j->unknown;

	errmsg_set(&j->unknown, 0, "%s%s%s", sofar.text,
		   *sofar.text ? ", " : "", path);
}

static int walk(struct json *j, const cJSON *object, const char *prefix,
		struct errmsg *err);

static int read_parent(struct json *j, const cJSON *value, const char *path,
		       struct errmsg *err)
{
	if (cJSON_IsObject(value))
		return walk(j, value, path, err);
	if (cJSON_IsNull(value) || cJSON_IsString(value)) /* "auto" */
		return 0;
	return bad_json(j, path, "an object", err);
}

static int read_item(struct json *j, const cJSON *value, const char *path,
		     struct errmsg *err)
{
	const struct dskey_rule *rule;

	switch (dskey_find(path, &rule)) {
	case DS_KNOWN:
		return read_known(j, rule, value, err);
	case DS_UNSUPPORTED:
		if (cJSON_IsTrue(value))
			return errmsg_set(err, -ENOTSUP,
					  "--" CONFIG_JSON_FLAG
					  " %s: uctrain has no %s",
					  j->file, path);
		return 0;
	case DS_PARENT:
		return read_parent(j, value, path, err);
	case DS_UNKNOWN:
		note_unknown(j, path);
		return 0;
	case DS_IRRELEVANT:
		return 0;
	}
	return 0;
}

/* Visit the keys of an object.  Recursion is bounded: it follows only paths in
 * the table of keys. */
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
			rc = read_item(j, value, path, err);
		if (rc)
			break;
	}
	return rc;
}

/* Where DeepSpeed would default to one micro-batch per step, so do we. */
static void apply_batch(struct config *c, const struct json *j)
{
	const bool one_size = isnan(j->v.batch) != isnan(j->v.micro_batch);

	c->batch = (unsigned)number_or(j->v.batch, 0);
	c->micro_batch = (unsigned)number_or(j->v.micro_batch, 0);
	c->accumulation =
		(unsigned)number_or(j->v.accumulation, one_size ? 1 : 0);
}

/* Without it DeepSpeed would take the model's type.  False for an unknown name. */
static bool apply_comm_dtype(struct config *c, const char *name)
{
	const struct choice *of = flag_dtypes;

	if (!name)
		return true;
	while (of->name && strcasecmp(name, of->name) != 0)
		of++;
	if (of->name)
		c->comm_dtype = (enum dtype)of->value;
	return of->name != NULL;
}

static int apply_dtype(struct config *c, const struct json *j,
		       struct errmsg *err)
{
	const double scale = number_or(j->v.loss_scale, 0);

	if (is_true(j->v.bf16) && is_true(j->v.fp16))
		return errmsg_set(err, -EINVAL,
				  "--" CONFIG_JSON_FLAG
				  " %s: bf16 and fp16 are both enabled",
				  j->file);
	if (is_true(j->v.bf16))
		c->dtype = DTYPE_BF16;
	if (is_true(j->v.fp16))
		c->dtype = DTYPE_F16;
	if (!apply_comm_dtype(c, j->v.comm_dtype))
		return bad_json(j, "communication_data_type",
				"fp32, bf16 or fp16", err);
	c->scaler.dynamic = scale == 0;
	c->scaler.initial =
		scale != 0 ? scale : exp2(number_or(j->v.scale_power, 16));
	c->scaler.window = (uint64_t)number_or(j->v.scale_window, 1000);
	c->scaler.hysteresis = (uint64_t)number_or(j->v.hysteresis, 2);
	c->scaler.minimum = number_or(j->v.min_scale, 1);
	return 0;
}

/* The kind of Adam that DeepSpeed would choose, which decides how steps are
 * stored. */
static enum optimizer_flavor flavor_of(const struct json *j)
{
	const char *const device = j->v.offload_device;

	if (is_true(j->v.torch_adam))
		return OPTIMIZER_TORCH;
	if (is_true(j->v.cpu_offload) || (device && strcmp(device, "none") != 0))
		return OPTIMIZER_DEEPSPEED_CPU;
	return OPTIMIZER_APEX;
}

/* DeepSpeed's Adam is AdamW unless adam_w_mode is false.  A named optimizer has
 * its own default for weight decay: torch's AdamW decays, the others do not. */
static int apply_optimizer(struct config *c, const struct json *j,
			   struct errmsg *err)
{
	struct optimizer_config *const o = &c->optimizer;
	const char *const type = j->v.optimizer;

	if (type && strcasecmp(type, "adam") != 0 &&
	    strcasecmp(type, "adamw") != 0)
		return bad_json(j, "optimizer.type", "Adam or AdamW", err);
	if (type) {
		const bool decoupled = strcasecmp(type, "adamw") == 0 ||
				       number_or(j->v.adam_w_mode, 1) != 0;

		o->kind = decoupled ? OPTIMIZER_ADAMW : OPTIMIZER_ADAM;
		o->flavor = flavor_of(j);
		o->lr = 1e-3;
		o->weight_decay =
			decoupled && o->flavor == OPTIMIZER_TORCH ? 0.01 : 0;
	}
	o->lr = number_or(j->v.lr, o->lr);
	o->beta1 = number_or(j->v.betas[0], o->beta1);
	o->beta2 = number_or(j->v.betas[1], o->beta2);
	o->eps = number_or(j->v.eps, o->eps);
	o->weight_decay = number_or(j->v.weight_decay, o->weight_decay);
	return 0;
}

static int apply_scheduler(struct config *c, struct config_ratios *ratios,
			   const struct json *j, struct errmsg *err)
{
	struct lr_schedule_config *const s = &c->schedule;
	const char *const type = j->v.scheduler;
	const char *const warmup = j->v.warmup_type;

	if (!type)
		return 0;
	if (strcmp(type, "WarmupLR") == 0)
		s->kind = SCHEDULE_WARMUP;
	else if (strcmp(type, "WarmupDecayLR") == 0)
		s->kind = SCHEDULE_LINEAR;
	else if (strcmp(type, "WarmupCosineLR") == 0)
		s->kind = SCHEDULE_COSINE;
	else
		return bad_json(j, "scheduler.type",
				"WarmupLR, WarmupDecayLR or WarmupCosineLR",
				err);
	if (warmup && strcmp(warmup, "log") != 0 && strcmp(warmup, "linear") != 0)
		return bad_json(j, "scheduler.params.warmup_type",
				"log or linear", err);
	s->log_warmup = !warmup || strcmp(warmup, "log") == 0;
	s->warmup = (uint64_t)number_or(j->v.warmup_steps, 1000);
	s->total = (uint64_t)number_or(j->v.total_steps, 0);
	if (s->kind == SCHEDULE_COSINE) {
		ratios->start = number_or(j->v.start_ratio, 0);
		ratios->min = number_or(j->v.min_ratio, 1e-4);
		return 0;
	}
	s->start_lr = number_or(j->v.warmup_min_lr, 0);
	c->optimizer.lr =
		number_or(j->v.warmup_max_lr, number_or(j->v.lr, 1e-3));
	return 0;
}

static int config_json_apply(struct config *c, struct config_ratios *ratios,
			     const struct json *j, struct errmsg *err)
{
	int rc = apply_dtype(c, j, err);

	apply_batch(c, j);
	c->gradient_clipping = number_or(j->v.clipping, c->gradient_clipping);
	c->universal = is_true(j->v.universal);
	if (!isnan(j->v.stage))
		c->zero_stage = (unsigned)j->v.stage;
	if (!rc)
		rc = apply_optimizer(c, j, err);
	if (!rc)
		rc = apply_scheduler(c, ratios, j, err);
	return rc;
}

static int config_json_load(const char *path, char **text, size_t *len,
			    struct errmsg *err)
{
	struct errmsg why = { "" };
	struct source src;
	int rc = source_open(&src, path, &why);

	if (rc)
		return errmsg_set(err, rc, "--" CONFIG_JSON_FLAG " %s",
				  why.text);
	*text = NULL;
	*len = (size_t)src.size;
	if (src.size > FILE_LIMIT)
		rc = errmsg_set(&why, -EFBIG,
				"%s: is too large for a configuration", path);
	else if (!(*text = malloc(*len + 1)))
		rc = errmsg_nomem(&why, path);
	else
		rc = source_read(&src, *text, *len, 0, &why);
	source_close(&src);
	if (!rc) {
		(*text)[*len] = '\0';
		return 0;
	}
	free(*text);
	return errmsg_set(err, rc, "--" CONFIG_JSON_FLAG " %s", why.text);
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
			  "--" CONFIG_JSON_FLAG
			  " %s: near line %u, column %u: no valid JSON",
			  path, line, column);
}

int config_read_json(struct config *c, struct config_ratios *ratios,
		     const char *path, bool verbose, struct errmsg *err)
{
	struct json j = { .file = path, .unknown = { "" } };
	const char *end = NULL;
	cJSON *root;
	size_t len = 0;
	char *text = NULL;
	int rc = config_json_load(path, &text, &len, err);

	if (rc)
		return rc;
	dskeys_init(&j.v);
	root = cJSON_ParseWithOpts(text, &end, true);
	/* cJSON stops at a NUL within the text. */
	if (!root || end != text + len)
		rc = no_json(path, text,
			     end && end < text + len ? end : text + len, err);
	else if (!cJSON_IsObject(root))
		rc = errmsg_set(err, -EINVAL,
				"--" CONFIG_JSON_FLAG " %s: is no JSON object",
				path);
	else
		rc = walk(&j, root, "", err);
	if (!rc)
		rc = config_json_apply(c, ratios, &j, err);
	if (!rc && verbose && *j.unknown.text)
		fprintf(stderr, "uctrain: %s: unknown keys, ignored: %s\n",
			path, j.unknown.text);
	cJSON_Delete(root);
	if (rc) {
		free(text);
		return rc;
	}
	free(c->deepspeed_json);
	c->deepspeed_json = text;
	return 0;
}
