/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_check: proves a checkpoint whole before anyone resumes from it.
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
#include <inttypes.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/size.h"
#include "ckpt/plan/plan.h"
#include "ckpt/zero/checkpoint.h"

static int find_whole(struct check *c, const struct zero_checkpoint *r,
		      struct errmsg *err)
{
	c->whole = calloc(r->dir.mp_degree, sizeof(*c->whole));
	if (!c->whole)
		return errmsg_nomem(err, r->dir.path);
	for (unsigned mp = 0; mp < r->dir.mp_degree; mp++) {
		c->whole[mp] = true;
		for (unsigned i = 0; i < r->dir.dp_degree; i++)
			c->whole[mp] &= zckpt_shard(r, mp, i) != NULL;
	}
	return 0;
}

static int check_plan(struct check *c, struct errmsg *err)
{
	const struct zero_checkpoint *r = c->report.zero;

	if (!r) {
		check_tree(c);
		return 0;
	}
	c->params = r->model.nparams;
	report_add_problems(&c->report, false);
	if (find_whole(c, r, err))
		return -ENOMEM;
	check_tree(c);
	report_add_warnings(&c->report);
	return 0;
}

/* Every byte is read once, and compared ones a second time. */
static int check_data(struct check *c, struct errmsg *err)
{
	c->progress.total = c->bytes;
	return (c->whole ? check_list_pairs(c, &c->progress.total, err) : 0)
		       ?: progress_add(&c->progress, 0)
		       ?: check_files(c, err)
		       ?: check_blobs(c, err)
		       ?: check_pairs(c, err);
}

static int check_all(struct check *c, struct errmsg *err)
{
	int rc = check_list_files(c, err);

	if (!rc && c->report.plan)
		rc = check_plan(c, err);
	if (!rc)
		rc = c->data ? check_data(c, err) : check_files(c, err);
	if (!rc && c->report.plan && !c->report.problems.n)
		check_forms(c);
	if (c->report.plan)
		report_add_lost(&c->report);
	return rc;
}

static void check_done(struct check *c)
{
	free(c->whole);
	free(c->pairs);
	check_files_done(c);
	notes_done(&c->forms);
	report_close(&c->report);
}

static int tell(struct check *c, unsigned flags, struct errmsg *err)
{
	struct report *r = &c->report;
	char size[SIZE_TEXT_LEN];

	r->problems.failed |= c->forms.failed;
	report_begin(r, flags);
	cJSON_AddBoolToObject(r->json, "data", c->data);
	json_add_int(r->json, "files", (int64_t)c->nfiles);
	json_add_int(r->json, "bytes", (int64_t)c->bytes);
	report_line(r, "files", "%zu, %s", c->nfiles, size_text(c->bytes, size));
	if (r->plan) {
		json_add_int(r->json, "parameters", (int64_t)c->params);
		json_add_int(r->json, "tree_files", (int64_t)c->opened);
		json_add_int(r->json, "replicas", (int64_t)c->npairs);
	}
	if (r->plan && c->opened)
		report_line(r, "parameters", "%zu, in %" PRIu64 " files of the universal tree",
			    c->params, c->opened);
	else if (r->plan)
		report_line(r, "parameters", "%zu", c->params);
	if (c->data && r->zero)
		report_line(r, "replicas", "%zu pairs of slices compared", c->npairs);
	notes_add_json(&c->forms, r->json, "convert");
	for (size_t i = 0; i < c->forms.n; i++)
		report_line(r, i ? "" : "can convert", "%s", c->forms.v[i]);
	return report_end(r,
			  c->data ? "the checkpoint is whole"
				  : "the checkpoint is whole; tensors were not read (--data)",
			  err);
}

int uckpt_check(struct uckpt *u, const char *const *paths, size_t n,
		unsigned flags, struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	struct check c = { .report.u = u,
			   .data = flags & UCKPT_DATA,
			   .progress.u = u };
	const int rc = report_open(&c.report, paths, n, err)
			       ?: check_all(&c, err)
			       ?: tell(&c, flags, err);

	check_done(&c);
	return rc;
}
