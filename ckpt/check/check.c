/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt check: proves a checkpoint whole before anyone resumes from it.
 *
 *   each file   it can be read, its zip directory and members are	diagnose.c,
 *		 sound, and with --data its bytes match their CRC-32	check_files.c
 *   all ranks   none is missing, all are of one step, and every
 *		 element exists exactly once			check_ranks.c
 *   layers      each layer of a pipeline has its file		check_layers.c
 *   forms       ucckpt convert can write them		check_forms.c
 *   replicas    with --data: they are equal			check_replicas.c,
 *								check_copies.c
 *
 * Every problem is reported, each once.
 */
#include "ckpt/check/check.h"

#include <assert.h>
#include <cJSON.h>
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/diagnose.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

static void check_plan(struct check *c)
{
	static const struct plan_options options = { .crc_zero = true,
						     .hugging_face = true };
	struct errmsg err = { "" };
	const int rc = plan_open(c->dir, &options, &c->plan, &err);

	if (rc) {
		findings_add_new(&c->problems, err.text);
		if (rc == -EBADMSG)
			diagnose_missing(c->dir, &c->problems);
		return;
	}
	if (!plan_zckpt(c->plan)) {
		check_tree(c, c->plan, &c->opened, &c->problems);
		return;
	}
	c->params = plan_zckpt(c->plan)->model.nparams;
	diagnose_shards(c->plan, &c->problems);
	diagnose_experts(c->plan, &c->problems);
	check_ranks(c);
	check_layers(c);
	diagnose_warnings(c->plan, &c->warnings);
}

/* Every byte is read once, and compared ones a second time. */
static void check_data(struct check *c)
{
	struct progress progress;
	uint64_t bytes = c->bytes;

	if (c->plan && c->whole)
		bytes += check_list_pairs(c) + check_list_copies(c);
	assert(c->data && !c->progress);
	progress_init(&progress, bytes);
	c->progress = &progress;
	check_files(c);
	check_pairs(c);
	check_copies(c);
	progress_done(&progress);
	c->progress = NULL;
}

static void check_done(struct check *c)
{
	free(c->whole);
	free(c->pairs);
	free(c->copies);
	plan_close(c->plan);
	check_files_done(c);
	findings_done(&c->forms);
	findings_done(&c->notes);
	findings_done(&c->warnings);
	findings_done(&c->problems);
	free(c->dir);
}

/* --- reports --------------------------------------------------------------- */

static void print_counts(const struct check *c)
{
	char size[CMD_SIZE_LEN];

	printf("%-16s%zu, %s\n", "files", c->nfiles,
	       cmd_size(c->bytes, size));
	if (!c->plan)
		return;
	printf("%-16s%zu, in %" PRIu64 " files of the universal tree\n",
	       "parameters", c->params, c->opened);
	if (c->data && plan_zckpt(c->plan))
		printf("%-16s%zu pairs of slices compared\n", "replicas",
		       c->npairs + c->ncopies);
	for (size_t i = 0; i < c->forms.n; i++)
		printf("%-16s%s\n", i ? "" : "can convert", c->forms.v[i]);
}

static void print_text(const struct check *c)
{
	printf("%-16s", "checkpoint");
	cmd_put(c->dir);
	if (c->choice != TAGS_ITSELF)
		printf(" (%s)", diagnose_choice_text(c->choice));
	putchar('\n');
	print_counts(c);
	putchar('\n');
	findings_print(&c->notes, "note");
	findings_print(&c->warnings, "warning");
	findings_print(&c->problems, "problem");
	if (!c->problems.n)
		puts(c->data ? "the checkpoint is whole" :
			       "the checkpoint is whole; tensors were not read"
			       " (--data)");
}

static int print_json(const struct check *c)
{
	cJSON *const root = cJSON_CreateObject();

	cJSON_AddStringToObject(root, "checkpoint", c->dir);
	cJSON_AddBoolToObject(root, "data", c->data);
	cJSON_AddBoolToObject(root, "whole", c->problems.n == 0);
	cmd_json_add_int(root, "files", (int64_t)c->nfiles);
	cmd_json_add_int(root, "bytes", (int64_t)c->bytes);
	if (c->plan) {
		cmd_json_add_int(root, "parameters",
				 (int64_t)c->params);
		cmd_json_add_int(root, "tree_files", (int64_t)c->opened);
		cmd_json_add_int(root, "replicas", (int64_t)(c->npairs + c->ncopies));
	}
	findings_add_json(&c->forms, root, "convert");
	findings_add_json(&c->notes, root, "notes");
	findings_add_json(&c->warnings, root, "warnings");
	findings_add_json(&c->problems, root, "problems");
	return cmd_json_print(root);
}

/* --- command line ---------------------------------------------------------- */

static int check_check(struct check *c, const char *path, bool json)
{
	struct errmsg err = { "" };
	int rc = tags_choose(path, &c->dir, &c->choice, &err);

	if (rc) {
		cmd_say("%s", err.text);
		return CMD_FAILED;
	}
	diagnose_choice(path, c->choice, &c->warnings);
	check_list_files(c);
	check_plan(c);
	if (c->data)
		check_data(c);
	else
		check_files(c);
	if (c->plan && !c->problems.n)
		check_forms(c);
	if (json)
		rc = print_json(c);
	else
		print_text(c);
	if (c->problems.n)
		rc = CMD_FAILED;
	check_done(c);
	return rc;
}

static void check_print_help(void)
{
	puts("usage: ucckpt check [--data] [--json] DIRECTORY...\n"
	     "\n"
	     "Check that the ZeRO checkpoint in DIRECTORY (of a tag, or of a run"
	     " for its newest\n"
	     "tag) or its Hugging Face weights are whole: all files, all ranks,"
	     " every element\n"
	     "exactly once.  Several are one whose files are spread over them.\n"
	     "\n"
	     "      --data  also read all tensors: verify checksums and compare"
	     " replicas\n"
	     "      --json  print JSON\n"
	     "  -h, --help  print this\n"
	     "\n"
	     "Exit status: 0 whole, 1 problems found, 2 wrong usage.");
}

int cmd_check(int argc, char **argv)
{
	struct check c = { 0 };
	bool json = false;
	const struct cmd_flag flags[] = { { "data", &c.data },
					  { "json", &json } };
	char *path;
	int status;

	if (!cmd_parse_flags(argc, argv, flags, COUNT(flags), 0, "a DIRECTORY",
			     check_print_help, &status))
		return status;
	path = cmd_source(argv + optind, (size_t)(argc - optind));
	status = path ? check_check(&c, path, json) : CMD_FAILED;
	free(path);
	return status;
}
