/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_info: describes a checkpoint, and lists all problems that can be found without reading
 * tensors (report.h).  As text: facts, the table of parameters, and the problems last, where they
 * remain visible on a terminal.  As a page with both and a picture (info_html.h).  As JSON: keys
 * may be added, but are never removed.
 */
#include <cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytes.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/info_html.h"
#include "ckpt/commands/info_impl.h"
#include "ckpt/commands/report.h"
#include "ckpt/commands/settings.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/views/adapter.h"
#include "ckpt/views/view.h"
#include "ckpt/views/config_files.h"

struct info {
	struct report report;
	bool quick, each;
	struct config_files config_files;
	size_t facts, table, end; /* offsets in the text: start of the facts, start of the table,
				   * end of the table */
};

static bool are_alike(const struct expert_layer *a, const struct expert_layer *b)
{
	return a->fused == b->fused && a->n == b->n && a->local == b->local;
}

static void add_experts(struct report *r, cJSON *list, const struct experts *x)
{
	for (size_t i = 0, first = 0; i < x->n; i++) {
		const struct expert_layer *l = &x->layers[i];
		cJSON *o = json_add_object(list);

		json_add_int(o, "experts", l->n);
		json_add_int(o, "ep_size", experts_degree(l));
		cJSON_AddBoolToObject(o, "autoep", l->fused);
		/* One line per group of equal layers. */
		if (i + 1 < x->n && are_alike(l, l + 1))
			continue;
		report_line(r, first ? "" : "experts",
			    "%u in each of %zu MoE layers%s, shared by %u ranks", l->n,
			    i + 1 - first, l->fused ? " (AutoEP)" : "", experts_degree(l));
		first = i + 1;
	}
}

static void add_deepspeed_lines(struct report *r)
{
	const struct run_facts *f = &r->c->facts;

	report_line(r, "written by", "DeepSpeed %s",
		    *f->ds_version ? f->ds_version : "of unknown version");
	if (f->stage >= 0)
		report_line(r, "ZeRO stage", "%" PRId64, f->stage);
	else
		report_line(r, "ZeRO stage", f->zero3 ? "3" : "1 or 2");
	report_line(r, "ranks", "%u data-parallel, %u tensor-parallel, %u pipeline stages",
		    r->c->dp, r->c->tp, r->c->pp);
}

static void add_origin(struct report *r)
{
	const struct checkpoint *c = r->c;
	const struct run_facts *f = &c->facts;
	cJSON *experts;

	json_add_text(r->json, "ds_version", *f->ds_version ? f->ds_version : NULL);
	json_add_known(r->json, "stage", f->zero3 ? 3 : f->stage);
	json_add_known(r->json, "global_step", f->global_steps);
	json_add_int(r->json, "dp_degree", c->dp);
	json_add_int(r->json, "mp_degree", c->tp * c->pp);
	json_add_int(r->json, "tp_degree", c->tp);
	json_add_int(r->json, "pp_degree", c->pp);
	if (f->source) {
		json_add_text(r->json, "source", f->source);
		report_line(r, "source", "%s", f->source);
	} else {
		add_deepspeed_lines(r);
	}
	experts = cJSON_AddArrayToObject(r->json, "moe_layers");
	for (unsigned i = 0; c->moe && i < c->pp; i++)
		add_experts(r, experts, c->moe[i]);
	if (f->global_steps >= 0)
		report_line(r, "global step", "%" PRId64, f->global_steps);
	else
		report_line(r, "global step", "unknown");
}

static void add_types(struct report *r, bool known)
{
	const struct rank_table *rank = r->c->ranks;
	const char *module = r->c->facts.module_dtype == DTYPE_OTHER
				     ? NULL
				     : dtype_name(r->c->facts.module_dtype);

	report_line(r, "master weights", "%s",
		    !known           ? "unknown"
		    : !rank->ngroups ? "none"
				     : dtype_name(rank->groups->states->v->dtype));
	report_line(r, "module", "%s", module ?: "unknown");
	json_add_text(r->json, "module_dtype", module);
}

/* Count rows that the optimizer owns (for a Hugging Face directory: all weights), and other
 * rows. */
static void add_counts(struct report *r)
{
	cJSON *o = cJSON_AddObjectToObject(r->json, "parameters");
	uint64_t n[2] = { 0 }, elements[2] = { 0 };
	char text[SIZE_TEXT_LEN];

	for (size_t i = 0; i < r->c->nparams; i++) {
		const struct param *p = &r->c->params[i];
		const bool other = r->c->ranks && !p->first;

		n[other]++;
		elements[other] += p->numel;
	}
	json_add_int(o, "count", (int64_t)n[0]);
	json_add_int(o, "elements", (int64_t)elements[0]);
	json_add_int(o, "module_count", (int64_t)n[1]);
	json_add_int(o, "module_elements", (int64_t)elements[1]);
	report_line(r, "parameters", "%" PRIu64 "%s, %s elements", n[0],
		    r->c->ranks ? " of the optimizer" : "", count_text(elements[0], text));
	if (n[1])
		report_line(r, "",
			    "%" PRIu64 " more in the module (frozen, tied, buffers), %s elements",
			    n[1], count_text(elements[1], text));
}

/* Add a state to its group's list, and return a text about it. */
static void add_state(cJSON *list, struct bytebuf *text, const struct param_state *st)
{
	const bool tensor = st->kind == STATE_FLAT || st->kind == STATE_TENSOR;
	const char *type = tensor                  ? dtype_name(st->dtype)
			   : st->kind == STATE_INT ? "int"
						   : "float";
	cJSON *o = json_add_object(list);
	double value;

	cJSON_AddStringToObject(o, "name", st->name);
	cJSON_AddStringToObject(o, "type", type);
	cJSON_AddBoolToObject(o, "tensor", tensor);
	bytebuf_add_format(text, "%s%s", text->len ? ", " : "", st->name);
	if (st->kind == STATE_FLAT)
		bytebuf_add_format(text, " %s", type);
	else if (param_state_number(st, &value)) {
		cJSON_AddNumberToObject(o, "value", value);
		bytebuf_add_format(text, " %.15g (%s%s)", value, type, tensor ? " tensor" : "");
	}
}

static void add_group(struct report *r, cJSON *groups, size_t g)
{
	const struct slice_group *x = &r->c->ranks->groups[g];
	cJSON *o = json_add_object(groups), *list;
	struct bytebuf states = { 0 };
	char label[32], *text;
	uint64_t elements = 0;
	int64_t n = 0;

	for (size_t i = 0; i < x->n; i++) {
		elements += x->slices[i]->numel;
		n += x->slices[i]->numel != 0;
	}
	json_add_int(o, "parameters", n);
	json_add_int(o, "elements", (int64_t)elements);
	if (!x->states)
		return;
	cJSON_AddStringToObject(o, "master_dtype", dtype_name(x->states->v->dtype));
	list = cJSON_AddArrayToObject(o, "states");
	for (size_t i = 1; i < x->states->n; i++)
		add_state(list, &states, &x->states->v[i]);
	if (x->states->n == 1)
		bytebuf_add_str(&states, x->states->refused ? "states that cannot be divided"
							    : "no optimizer states");
	text = bytebuf_take_text(&states);
	snprintf(label, sizeof(label), "group %zu", g);
	if (text)
		report_line(r, label, "%zu parameters, %s; %s", x->n,
			    dtype_name(x->states->v->dtype), text);
	r->text.failed |= !text;
	free(text);
}

static void add_tree(struct report *r, uint64_t files, uint64_t bytes)
{
	char size[SIZE_TEXT_LEN], number[SIZE_TEXT_LEN];
	cJSON *o = cJSON_AddObjectToObject(r->json, "tree");

	json_add_int(o, "files", (int64_t)files);
	json_add_int(o, "bytes", (int64_t)bytes);
	report_line(r, "universal tree", "%s files, %s", count_text(files, number),
		    size_text(bytes, size));
}

/* Add the forms that can be written. */
static void add_forms(struct info *info)
{
	struct report *r = &info->report;
	cJSON *list = cJSON_AddArrayToObject(r->json, "convert");
	const size_t n = info->quick ? 0 : REPORT_FORMS;

	for (size_t i = 0; i < n; i++) {
		const struct report_form f = report_form(i);
		cJSON *o = json_add_object(list);
		struct errmsg why = { "" };
		struct view *v;
		const bool can = !report_open_form(r, &f, &v, &why);

		if (can)
			view_close(v);
		cJSON_AddStringToObject(o, "options", f.options);
		cJSON_AddBoolToObject(o, "possible", can);
		if (!can)
			cJSON_AddStringToObject(o, "reason", why.text);
		report_line(r, i ? "" : "convert", "%-27s %s%s", f.options, can ? "yes" : "no: ",
			    can ? "" : why.text);
	}
}

/* Find the configuration files: the adapter's if the model has one. */
static int find_config_files(struct info *info, const char *more, struct errmsg *err)
{
	struct report *r = &info->report;
	const struct checkpoint *tag = r->c;
	struct arena a = { 0 };
	struct adapters *all = arena_alloc(&a, sizeof(*all));
	const struct adapter *top = NULL;
	int rc;

	for (size_t i = 0; all && i < tag->nparams; i++)
		if (tag->params[i].first)
			adapters_add(all, &a, tag->params[i].name, true);
	if (all)
		top = adapters_top(all);
	rc = a.failed ? errmsg_nomem(err, r->dir)
		      : config_files_find(&info->config_files, tag,
				      top && !top->computed ? top->name : NULL, more, err);
	arena_done(&a);
	return rc;
}

static void add_config(struct info *info)
{
	const struct config_files *s = &info->config_files;

	json_add_text(info->report.json, "config", s->config ? s->config->path : NULL);
	if (s->missing)
		report_line(&info->report, "from_pretrained", "%s", s->missing);
}

static int add_contents(struct info *info, struct errmsg *err)
{
	struct report *r = &info->report;
	const struct settings *settings = settings_of(r->u);
	const struct rank_table *rank = r->c->ranks;
	struct errmsg why = { "" };
	uint64_t files = 0, bytes = 0;
	bool known;
	cJSON *groups;
	int rc;

	if (!settings)
		return errmsg_nomem(err, NULL);
	rc = r->c->ops->check(r->c, false, &why);
	known = !rc || (rank && rank->ngroups && rank->groups->states);
	rc = rc ?: view_check(r->view, &why) ?: view_totals(r->view, &files, &bytes, &why);
	if (rc && rc != -ENOTSUP)
		notes_add(&r->problems, "%s", why.text);
	if (rank) {
		add_origin(r);
		add_types(r, known);
	}
	add_counts(r);
	groups = cJSON_AddArrayToObject(r->json, "groups");
	for (size_t g = 0; rank && g < rank->ngroups; g++)
		add_group(r, groups, g);
	if (files)
		add_tree(r, files, bytes);
	add_forms(info);
	if (rank && find_config_files(info, settings->tree.view.hf_config, err))
		return -ENOMEM;
	add_config(info);
	info->table = r->text.len;
	info_parameters(r, info->each);
	info->end = r->text.len;
	if (rank && !info->quick)
		report_add_problems(r, true);
	report_add_lost(r);
	if (rank)
		report_add_warnings(r);
	return 0;
}

/* End the report, and make the page. */
static int end_html(struct info *info, const char *whole, struct errmsg *err)
{
	struct report *r = &info->report;
	struct bytebuf page = { 0 };

	if (!r->view)
		info->table = info->end = r->text.len;
	report_finish(r, whole);
	page.failed = r->text.failed;
	info_html(r, info->facts, info->table, info->end, &page);
	return report_emit_text(r->u, &page, NULL, err) ?: r->problems.n > 0;
}

int uckpt_info(struct uckpt *u, const char *const *paths, size_t n,
	       unsigned flags, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct info info = { .report.u = u, .quick = flags & UCKPT_QUICK, .each = flags & UCKPT_ALL };
	const char *whole = info.quick ? "no problems found in one rank's files (--quick)"
				       : "no problems found";
	struct report *r = &info.report;
	int rc = report_open(r, paths, n, flags, err);

	if (!rc) {
		info_tags(r);
		info.facts = r->text.len;
		report_begin(r);
		cJSON_AddBoolToObject(r->json, "quick", info.quick);
		rc = r->view ? add_contents(&info, err) : 0;
	}
	if (!rc)
		rc = flags & UCKPT_HTML ? end_html(&info, whole, err) : report_end(r, whole, err);
	config_files_done(&info.config_files);
	report_close(r);
	return rc;
}
