/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON description of a universal tree's parameters. */
#include <cJSON.h>

#include "ckpt/plan/plan_universal.h"

static int plan_universal_json_describe(struct plan *p,
					const struct plan_entry *e, cJSON *o,
					struct errmsg *err)
{
	const struct param *const param =
		model_find(&p->zckpt->model, e->name);
	const struct shard_group *group;
	int rc;

	plan_add_shape(o, param->shape, param->ndim);
	if (param->module) {
		cJSON_AddStringToObject(o, "rule", "module");
		cJSON_AddStringToObject(o, "dtype",
					dtype_name(param->module->dtype));
		return 0;
	}
	rc = zckpt_group(p->zckpt, param, &group, err);
	if (rc)
		return rc;
	cJSON_AddStringToObject(o, "rule", merge_rule_name(param->merge.rule));
	cJSON_AddStringToObject(o, "dtype", dtype_name(group->fp32.dtype));
	cJSON_AddNumberToObject(o, "group", param->first->group);
	return 0;
}

int plan_universal_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	return plan_params_json(p, plan_universal_json_describe, out, err);
}
