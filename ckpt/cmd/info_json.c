/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The JSON report.  Keys may be added, never removed.  An unknown value is
 * null, or missing together with the object it belongs to.
 */
#include <cJSON.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/info.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

static const char *const choices[] = {
	[TAGS_ITSELF] = "itself", [TAGS_LATEST] = "latest", [TAGS_STEP] = "step",
	[TAGS_MTIME] = "mtime",	  [TAGS_BELOW] = "below",   [TAGS_WEIGHTS] = "weights",
	[TAGS_NONE] = "none",
};

/* -1 stands for unknown. */
static void add_known(cJSON *o, const char *key, int64_t value)
{
	if (value < 0)
		cJSON_AddNullToObject(o, key);
	else
		cmd_json_add_int(o, key, value);
}

static cJSON *state_json(const struct shard_state *st)
{
	cJSON *const o = cJSON_CreateObject();
	double value;

	cJSON_AddStringToObject(o, "name", st->name);
	cJSON_AddStringToObject(o, "type", info_state_type(st));
	cJSON_AddBoolToObject(o, "tensor", st->kind == STATE_FLAT ||
						   st->kind == STATE_TENSOR);
	if (info_state_number(st, &value))
		cJSON_AddNumberToObject(o, "value", value);
	return o;
}

static cJSON *group_json(const struct slice_group *pg,
			 const struct shard_group *sg)
{
	cJSON *const o = cJSON_CreateObject();
	uint64_t elements = 0;
	cJSON *list;

	for (size_t i = 0; i < pg->n; i++)
		elements += pg->slices[i]->numel;
	cmd_json_add_int(o, "parameters", (int64_t)pg->n);
	cmd_json_add_int(o, "elements", (int64_t)elements);
	if (!sg)
		return o;
	cJSON_AddStringToObject(o, "master_dtype",
				dtype_name(sg->fp32.dtype));
	list = cJSON_AddArrayToObject(o, "states");
	for (size_t i = 0; i < sg->nstates; i++)
		cJSON_AddItemToArray(list, state_json(&sg->states[i]));
	return o;
}

static cJSON *param_json(const struct info_param *p)
{
	cJSON *const o = cJSON_CreateObject();
	cJSON *shape;

	cJSON_AddStringToObject(o, "name", p->name);
	shape = cJSON_AddArrayToObject(o, "shape");
	for (unsigned i = 0; i < p->ndim; i++)
		cJSON_AddItemToArray(shape,
				     cJSON_CreateNumber((double)p->shape[i]));
	cmd_json_add_int(o, "elements", (int64_t)p->numel);
	add_known(o, "group", p->group);
	if (p->dtype != DTYPE_OTHER)
		cJSON_AddStringToObject(o, "dtype", dtype_name(p->dtype));
	return o;
}

static void info_json_add_experts(cJSON *root, const struct experts *x)
{
	cJSON *const list = cJSON_AddArrayToObject(root, "moe_layers");

	for (size_t i = 0; i < x->n; i++) {
		const struct expert_layer *const l = &x->layers[i];
		cJSON *const o = cJSON_CreateObject();

		cmd_json_add_int(o, "experts", l->n);
		cmd_json_add_int(o, "ep_size", experts_degree(l));
		cJSON_AddBoolToObject(o, "autoep", l->fused);
		cJSON_AddItemToArray(list, o);
	}
}

static void add_origin(cJSON *root, const struct zero_checkpoint *r)
{
	const struct rank_params *const c = r->model.ranks;

	if (*c->ds_version)
		cJSON_AddStringToObject(root, "ds_version", c->ds_version);
	else
		cJSON_AddNullToObject(root, "ds_version");
	add_known(root, "stage", c->zero3 ? 3 : c->stage);
	add_known(root, "global_step", c->global_steps);
	cmd_json_add_int(root, "dp_degree", r->dir.dp_degree);
	cmd_json_add_int(root, "mp_degree", r->dir.mp_degree);
	cmd_json_add_int(root, "tp_degree", r->model.tp);
	cmd_json_add_int(root, "pp_degree", r->model.pp);
	info_json_add_experts(root, &c->experts);
	if (c->module_dtype == DTYPE_OTHER)
		cJSON_AddNullToObject(root, "module_dtype");
	else
		cJSON_AddStringToObject(root, "module_dtype",
					dtype_name(c->module_dtype));
}

static void add_contents(cJSON *root, const struct info *info)
{
	const struct zero_checkpoint *const r = plan_zckpt(info->report.plan);
	const struct rank_params *const c = r ? r->model.ranks : NULL;
	cJSON *o = cJSON_AddObjectToObject(root, "parameters");

	cmd_json_add_int(o, "count", (int64_t)info->params);
	cmd_json_add_int(o, "elements", (int64_t)info->elements);
	cmd_json_add_int(o, "module_count", (int64_t)info->module_params);
	cmd_json_add_int(o, "module_elements", (int64_t)info->module_elements);
	o = cJSON_AddArrayToObject(root, "groups");
	for (size_t g = 0; c && g < c->ngroups; g++)
		cJSON_AddItemToArray(
			o, group_json(&c->groups[g],
				      info->profile ? &info->profile->groups[g] :
						      NULL));
	if (info->files) {
		o = cJSON_AddObjectToObject(root, "tree");
		cmd_json_add_int(o, "files", (int64_t)info->files);
		cmd_json_add_int(o, "bytes", (int64_t)info->bytes);
	}
	o = cJSON_AddArrayToObject(root, "table");
	for (size_t i = 0; i < info_count(info); i++) {
		const struct info_param p = info_param(info, i);

		cJSON_AddItemToArray(o, param_json(&p));
	}
}

cJSON *info_to_json(const struct info *info)
{
	cJSON *const root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "checkpoint", info->report.dir);
	cJSON_AddStringToObject(root, "chosen", choices[info->report.choice]);
	cJSON_AddBoolToObject(root, "quick", info->quick);
	cJSON_AddBoolToObject(root, "whole", info->report.problems.n == 0);
	if (info->report.plan) {
		if (plan_zckpt(info->report.plan))
			add_origin(root, plan_zckpt(info->report.plan));
		add_contents(root, info);
	}
	findings_add_json(&info->report.warnings, root, "warnings");
	findings_add_json(&info->report.problems, root, "problems");
	return root;
}
