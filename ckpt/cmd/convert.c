/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt convert: writes the files that a mount shows to a disk, for machines
 * without FUSE.
 *
 * Takes the options of DeepSpeed's ds_to_universal.py, so that it can replace
 * it in scripts.  Differences: the output appears complete or not at all
 * (output.h), no temporary copy of the checkpoint is made, and a checkpoint
 * without universal_checkpoint_info needs no option.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/progress.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/convert/treewrite.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/model/user_rules.h"
#include "ckpt/plan/plan.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/sys/output.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/weights/weights_split.h"
#include "ckpt/zero/checkpoint.h"

#define WORKERS_MAX 4096
#define POINTER_MAX (sizeof("latest") + VIEW_SUFFIX_MAX)

struct convert {
	struct uckpt *u;
	char *in, *out;
	unsigned readers; /* shards read at once; 0: one per processor */
	unsigned writers; /* files written at once; 0: one per processor */
	bool lenient;
	bool keep_temp;
	bool has_dtype;
	struct plan_options plan;
	struct user_rules rules;
};

/* A pattern without a match means that the merge rules are wrong. */
static int check_patterns(const struct convert *c, struct plan *p)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);
	size_t pos = 0;
	const char *text = r ? model_next_unused(&r->model, &pos) : NULL;

	/* No rule applies when each model-parallel rank is re-cut for itself. */
	if (!text || c->lenient || c->plan.type.kind == PLAN_RESHARD)
		return CMD_OK;
	for (; text; text = model_next_unused(&r->model, &pos))
		cmd_say("%s: a pattern of merge rules matches no parameter: %s",
			r->dir.model[0].path, text);
	cmd_say("nothing was written; --no_strict ignores such patterns");
	return CMD_FAILED;
}

/* The file beside the output that names it, as beside a mount's view. */
static const char *pointer_file(const struct convert *c, char name[POINTER_MAX])
{
	char suffix[VIEW_SUFFIX_MAX];

	if (c->plan.type.kind == PLAN_HF || c->plan.type.kind == PLAN_FP32)
		return NULL;
	view_type_suffix(&c->plan.type, suffix);
	snprintf(name, POINTER_MAX, "latest%s", suffix);
	return name;
}

static int write_tree(const struct convert *c, struct plan *p,
		      struct progress *progress, struct errmsg *err)
{
	const struct treewrite_options how = {
		.shown = c->out,
		.width = c->writers ? c->writers : parallel_width(),
		.progress = progress,
	};
	char pointer[POINTER_MAX];
	struct output out;
	int rc = output_open(&out, c->out, OUTPUT_DIR, err);

	if (rc)
		return rc;
	rc = treewrite_save(p, out.fd, &how, err);
	if (!rc)
		rc = progress_add(progress, 0)
			     ?: output_commit(&out, pointer_file(c, pointer), err);
	output_close(&out);
	return rc;
}

static int convert_fail(const struct convert *c, int rc,
			const struct errmsg *err)
{
	const struct uckpt_error *const why = (const void *)err;

	return progress_fail(rc, c->out, "nothing was written", why);
}

static void say_warning(void *ctx, const char *text)
{
	(void)ctx;
	cmd_say("warning: %s", text);
}

static int convert_plan(const struct convert *c, struct plan *p)
{
	struct errmsg err = { "" };
	struct progress progress = { .u = c->u };
	struct uckpt_done done = { 0 };
	int rc = check_patterns(c, p);

	if (rc != CMD_OK)
		return rc;
	if (plan_zckpt(p))
		plan_zckpt(p)->readers = c->readers;
	rc = plan_check(p, &err) ?: plan_totals(p, &done.files, &done.bytes, &err);
	progress.total = done.bytes;
	if (!rc)
		rc = write_tree(c, p, &progress, &err);
	if (rc)
		return convert_fail(c, rc, &err);
	plan_warn(p, &(struct errmsg_sink){ say_warning, NULL });
	progress_print(c->out, &done, "");
	return CMD_OK;
}

static int convert_convert(const struct convert *c, const char *source)
{
	enum tags_choice choice;
	struct errmsg err = { "" };
	struct plan *p = NULL;
	char *dir = NULL;
	int rc = tags_choose(c->u, source, &dir, &choice, &err);

	if (!rc)
		rc = plan_open(c->u, dir, &c->plan, &p, &err);
	if (rc) {
		free(dir);
		return convert_fail(c, rc, &err);
	}
	if (choice != TAGS_ITSELF)
		cmd_say("converting %s", dir);
	if (c->keep_temp)
		cmd_say("--keep_temp_folder has no effect: no temporary copy"
			" is made");
	progress_catch_signals();
	rc = convert_plan(c, p);
	plan_close(p);
	free(dir);
	return rc;
}

/* Setters of options; see cmd.h. */

static bool set_plan(void *ctx, const char *name, const char *text,
		     struct errmsg *why)
{
	struct convert *const c = ctx;

	c->has_dtype |= strcmp(name, "dtype") == 0;
	return plan_set_option(&c->plan, &c->rules, name, text, why);
}

/* A ZeRO stage, or a word about a universal tree. */
static bool set_stage(void *ctx, const char *name, const char *text,
		      struct errmsg *why)
{
	struct convert *const c = ctx;

	if (*text < '1' || *text > '3' || text[1])
		return set_plan(ctx, name, text, why);
	c->plan.type.stage = (unsigned)(*text - '0');
	return true;
}

/* Check that the options suit the kind of tree. */
static int check_options(const struct convert *c, char **argv)
{
	const bool zero = c->plan.type.kind == PLAN_RESHARD;
	const bool weights = c->plan.type.kind != PLAN_UNIVERSAL && !zero;

	if (c->has_dtype && c->plan.type.kind != PLAN_HF)
		return cmd_usage(argv[0], "--dtype requires --to hf");
	if (c->plan.shard_size && !weights)
		return cmd_usage(argv[0], "--shard-size requires --to hf or"
				 " --to fp32");
	if (c->plan.any_stage && c->plan.type.kind != PLAN_UNIVERSAL)
		return cmd_usage(argv[0], "--stage any applies only to universal"
					  " checkpoints");
	if (zero != (c->plan.type.ranks != 0))
		return cmd_usage(argv[0], zero ? "--to zero requires --ranks" :
						 "--ranks requires --to zero");
	if (c->plan.type.stage && !zero)
		return cmd_usage(argv[0], "--stage %u requires --to zero",
				 c->plan.type.stage);
	return CMD_OK;
}

/* Convert what operands [0, n), or else --input_folder, mean. */
static int convert_from(struct convert *c, char **operands, size_t n)
{
	char *const source = cmd_source(c->u, n ? operands : &c->in, n ? n : 1);
	int rc;

	if (!source)
		return CMD_FAILED;
	rc = convert_convert(c, source);
	free(source);
	return rc;
}

/* Convert what the arguments mean. */
static int convert_run(struct convert *c, char **argv, char **args, size_t n)
{
	int rc;

	if (!c->out && n)
		c->out = args[--n];
	if (!c->out || !(c->in || n))
		return cmd_usage(argv[0], "expected INPUT and OUTPUT");
	if (c->in && n)
		return cmd_usage(argv[0], "unexpected argument '%s'", args[0]);
	rc = check_options(c, argv);
	return rc == CMD_OK ? convert_from(c, args, n) : rc;
}

int cmd_convert(struct uckpt *u, int argc, char **argv)
{
	struct convert c = { .u = u };
	struct cmd_number ranks = { &c.plan.type.ranks, RESHARD_RANKS_MAX };
	struct cmd_number readers = { &c.readers, WORKERS_MAX };
	struct cmd_number writers = { &c.writers, WORKERS_MAX };
	const struct cmd_option options[] = {
		{ "to", 0, "universal|hf|fp32|zero",
		  "universal tree (default), model.safetensors for\n"
		  "transformers, pytorch_model.bin, or ZeRO checkpoint",
		  .set = set_plan, .ctx = &c,
		  .words = "'universal', 'hf', 'fp32' or 'zero'" },
		{ "ranks", 0, "N",
		  "number of data-parallel ranks, with --to zero",
		  .set = cmd_set_number, .ctx = &ranks,
		  .what = "a number of ranks (1 to 4096)" },
		{ "dtype", 0, "fp32|bf16|fp16",
		  "type of the weights, with --to hf", .set = set_plan,
		  .ctx = &c, .words = "'fp32', 'bf16' or 'fp16'" },
		{ "shard-size", 0, "SIZE",
		  "largest file of weights, such as 500MB\n"
		  "(default: 5GB)",
		  .set = set_plan, .ctx = &c,
		  .what = "a size in KB, MB, GB or TB" },
		{ "input_folder", 0, "DIR", "same as INPUT", .text = &c.in },
		{ "output_folder", 0, "DIR", "same as OUTPUT", .text = &c.out },
		{ "num_extract_workers", 0, "N",
		  "shards read at once (default: processors)",
		  .set = cmd_set_number, .ctx = &readers,
		  .what = "a number of workers (1 to 4096)" },
		{ "num_merge_workers", 0, "N",
		  "files written at once (default: processors)",
		  .set = cmd_set_number, .ctx = &writers,
		  .what = "a number of workers (1 to 4096)" },
		{ "no_strict", 0, NULL,
		  "accept patterns that match no parameter", .flag = &c.lenient },
		{ "crc", 0, "exact|zero",
		  "compute checksums in .pt files (default), or\n"
		  "leave them zero",
		  .set = set_plan, .ctx = &c, .words = "'exact' or 'zero'" },
		{ "stage", 0, "native|any",
		  "tree for the stage that saved the checkpoint\n"
		  "(default), or for any stage",
		  .set = set_stage, .ctx = &c,
		  .words = "'native', 'any', 1, 2 or 3" },
		{ "rules", 0, "FILE",
		  "merge rules that come before the checkpoint's own\n"
		  "(JSON)",
		  .set = set_plan, .ctx = &c },
		{ "preset", 0, "NAME",
		  "merge rules of Megatron-DeepSpeed:\n"
		  "megatron-qkv-thirds or megatron-qkv-by-head",
		  .set = set_plan, .ctx = &c },
		{ "stage", 0, "1|2|3",
		  "ZeRO stage, with --to zero (default: the stage\n"
		  "that saved the checkpoint)",
		  .set = set_stage, .ctx = &c,
		  .words = "'native', 'any', 1, 2 or 3" },
		{ "keep_temp_folder", 0, NULL, "accepted, without effect",
		  .flag = &c.keep_temp },
		{ "inject_missing_state", .help = "accepted, always on" },
	};
	const struct cmd_syntax syntax = {
		"usage: ucckpt convert [OPTION]... INPUT... OUTPUT\n"
		"\n"
		"Write the universal tree, or the weights, of the ZeRO checkpoint in INPUT (of a\n"
		"tag, or of a run for its newest tag) or of a Hugging Face model to the new\n"
		"directory OUTPUT; or the ZeRO checkpoint itself for another number of ranks.\n"
		"Several INPUTs are one checkpoint whose files are spread over them.\n"
		"For a universal tree, also write latest_universal beside it.",
		NULL, options, COUNT(options), -1, NULL,
	};
	int rc;

	if (cmd_parse(argc, argv, &syntax, &rc))
		rc = convert_run(&c, argv, argv + optind, (size_t)(argc - optind));
	user_rules_done(&c.rules);
	return rc;
}
