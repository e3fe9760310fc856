/* SPDX-License-Identifier: Apache-2.0 */
/* uckpt_diff: the report, as text and as JSON. */
#include <cJSON.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/json.h"
#include "ckpt/commands/diff.h"
#include "ckpt/commands/report.h"
#include "ckpt/format/cast.h"

/* Number of parameters that the text names. */
#define WORST_MAX 10

static void add_values(struct bytebuf *to, cJSON *o, const struct diff_state *s)
{
	const struct diff_values *v = &s->values;

	json_add_int(o, "elements", (int64_t)v->numel);
	json_add_int(o, "differ", (int64_t)v->differ);
	json_add_int(o, "not_finite", (int64_t)v->odd);
	cJSON_AddNumberToObject(o, "max_abs", v->max_abs);
	cJSON_AddNumberToObject(o, "max_rel", v->max_rel);
	if (s->kind == DIFF_NONE) {
		bytebuf_add_str(to, v->near ? "within the tolerance" : "the same");
		return;
	}
	cJSON_AddRawToObject(o, "first", s->place);
	bytebuf_add_format(to, "%" PRIu64 " of %" PRIu64 " elements differ", v->differ, v->numel);
	if (v->odd < v->differ)
		bytebuf_add_format(to, ", by up to %.3g (relative %.3g)", v->max_abs, v->max_rel);
	if (v->odd && cast_knows(s->dtype[0]))
		bytebuf_add_format(to, ", %" PRIu64 " of them NaN or infinite", v->odd);
	bytebuf_add_format(to, ", the first at %s", s->place);
}

/* Add the result for a state that both sides have. */
static void add_both(struct bytebuf *to, cJSON *o, const struct diff_state *s)
{
	const char *a = dtype_name(s->dtype[0]), *b = dtype_name(s->dtype[1]);

	cJSON_AddStringToObject(o, "type_a", a);
	cJSON_AddStringToObject(o, "type_b", b);
	if (s->kind == DIFF_SHAPE) {
		cJSON_AddRawToObject(o, "shape_a", s->shape[0]);
		cJSON_AddRawToObject(o, "shape_b", s->shape[1]);
		bytebuf_add_format(to, "shape %s in A, %s in B", s->shape[0], s->shape[1]);
		return;
	}
	if (s->kind != DIFF_TYPE)
		add_values(to, o, s);
	if (s->dtype[0] != s->dtype[1])
		bytebuf_add_format(to, "%s%s in A, %s in B", s->kind == DIFF_TYPE ? "" : ", ", a, b);
}

/* Add a state of a parameter, or with NULL a whole parameter, that one side lacks. */
static void add_item(struct bytebuf *to, cJSON *list, const struct diff_param *p,
		     const struct diff_state *s)
{
	static const char *const kinds[] = {
		[DIFF_NONE] = "same",        [DIFF_VALUES] = "values",
		[DIFF_SHAPE] = "shape",      [DIFF_TYPE] = "type",
		[DIFF_ONLY_A] = "only_in_a", [DIFF_ONLY_B] = "only_in_b",
	};
	const enum diff_kind kind = s ? s->kind : p->has[0] ? DIFF_ONLY_A : DIFF_ONLY_B;
	cJSON *o = json_add_object(list);

	cJSON_AddStringToObject(o, "parameter", p->name);
	bytebuf_add_shown(to, p->name);
	if (p->tied)
		cJSON_AddStringToObject(o, p->has[0] ? "tied_b" : "tied_a", p->tied);
	if (s) {
		cJSON_AddStringToObject(o, "state", s->id.name);
		bytebuf_add_str(to, " ");
		bytebuf_add_shown(to, s->id.name);
	}
	bytebuf_add_str(to, ": ");
	cJSON_AddStringToObject(o, "kind", kinds[kind]);
	cJSON_AddBoolToObject(o, "counts", !s || s->counts);
	if (kind == DIFF_ONLY_A || kind == DIFF_ONLY_B)
		bytebuf_add_format(to, "only in %c", "AB"[kind == DIFF_ONLY_B]);
	else
		add_both(to, o, s);
	if (p->tied) {
		bytebuf_add_str(to, ", as ");
		bytebuf_add_shown(to, p->tied);
		bytebuf_add_format(to, " in %c", "AB"[p->has[0]]);
	}
	bytebuf_add_str(to, "\n");
}

static void add_param(struct bytebuf *to, cJSON *list, const struct diff_param *p, bool all)
{
	if (!p->in[0] || !p->in[1])
		add_item(to, list, p, NULL);
	for (size_t i = 0; i < p->nstates; i++)
		if (all || p->states[i].counts)
			add_item(to, list, p, &p->states[i]);
}

static void add_names_note(struct bytebuf *to, const struct diff *d, unsigned side)
{
	const char *comma = "";

	for (size_t i = 0; i < d->nnames; i++) {
		if (d->names[i].has[side])
			continue;
		if (!*comma)
			bytebuf_add_format(to, "note: %c has no ", "AB"[side]);
		bytebuf_add_str(to, comma);
		bytebuf_add_shown(to, d->names[i].name);
		comma = ", ";
	}
	if (*comma)
		bytebuf_add_str(to, "\n");
}

/* Add notes that concern many states, once each. */
static void add_notes(struct bytebuf *to, const struct diff *d)
{
	for (unsigned side = 0; side < 2; side++)
		add_names_note(to, d, side);
	for (unsigned side = 0; side < 2; side++)
		if (d->tied[side])
			bytebuf_add_format(to, "note: %c stores tied parameters once, under another name: %"
					       PRIu64 "\n", "AB"[side], d->tied[side]);
	if (d->types)
		bytebuf_add_format(to, "note: states with equal values of different types: %" PRIu64 "\n",
				   d->types);
}

static void add_verdict(struct bytebuf *to, const struct diff *d)
{
	bytebuf_add_format(to, "%s: ", d->equal ? "equal" : "different");
	if (!d->equal)
		bytebuf_add_format(to, "%" PRIu64 " of ", d->differ);
	bytebuf_add_format(to, "%" PRIu64 " states of %" PRIu64 " parameters", d->states, d->common);
	if (d->worst.max_abs > 0)
		bytebuf_add_format(to, ", by up to %.3g (relative %.3g)", d->worst.max_abs,
				   d->worst.max_rel);
	for (unsigned side = 0; side < 2; side++)
		if (d->only[side])
			bytebuf_add_format(to, "; %" PRIu64 " parameters only in %c", d->only[side],
					   "AB"[side]);
	if (!d->equal && !d->differ && !d->only[0] && !d->only[1])
		bytebuf_add_str(to, "; the notes count as differences (--strict)");
	bytebuf_add_str(to, "\n");
}

/* Return how much a parameter differs: the largest relative difference, infinite if unknown; -1:
 * equal. */
static double badness(const struct diff_param *p)
{
	double worst = -1;

	if (!p->in[0] || !p->in[1])
		return INFINITY;
	for (size_t i = 0; i < p->nstates; i++) {
		const struct diff_state *s = &p->states[i];

		if (s->counts)
			worst = fmax(worst, s->kind == DIFF_VALUES && !s->values.odd
						    ? s->values.max_rel
						    : INFINITY);
	}
	return worst;
}

static int by_badness(const void *a, const void *b)
{
	const double x = badness(a), y = badness(b);

	return (x < y) - (x > y) ?: strcmp(((const struct diff_param *)a)->name,
					   ((const struct diff_param *)b)->name);
}

static void add_worst(struct bytebuf *to, struct diff *d)
{
	size_t n = 0;

	if (d->nparams)
		qsort(d->params, d->nparams, sizeof(*d->params), by_badness);
	while (n < d->nparams && badness(&d->params[n]) >= 0) {
		if (n < WORST_MAX)
			add_param(to, NULL, &d->params[n], false);
		n++;
	}
	if (n > WORST_MAX)
		bytebuf_add_format(to, "and %zu more parameters that differ (--all)\n",
				   n - WORST_MAX);
}

static void add_side(struct bytebuf *to, cJSON *root, const struct diff *d, unsigned side)
{
	cJSON *o = cJSON_AddObjectToObject(root, side ? "b" : "a"), *list;

	bytebuf_add_format(to, "%c: ", "AB"[side]);
	bytebuf_add_shown(to, d->tree[side].path);
	bytebuf_add_format(to, " (%s)\n", d->tree[side].kind);
	cJSON_AddStringToObject(o, "path", d->tree[side].path);
	cJSON_AddStringToObject(o, "kind", d->tree[side].kind);
	json_add_int(o, "only", (int64_t)d->only[side]);
	list = cJSON_AddArrayToObject(o, "has_no");
	for (size_t i = 0; list && i < d->nnames; i++)
		if (!d->names[i].has[side])
			cJSON_AddItemToArray(list, cJSON_CreateString(d->names[i].name));
	json_add_int(o, "tied", (int64_t)d->tied[side]);
}

static void add_sums(cJSON *root, const struct diff *d)
{
	json_add_int(root, "parameters", (int64_t)d->common);
	json_add_int(root, "states", (int64_t)d->states);
	json_add_int(root, "elements", (int64_t)d->elements);
	json_add_int(root, "differ", (int64_t)d->differ);
	json_add_int(root, "other_types", (int64_t)d->types);
	cJSON_AddNumberToObject(root, "max_abs", d->worst.max_abs);
	cJSON_AddNumberToObject(root, "max_rel", d->worst.max_rel);
}

int diff_report(struct diff *d, unsigned flags, struct errmsg *err)
{
	cJSON *root = flags & UCKPT_JSON ? cJSON_CreateObject() : NULL, *list;
	struct bytebuf text = { 0 };

	cJSON_AddBoolToObject(root, "equal", d->equal);
	cJSON_AddBoolToObject(root, "strict", d->strict);
	cJSON_AddNumberToObject(root, "rtol", d->tolerance.relative);
	cJSON_AddNumberToObject(root, "atol", d->tolerance.absolute);
	for (unsigned side = 0; side < 2; side++)
		add_side(&text, root, d, side);
	add_sums(root, d);
	add_verdict(&text, d);
	add_notes(&text, d);
	list = cJSON_AddArrayToObject(root, "differences");
	if (!root && !(flags & UCKPT_ALL))
		add_worst(&text, d);
	else
		for (size_t i = 0; i < d->nparams; i++)
			add_param(&text, list, &d->params[i], flags & UCKPT_ALL);
	return report_emit_text(d->progress.u, &text, root, err);
}
