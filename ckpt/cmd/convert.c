/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt convert: on a disk what a mount shows, for machines without FUSE.
 *
 * Takes the options of DeepSpeed's ds_to_universal.py, so that it can stand in
 * for it in scripts.  What differs: the output appears whole or not at all
 * (outdir.h), there is no scratch copy of the checkpoint, and a checkpoint
 * without universal_checkpoint_info needs no switch.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cmd/cmd.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/weights/weights_file.h"
#include "ckpt/weights/weights_split.h"
#include "ckpt/sys/outdir.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/plan/plan.h"
#include "ckpt/cmd/progress.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/convert/treewrite.h"

#define WORKERS_MAX 4096
#define POINTER_FILE "latest_universal"

struct convert {
	const char *in;
	const char *out;
	unsigned readers; /* of shards at once; 0: one per processor */
	unsigned writers; /* of files at once; 0: one per processor */
	bool lenient;
	bool keep_temp;
	bool has_dtype;
	struct plan_options plan;
};

static atomic_int caught; /* written by the handler, read by all threads */

static void catch(int sig)
{
	caught = sig;
}

/* From here on a signal ends the work in good order, and a file size limit is
 * an error like any other. */
static void set_signals(void)
{
	const struct sigaction stop = { .sa_handler = catch };
	const struct sigaction ignore = { .sa_handler = SIG_IGN };
	static const int stops[] = { SIGINT, SIGTERM, SIGHUP };

	for (size_t i = 0; i < sizeof(stops) / sizeof(*stops); i++) {
		struct sigaction old;

		/* nohup(1) and shells' background jobs ignore some. */
		if (sigaction(stops[i], NULL, &old) == 0 &&
		    old.sa_handler != SIG_IGN)
			sigaction(stops[i], &stop, NULL);
	}
	sigaction(SIGXFSZ, &ignore, NULL);
	sigaction(SIGPIPE, &ignore, NULL);
}

static bool on_progress(void *ctx, uint64_t bytes)
{
	progress_add(ctx, bytes);
	return !caught;
}

/* Patterns that match nothing mean that the wrong rules are applied. */
static int check_patterns(const struct convert *c, struct plan *p)
{
	const struct resolve *const r = plan_resolve(p);
	const struct model *const m = r ? &r->model : NULL;

	if (!m || !m->nunused || c->lenient)
		return CMD_OK;
	for (size_t i = 0; i < m->nunused; i++)
		cmd_say("%s: a pattern of universal_checkpoint_info matches no"
			" parameter: %s", r->dir.model[0].path, m->unused[i]);
	cmd_say("nothing was written; --no_strict ignores such patterns");
	return CMD_FAILED;
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
	struct outdir out;
	int rc = outdir_open(&out, c->out, err);

	if (rc)
		return rc;
	progress_init(&progress, bytes);
	rc = treewrite_save(p, out.fd, &how, err);
	if (!rc && caught)
		rc = -EINTR;
	if (!rc)
		rc = outdir_commit(&out, c->plan.kind == PLAN_UNIVERSAL ?
						 POINTER_FILE : NULL, err);
	outdir_close(&out);
	*seconds = progress_seconds(&progress);
	progress_done(&progress);
	return rc;
}

static int fail(const struct convert *c, int rc, const struct errmsg *err)
{
	if (rc == -EINTR && caught)
		cmd_say("%s: interrupted by %s; nothing was left there",
			c->out, strsignal(caught));
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
	if (plan_resolve(p))
		plan_resolve(p)->readers = c->readers;
	rc = plan_check(p, &err);
	if (!rc)
		rc = plan_totals(p, &files, &bytes, &err);
	if (!rc)
		rc = write_tree(c, p, bytes, &seconds, &err);
	if (rc)
		return fail(c, rc, &err);
	say_warnings(p);
	printf("%s: %" PRIu64 " files, %s, in %.1f s (%s/s)\n", c->out, files,
	       cmd_size(bytes, size), seconds,
	       cmd_size((uint64_t)((double)bytes / (seconds + 1e-9)), rate));
	return CMD_OK;
}

static int convert(const struct convert *c)
{
	enum tags_choice choice;
	struct errmsg err = { "" };
	struct plan *p = NULL;
	char *dir = NULL;
	int rc = tags_choose(c->in, &dir, &choice, &err);

	if (!rc)
		rc = plan_open(dir, &c->plan, &p, &err);
	if (rc) {
		free(dir);
		return fail(c, rc, &err);
	}
	if (choice != TAGS_ITSELF)
		cmd_say("converting %s", dir);
	if (c->keep_temp)
		cmd_say("--keep_temp_folder: nothing to keep, no temporary"
			" copy is made");
	set_signals();
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
	OPT_DIALECT,
	OPT_TO,
	OPT_DTYPE,
	OPT_SHARD_SIZE,
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
	{ "dialect", required_argument, NULL, OPT_DIALECT },
	{ "to", required_argument, NULL, OPT_TO },
	{ "dtype", required_argument, NULL, OPT_DTYPE },
	{ "shard-size", required_argument, NULL, OPT_SHARD_SIZE },
	{ "help", no_argument, NULL, 'h' },
	{ 0 },
};

static void print_help(void)
{
	puts("usage: ucckpt convert [OPTION]... INPUT OUTPUT\n"
	     "\n"
	     "Write the universal checkpoint of the ZeRO checkpoint in INPUT (a"
	     " tag's\n"
	     "directory, or a run's: then its newest tag), or of a Hugging Face"
	     " model, to the\n"
	     "new directory OUTPUT, and the file latest_universal beside it; or"
	     " weights.\n"
	     "\n"
	     "      --to universal|hf|fp32   a universal checkpoint (default), or"
	     " weights for\n"
	     "                               transformers, or in"
	     " pytorch_model.bin\n"
	     "      --dtype fp32|bf16|fp16   with --to hf: the type of the"
	     " weights\n"
	     "      --shard-size SIZE        of weights: the most that a file may"
	     " have, as\n"
	     "                               500MB or 5GB (default)\n"
	     "      --input_folder DIR       the same as INPUT\n"
	     "      --output_folder DIR      the same as OUTPUT\n"
	     "      --num_extract_workers N  shards read at once"
	     " (default: processors)\n"
	     "      --num_merge_workers N    files written at once"
	     " (default: processors)\n"
	     "      --no_strict              accept patterns that match no"
	     " parameter\n"
	     "      --crc exact|zero         checksums in .pt files: computed"
	     " (default), or\n"
	     "                               left zero\n"
	     "      --dialect own|any        a tree for the stage it was saved"
	     " with\n"
	     "                               (default), or for any stage\n"
	     "      --keep_temp_folder       accepted; there is none\n"
	     "      --inject_missing_state   accepted; always done\n"
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

/* `text` is one of two words: is it the second? */
static bool parse_choice(const char *text, const char *first,
			 const char *second, bool *is_second)
{
	*is_second = strcmp(text, second) == 0;
	return *is_second || strcmp(text, first) == 0;
}

/* Options about the kind of tree; as set_option. */
static int set_kind(struct convert *c, char **argv, int code)
{
	if (code == OPT_TO && !plan_parse_kind(optarg, &c->plan.kind))
		return cmd_usage(argv[0], "--to is 'universal', 'hf' or"
				 " 'fp32', not '%s'", optarg);
	if (code == OPT_DTYPE && !hffile_parse_dtype(optarg, &c->plan.dtype))
		return cmd_usage(argv[0], "--dtype is 'fp32', 'bf16' or"
				 " 'fp16', not '%s'", optarg);
	if (code == OPT_SHARD_SIZE &&
	    !hfsplit_parse_size(optarg, &c->plan.shard_size))
		return cmd_usage(argv[0], "'%s' is no size in KB, MB, GB or"
				 " TB", optarg);
	c->has_dtype |= code == OPT_DTYPE;
	return CMD_OK;
}

/* CMD_OK, or what cmd_usage returned. */
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
			return cmd_usage(argv[0], "'%s' is no number of workers"
					 " (1 to %d)", optarg, WORKERS_MAX);
		break;
	case OPT_CRC:
		if (!parse_choice(optarg, "exact", "zero",
				  &c->plan.crc_zero))
			return cmd_usage(argv[0], "--crc is 'exact' or 'zero',"
					 " not '%s'", optarg);
		break;
	case OPT_DIALECT:
		if (!parse_choice(optarg, "own", "any", &c->plan.any_stage))
			return cmd_usage(argv[0], "--dialect is 'own' or 'any',"
					 " not '%s'", optarg);
		break;
	case OPT_TO:
	case OPT_DTYPE:
	case OPT_SHARD_SIZE: return set_kind(c, argv, code);
	default: return cmd_bad_option(argv, code);
	}
	return CMD_OK;
}

/* Do options and kind of tree go together? */
static int check_options(const struct convert *c, char **argv)
{
	const bool weights = c->plan.kind != PLAN_UNIVERSAL;

	if (c->has_dtype && c->plan.kind != PLAN_HF)
		return cmd_usage(argv[0], "--dtype needs --to hf");
	if (c->plan.shard_size && !weights)
		return cmd_usage(argv[0], "--shard-size needs --to hf or"
				 " --to fp32");
	if (c->plan.any_stage && weights)
		return cmd_usage(argv[0], "--dialect is of universal"
				 " checkpoints");
	return CMD_OK;
}

int cmd_convert(int argc, char **argv)
{
	struct convert c = { .plan.hugging_face = true };
	int code, rc;

	while ((code = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		if (code == 'h') {
			print_help();
			return CMD_OK;
		}
		rc = set_option(&c, argv, code);
		if (rc != CMD_OK)
			return rc;
	}
	if (!c.in && optind < argc)
		c.in = argv[optind++];
	if (!c.out && optind < argc)
		c.out = argv[optind++];
	if (!c.in || !c.out)
		return cmd_usage(argv[0], "expected INPUT and OUTPUT");
	if (optind < argc)
		return cmd_usage(argv[0], "'%s' is one argument too many",
				 argv[optind]);
	rc = check_options(&c, argv);
	return rc == CMD_OK ? convert(&c) : rc;
}
