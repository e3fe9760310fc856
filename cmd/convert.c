/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt convert: writes the trees that a mount shows.  Takes the options of DeepSpeed's
 * ds_to_universal.py, so that it can replace it in scripts.
 */
#include <errno.h>
#include <getopt.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/base/array.h"
#include "ckpt/base/text.h"
#include "cmd/cmd.h"
#include "cmd/progress.h"

/* How a tree is loaded, identified by a file that only this kind has. */
static const struct {
	const char *file;
	const char *call; /* call, up to the path */
	bool tag; /* the call takes the parent's path, and a name */
	const char *more;
} loaders[] = {
	{ "zero", "engine.load_checkpoint(", true,
	  ", with {\"checkpoint\": {\"load_universal\": true}} in DeepSpeed's configuration" },
	{ "mp_rank_00_model_states.pt", "engine.load_checkpoint(", true, "" },
	{ "zero_pp_rank_0_mp_rank_00_model_states.pt", "engine.load_checkpoint(", true, "" },
	{ ".metadata", "torch.distributed.checkpoint.load(state, checkpoint_id=", false, "" },
	{ "adapter_config.json", "peft.PeftModel.from_pretrained(model, ", false, "" },
	{ "config.json", "AutoModelForCausalLM.from_pretrained(", false, "" },
	{ "", "accelerate.load_checkpoint_in_model(model, ", false, "" },
};

static bool has_file(const char *dir, const char *file)
{
	char *path = NULL;
	const bool has = asprintf(&path, "%s/%s", dir, file) >= 0 &&
			 access(path, F_OK) == 0;

	free(path);
	return has;
}

static void say_next(const char *out)
{
	char *dir = strdup(out), *name = strdup(out);
	size_t i = 0;

	while (i < COUNT(loaders) && !has_file(out, loaders[i].file))
		i++;
	if (dir && name && i < COUNT(loaders))
		cmd_say("to load it: %s\"%s%s%s\")%s", loaders[i].call,
			loaders[i].tag ? dirname(dir) : out,
			loaders[i].tag ? "\", tag=\"" : "",
			loaders[i].tag ? basename(name) : "", loaders[i].more);
	free(dir);
	free(name);
}

/* Convert `n` paths to `out`. */
static int convert(struct uckpt *u, char **argv, const char *const *paths, size_t n,
		   const char *out)
{
	struct uckpt_error err = { "" };
	struct uckpt_done done = { 0 };
	char kept[SIZE_TEXT_LEN + 32] = "nothing was written; the same command begins again";
	char number[SIZE_TEXT_LEN];
	int rc;

	progress_protect_output();
	rc = uckpt_convert(u, paths, n, out, &done, &err);
	if (rc == -EINVAL)
		return cmd_usage(argv[0], "%s", err.text);
	if (rc && done.files)
		snprintf(kept, sizeof(kept), "files are kept (%s), and the same command goes on",
			 count_text(done.files, number));
	if (rc)
		progress_exit(rc, out, kept, &err, CMD_FAILED);
	if (rc && rc != -EINTR && done.files)
		cmd_say("%s: %s", out, kept);
	if (rc)
		return CMD_FAILED;
	progress_print(out, &done, "");
	say_next(out);
	return CMD_OK;
}

/* Convert a tag of the run in `n` paths. */
static int convert_tag(struct uckpt *u, char **argv, const char *const *runs, size_t n,
		       const char *tag, const char *out)
{
	char **paths = calloc(n, sizeof(*paths));
	bool failed = !paths;
	int rc = CMD_FAILED;

	for (size_t i = 0; !failed && i < n; i++)
		failed = asprintf(&paths[i], "%s/%s", runs[i], tag) < 0;
	if (failed)
		cmd_say("out of memory");
	else
		rc = convert(u, argv, (const char *const *)paths, n, out);
	for (size_t i = 0; paths && i < n; i++)
		free(paths[i]);
	free(paths);
	return rc;
}

int cmd_convert(struct uckpt *u, int argc, char **argv)
{
	const char *in = NULL, *out = NULL, *tag = NULL;
	const char *const *inputs;
	const struct cmd_option options[] = {
		{ "view", 0, "universal|hf|fp32|dcp|zero",
		  "universal tree (default), model.safetensors for\n"
		  "transformers, pytorch_model.bin, PyTorch distributed\n"
		  "checkpoint, or ZeRO checkpoint",
		  .set = "view" },
		{ "tag", 0, "TAG",
		  "this tag of the run (default: the newest)", .text = &tag },
		{ "ranks", 0, "N",
		  "number of data-parallel ranks, with --view zero",
		  .set = "ranks" },
		{ "stage", 0, "1|2|3",
		  "ZeRO stage, with --view zero (default: the stage\n"
		  "that saved the checkpoint)",
		  .set = "stage" },
		{ "stage", 0, "native|any",
		  "tree for the stage that saved the checkpoint\n"
		  "(default), or for any stage",
		  .set = "stage" },
		{ "hf_dtype", 0, "fp32|bf16|fp16",
		  "type of the weights, with --view hf", .set = "hf_dtype" },
		{ "hf_shard_size", 0, "SIZE",
		  "largest file of weights, such as 500MB\n"
		  "(default: 5GB)",
		  .set = "hf_shard_size" },
		{ "hf_config", 0, "DIR|MODEL",
		  "where config.json is, with --view hf", .set = "hf_config" },
		{ "dcp_style", 0, "STYLE",
		  "naming convention, with --view dcp: fsdp2 (default),\n"
		  "flat, titan, titan_fused, accelerate, lightning or fabric",
		  .set = "dcp_style" },
		{ "dcp_ranks", 0, "N",
		  "number of ranks that will load it, with --view dcp\n"
		  "(default: any)",
		  .set = "dcp_ranks" },
		{ "model", 0, "NAME",
		  "of a distributed checkpoint: the dict of weights,\n"
		  "such as averaged ones", .set = "model" },
		{ "head_dim", 0, "ROWS",
		  "of torchtitan's fused projections: rows of a head",
		  .set = "head_dim" },
		{ "rules", 0, "FILE",
		  "merge rules that come before the checkpoint's own\n"
		  "(JSON)",
		  .set = "rules" },
		{ "preset", 0, "NAME",
		  "merge rules of Megatron-DeepSpeed:\n"
		  "megatron-qkv-thirds or megatron-qkv-by-head",
		  .set = "preset" },
		{ "crc", 0, "exact|zero",
		  "compute checksums in .pt files (default), or\n"
		  "leave them zero",
		  .set = "crc" },
		CMD_PART,
		{ "readers", 0, "N",
		  "shards read at once (default: processors)",
		  .set = "readers" },
		{ "jobs", 'j', "N",
		  "files written at once (default: processors)",
		  .set = "jobs" },
		{ "no_strict", 0, NULL,
		  "accept patterns that match no parameter",
		  .set = "no_strict" },
		/* Names that scripts use: ours until it was that of the mount, and those of
		 * ds_to_universal.py. */
		{ "to", 0, "VIEW", "same as --view", .set = "view" },
		{ "input_folder", 0, "DIR", "same as INPUT", .text = &in },
		{ "output_folder", 0, "DIR", "same as OUTPUT", .text = &out },
		{ "num_extract_workers", 0, "N", "same as --readers", .set = "readers" },
		{ "num_merge_workers", 0, "N", "same as --jobs", .set = "jobs" },
		{ "inject_missing_state", .help = "always done" },
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
	char **args;
	size_t n;
	int rc;

	if (!cmd_parse(u, argc, argv, &syntax, &rc))
		return rc;
	args = argv + optind;
	n = (size_t)(argc - optind);
	if (!out && n)
		out = args[--n];
	if (!out || !(in || n))
		return cmd_usage(argv[0], "expected INPUT and OUTPUT");
	if (in && n)
		return cmd_usage(argv[0], "unexpected argument '%s'", args[0]);
	inputs = in ? &in : (const char *const *)args;
	n = in ? 1 : n;
	return tag ? convert_tag(u, argv, inputs, n, tag, out)
		   : convert(u, argv, inputs, n, out);
}
