/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt diff: the JSON report. */
#include <cJSON.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/diff/diff.h"

static const char *const kinds[] = {
	[DIFF_NONE] = "same",        [DIFF_VALUES] = "values",
	[DIFF_SHAPE] = "shape",      [DIFF_TYPE] = "type",
	[DIFF_ONLY_A] = "only_in_a", [DIFF_ONLY_B] = "only_in_b",
};

static void add_values(cJSON *o, const struct diff_state *s)
{
	const struct diff_values *const v = &s->values;

	cmd_json_add_int(o, "elements", (int64_t)v->numel);
	cmd_json_add_int(o, "differ", (int64_t)v->differ);
	cmd_json_add_int(o, "not_finite", (int64_t)v->odd);
	cJSON_AddNumberToObject(o, "max_abs", v->max_abs);
	cJSON_AddNumberToObject(o, "max_rel", v->max_rel);
	if (s->place)
		cJSON_AddRawToObject(o, "first", s->place);
}

static cJSON *state_json(const struct diff_param *p, const struct diff_state *s)
{
	cJSON *const o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "parameter", p->name);
	if (p->tied)
		cJSON_AddStringToObject(o, p->has[0] ? "tied_b" : "tied_a",
					p->tied);
	cJSON_AddStringToObject(o, "state", s->name);
	cJSON_AddStringToObject(o, "kind", kinds[s->kind]);
	cJSON_AddBoolToObject(o, "counts", s->counts);
	if (s->kind == DIFF_ONLY_A || s->kind == DIFF_ONLY_B)
		return o;
	cJSON_AddStringToObject(o, "type_a", dtype_name(s->dtype[0]));
	cJSON_AddStringToObject(o, "type_b", dtype_name(s->dtype[1]));
	if (s->kind == DIFF_SHAPE) {
		cJSON_AddRawToObject(o, "shape_a", s->shape[0]);
		cJSON_AddRawToObject(o, "shape_b", s->shape[1]);
	} else if (s->kind != DIFF_TYPE) {
		add_values(o, s);
	}
	return o;
}

static void diff_json_add_param(cJSON *list, const struct diff_param *p,
				bool all)
{
	if (!diff_name_in(p, 0) || !diff_name_in(p, 1)) {
		cJSON *const o = cJSON_CreateObject();

		cJSON_AddStringToObject(o, "parameter", p->name);
		cJSON_AddStringToObject(
			o, "kind", kinds[p->has[0] ? DIFF_ONLY_A : DIFF_ONLY_B]);
		cJSON_AddBoolToObject(o, "counts", true);
		cJSON_AddItemToArray(list, o);
	}
	for (size_t i = 0; i < p->nstates; i++)
		if (all || p->states[i].counts)
			cJSON_AddItemToArray(list, state_json(p, &p->states[i]));
}

static void add_side(cJSON *root, const struct diff *d, unsigned side)
{
	cJSON *const o = cJSON_AddObjectToObject(root, side ? "b" : "a");
	cJSON *list;

	cJSON_AddStringToObject(o, "path", d->tree[side].path);
	cJSON_AddStringToObject(o, "kind", d->tree[side].kind);
	cmd_json_add_int(o, "only", (int64_t)d->only[side]);
	list = cJSON_AddArrayToObject(o, "has_no");
	for (size_t i = 0; i < d->nnames; i++)
		if (!d->names[i].has[side])
			cJSON_AddItemToArray(
				list, cJSON_CreateString(d->names[i].name));
	cmd_json_add_int(o, "tied", (int64_t)d->tied[side]);
}

int diff_print_json(const struct diff *d, bool all)
{
	cJSON *const root = cJSON_CreateObject();
	cJSON *list;

	cJSON_AddBoolToObject(root, "equal", d->equal);
	cJSON_AddBoolToObject(root, "strict", d->strict);
	add_side(root, d, 0);
	add_side(root, d, 1);
	cmd_json_add_int(root, "parameters", (int64_t)d->common);
	cmd_json_add_int(root, "states", (int64_t)d->states);
	cmd_json_add_int(root, "elements", (int64_t)d->elements);
	cmd_json_add_int(root, "differ", (int64_t)d->differ);
	cmd_json_add_int(root, "other_types", (int64_t)d->types);
	cJSON_AddNumberToObject(root, "max_abs", d->worst.max_abs);
	cJSON_AddNumberToObject(root, "max_rel", d->worst.max_rel);
	list = cJSON_AddArrayToObject(root, "differences");
	for (size_t i = 0; i < d->nparams; i++)
		diff_json_add_param(list, &d->params[i], all);
	return cmd_json_print(root);
}
