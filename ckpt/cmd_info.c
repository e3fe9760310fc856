/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucckpt info: what a checkpoint is, and everything that is wrong with it.
 *
 * A mount stops at the first problem, which is all that it needs to know; who
 * has to repair or fetch again wants the whole list.  So here every shard is
 * read by itself, also when others are damaged.
 */
#include "ckpt/cmd_info.h"

#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/cast.h"
#include "ckpt/cmd.h"
#include "ckpt/errmsg.h"
#include "ckpt/parallel.h"
#include "ckpt/plan.h"
#include "ckpt/ptfile.h"
#include "ckpt/resolve.h"

void info_add(struct info_lines *l, const char *fmt, ...)
{
	va_list ap;
	int n;

	if (l->n == l->cap) {
		l->cap = l->cap ? l->cap * 2 : 16;
		l->v = reallocarray(l->v, l->cap, sizeof(*l->v));
	}
	va_start(ap, fmt);
	n = l->v ? vasprintf(&l->v[l->n], fmt, ap) : -1;
	va_end(ap);
	if (n < 0) {
		cmd_say("out of memory");
		exit(CMD_FAILED);
	}
	l->n++;
}

static void free_lines(struct info_lines *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->v[i]);
	free(l->v);
}

const char *info_choice_text(enum tags_choice choice)
{
	switch (choice) {
	case TAGS_ITSELF: break;
	case TAGS_LATEST: return "named by latest";
	case TAGS_STEP: return "the highest step";
	case TAGS_MTIME: return "the last changed";
	case TAGS_NONE: return "no ZeRO checkpoint";
	}
	return "";
}

bool info_state_number(const struct shard_state *st, double *value)
{
	float f;

	switch (st->kind) {
	case STATE_FLAT: return false;
	case STATE_INT: *value = (double)st->i; return true;
	case STATE_FLOAT: *value = st->f; return true;
	case STATE_TENSOR: break;
	}
	if (st->flat.dtype >= DTYPE_C64)
		return false;
	cast_to_float(st->flat.dtype, st->bytes, &f, 1);
	*value = (double)f;
	return true;
}

const char *info_state_type(const struct shard_state *st)
{
	return st->kind == STATE_INT   ? "int" :
	       st->kind == STATE_FLOAT ? "float" :
					 dtype_name(st->flat.dtype);
}

/* --- collecting ------------------------------------------------------------ */

static void count_params(struct info *info)
{
	const struct catalogue *const c = &plan_resolve(info->plan)->cat;

	for (size_t i = 0; i < c->nparams; i++) {
		const struct param *const p = &c->params[i];

		*(p->module ? &info->module_params : &info->params) += 1;
		*(p->module ? &info->module_elements : &info->elements) +=
			p->numel;
	}
}

static void add_warnings(struct info *info)
{
	const struct catalogue *const c = &plan_resolve(info->plan)->cat;

	for (size_t i = 0; i < c->nwarnings; i++)
		info_add(&info->warnings, "%s", c->warnings[i]);
	for (size_t i = 0; i < c->nunused; i++)
		info_add(&info->warnings,
			 "a pattern of universal_checkpoint_info matches no"
			 " parameter: %s", c->unused[i]);
	if (info->profile && info->profile->mapping_ignored)
		info_add(&info->warnings,
			 "param_slice_mappings are wrong%s: parameters are"
			 " placed in the order of param_shapes instead",
			 c->round_robin ? " (round_robin_gradients)" : "");
}

/* What may have been meant by `run` instead: `latest` may name a tag that is
 * gone, or not of ZeRO. */
static void check_choice(struct info *info, const char *run)
{
	struct tag_list tags;

	if (info->choice == TAGS_NONE && tags_exist_below(run))
		info_add(&info->warnings,
			 "%s: there are checkpoints further down: name the"
			 " directory that they are in", run);
	if (info->choice != TAGS_STEP && info->choice != TAGS_MTIME)
		return;
	if (tags_list(run, &tags, NULL))
		return;
	if (tags.latest)
		info_add(&info->warnings,
			 "%s/latest names %s, which is no ZeRO checkpoint", run,
			 tags.latest);
	tags_done(&tags);
}

static void read_profile(struct info *info)
{
	struct errmsg err = { "" };
	int rc = resolve_profile(plan_resolve(info->plan), &info->profile,
				 &err);

	if (!rc)
		rc = plan_totals(info->plan, &info->files, &info->bytes, &err);
	if (rc)
		info_add(&info->problems, "%s", err.text);
}

struct checking {
	struct info *info;
	struct errmsg *err; /* of each file */
};

/* A shard by itself, when rank 0's is of no help. */
static int check_alone(struct resolve *r, unsigned rank, struct errmsg *err)
{
	struct layout layout = { .ranks = r->dir.dp_degree };
	struct shard s;
	const int rc = shard_load(&s, &r->dir.optim[rank], rank, &r->cat,
				  &layout, err);

	if (!rc)
		shard_done(&s);
	layout_done(&layout);
	return rc;
}

/* Optimizer shard i, or model-states file i - noptim. */
static int check_file(void *ctx, size_t i)
{
	struct checking *const c = ctx;
	struct resolve *const r = plan_resolve(c->info->plan);
	struct errmsg *const err = &c->err[i];
	struct ptfile pt;

	if (i >= r->dir.noptim) {
		if (ptfile_open(&pt, r->dir.model[i - r->dir.noptim].path,
				err) == 0)
			ptfile_close(&pt);
	} else if (!c->info->profile) {
		check_alone(r, (unsigned)i, err);
	} else {
		resolve_shards(r, (unsigned)i, (unsigned)i + 1, err);
	}
	return 0; /* go on with the others */
}

static void check_files(struct info *info)
{
	struct resolve *const r = plan_resolve(info->plan);
	const size_t n = r->dir.noptim + r->dir.nmodel;
	struct checking c = { .info = info,
			      .err = calloc(n, sizeof(*c.err)) };

	if (!c.err) {
		info_add(&info->problems, "out of memory");
		return;
	}
	/* The parallel way to what is below, if all are well. */
	if (info->profile)
		resolve_shards(r, 0, r->dir.dp_degree, NULL);
	parallel_for(n, parallel_width(), check_file, &c);
	/* Rank 0's problem has been told. */
	for (size_t i = info->profile ? 0 : 1; i < n; i++)
		if (c.err[i].text[0])
			info_add(&info->problems, "%s", c.err[i].text);
	free(c.err);
}

static void collect(struct info *info, const char *path)
{
	static const struct plan_options options = { .crc_zero = false };
	struct errmsg err = { "" };
	const int rc = plan_open(info->dir, &options, &info->plan, &err);

	check_choice(info, path);
	if (rc) {
		info_add(&info->problems, "%s", err.text);
		if (rc == -EBADMSG)
			info_survey(info);
		return;
	}
	count_params(info);
	read_profile(info);
	if (!info->quick)
		check_files(info);
	add_warnings(info);
}

/* --- command line ---------------------------------------------------------- */

static int show(struct info *info, const char *path, bool json)
{
	struct errmsg err = { "" };
	int rc = tags_choose(path, &info->dir, &info->choice, &err);

	if (rc) {
		cmd_say("%s", err.text);
		return CMD_FAILED;
	}
	collect(info, path);
	if (json)
		rc = cmd_json_print(info_to_json(info));
	else
		info_print_text(info);
	if (info->problems.n)
		rc = CMD_FAILED;
	plan_close(info->plan);
	free_lines(&info->warnings);
	free_lines(&info->problems);
	free(info->dir);
	return rc;
}

static void print_help(void)
{
	puts("usage: ucckpt info [--json] [--quick] DIRECTORY\n"
	     "\n"
	     "Tell what the ZeRO checkpoint in DIRECTORY (a tag's, or a run's:"
	     " then its\n"
	     "newest tag) is, and everything that is missing or damaged.\n"
	     "\n"
	     "      --json   print JSON\n"
	     "      --quick  look at one rank's files only\n"
	     "  -h, --help   print this\n"
	     "\n"
	     "Exit status: 0 it is whole, 1 there are problems, 2 wrong usage.");
}

int cmd_info(int argc, char **argv)
{
	static const struct option options[] = {
		{ "json", no_argument, NULL, 'j' },
		{ "quick", no_argument, NULL, 'q' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	struct info info = { 0 };
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, ":h", options, NULL)) != -1) {
		switch (c) {
		case 'j': json = true; break;
		case 'q': info.quick = true; break;
		case 'h': print_help(); return CMD_OK;
		default: return cmd_bad_option(argv, c);
		}
	}
	if (argc - optind != 1)
		return cmd_usage(argv[0], "expected one DIRECTORY");
	return show(&info, argv[optind], json);
}
