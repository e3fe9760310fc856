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

#include "ckpt/base/errmsg.h"
#include "ckpt/base/size.h"
#include "ckpt/cmd/cmd.h"
#include "ckpt/cmd/interrupt.h"
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
	char *in;
	const char *out;
	unsigned readers; /* shards read at once; 0: one per processor */
	unsigned writers; /* files written at once; 0: one per processor */
	bool lenient;
	bool keep_temp;
	bool has_dtype;
	struct plan_options plan;
	struct user_rules rules;
};

static bool on_progress(void *ctx, uint64_t bytes)
{
	progress_add(ctx, bytes);
	return !interrupt_signal();
}

/* A pattern without a match means that the merge rules are wrong. */
static int check_patterns(const struct convert *c, struct plan *p)
{
	const struct zero_checkpoint *const r = plan_zckpt(p);
	const struct model *const m = r ? &r->model : NULL;

	/* No rule applies when each model-parallel rank is re-cut for itself. */
	if (!m || !m->nunused || c->lenient || c->plan.type.kind == PLAN_RESHARD)
		return CMD_OK;
	for (size_t i = 0; i < m->nunused; i++)
		cmd_say("%s: a pattern of merge rules matches no parameter: %s", r->dir.model[0].path, m->unused[i]);
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

static int write_tree(const struct convert *c, struct plan *p, uint64_t bytes,
		      double *seconds, struct errmsg *err)
{
	struct progress progress;
	const struct treewrite_options how = {
		.shown = c->out,
		.width = c->writers ? c->writers : parallel_width(),
		.progress = on_progress,
		.ctx = &progress,
	};
	char pointer[POINTER_MAX];
	struct outdir out;
	int rc = outdir_open(&out, c->out, err);

	if (rc)
		return rc;
	progress_init(&progress, bytes);
	rc = treewrite_save(p, out.fd, &how, err);
	if (!rc && interrupt_signal())
		rc = -EINTR;
	if (!rc)
		rc = outdir_commit(&out, pointer_file(c, pointer), err);
	outdir_close(&out);
	*seconds = progress_seconds(&progress);
	progress_done(&progress);
	return rc;
}

static int convert_fail(const struct convert *c, int rc,
			const struct errmsg *err)
{
	if (rc == -EINTR && interrupt_signal())
		cmd_say("%s: interrupted by %s; nothing was written",
			c->out, strsignal(interrupt_signal()));
	else
		cmd_say("%s", err->text);
	return CMD_FAILED;
}

static void say_warnings(struct plan *p)
{
	struct errmsg text;
	size_t pos = 0;

	while (plan_warning(p, &pos, &text))
		cmd_say("warning: %s", text.text);
}

static int convert_plan(const struct convert *c, struct plan *p)
{
	struct errmsg err = { "" };
	uint64_t files, bytes;
	char size[CMD_SIZE_LEN], rate[CMD_SIZE_LEN];
	double seconds;
	int rc = check_patterns(c, p);

	if (rc != CMD_OK)
		return rc;
	if (plan_zckpt(p))
		plan_zckpt(p)->readers = c->readers;
	rc = plan_check(p, &err);
	if (!rc)
		rc = plan_totals(p, &files, &bytes, &err);
	if (!rc)
		rc = write_tree(c, p, bytes, &seconds, &err);
	if (rc)
		return convert_fail(c, rc, &err);
	say_warnings(p);
	cmd_put(c->out);
	printf(": %" PRIu64 " files, %s, in %.1f s (%s/s)\n", files,
	       cmd_size(bytes, size), seconds,
	       cmd_size((uint64_t)((double)bytes / (seconds + 1e-9)), rate));
	return CMD_OK;
}

static int convert_convert(const struct convert *c, const char *source)
{
	enum tags_choice choice;
	struct errmsg err = { "" };
	struct plan *p = NULL;
	char *dir = NULL;
	int rc = tags_choose(source, &dir, &choice, &err);

	if (!rc)
		rc = plan_open(dir, &c->plan, &p, &err);
	if (rc) {
		free(dir);
		return convert_fail(c, rc, &err);
	}
	if (choice != TAGS_ITSELF)
		cmd_say("converting %s", dir);
	if (c->keep_temp)
		cmd_say("--keep_temp_folder has no effect: no temporary copy"
			" is made");
	interrupt_catch();
	rc = convert_plan(c, p);
	plan_close(p);
	free(dir);
	return rc;
}

/* --- command line ---------------------------------------------------------- */

enum option_code {
	OPT_INPUT = 256,
	OPT_OUTPUT,
	OPT_READERS,
	OPT_WRITERS,
	OPT_KEEP_TEMP,
	OPT_NO_STRICT,
	OPT_INJECT,
	OPT_CRC,
	OPT_STAGE,
	OPT_RULES,
	OPT_PRESET,
	OPT_TO,
	OPT_DTYPE,
	OPT_SHARD_SIZE,
	OPT_RANKS,
};

static const struct option options[] = {
	{ "input_folder", required_argument, NULL, OPT_INPUT },
	{ "output_folder", required_argument, NULL, OPT_OUTPUT },
	{ "num_extract_workers", required_argument, NULL, OPT_READERS },
	{ "num_merge_workers", required_argument, NULL, OPT_WRITERS },
	{ "keep_temp_folder", no_argument, NULL, OPT_KEEP_TEMP },
	{ "no_strict", no_argument, NULL, OPT_NO_STRICT },
	{ "inject_missing_state", no_argument, NULL, OPT_INJECT },
	{ "crc", required_argument, NULL, OPT_CRC },
	{ "stage", required_argument, NULL, OPT_STAGE },
	{ "rules", required_argument, NULL, OPT_RULES },
	{ "preset", required_argument, NULL, OPT_PRESET },
	{ "ranks", required_argument, NULL, OPT_RANKS },
	{ "to", required_argument, NULL, OPT_TO },
	{ "dtype", required_argument, NULL, OPT_DTYPE },
	{ "shard-size", required_argument, NULL, OPT_SHARD_SIZE },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static void convert_print_help(void)
{
	puts("usage: ucckpt convert [OPTION]... INPUT... OUTPUT\n"
	     "\n"
	     "Write the universal tree, or the weights, of the ZeRO checkpoint in"
	     " INPUT (of a\n"
	     "tag, or of a run for its newest tag) or of a Hugging Face model to"
	     " the new\n"
	     "directory OUTPUT; or the ZeRO checkpoint itself for another number"
	     " of ranks.\n"
	     "Several INPUTs are one checkpoint whose files are spread over"
	     " them.\n"
	     "For a universal tree, also write latest_universal beside it.\n"
	     "\n"
	     "      --to universal|hf|fp32|zero\n"
	     "                               universal tree (default),"
	     " model.safetensors for\n"
	     "                               transformers, pytorch_model.bin, or"
	     " ZeRO checkpoint\n"
	     "      --ranks N                number of data-parallel ranks, with"
	     " --to zero\n"
	     "      --dtype fp32|bf16|fp16   type of the weights, with --to hf\n"
	     "      --shard-size SIZE        largest file of weights, such as"
	     " 500MB\n"
	     "                               (default: 5GB)\n"
	     "      --input_folder DIR       same as INPUT\n"
	     "      --output_folder DIR      same as OUTPUT\n"
	     "      --num_extract_workers N  shards read at once"
	     " (default: processors)\n"
	     "      --num_merge_workers N    files written at once"
	     " (default: processors)\n"
	     "      --no_strict              accept patterns that match no"
	     " parameter\n"
	     "      --crc exact|zero         compute checksums in .pt files"
	     " (default), or\n"
	     "                               leave them zero\n"
	     "      --stage native|any       tree for the stage that saved the"
	     " checkpoint\n"
	     "                               (default), or for any stage\n"
	     "      --rules FILE             merge rules that come before the"
	     " checkpoint's own\n"
	     "                               (JSON)\n"
	     "      --preset NAME            merge rules of Megatron-DeepSpeed:\n"
	     "                               megatron-qkv-thirds or"
	     " megatron-qkv-by-head\n"
	     "      --stage 1|2|3            ZeRO stage, with --to zero"
	     " (default: the stage\n"
	     "                               that saved the checkpoint)\n"
	     "      --keep_temp_folder       accepted, without effect\n"
	     "      --inject_missing_state   accepted, always on\n"
	     "  -h, --help                   print this");
}

static bool parse_workers(const char *text, unsigned *out)
{
	char *end;
	unsigned long n;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno || *end || *text < '0' || *text > '9' || n < 1 ||
	    n > WORKERS_MAX)
		return false;
	*out = (unsigned)n;
	return true;
}

static bool parse_ranks(const char *text, unsigned *out)
{
	return parse_workers(text, out) && *out <= RESHARD_RANKS_MAX;
}

/* Parse one of two words; `*out` is true for the second one.  False for other
 * text. */
static bool parse_choice(const char *text, const char *first,
			 const char *second, bool *is_second)
{
	*is_second = strcmp(text, second) == 0;
	return *is_second || strcmp(text, first) == 0;
}

/* Parse a ZeRO stage, or "native" or "any" for a universal tree. */
static bool parse_stage(const char *text, struct plan_options *out)
{
	if (*text < '1' || *text > '3' || text[1])
		return parse_choice(text, "native", "any", &out->any_stage);
	out->type.stage = (unsigned)(*text - '0');
	return true;
}

/* Read merge rules from a file or a preset, as set_option. */
static int set_rules(struct convert *c, int code)
{
	struct errmsg err = { "" };
	const int rc = code == OPT_RULES ?
			       user_rules_read(&c->rules, optarg, &err) :
			       user_rules_preset(&c->rules, optarg, &err);

	c->plan.rules = &c->rules;
	if (rc)
		cmd_say("%s", err.text);
	return rc ? CMD_USAGE : CMD_OK;
}

/* Set an option about the kind of tree, as set_option. */
static int set_kind(struct convert *c, char **argv, int code)
{
	if (code == OPT_TO && !view_type_parse_kind(optarg, &c->plan.type.kind))
		return cmd_usage(argv[0], "--to must be 'universal', 'hf', 'fp32' or"
				 " 'zero', not '%s'", optarg);
	if (code == OPT_RANKS && !parse_ranks(optarg, &c->plan.type.ranks))
		return cmd_usage(argv[0], "'%s' is not a number of ranks (1 to"
				 " %u)", optarg, RESHARD_RANKS_MAX);
	if (code == OPT_DTYPE &&
	    !plan_parse_dtype(optarg, &c->plan.dtype))
		return cmd_usage(argv[0], "--dtype must be 'fp32', 'bf16' or"
				 " 'fp16', not '%s'", optarg);
	if (code == OPT_SHARD_SIZE &&
	    !size_parse_decimal(optarg, &c->plan.shard_size))
		return cmd_usage(argv[0], "'%s' is not a size in KB, MB, GB or"
				 " TB", optarg);
	c->has_dtype |= code == OPT_DTYPE;
	return CMD_OK;
}

/* Set an option.  Returns CMD_OK or CMD_USAGE. */
static int set_option(struct convert *c, char **argv, int code)
{
	switch (code) {
	case OPT_INPUT: c->in = optarg; break;
	case OPT_OUTPUT: c->out = optarg; break;
	case OPT_KEEP_TEMP: c->keep_temp = true; break;
	case OPT_NO_STRICT: c->lenient = true; break;
	case OPT_INJECT: break;
	case OPT_READERS:
	case OPT_WRITERS:
		if (!parse_workers(optarg, code == OPT_READERS ? &c->readers :
								 &c->writers))
			return cmd_usage(argv[0], "'%s' is not a number of workers"
					 " (1 to %d)", optarg, WORKERS_MAX);
		break;
	case OPT_CRC:
		if (!parse_choice(optarg, "exact", "zero",
				  &c->plan.crc_zero))
			return cmd_usage(argv[0], "--crc must be 'exact' or 'zero',"
					 " not '%s'", optarg);
		break;
	case OPT_STAGE:
		if (!parse_stage(optarg, &c->plan))
			return cmd_usage(argv[0],
					 "--stage must be 'native', 'any', 1, 2"
					 " or 3, not '%s'",
					 optarg);
		break;
	case OPT_RULES:
	case OPT_PRESET: return set_rules(c, code);
	case OPT_TO:
	case OPT_DTYPE:
	case OPT_SHARD_SIZE:
	case OPT_RANKS: return set_kind(c, argv, code);
	default: return cmd_bad_option(argv, options, code);
	}
	return CMD_OK;
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
	char *const source = cmd_source(n ? operands : &c->in, n ? n : 1);
	int rc;

	if (!source)
		return CMD_FAILED;
	rc = convert_convert(c, source);
	free(source);
	return rc;
}

static int convert_run(struct convert *c, int argc, char **argv)
{
	int code, rc, n;

	while ((code = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (code == 'h') {
			convert_print_help();
			return CMD_OK;
		}
		rc = set_option(c, argv, code);
		if (rc != CMD_OK)
			return rc;
	}
	n = argc - optind;
	if (!c->out && n)
		c->out = argv[optind + --n];
	if (!c->out || !(c->in || n))
		return cmd_usage(argv[0], "expected INPUT and OUTPUT");
	if (c->in && n)
		return cmd_usage(argv[0], "unexpected argument '%s'",
				 argv[optind]);
	rc = check_options(c, argv);
	return rc == CMD_OK ? convert_from(c, argv + optind, (size_t)n) : rc;
}

int cmd_convert(int argc, char **argv)
{
	struct convert c = { .plan.hugging_face = true };
	const int rc = convert_run(&c, argc, argv);

	user_rules_done(&c.rules);
	return rc;
}
