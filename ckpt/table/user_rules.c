/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts rules in JSON to values of the form of a checkpoint's universal_checkpoint_info.
 * Python's types matter where they reach the files of the tree: a sub-parameter's shape is a tuple,
 * its patterns a list (DeepSpeed 0.19.8, checkpoint/universal_checkpoint.py SubparamShape).
 */
#include "ckpt/table/user_rules.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/arena.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/source.h"
#include "ckpt/format/value.h"
#include "ckpt/table/merge_rules.h"

#define RULES_BYTES_MAX (1u << 20)

/*
 * Rules that Megatron-DeepSpeed's checkpoints of one tensor-parallel rank lack, or record wrongly.
 * Pipelines name a layer by its number, other models language_model.encoder.layers.N.  The order of
 * the rows of query_key_value is not recorded: since 2024-12-04 each rank has all Q, then all K,
 * then all V of its heads, before that q, k and v alternated by heads.
 */
#define MEGATRON_LAYERS                                                         \
	"\"tp_replicated_parameter_patterns\": ["                               \
	"\".*\\\\.(input|post_attention|final)_layernorm\\\\.(weight|bias)$\"," \
	"\"\\\\d+\\\\.(weight|bias)$\","                                        \
	"\".*position_embeddings\\\\.weight$\","                                \
	"\".*\\\\.self_attention\\\\.dense\\\\.bias$\","                        \
	"\".*\\\\.mlp\\\\.dense_4h_to_h\\\\.bias$\"],"                          \
	"\"parameter_with_row_parallelism_patterns\": ["                        \
	"\".*\\\\.self_attention\\\\.dense\\\\.weight$\","                      \
	"\".*\\\\.mlp\\\\.dense_4h_to_h\\\\.weight$\"]"
#define MEGATRON_QKV "[\".*\\\\.self_attention\\\\.query_key_value\\\\.(weight|bias)$\"]"

static const struct {
	const char *name, *json;
} presets[] = {
	{ "megatron-qkv-thirds",
	  "{" MEGATRON_LAYERS ", \"" MERGE_RULES_THREE "\": " MEGATRON_QKV "}" },
	{ "megatron-qkv-by-head",
	  "{" MEGATRON_LAYERS ", \"" MERGE_RULES_COLUMN "\": " MEGATRON_QKV "}" },
};

/* Find a value of a kind that no rule has. */
static bool has_other_kinds(const cJSON *v)
{
	const cJSON *below;

	if (cJSON_IsNumber(v))
		return v->valuedouble != (double)(int64_t)v->valuedouble;
	if (!cJSON_IsString(v) && !cJSON_IsArray(v) && !cJSON_IsObject(v))
		return true;
	cJSON_ArrayForEach(below, v) if (has_other_kinds(below)) return true;
	return false;
}

static int check_keys(const cJSON *root, const char *file, struct errmsg *err)
{
	const cJSON *v;

	if (!cJSON_IsObject(root))
		return errmsg_set(err, -EBADMSG, "%s: merge rules must be a JSON object", file);
	cJSON_ArrayForEach(v, root)
	{
		if (!merge_rules_knows(v->string))
			return errmsg_set(err, -EBADMSG,
			"%s: '%.100s' is not a list of merge rules; see MERGE RULES in ucfs(1)",
					  file, v->string);
		if (has_other_kinds(v))
			return errmsg_set(err, -EBADMSG,
					  "%s: %s: expected patterns and whole numbers",
					  file, v->string);
	}
	return 0;
}

/* Compile the rules once, so that a bad pattern fails before anything is
 * mounted. */
static int try_rules(const struct user_rules_level *level, struct errmsg *err)
{
	struct merge_rules *rules = NULL;
	int rc = merge_rules_new(NULL, level->name, &rules, err);

	if (!rc)
		rc = merge_rules_override(rules, level->info, level->name, false, err);
	merge_rules_free(rules);
	return rc;
}

static int take_json(struct user_rules *r, struct user_rules_level *level, const struct source *src,
		     struct errmsg *err)
{
	cJSON *root = NULL;
	int rc;

	if (src->size > RULES_BYTES_MAX)
		return errmsg_set(err, -E2BIG, "%s: too large for merge rules", src->name);
	if (!r->arena)
		r->arena = calloc(1, sizeof(*r->arena));
	if (!r->arena)
		return errmsg_nomem(err, src->name);
	rc = json_read(src, 0, (size_t)src->size, &root, err);
	if (!rc)
		rc = check_keys(root, src->name, err);
	free(level->name);
	level->name = strdup(src->name);
	level->info = rc ? NULL : value_from_json(r->arena, root, "shape");
	if (!rc && (!level->name || r->arena->failed))
		rc = errmsg_nomem(err, src->name);
	cJSON_Delete(root);
	return rc ? rc : try_rules(level, err);
}

int user_rules_read(struct user_rules *r, const char *path, struct errmsg *err)
{
	struct source src;
	int rc = source_open(&src, path, err);

	if (rc)
		return rc;
	rc = take_json(r, &r->file, &src, err);
	source_close(&src);
	return rc;
}

int user_rules_preset(struct user_rules *r, const char *name, struct errmsg *err)
{
	struct source src;

	for (size_t i = 0; i < sizeof(presets) / sizeof(*presets); i++) {
		const struct span json = { (const uint8_t *)presets[i].json,
					   strlen(presets[i].json) };

		if (strcmp(presets[i].name, name) != 0)
			continue;
		source_init_span(&src, presets[i].name, json);
		return take_json(r, &r->preset, &src, err);
	}
	return errmsg_set(err, -EINVAL, "'%.100s' is not a preset; there are %s and %s", name,
			  presets[0].name, presets[1].name);
}

void user_rules_done(struct user_rules *r)
{
	free(r->preset.name);
	free(r->file.name);
	if (r->arena)
		arena_done(r->arena);
	free(r->arena);
	*r = (struct user_rules){ 0 };
}
