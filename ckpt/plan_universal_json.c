/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a universal tree tells of itself: each parameter with its files.
 * Written object by object, so that a tree of 100,000 parameters needs memory
 * for its text only.
 */
#include <cJSON.h>

#include "ckpt/plan_universal.h"

static int param_json(struct plan *p, const struct plan_entry *e,
		      struct bytebuf *out, struct errmsg *err)
{
	const struct param *const param =
		model_find(&p->resolve->model, e->name);
	cJSON *const o = cJSON_CreateObject();
	cJSON *shape;
	int rc;

	cJSON_AddStringToObject(o, "name", e->name);
	shape = cJSON_AddArrayToObject(o, "shape");
	for (unsigned i = 0; i < param->ndim; i++)
		cJSON_AddItemToArray(
			shape, cJSON_CreateNumber((double)param->shape[i]));
	if (param->module) {
		cJSON_AddStringToObject(o, "rule", "module");
		cJSON_AddStringToObject(o, "dtype",
					dtype_name(param->module->dtype));
	} else {
		const struct shard_group *group;

		rc = resolve_group(p->resolve, param, &group, err);
		if (rc) {
			cJSON_Delete(o);
			return rc;
		}
		cJSON_AddStringToObject(o, "rule",
					merge_rule_name(param->merge.rule));
		cJSON_AddStringToObject(o, "dtype",
					dtype_name(group->fp32.dtype));
		cJSON_AddNumberToObject(o, "group", param->first->group);
	}
	rc = plan_files_json(p, e->node, cJSON_AddObjectToObject(o, "files"),
			     err);
	plan_add_json(out, o);
	return rc;
}

static int params_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	struct plan_entry e;
	uint64_t pos = 0;
	bool first = true;
	int rc;

	while ((rc = plan_next(p, PLAN_ZERO, &pos, &e, err)) == 1) {
		struct plan_stat st;

		rc = plan_stat(p, e.node, &st, err);
		if (rc)
			return rc;
		if (!st.is_dir)
			continue;
		bytebuf_add(out, ",", !first);
		bytebuf_add(out, "\n", 1);
		first = false;
		rc = param_json(p, &e, out, err);
		if (rc)
			return rc;
	}
	return rc;
}

int plan_universal_json(struct plan *p, struct bytebuf *out, struct errmsg *err)
{
	static const char head[] = ",\"params\":[", tail[] = "\n]";
	int rc;

	bytebuf_add(out, head, sizeof(head) - 1);
	rc = params_json(p, out, err);
	bytebuf_add(out, tail, sizeof(tail) - 1);
	return rc;
}
