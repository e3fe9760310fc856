/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt check: proves a checkpoint whole before anyone resumes from it.
 *
 *   all ranks   none is missing, all are of one step, and each has	zero/complete.c
 *		 its part of every parameter
 *   the tree    each file of it can be laid out, in every form		check_tree.c
 *		 that ucckpt convert writes
 *   each file   it can be read, its zip directory and members are	check_files.c
 *		 sound, and with --data its bytes match their CRC-32
 *   copies      with --data: they are equal				check_copies.c
 *
 * Every problem is reported, each once.
 */
#include "ckpt/check/check.h"

#include <cJSON.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

static void find_whole(struct check *c, const struct zero_checkpoint *r)
{
	c->whole = cmd_alloc(r->dir.mp_degree, sizeof(*c->whole));
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++) {
		c->whole[mp] = true;
		for (unsigned i = 0; i < r->dir.dp_degree; i++)
			c->whole[mp] &= zckpt_shard(r, mp, i) != NULL;
	}
}

static void check_plan(struct check *c)
{
	const struct zero_checkpoint *const r = plan_zckpt(c->report.plan);

	if (!r) {
		check_tree(c);
		return;
	}
	c->params = r->model.nparams;
	report_add_problems(&c->report, false);
	find_whole(c, r);
	check_tree(c);
	report_add_warnings(&c->report);
}

/* Every byte is read once, and compared ones a second time. */
static void check_data(struct check *c)
{
	struct progress progress;
	uint64_t bytes = c->bytes;

	if (c->whole)
		bytes += check_list_pairs(c);
	progress_init(&progress, bytes);
	c->progress = &progress;
	check_files(c);
	check_pairs(c);
	progress_done(&progress);
	c->progress = NULL;
}

static void check_done(struct check *c)
{
	free(c->whole);
	free(c->pairs);
	check_files_done(c);
	findings_done(&c->forms);
	report_close(&c->report);
}

static void print_text(const struct check *c)
{
	char size[CMD_SIZE_LEN];

	report_print_begin(&c->report);
	report_label("files");
	printf("%zu, %s\n", c->nfiles, cmd_size(c->bytes, size));
	if (c->report.plan) {
		report_label("parameters");
		printf("%zu, in %" PRIu64 " files of the universal tree\n",
		       c->params, c->opened);
	}
	if (c->report.plan && c->data && plan_zckpt(c->report.plan)) {
		report_label("replicas");
		printf("%zu pairs of slices compared\n", c->npairs);
	}
	for (size_t i = 0; i < c->forms.n; i++) {
		report_label(i ? "" : "can convert");
		puts(c->forms.v[i]);
	}
	report_print_end(&c->report,
			 c->data ? "the checkpoint is whole"
				 : "the checkpoint is whole; tensors were not"
				   " read (--data)");
}

static int print_json(const struct check *c)
{
	cJSON *const root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "checkpoint", c->report.dir);
	cJSON_AddBoolToObject(root, "data", c->data);
	cJSON_AddBoolToObject(root, "whole", c->report.problems.n == 0);
	cmd_json_add_int(root, "files", (int64_t)c->nfiles);
	cmd_json_add_int(root, "bytes", (int64_t)c->bytes);
	if (c->report.plan) {
		cmd_json_add_int(root, "parameters", (int64_t)c->params);
		cmd_json_add_int(root, "tree_files", (int64_t)c->opened);
		cmd_json_add_int(root, "replicas", (int64_t)c->npairs);
	}
	findings_add_json(&c->forms, root, "convert");
	findings_add_json(&c->report.notes, root, "notes");
	findings_add_json(&c->report.warnings, root, "warnings");
	findings_add_json(&c->report.problems, root, "problems");
	return cmd_json_print(root);
}

static int check_run(struct check *c, char *const *args, size_t n, bool json)
{
	int rc = report_open(&c->report, args, n);

	if (rc)
		return rc;
	check_list_files(c);
	if (c->report.plan)
		check_plan(c);
	if (c->data)
		check_data(c);
	else
		check_files(c);
	if (c->report.plan && !c->report.problems.n)
		check_forms(c);
	if (json)
		rc = print_json(c);
	else
		print_text(c);
	return c->report.problems.n ? CMD_FAILED : rc;
}

int cmd_check(struct uckpt *u, int argc, char **argv)
{
	struct check c = { .report.u = u };
	bool json = false;
	const struct cmd_option options[] = {
		{ "data",
		  .help = "also read all tensors: verify checksums and compare replicas",
		  .flag = &c.data },
		{ "json", .help = "print JSON", .flag = &json },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt check [--data] [--json] DIRECTORY...\n"
		"\n"
		"Check that the ZeRO checkpoint in DIRECTORY (of a tag, or of a run for its newest\n"
		"tag) or its Hugging Face weights are whole: all files, all ranks, every element\n"
		"exactly once.  Several are one whose files are spread over them.",
		"Exit status: 0 whole, 1 problems found, 2 wrong usage.",
		options, COUNT(options), 0, "a DIRECTORY",
	};
	int status;

	if (!cmd_parse(argc, argv, &syntax, &status))
		return status;
	status = check_run(&c, argv + optind, (size_t)(argc - optind), json);
	check_done(&c);
	return status;
}
