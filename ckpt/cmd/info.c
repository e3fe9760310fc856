/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt info: what a checkpoint is, and all problems that can be found without
 * reading tensors (report.h).
 */
#include "ckpt/cmd/info.h"

#include <getopt.h>
#include <stdio.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/plan/plan.h"
#include "ckpt/tensor/cast.h"
#include "ckpt/zero/checkpoint.h"

bool info_state_number(const struct shard_state *st, double *value)
{
	float f;

	switch (st->kind) {
	case STATE_FLAT:
		return false;
	case STATE_INT:
		*value = (double)st->i;
		return true;
	case STATE_FLOAT:
		*value = st->f;
		return true;
	case STATE_TENSOR:
		break;
	}
	if (st->flat.dtype >= DTYPE_C64)
		return false;
	cast_to_float(st->flat.dtype, st->bytes, &f, 1);
	*value = (double)f;
	return true;
}

const char *info_state_type(const struct shard_state *st)
{
	return st->kind == STATE_INT     ? "int"
	       : st->kind == STATE_FLOAT ? "float"
					 : dtype_name(st->flat.dtype);
}

size_t info_count(const struct info *info)
{
	return plan_zckpt(info->report.plan)
		       ? plan_zckpt(info->report.plan)->model.nparams
		       : info->weights.n;
}

struct info_param info_param(const struct info *info, size_t i)
{
	const struct zero_checkpoint *const r = plan_zckpt(info->report.plan);
	const struct hfdir_tensor *const t = r ? NULL : &info->weights.v[i];
	const struct param *const p = r ? &r->model.params[i] : NULL;

	return t ? (struct info_param){ t->name,  t->shape, t->ndim,
					t->numel, -1,       t->dtype }
		 : (struct info_param){ p->name,
					p->shape,
					p->ndim,
					p->numel,
					p->module ? -1
						  : (int64_t)p->first->group,
					DTYPE_OTHER };
}

static void count_params(struct info *info)
{
	for (size_t i = 0; i < info_count(info); i++) {
		const struct info_param p = info_param(info, i);
		const bool owned = p.group >= 0 || info->weights.n;

		*(owned ? &info->params : &info->module_params) += 1;
		*(owned ? &info->elements : &info->module_elements) += p.numel;
	}
}

static void read_profile(struct info *info)
{
	struct report *const r = &info->report;
	struct zero_checkpoint *const zero = plan_zckpt(r->plan);
	struct errmsg err = { "" };
	const int rc = (zero ? zckpt_profile(zero, 0, &info->profile, &err) : 0)
			       ?: plan_totals(r->plan, &info->files,
					      &info->bytes, &err);

	if (rc)
		findings_add(&r->problems, "%s", err.text);
}

static void collect(struct info *info)
{
	struct report *const r = &info->report;
	struct errmsg err = { "" };
	const bool zero = plan_zckpt(r->plan);

	if (!zero && hfdir_open(&info->weights, r->dir, &err))
		findings_add(&r->problems, "%s", err.text);
	count_params(info);
	read_profile(info);
	if (zero && !info->quick)
		report_add_problems(r, true);
	if (zero)
		report_add_warnings(r);
}

static int info_run(struct info *info, char *const *args, size_t n, bool json)
{
	static const struct plan_options options = { .hugging_face = true };
	int rc = report_open(&info->report, args, n, &options);

	if (rc)
		return rc;
	if (info->report.plan)
		collect(info);
	if (json)
		rc = cmd_json_print(info_to_json(info));
	else
		info_print_text(info);
	return info->report.problems.n ? CMD_FAILED : rc;
}

int cmd_info(int argc, char **argv)
{
	struct info info = { 0 };
	bool json = false;
	const struct cmd_option options[] = {
		{ "json", .help = "print JSON", .flag = &json },
		{ "quick", .help = "read only one rank's files", .flag = &info.quick },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt info [--json] [--quick] DIRECTORY...\n"
		"\n"
		"Describe the ZeRO checkpoint in DIRECTORY (of a tag, or of a run for its newest\n"
		"tag) or its Hugging Face weights, and list everything that is missing or damaged.\n"
		"Several are one whose files are spread over them.",
		"Exit status: 0 no problems, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};
	int status;

	if (!cmd_parse(argc, argv, &syntax, &status))
		return status;
	status = info_run(&info, argv + optind, (size_t)(argc - optind), json);
	hfdir_done(&info.weights);
	report_close(&info.report);
	return status;
}
