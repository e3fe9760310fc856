/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The report as text: facts, the table of parameters, and the problems last,
 * where they remain visible on a terminal.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/info.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

#define SHAPE_LEN (TENSOR_DIMS_MAX * 21)
#define NAME_COLUMNS_MAX 60

static bool are_alike(const struct expert_layer *a,
		      const struct expert_layer *b)
{
	return a->fused == b->fused && a->n == b->n && a->local == b->local;
}

/* One line per group of equal layers. */
static void print_experts(const struct experts *x)
{
	for (size_t i = 0, n; i < x->n; i += n) {
		const struct expert_layer *const l = &x->layers[i];

		for (n = 1; i + n < x->n && are_alike(l, &x->layers[i + n]);)
			n++;
		report_label(i ? "" : "experts");
		printf("%u in each of %zu MoE layers%s, shared by %u ranks\n",
		       l->n, n, l->fused ? " (AutoEP)" : "",
		       experts_degree(l));
	}
}

static void print_origin(const struct model *m, const struct tagdir *d)
{
	const struct rank_params *const c = m->ranks;

	report_label("written by");
	fputs("DeepSpeed ", stdout);
	cmd_put(*c->ds_version ? c->ds_version : "of unknown version");
	putchar('\n');
	report_label("ZeRO stage");
	if (c->stage >= 0)
		printf("%" PRId64 "\n", c->stage);
	else
		puts(c->zero3 ? "3" : "1 or 2");
	report_label("ranks");
	printf("%u data-parallel, %u tensor-parallel, %u pipeline stages\n",
	       d->dp_degree, m->tp, m->pp);
	print_experts(&c->experts);
	report_label("global step");
	if (c->global_steps >= 0)
		printf("%" PRId64 "\n", c->global_steps);
	else
		puts("unknown");
}

static void print_types(const struct info *info, const struct rank_params *c)
{
	report_label("master weights");
	puts(!info->profile	     ? "unknown" :
	     !info->profile->ngroups ? "none" :
				       dtype_name(info->profile->groups[0]
							  .fp32.dtype));
	report_label("module");
	puts(c->module_dtype == DTYPE_OTHER ? "unknown" :
					      dtype_name(c->module_dtype));
}

static void print_counts(const struct info *info)
{
	report_label("parameters");
	printf("%" PRIu64 "%s, %" PRIu64 " elements\n", info->params,
	       info->weights.n ? "" : " of the optimizer", info->elements);
	if (!info->module_params)
		return;
	report_label("");
	printf("%" PRIu64 " more in the module (frozen, tied, buffers), %" PRIu64
	       " elements\n", info->module_params, info->module_elements);
}

static void print_state(const struct shard_state *st)
{
	double value;

	cmd_put(st->name);
	if (st->kind == STATE_FLAT)
		printf(" %s", info_state_type(st));
	else if (info_state_number(st, &value))
		printf(" %.15g (%s%s)", value, info_state_type(st),
		       st->kind == STATE_TENSOR ? " tensor" : "");
}

static void print_groups(const struct info *info, const struct rank_params *c)
{
	for (size_t g = 0; info->profile && g < c->ngroups; g++) {
		const struct shard_group *const group =
			&info->profile->groups[g];
		char label[32];

		snprintf(label, sizeof(label), "group %zu", g);
		report_label(label);
		printf("%zu parameters, %s", c->groups[g].n,
		       dtype_name(group->fp32.dtype));
		for (size_t i = 0; i < group->nstates; i++) {
			fputs(i ? ", " : "; ", stdout);
			print_state(&group->states[i]);
		}
		if (!group->nstates)
			fputs("; no optimizer states", stdout);
		putchar('\n');
	}
}

static void print_tree(const struct info *info)
{
	char size[CMD_SIZE_LEN];

	if (!info->files)
		return;
	report_label("universal tree");
	printf("%" PRIu64 " files, %" PRIu64 " bytes", info->files,
	       info->bytes);
	if (info->bytes >= 1024)
		printf(" (%s)", cmd_size(info->bytes, size));
	putchar('\n');
}

static const char *shape_text(const struct info_param *p, char buf[SHAPE_LEN])
{
	size_t n = 0;

	if (p->ndim == 0)
		return "scalar";
	for (unsigned i = 0; i < p->ndim; i++)
		n += (size_t)snprintf(buf + n, SHAPE_LEN - n, "%s%" PRIu64,
				      i ? "x" : "", p->shape[i]);
	return buf;
}

static void print_param(const struct info_param *p, int width)
{
	char shape[SHAPE_LEN];
	const int n = cmd_put(p->name);

	printf("%*s  %14s  ", n < width ? width - n : 0, "",
	       shape_text(p, shape));
	if (p->group >= 0)
		printf("%6" PRId64, p->group);
	else
		printf("%6s", p->dtype == DTYPE_OTHER ? "module" : dtype_name(p->dtype));
	printf("  %14" PRIu64 "\n", p->numel);
}

static void print_params(const struct info *info)
{
	int width = (int)strlen("parameter");

	for (size_t i = 0; i < info_count(info); i++) {
		const size_t n = strlen(info_param(info, i).name);

		if (n > (size_t)width)
			width = n < NAME_COLUMNS_MAX ? (int)n :
						       NAME_COLUMNS_MAX;
	}
	printf("\n%-*s  %14s  %6s  %14s\n", width, "parameter", "shape",
	       info->weights.n ? "type" : "group", "elements");
	for (size_t i = 0; i < info_count(info); i++) {
		const struct info_param p = info_param(info, i);

		print_param(&p, width);
	}
}

void info_print_text(const struct info *info)
{
	const struct zero_checkpoint *const r =
		info->report.plan ? plan_zckpt(info->report.plan) : NULL;

	report_print_begin(&info->report);
	if (r) {
		print_origin(&r->model, &r->dir);
		print_types(info, r->model.ranks);
	}
	if (info->report.plan) {
		print_counts(info);
		if (r)
			print_groups(info, r->model.ranks);
		print_tree(info);
		print_params(info);
	}
	report_print_end(&info->report,
			 info->quick ? "no problems found in one rank's files (--quick)"
				     : "no problems found");
}
