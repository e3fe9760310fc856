/* SPDX-License-Identifier: Apache-2.0 */
/* ucckpt diff: the report, as text and as JSON. */
#include <cJSON.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/diff/diff.h"
#include "ckpt/tensor/cast.h"

static void print_values(const struct diff_state *s)
{
	const struct diff_values *const v = &s->values;

	printf("%" PRIu64 " of %" PRIu64 " elements differ", v->differ,
	       v->numel);
	if (v->odd < v->differ)
		printf(", by up to %.3g (relative %.3g)", v->max_abs,
		       v->max_rel);
	if (v->odd && cast_knows(s->dtype[0]))
		printf(", %" PRIu64 " of them NaN or infinite", v->odd);
	printf(", the first at %s", s->place);
}

static void print_kind(const struct diff_state *s)
{
	switch (s->kind) {
	case DIFF_NONE:
	case DIFF_VALUES:
		if (s->kind == DIFF_NONE)
			printf("the same");
		else
			print_values(s);
		if (s->dtype[0] == s->dtype[1])
			break;
		printf(", ");
		/* fall through */
	case DIFF_TYPE:
		printf("%s in A, %s in B", dtype_name(s->dtype[0]),
		       dtype_name(s->dtype[1]));
		break;
	case DIFF_SHAPE:
		printf("shape %s in A, %s in B", s->shape[0], s->shape[1]);
		break;
	case DIFF_ONLY_A:
	case DIFF_ONLY_B:
		printf("only in %c", "AB"[s->kind == DIFF_ONLY_B]);
		break;
	}
}

static void print_state(const struct diff_param *p, const struct diff_state *s)
{
	cmd_put(p->name);
	putchar(' ');
	cmd_put(s->id.name);
	printf(": ");
	print_kind(s);
	if (p->tied) {
		printf(", as ");
		cmd_put(p->tied);
		printf(" in %c", "AB"[p->has[0]]);
	}
	putchar('\n');
}

static void print_param(const struct diff_param *p, bool all)
{
	if (!diff_name_in(p, 0) || !diff_name_in(p, 1)) {
		cmd_put(p->name);
		printf(": only in %c\n", p->has[0] ? 'A' : 'B');
	}
	for (size_t i = 0; i < p->nstates; i++)
		if (all || p->states[i].counts)
			print_state(p, &p->states[i]);
}

/* Print once what holds for many states. */
static void print_notes(const struct diff *d)
{
	for (unsigned side = 0; side < 2; side++) {
		const char *comma = "";

		for (size_t i = 0; i < d->nnames; i++) {
			if (d->names[i].has[side])
				continue;
			if (!*comma)
				printf("note: %c has no ", "AB"[side]);
			printf("%s", comma);
			cmd_put(d->names[i].name);
			comma = ", ";
		}
		if (*comma)
			putchar('\n');
	}
	for (unsigned side = 0; side < 2; side++)
		if (d->tied[side])
			printf("note: %c stores tied parameters once, under another"
			       " name: %" PRIu64 "\n",
			       'A' + (int)side, d->tied[side]);
	if (d->types)
		printf("note: states with equal values of different types: "
		       "%" PRIu64 "\n",
		       d->types);
}

static void print_verdict(const struct diff *d)
{
	printf("%s: ", d->equal ? "equal" : "different");
	if (!d->equal)
		printf("%" PRIu64 " of ", d->differ);
	printf("%" PRIu64 " states of %" PRIu64 " parameters", d->states,
	       d->common);
	if (d->worst.max_abs > 0)
		printf(", by up to %.3g (relative %.3g)", d->worst.max_abs,
		       d->worst.max_rel);
	for (unsigned side = 0; side < 2; side++)
		if (d->only[side])
			printf("; %" PRIu64 " parameters only in %c",
			       d->only[side], "AB"[side]);
	if (!d->equal && !d->differ && !d->only[0] && !d->only[1])
		printf("; the notes count as differences (--strict)");
	putchar('\n');
}

void diff_print_text(const struct diff *d, bool all)
{
	for (unsigned side = 0; side < 2; side++) {
		printf("%c: ", "AB"[side]);
		cmd_put(d->tree[side].path);
		printf(" (%s)\n", d->tree[side].kind);
	}
	for (size_t i = 0; i < d->nparams; i++)
		print_param(&d->params[i], all);
	print_notes(d);
	print_verdict(d);
}

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

/* Add a state of a parameter, or with NULL a parameter that one side lacks. */
static void add_item(cJSON *list, const struct diff_param *p,
		     const struct diff_state *s)
{
	const enum diff_kind kind = s		? s->kind
				    : p->has[0] ? DIFF_ONLY_A
						: DIFF_ONLY_B;
	cJSON *const o = cJSON_CreateObject();

	cJSON_AddItemToArray(list, o);
	cJSON_AddStringToObject(o, "parameter", p->name);
	if (p->tied)
		cJSON_AddStringToObject(o, p->has[0] ? "tied_b" : "tied_a",
					p->tied);
	if (s)
		cJSON_AddStringToObject(o, "state", s->id.name);
	cJSON_AddStringToObject(o, "kind", kinds[kind]);
	cJSON_AddBoolToObject(o, "counts", !s || s->counts);
	if (kind == DIFF_ONLY_A || kind == DIFF_ONLY_B)
		return;
	cJSON_AddStringToObject(o, "type_a", dtype_name(s->dtype[0]));
	cJSON_AddStringToObject(o, "type_b", dtype_name(s->dtype[1]));
	if (kind == DIFF_SHAPE) {
		cJSON_AddRawToObject(o, "shape_a", s->shape[0]);
		cJSON_AddRawToObject(o, "shape_b", s->shape[1]);
	} else if (kind != DIFF_TYPE) {
		add_values(o, s);
	}
}

static void add_param(cJSON *list, const struct diff_param *p, bool all)
{
	if (!diff_name_in(p, 0) || !diff_name_in(p, 1))
		add_item(list, p, NULL);
	for (size_t i = 0; i < p->nstates; i++)
		if (all || p->states[i].counts)
			add_item(list, p, &p->states[i]);
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
		add_param(list, &d->params[i], all);
	return cmd_json_print(root);
}
