/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_info: what a checkpoint is, and all problems that can be found without
 * reading tensors (report.h).  As text: facts, the table of parameters, and the
 * problems last, where they remain visible on a terminal.  As JSON, to whose keys some
 * may be added; none is ever removed.
 */
#include <cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/api/settings.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/size.h"
#include "ckpt/plan/plan.h"
#include "ckpt/report/report.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/weights/adapter.h"
#include "ckpt/weights/sidecars.h"
#include "ckpt/zero/checkpoint.h"

#define SHAPE_LEN (TENSOR_DIMS_MAX * 21)
#define NAME_COLUMNS_MAX 60

struct info {
	struct report report;
	bool quick;

	uint64_t params, elements;               /* owned by the optimizer */
	uint64_t module_params, module_elements; /* only in the module */

	struct sidecars sidecars;
	const struct shard *profile; /* of rank 0; NULL if damaged */
	uint64_t files, bytes;       /* of the tree; 0 without a profile */
	struct info_form {
		bool planned;
		struct errmsg why; /* it cannot be written; or empty */
	} forms[REPORT_FORMS]; /* none with `quick` */
};

static const char *state_type(const struct param_state *st)
{
	return st->kind == STATE_INT     ? "int"
	       : st->kind == STATE_FLOAT ? "float"
					 : dtype_name(st->dtype);
}

static void count_params(struct info *info)
{
	for (size_t i = 0; i < info->report.c->nparams; i++) {
		const struct param *p = &info->report.c->params[i];
		const bool owned = !info->report.zero || !p->module;

		*(owned ? &info->params : &info->module_params) += 1;
		*(owned ? &info->elements : &info->module_elements) += p->numel;
	}
}

static void read_profile(struct info *info)
{
	struct report *r = &info->report;
	struct zero_checkpoint *zero = r->zero;
	struct errmsg err = { "" };
	const int rc = (zero ? zckpt_profile(zero, 0, &info->profile, &err) : 0)
			       ?: plan_check(r->plan, &err)
			       ?: plan_totals(r->plan, &info->files,
					      &info->bytes, &err);

	if (rc && rc != -ENOTSUP)
		notes_add(&r->problems, "%s", err.text);
}

/* Find out which forms can be written. */
static void try_forms(struct info *info)
{
	for (size_t i = 0; i < report_count_forms(&info->report); i++) {
		struct info_form *f = &info->forms[i];
		struct plan *p;

		f->planned = true;
		if (!report_plan_form(&info->report, &report_forms[i], &p, &f->why))
			plan_close(p);
	}
}

/* Find what from_pretrained reads; of an adapter, where the model has one. */
static int find_sidecars(struct info *info, const char *more, struct errmsg *err)
{
	struct report *r = &info->report;
	const struct checkpoint *tag = r->c;
	struct arena a = { 0 };
	struct adapters *all = arena_alloc(&a, sizeof(*all));
	const struct adapter *top = NULL;
	int rc;

	for (size_t i = 0; all && i < tag->nparams; i++)
		if (!tag->params[i].module)
			adapters_add(all, &a, tag->params[i].name, true);
	if (all)
		top = adapters_top(all);
	rc = a.failed ? errmsg_nomem(err, r->dir)
		      : sidecars_find(&info->sidecars, tag,
				      top && !top->computed ? top->name : NULL, more, err);
	arena_done(&a);
	return rc;
}

static int collect(struct info *info, struct errmsg *err)
{
	struct report *r = &info->report;
	const struct settings *settings = settings_of(r->u);
	const bool zero = r->zero;

	count_params(info);
	read_profile(info);
	if (zero && (!settings ||
		     find_sidecars(info, settings->tree.plan.hf_config, err)))
		return -ENOMEM;
	if (!info->quick)
		try_forms(info);
	if (zero && !info->quick)
		report_add_problems(r, true);
	report_add_lost(r);
	if (zero)
		report_add_warnings(r);
	return 0;
}

static bool are_alike(const struct expert_layer *a,
		      const struct expert_layer *b)
{
	return a->fused == b->fused && a->n == b->n && a->local == b->local;
}

/* One line per group of equal layers. */
static void add_expert_lines(struct report *r, const struct experts *x)
{
	for (size_t i = 0, n; i < x->n; i += n) {
		const struct expert_layer *l = &x->layers[i];

		for (n = 1; i + n < x->n && are_alike(l, &x->layers[i + n]);)
			n++;
		report_line(r, i ? "" : "experts",
			    "%u in each of %zu MoE layers%s, shared by %u ranks",
			    l->n, n, l->fused ? " (AutoEP)" : "",
			    experts_degree(l));
	}
}

static void add_deepspeed_lines(struct report *r, const struct model *m,
				const struct tagdir *d)
{
	const struct rank_params *c = m->ranks;

	report_line(r, "written by", "DeepSpeed %s",
		    *c->facts.ds_version ? c->facts.ds_version : "of unknown version");
	if (c->facts.stage >= 0)
		report_line(r, "ZeRO stage", "%" PRId64, c->facts.stage);
	else
		report_line(r, "ZeRO stage", c->facts.zero3 ? "3" : "1 or 2");
	report_line(r, "ranks",
		    "%u data-parallel, %u tensor-parallel, %u pipeline stages",
		    d->dp_degree, m->tp, m->pp);
}

static void add_origin_lines(struct report *r, const struct model *m,
			     const struct tagdir *d)
{
	const struct rank_params *c = m->ranks;

	if (c->facts.source)
		report_line(r, "source", "%s", c->facts.source);
	else
		add_deepspeed_lines(r, m, d);
	add_expert_lines(r, &c->experts);
	if (c->facts.global_steps >= 0)
		report_line(r, "global step", "%" PRId64, c->facts.global_steps);
	else
		report_line(r, "global step", "unknown");
}

static void add_type_lines(struct info *info, const struct rank_params *c)
{
	const struct shard *shard = info->profile;

	report_line(&info->report, "master weights", "%s",
		    !shard            ? "unknown"
		    : !shard->ngroups ? "none"
				      : dtype_name(shard->groups[0].states.v->dtype));
	report_line(&info->report, "module", "%s",
		    c->facts.module_dtype == DTYPE_OTHER ? "unknown"
						   : dtype_name(c->facts.module_dtype));
}

static void add_count_lines(struct info *info)
{
	report_line(&info->report, "parameters",
		    "%" PRIu64 "%s, %" PRIu64 " elements", info->params,
		    info->report.zero ? " of the optimizer" : "", info->elements);
	if (info->module_params)
		report_line(&info->report, "",
			    "%" PRIu64 " more in the module (frozen, tied,"
			    " buffers), %" PRIu64 " elements",
			    info->module_params, info->module_elements);
}

static void add_state_text(struct bytebuf *to, const struct param_state *st)
{
	double value;

	bytebuf_add_str(to, st->name);
	if (st->kind == STATE_FLAT)
		bytebuf_add_format(to, " %s", state_type(st));
	else if (param_state_number(st, &value))
		bytebuf_add_format(to, " %.15g (%s%s)", value, state_type(st),
				   st->kind == STATE_TENSOR ? " tensor" : "");
}

static void add_group_line(struct report *r, size_t g, size_t nparams,
			   const struct param_states *of)
{
	struct bytebuf states = { 0 };
	char label[32], *text;

	for (size_t i = 1; i < of->n; i++) {
		bytebuf_add_str(&states, i > 1 ? ", " : "");
		add_state_text(&states, &of->v[i]);
	}
	if (of->refused)
		bytebuf_add_str(&states, "states that cannot be divided");
	else if (of->n == 1)
		bytebuf_add_str(&states, "no optimizer states");
	text = bytebuf_take_text(&states);
	snprintf(label, sizeof(label), "group %zu", g);
	if (text)
		report_line(r, label, "%zu parameters, %s; %s", nparams,
			    dtype_name(of->v->dtype), text);
	r->text.failed |= !text;
	free(text);
}

static void add_tree_line(struct info *info)
{
	char size[SIZE_TEXT_LEN + 3] = "", buf[SIZE_TEXT_LEN];

	if (info->bytes >= 1024)
		snprintf(size, sizeof(size), " (%s)", size_text(info->bytes, buf));
	if (info->files)
		report_line(&info->report, "universal tree",
			    "%" PRIu64 " files, %" PRIu64 " bytes%s",
			    info->files, info->bytes, size);
}

static void add_config_line(struct info *info)
{
	const struct sidecars *s = &info->sidecars;

	if (s->config || s->missing)
		report_line(&info->report, "from_pretrained", "%s",
			    s->config ? s->config->path : s->missing);
}

static void add_form_lines(struct info *info)
{
	const char *label = "convert";

	for (size_t i = 0; i < REPORT_FORMS; i++) {
		const struct info_form *f = &info->forms[i];

		if (!f->planned)
			continue;
		report_line(&info->report, label, "%-27s %s%s", report_forms[i].options,
			    *f->why.text ? "no: " : "yes", f->why.text);
		label = "";
	}
}

static const char *shape_text(const struct param *p, char buf[SHAPE_LEN])
{
	size_t n = 0;

	if (p->ndim == 0)
		return "scalar";
	for (unsigned i = 0; i < p->ndim; i++)
		n += (size_t)snprintf(buf + n, SHAPE_LEN - n, "%s%" PRIu64,
				      i ? "x" : "", p->shape[i]);
	return buf;
}

static void add_row(const struct info *info, struct bytebuf *to, const struct param *p,
		    int width)
{
	char shape[SHAPE_LEN];
	const int n = bytebuf_add_shown(to, p->name);

	bytebuf_add_format(to, "%*s  %14s  ", n < width ? width - n : 0, "",
			   shape_text(p, shape));
	if (!p->module)
		bytebuf_add_format(to, "%6" PRIu32, p->first->group);
	else
		bytebuf_add_format(to, "%6s",
				   info->report.zero ? "module"
						     : dtype_name(p->module->dtype));
	bytebuf_add_format(to, "  %14" PRIu64 "\n", p->numel);
}

static void add_table(struct info *info)
{
	struct bytebuf *to = &info->report.text;
	int width = (int)strlen("parameter");

	for (size_t i = 0; i < info->report.c->nparams; i++) {
		const size_t n = strlen(info->report.c->params[i].name);

		if (n > (size_t)width)
			width = n < NAME_COLUMNS_MAX ? (int)n : NAME_COLUMNS_MAX;
	}
	bytebuf_add_format(to, "\n%-*s  %14s  %6s  %14s\n", width, "parameter",
			   "shape", info->report.zero ? "group" : "type",
			   "elements");
	for (size_t i = 0; i < info->report.c->nparams; i++)
		add_row(info, to, &info->report.c->params[i], width);
}

static void add_contents_text(struct info *info, const struct rank_params *c)
{
	add_count_lines(info);
	for (size_t g = 0; c && info->profile && g < c->ngroups; g++)
		add_group_line(&info->report, g, c->groups[g].n,
			       &info->profile->groups[g].states);
	add_tree_line(info);
	add_form_lines(info);
	add_config_line(info);
	add_table(info);
}

static void add_text(struct info *info)
{
	struct report *r = &info->report;
	const struct zero_checkpoint *z = r->zero;

	report_begin(r);
	if (z) {
		add_origin_lines(r, &z->model, &z->dir);
		add_type_lines(info, z->model.ranks);
	}
	if (r->plan)
		add_contents_text(info, z ? z->model.ranks : NULL);
	report_end(r, info->quick ? "no problems found in one rank's files (--quick)"
				  : "no problems found");
}

static const char *const choices[] = {
	[TAGS_ITSELF] = "itself", [TAGS_LATEST] = "latest", [TAGS_STEP] = "step",
	[TAGS_MTIME] = "mtime",	  [TAGS_BELOW] = "below",   [TAGS_WEIGHTS] = "weights",
	[TAGS_NONE] = "none",
};

/* Add a number, or null for -1, which stands for unknown. */
static void add_known(cJSON *o, const char *key, int64_t value)
{
	if (value < 0)
		cJSON_AddNullToObject(o, key);
	else
		json_add_int(o, key, value);
}

static void add_name(cJSON *o, const char *key, const char *text)
{
	cJSON_AddItemToObject(o, key, text ? cJSON_CreateString(text)
					   : cJSON_CreateNull());
}

static cJSON *state_json(const struct param_state *st)
{
	cJSON *o = cJSON_CreateObject();
	double value;

	cJSON_AddStringToObject(o, "name", st->name);
	cJSON_AddStringToObject(o, "type", state_type(st));
	cJSON_AddBoolToObject(o, "tensor", st->kind == STATE_FLAT ||
						   st->kind == STATE_TENSOR);
	if (param_state_number(st, &value))
		cJSON_AddNumberToObject(o, "value", value);
	return o;
}

static cJSON *group_json(const struct slice_group *pg,
			 const struct param_states *states)
{
	cJSON *o = cJSON_CreateObject();
	uint64_t elements = 0;
	int64_t n = 0;
	cJSON *list;

	for (size_t i = 0; i < pg->n; i++) {
		elements += pg->slices[i]->numel;
		n += pg->slices[i]->numel != 0;
	}
	json_add_int(o, "parameters", n);
	json_add_int(o, "elements", (int64_t)elements);
	if (!states)
		return o;
	cJSON_AddStringToObject(o, "master_dtype",
				dtype_name(states->v->dtype));
	list = cJSON_AddArrayToObject(o, "states");
	for (size_t i = 1; i < states->n; i++)
		cJSON_AddItemToArray(list, state_json(&states->v[i]));
	return o;
}

static cJSON *param_json(const struct info *info, const struct param *p)
{
	cJSON *o = cJSON_CreateObject();
	cJSON *shape;

	cJSON_AddStringToObject(o, "name", p->name);
	shape = cJSON_AddArrayToObject(o, "shape");
	for (unsigned i = 0; i < p->ndim; i++)
		cJSON_AddItemToArray(shape,
				     cJSON_CreateNumber((double)p->shape[i]));
	json_add_int(o, "elements", (int64_t)p->numel);
	add_known(o, "group", p->module ? -1 : (int64_t)p->first->group);
	if (!info->report.zero)
		cJSON_AddStringToObject(o, "dtype", dtype_name(p->module->dtype));
	return o;
}

static cJSON *form_json(const struct report_form *form, const struct info_form *f)
{
	cJSON *o = cJSON_CreateObject();

	cJSON_AddStringToObject(o, "options", form->options);
	cJSON_AddBoolToObject(o, "possible", !*f->why.text);
	if (*f->why.text)
		cJSON_AddStringToObject(o, "reason", f->why.text);
	return o;
}

static void add_experts(cJSON *root, const struct experts *x)
{
	cJSON *list = cJSON_AddArrayToObject(root, "moe_layers");

	for (size_t i = 0; i < x->n; i++) {
		const struct expert_layer *l = &x->layers[i];
		cJSON *o = cJSON_CreateObject();

		json_add_int(o, "experts", l->n);
		json_add_int(o, "ep_size", experts_degree(l));
		cJSON_AddBoolToObject(o, "autoep", l->fused);
		cJSON_AddItemToArray(list, o);
	}
}

static void add_origin(cJSON *root, const struct zero_checkpoint *r)
{
	const struct rank_params *c = r->model.ranks;

	add_name(root, "ds_version", *c->facts.ds_version ? c->facts.ds_version : NULL);
	if (c->facts.source)
		add_name(root, "source", c->facts.source);
	add_known(root, "stage", c->facts.zero3 ? 3 : c->facts.stage);
	add_known(root, "global_step", c->facts.global_steps);
	json_add_int(root, "dp_degree", r->dir.dp_degree);
	json_add_int(root, "mp_degree", r->dir.mp_degree);
	json_add_int(root, "tp_degree", r->model.tp);
	json_add_int(root, "pp_degree", r->model.pp);
	add_experts(root, &c->experts);
	add_name(root, "module_dtype",
		 c->facts.module_dtype == DTYPE_OTHER ? NULL : dtype_name(c->facts.module_dtype));
}

static void add_contents(cJSON *root, const struct info *info)
{
	const struct zero_checkpoint *r = info->report.zero;
	const struct rank_params *c = r ? r->model.ranks : NULL;
	cJSON *o = cJSON_AddObjectToObject(root, "parameters");

	json_add_int(o, "count", (int64_t)info->params);
	json_add_int(o, "elements", (int64_t)info->elements);
	json_add_int(o, "module_count", (int64_t)info->module_params);
	json_add_int(o, "module_elements", (int64_t)info->module_elements);
	o = cJSON_AddArrayToObject(root, "groups");
	for (size_t g = 0; c && g < c->ngroups; g++)
		cJSON_AddItemToArray(
			o, group_json(&c->groups[g],
				      info->profile ? &info->profile->groups[g].states :
						      NULL));
	if (info->files) {
		o = cJSON_AddObjectToObject(root, "tree");
		json_add_int(o, "files", (int64_t)info->files);
		json_add_int(o, "bytes", (int64_t)info->bytes);
	}
	o = cJSON_AddArrayToObject(root, "convert");
	for (size_t i = 0; i < REPORT_FORMS; i++)
		if (info->forms[i].planned)
			cJSON_AddItemToArray(o, form_json(&report_forms[i],
							  &info->forms[i]));
	add_name(root, "config",
		 info->sidecars.config ? info->sidecars.config->path : NULL);
	o = cJSON_AddArrayToObject(root, "table");
	for (size_t i = 0; i < info->report.c->nparams; i++)
		cJSON_AddItemToArray(o, param_json(info, &info->report.c->params[i]));
}

static cJSON *to_json(const struct info *info)
{
	cJSON *root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "checkpoint", info->report.dir);
	cJSON_AddStringToObject(root, "chosen", choices[info->report.choice]);
	cJSON_AddBoolToObject(root, "quick", info->quick);
	cJSON_AddBoolToObject(root, "whole", info->report.problems.n == 0);
	if (info->report.plan) {
		if (info->report.zero)
			add_origin(root, info->report.zero);
		add_contents(root, info);
	}
	notes_add_json(&info->report.warnings, root, "warnings");
	notes_add_json(&info->report.problems, root, "problems");
	return root;
}

int uckpt_info(struct uckpt *u, const char *const *paths, size_t n,
	       unsigned flags, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct info info = { .report.u = u, .quick = flags & UCKPT_QUICK };
	int rc = report_open(&info.report, paths, n, err);

	if (!rc && info.report.plan)
		rc = collect(&info, err);
	if (!rc && !(flags & UCKPT_JSON))
		add_text(&info);
	if (!rc)
		rc = report_emit(&info.report, flags & UCKPT_JSON ? to_json(&info) : NULL,
				 err);
	sidecars_done(&info.sidecars);
	report_close(&info.report);
	return rc;
}
