/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DeepSpeed's configuration. "auto", which Hugging Face's trainer replaces by its own arguments,
 * counts as not given.
 *
 * If the file has an object, values that the object lacks get DeepSpeed's defaults.
 */
#include "gpu/config/config_impl.h"

#include <cjson/cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/source.h"

#define FILE_LIMIT (1u << 20)
#define PATH_LEN 128

#define VALUE_LEN 64

/*
 * Objects of the configuration, with the keys that are not settings of ours.  Sources: the
 * configuration classes of DeepSpeed 0.19.  Words are separated by blanks.
 */
struct object {
	const char *path; /* "": the configuration itself */
	/* Keys that concern DeepSpeed's own speed, memory or logs; "*": all others. */
	const char *irrelevant;
	/* Keys that would change training or checkpoints if true. */
	const char *unsupported;
};

static const struct object objects[] = {
	{ "",
	  "$schema activation_checkpointing aio autotuning comet comms_logger compile csv_monitor "
	  "data_types dataloader_drop_last datastates_ckpt disable_allgather disable_python_gc "
	  "dump_state elasticity flops_profiler gradient_predivide_factor hybrid_engine log_level "
	  "managed_gradient_accumulation memory_breakdown nebula pipeline prescale_gradients "
	  "seq_parallel_communication_data_type sparse_gradients steps_per_print tensorboard "
	  "timers use_data_before_expert_parallelism use_node_local_storage vocabulary_size "
	  "wall_clock_breakdown wandb zero_allow_untested_optimizer zero_force_ds_cpu_optimizer",
	  "" },
	{ "amp", "", "enabled" },
	{ "bf16", "check_grad_overflow immediate_grad_update",
	  "bf16_master_weights_and_grads bf16_optimizer_states" },
	{ "bfloat16", "", "" },
	{ "checkpoint", "parallel_write tag_validation use_node_local_storage writer", "" },
	{ "compression_training", "", "enabled" },
	{ "curriculum_learning", "", "enabled" },
	{ "data_efficiency", "", "enabled" },
	{ "eigenvalue", "", "enabled" },
	{ "fp16", "auto_cast", "consecutive_hysteresis fp16_master_weights_and_grads" },
	{ "optimizer", "legacy_fusion", "" },
	{ "optimizer.params", "bias_correction foreach fp32_optimizer_states fused",
	  "amsgrad maximize" },
	{ "progressive_layer_drop", "", "enabled" },
	{ "quantize_training", "", "enabled" },
	{ "scheduler", "", "" },
	{ "scheduler.params", "last_batch_iteration", "" },
	{ "torch_autocast", "", "enabled" },
	{ "zero_optimization",
	  "allgather_bucket_size allgather_partitions compute_grad_norm contiguous_gradients "
	  "cpu_offload_param cpu_offload_params cpu_offload_use_pin_memory elastic_checkpoint "
	  "enable_sanity_checks gather_16bit_weights_on_model_save ignore_unused_parameters "
	  "leaf_module legacy_stage1 load_from_fp32_weights log_trace_cache_warnings "
	  "max_live_parameters max_reuse_distance memory_efficient_linear "
	  "model_persistence_threshold module_granularity_threshold offload_param overlap_comm "
	  "override_module_apply param_persistence_threshold parameter_alignment "
	  "pipeline_loading_checkpoint prefetch_bucket_size reduce_bucket_size reduce_scatter "
	  "round_robin_gradients save_muon_momentum_buffer_in_memory stage3_allgather_sequential "
	  "stage3_gather_16bit_weights_on_model_save stage3_gather_fp16_weights_on_model_save "
	  "stage3_max_live_parameters stage3_max_reuse_distance stage3_model_persistence_threshold "
	  "stage3_module_granularity_threshold stage3_param_persistence_threshold "
	  "stage3_prefetch_bucket_size stage3_use_all_reduce_for_fetch_params sub_group_size "
	  "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zero_hpz_partition_size",
	  "zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights" },
	{ "zero_optimization.offload_optimizer", "*", "" },
};

static bool has_word(const char *words, const char *word)
{
	const size_t len = strlen(word);

	while (*words) {
		const size_t n = strcspn(words, " ");

		if (n == len && memcmp(words, word, n) == 0)
			return true;
		words += n + strspn(words + n, " ");
	}
	return false;
}

static const struct object *find_object(const char *path)
{
	for (size_t i = 0; i < COUNT(objects); i++)
		if (strcmp(path, objects[i].path) == 0)
			return &objects[i];
	return NULL;
}

struct json {
	const char *file;
	struct config *config;
	struct errmsg unknown; /* keys, comma-separated */
};

static bool is_given(const cJSON *value)
{
	return value && !cJSON_IsNull(value) &&
	       !(cJSON_IsString(value) && strcmp(value->valuestring, "auto") == 0);
}

/* Return the value as a flag's text; "" if the setting cannot have a value of this type. */
static const char *text_of(const struct setting *s, const cJSON *value, char buf[VALUE_LEN])
{
	*buf = '\0';
	switch (s->kind) {
	case SETTING_CHOICE:
	case SETTING_CHOICE_ANY_CASE:
	case SETTING_TEXT:
		return cJSON_IsString(value) ? value->valuestring : "";
	case SETTING_ON:
		return !cJSON_IsBool(value) ? "" : cJSON_IsTrue(value) ? "true" : "false";
	case SETTING_BETAS:
		if (cJSON_IsArray(value) && cJSON_GetArraySize(value) == 2 &&
		    cJSON_IsNumber(value->child) && cJSON_IsNumber(value->child->next))
			snprintf(buf, VALUE_LEN, "%.17g,%.17g", value->child->valuedouble,
				 value->child->next->valuedouble);
		return buf;
	default:
		if (cJSON_IsNumber(value))
			snprintf(buf, VALUE_LEN, "%.17g", value->valuedouble);
		return buf;
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

	errmsg_set(&j->unknown, 0, "%s%s%s", sofar.text, *sofar.text ? ", " : "", path);
}

static int walk(struct json *j, const cJSON *object, const struct object *of, struct errmsg *err);

/* `path` is the path of `value` in the object `of`. */
static int check_item(struct json *j, const cJSON *value, const struct object *of, const char *path,
		      struct errmsg *err)
{
	const struct setting *const s = setting_of(path);
	const struct object *const inner = find_object(path);
	char buf[VALUE_LEN];
	struct errmsg where;

	if (s && is_given(value)) {
		errmsg_set(&where, 0, "%s: %s", j->file, path);
		return setting_set(j->config, s, where.text, text_of(s, value, buf), err);
	}
	if (inner && cJSON_IsObject(value))
		return walk(j, value, inner, err);
	if (inner && is_given(value))
		return errmsg_set(err, -EINVAL, "%s: %s must be an object", j->file, path);
	if (s || inner)
		return 0;
	if (has_word(of->unsupported, value->string))
		return cJSON_IsTrue(value)
			       ? errmsg_set(err, -ENOTSUP, "%s: uctrain has no %s", j->file, path)
			       : 0;
	if (strcmp(of->irrelevant, "*") != 0 && !has_word(of->irrelevant, value->string))
		note_unknown(j, path);
	return 0;
}

/* Apply the values of an object.  Recursion is bounded: it follows only paths in the table of
 * objects. */
static int walk(struct json *j, const cJSON *object, const struct object *of, struct errmsg *err)
{
	const cJSON *value;
	char path[PATH_LEN];
	int rc = 0;

	cJSON_ArrayForEach(value, object)
	{
		const int n = snprintf(path, sizeof(path), "%s%s%s", of->path, *of->path ? "." : "",
				       value->string);

		if (n >= (int)sizeof(path))
			note_unknown(j, path);
		else
			rc = check_item(j, value, of, path, err);
		if (rc)
			break;
	}
	return rc;
}

static int apply_dtype(struct config *c, const char *file, struct errmsg *err)
{
	const struct deepspeed_keys *const k = &c->keys;
	const bool bf16 = k->bf16 || k->bfloat16;

	if (bf16 && k->fp16)
		return errmsg_set(err, -EINVAL, "%s: bf16 and fp16 are both enabled", file);
	if (bf16 || k->fp16)
		c->dtype = bf16 ? DTYPE_BF16 : DTYPE_F16;
	c->scaler.dynamic = k->loss_scale == 0;
	c->scaler.initial = k->loss_scale ?: exp2(k->scale_power);
	return 0;
}

/* The kind of Adam that DeepSpeed would choose, which decides how steps are stored. */
static enum optimizer_flavor flavor_of(const struct deepspeed_keys *k)
{
	if (k->torch_adam)
		return OPTIMIZER_TORCH;
	if (k->cpu_offload || (k->offload_device && strcmp(k->offload_device, "none") != 0))
		return OPTIMIZER_DEEPSPEED_CPU;
	return OPTIMIZER_APEX;
}

/* DeepSpeed's Adam is AdamW unless adam_w_mode is false.  A named optimizer has its own default for
 * weight decay: torch's AdamW decays, the others do not.  `o` has the defaults of an unnamed
 * optimizer. */
static void apply_optimizer(struct config *c, struct optimizer_config o)
{
	const struct deepspeed_keys *const k = &c->keys;
	const bool decoupled = k->optimizer == OPTIMIZER_ADAMW + 1 || k->adam_w_mode;

	if (k->optimizer) {
		c->optimizer.kind = decoupled ? OPTIMIZER_ADAMW : OPTIMIZER_ADAM;
		c->optimizer.flavor = flavor_of(k);
		o.lr = 1e-3;
		o.weight_decay = decoupled && c->optimizer.flavor == OPTIMIZER_TORCH ? 0.01 : 0;
	}
	if (isnan(c->optimizer.lr))
		c->optimizer.lr = o.lr;
	if (isnan(c->optimizer.weight_decay))
		c->optimizer.weight_decay = o.weight_decay;
}

/* The ends of a cosine follow from the learning rate (settle_schedule). */
static void apply_scheduler(struct config *c)
{
	const struct deepspeed_keys *const k = &c->keys;
	double *const lr = &c->optimizer.lr;

	if (k->schedule.kind == SCHEDULE_CONSTANT)
		return;
	c->schedule = k->schedule;
	if (k->schedule.kind != SCHEDULE_COSINE)
		*lr = !isnan(k->max_lr) ? k->max_lr : isnan(*lr) ? 1e-3 : *lr;
}

static int config_json_apply(struct json *j, const cJSON *root, struct errmsg *err)
{
	struct config *const c = j->config;
	const struct optimizer_config before = c->optimizer;
	int rc;

	c->optimizer.lr = c->optimizer.weight_decay = NAN; /* not given */
	rc = walk(j, root, find_object(""), err);
	if (rc)
		return rc;
	apply_scheduler(c);
	apply_optimizer(c, before);
	/* DeepSpeed defaults to one micro-batch per step here. */
	if (!c->accumulation && !c->batch != !c->micro_batch)
		c->accumulation = 1;
	return apply_dtype(c, j->file, err);
}

static int no_json(const char *path, const char *text, const char *at, struct errmsg *err)
{
	unsigned line = 1, column = 1;

	for (const char *p = text; p < at; p++) {
		column = *p == '\n' ? 1 : column + 1;
		line += *p == '\n';
	}
	return errmsg_set(err, -EINVAL, "%s: near line %u, column %u: no valid JSON", path, line,
			  column);
}

static int config_json_parse(const char *path, const char *text, size_t len, cJSON **root,
			     struct errmsg *err)
{
	const char *end = NULL;

	*root = cJSON_ParseWithOpts(text, &end, true);
	/* cJSON stops at a NUL within the text. */
	if (!*root || end != text + len)
		return no_json(path, text, end && end < text + len ? end : text + len, err);
	return cJSON_IsObject(*root) ? 0 : errmsg_set(err, -EINVAL, "%s: is no JSON object", path);
}

int config_read_json(struct config *c, const char *path, bool verbose, struct errmsg *err)
{
	struct json j = { .file = path, .config = c, .unknown = { "" } };
	struct errmsg why = { "" };
	cJSON *root = NULL;
	char *text = NULL;
	size_t len = 0;
	const int rc = source_text(path, FILE_LIMIT, &text, &len, &why)
			       ?: config_json_parse(path, text, len, &root, &why)
			       ?: config_json_apply(&j, root, &why);

	if (!rc && verbose && *j.unknown.text)
		fprintf(stderr, "uctrain: %s: unknown keys, ignored: %s\n", path, j.unknown.text);
	cJSON_Delete(root);
	if (rc) {
		free(text);
		return errmsg_set(err, rc, "--" CONFIG_JSON_FLAG " %s", why.text);
	}
	free(c->deepspeed_json);
	c->deepspeed_json = text;
	return 0;
}
