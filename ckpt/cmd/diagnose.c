/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds all problems of a checkpoint.  A mount stops at the first one, but a user
 * who repairs or copies a checkpoint again needs the whole list, so every file is
 * read, whether or not others are damaged.
 *
 * For a directory that is not a complete checkpoint, tagdir_missing names the
 * missing files; dp_world_size in readable model states says how many ranks there are.
 */
#include "ckpt/cmd/diagnose.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/cmd/findings.h"
#include "ckpt/dirs/names.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/files/files.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/zero/checkpoint.h"
#include "ckpt/zero/complete.h"

/* At most this many missing files are listed one by one. */
#define MISSING_MAX 100

/* At most this many tags are named. */
#define NAMED_MAX 16

const char *diagnose_choice_text(enum tags_choice choice)
{
	switch (choice) {
	case TAGS_ITSELF: break;
	case TAGS_LATEST: return "named by latest";
	case TAGS_STEP: return "highest step";
	case TAGS_MTIME: return "last modified";
	case TAGS_BELOW: return "the newest below";
	case TAGS_WEIGHTS: return "Hugging Face weights";
	case TAGS_NONE: return "not a ZeRO checkpoint";
	}
	return "";
}

/* Name the tags in directories of the run, if there are `min`. */
static void name_tags_below(const char *run, size_t min, struct findings *warnings)
{
	struct bytebuf names = { 0 };
	struct tag_list tags;

	if (tags_list_below(run, &tags, NULL))
		return;
	for (size_t i = 0; i < tags.n && i < NAMED_MAX; i++) {
		bytebuf_add_str(&names, i ? ", " : "");
		bytebuf_add_str(&names, tags.v[i].name);
	}
	bytebuf_add_u8(&names, 0);
	if (tags.n >= min && !names.failed)
		findings_add(warnings, "%s: tags in directories below: %s%s", run,
			     names.data, tags.n > NAMED_MAX ? ", ..." : "");
	bytebuf_done(&names);
	tags_done(&tags);
}

/* `latest` may name a tag that does not exist or that is not a ZeRO
 * checkpoint. */
void diagnose_choice(const char *run, enum tags_choice choice,
		     struct findings *warnings)
{
	struct tag_list tags;

	if (choice == TAGS_BELOW || choice == TAGS_WEIGHTS)
		name_tags_below(run, choice == TAGS_BELOW ? 2 : 1, warnings);
	if ((choice != TAGS_STEP && choice != TAGS_MTIME) ||
	    tags_list(run, &tags, NULL))
		return;
	if (tags.latest)
		findings_add(warnings,
			     "%s/latest names %s, which is not a ZeRO checkpoint",
			     run, tags.latest);
	tags_done(&tags);
}

/* --- what is missing -------------------------------------------------------- */

struct missing_scan {
	const char *dir;
	struct findings *problems;
	unsigned ranks; /* data-parallel ones, as far as files say */
	size_t missing;
};

/* Read a file.  Report it if that fails; otherwise learn from model states how many
 * ranks there are. */
static void try_file(struct missing_scan *s, const char *name)
{
	const enum tag_file_kind kind = names_parse(name).kind;
	struct errmsg err = { "" };
	struct ptfile pt;
	int64_t n;
	char *path;

	if ((kind != TAG_FILE_OPTIM && kind != TAG_FILE_MODEL &&
	     kind != TAG_FILE_MODEL3) ||
	    asprintf(&path, "%s/%s", s->dir, name) < 0)
		return;
	if (ptfile_open(&pt, path, &err)) {
		findings_add_new(s->problems, err.text);
	} else {
		if (value_get_int(value_find(pt.root, "dp_world_size"), &n) &&
		    n > s->ranks && n <= NAMES_RANK_MAX)
			s->ranks = (unsigned)n;
		ptfile_close(&pt);
	}
	free(path);
}

/* Stop at MISSING_MAX: a stray file may claim to be of rank 999999. */
static bool report_missing(void *ctx, const char *name)
{
	struct missing_scan *const s = ctx;

	if (s->missing++ < MISSING_MAX) {
		findings_add(s->problems, "%s/%s: missing", s->dir, name);
		return true;
	}
	findings_add(s->problems, "%s: more files are missing (not listed)", s->dir);
	return false;
}

void diagnose_missing(const char *dir, struct findings *problems)
{
	struct missing_scan s = { .dir = dir, .problems = problems };
	struct dirlist l;

	if (files_list(dir, true, &l, NULL))
		return;
	for (size_t i = 0; i < l.n; i++)
		try_file(&s, l.v[i].name);
	dirlist_done(&l);
	tagdir_missing(dir, s.ranks, report_missing, &s);
}

/* --- files of a checkpoint that can be planned ------------------------------- */

struct checking {
	struct plan *plan;
	struct zero_checkpoint *r;
	parallel_work *check;
	struct errmsg *err; /* one per file */
};

/* Check a shard without comparing it with the first shard of its model-parallel
 * rank, which is damaged. */
static int check_alone(struct zero_checkpoint *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree;
	struct layout layout = { .ranks = r->dir.dp_degree };
	struct shard s;
	const int rc =
		shard_load(&s, &r->dir, i, &r->model.ranks[mp], &layout, err);

	if (!rc)
		shard_done(&s);
	layout_done(&layout);
	return rc;
}

static int check_shard(struct zero_checkpoint *r, unsigned i, struct errmsg *err)
{
	const unsigned mp = i / r->dir.dp_degree, rank = i % r->dir.dp_degree;

	assert(i < r->dir.noptim);
	if (!zckpt_shard(r, mp, 0))
		return check_alone(r, i, err);
	return zckpt_load_shards(r, mp, rank, rank + 1, 1, err);
}

static int check_shard_indexed(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *const c = ctx;

	return check_shard(c->r, (unsigned)i, err);
}

/* The other files are checked whatever is found in one. */
static int check_one(void *ctx, size_t i, struct errmsg *err)
{
	struct checking *const c = ctx;

	(void)err;
	c->check(c, i, &c->err[i]);
	return 0;
}

/* Call `check` for each of `n` files in parallel and collect the problems. */
static void check_each(struct plan *plan, size_t n,
		       parallel_work *check,
		       struct findings *problems)
{
	struct checking c = { .plan = plan,
			      .r = plan_zckpt(plan),
			      .check = check,
			      .err = calloc(n + 1, sizeof(*c.err)) };

	if (!c.err) {
		findings_add(problems, "out of memory");
		return;
	}
	parallel_for(n, parallel_width(), check_one, &c, NULL);
	for (size_t i = 0; i < n; i++)
		findings_add_new(problems, c.err[i].text);
	free(c.err);
}

void diagnose_shards(struct plan *plan, struct findings *problems)
{
	struct zero_checkpoint *const r = plan_zckpt(plan);

	/* zckpt_shards reads a rank's shards in parallel.  If it fails, each
	 * shard is read again for a message of its own. */
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++)
		zckpt_load_shards(r, mp, 0, r->dir.dp_degree, 1, NULL);
	check_each(plan, r->dir.noptim, check_shard_indexed, problems);
}

static int check_model(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *const c = ctx;
	const struct tag_file *const f = &c->r->dir.model[i];
	struct ptfile pt;
	int rc = tagdir_open_file(f, &pt, err);

	if (rc)
		return rc;
	rc = zckpt_check_facts(c->r, f->path, pt.root, err);
	ptfile_close(&pt);
	return rc;
}

void diagnose_models(struct plan *plan, struct findings *problems)
{
	check_each(plan, plan_zckpt(plan)->dir.nmodel, check_model, problems);
}

static int check_expert(void *ctx, size_t i, struct errmsg *err)
{
	const struct checking *const c = ctx;

	return rank_params_check_expert(&c->r->model.ranks[0],
					&c->r->dir.expert[i], err);
}

void diagnose_experts(struct plan *plan, struct findings *problems)
{
	check_each(plan, plan_zckpt(plan)->dir.nexpert, check_expert, problems);
}

/* --- what is only odd -------------------------------------------------------- */

void diagnose_warnings(struct plan *plan, struct findings *warnings)
{
	const struct zero_checkpoint *const r = plan_zckpt(plan);
	struct errmsg text;
	size_t pos = 0;

	while (plan_warning(plan, &pos, &text))
		findings_add_new(warnings, text.text);
	if (zckpt_shard(r, 0, 0) && zckpt_shard(r, 0, 0)->mapping_ignored &&
	    !r->model.ranks[0].round_robin)
		findings_add(warnings,
			     "param_slice_mappings is wrong: parameters are"
			     " read in the order of param_shapes");
}
