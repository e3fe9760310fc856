/* SPDX-License-Identifier: Apache-2.0 */
/*
 * uckpt_check: proves a checkpoint whole before a run resumes from it.
 *
 *   all ranks   none is missing, all are of one step, and each has	zero/zero_verify.c
 *		 its part of every parameter
 *   each file   it can be read, its zip directory and members are	check_files.c
 *		 sound, and with --data its bytes match their CRC-32
 *   copies      with --data, if all ranks are whole: they are equal	check_copies.c
 *   the forms   that ucckpt convert writes, if all files are whole:	check_tree.c
 *		 each file of each can be laid out
 *
 * Every problem is reported, each once.
 */
#include "ckpt/commands/check.h"

#include <cJSON.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/json.h"
#include "ckpt/base/parallel.h"
#include "ckpt/base/text.h"
#include "ckpt/commands/api.h"
#include "ckpt/commands/settings.h"
#include "ckpt/foreign/dcp.h"
#include "ckpt/table/checkpoint.h"

/* The checksums of a distributed checkpoint are those of the records in its files. */
struct storage_check {
	struct check *c;
	struct dcp_checkpoint *d;
	struct notes *problems; /* problems of each entry */
	bool *mine;             /* is the entry read by this process? */
	_Atomic size_t bare;    /* entries without checksums */
};

static int check_entry(void *ctx, size_t i, struct errmsg *err)
{
	struct storage_check *b = ctx;
	struct errmsg why;
	bool summed;
	int rc;

	if (!b->mine[i])
		return 0;
	rc = dcp_storage_check(&b->d->storage, &b->d->metadata.entries[i], &b->c->progress,
				       &summed, &why);

	b->bare += !rc && !summed;
	if (rc == -EINTR || rc == -ENOMEM)
		return errmsg_set(err, rc, "%s", why.text);
	if (rc)
		notes_add_new(&b->problems[i], why.text);
	return 0;
}

/* Choose the entries that this process reads. */
static int choose_entries(struct storage_check *b, size_t n, struct errmsg *err)
{
	uint64_t *sizes = calloc(n + 1, sizeof(*sizes));
	bool ok;

	b->mine = calloc(n + 1, sizeof(*b->mine));
	for (size_t i = 0; sizes && i < n; i++)
		for (size_t k = 0; k < b->d->metadata.entries[i].nchunks; k++)
			sizes[i] += b->d->metadata.entries[i].chunks[k].len;
	ok = sizes && b->mine && share_choose(b->c->share, sizes, n, b->mine);
	free(sizes);
	return ok ? 0 : errmsg_nomem(err, b->c->report.dir);
}

/* With `data`, compare every record with its checksums. */
static int check_storage(struct check *c, struct errmsg *err)
{
	struct storage_check b = { .c = c, .d = dcp_with_records(c->report.c) };
	const size_t n = b.d ? b.d->metadata.nentries : 0;
	int rc;

	if (!c->data || !b.d)
		return 0;
	b.problems = calloc(n + 1, sizeof(*b.problems));
	rc = b.problems ? choose_entries(&b, n, err) : errmsg_nomem(err, c->report.dir);
	rc = rc ?: parallel_for(n, parallel_width(), check_entry, &b, err);
	for (size_t i = 0; b.problems && i < n; i++)
		notes_take(&c->report.problems, &b.problems[i]);
	if (!rc && b.bare)
		notes_add(
			&c->report.notes,
			"%s: %zu of %zu entries have no checksums: they were read, but not compared",
			c->report.dir, (size_t)b.bare, n);
	free(b.problems);
	free(b.mine);
	return rc;
}

/* Read every byte once, and the bytes of pairs again.  If several processes share the work, the
 * first compares all pairs, since a pair may need files of others. */
static int check_data(struct check *c, struct errmsg *err)
{
	const bool whole = c->report.c && !c->report.problems.n;
	const bool pairs = whole && c->share->part <= 1;

	c->progress.total = dcp_with_records(c->report.c) ? c->bytes / (c->share->parts ?: 1) : 0;
	return check_choose_files(c, &c->progress.total, err)
		       ?: (pairs ? check_list_pairs(c, &c->progress.total, err) : 0)
		       ?: progress_add(&c->progress, 0)
		       ?: check_files(c, err)
		       ?: check_storage(c, err)
		       ?: check_pairs(c, err);
}

static int check_all(struct check *c, struct errmsg *err)
{
	int rc = check_list_files(c, err);

	if (!rc && c->report.c && c->report.c->ranks) {
		report_add_problems(&c->report, false);
		report_add_warnings(&c->report);
	}
	if (!rc)
		rc = c->data ? check_data(c, err) : check_files(c, err);
	if (!rc && c->report.view && !c->report.problems.n && c->share->part <= 1)
		check_forms(c);
	if (c->report.view)
		report_add_lost(&c->report);
	return rc;
}

static void check_done(struct check *c)
{
	free(c->pairs);
	check_files_done(c);
	notes_done(&c->forms);
	report_close(&c->report);
}

static int tell(struct check *c, struct errmsg *err)
{
	struct report *r = &c->report;
	const size_t files = dcp_of(r->c) ? r->c->nfiles : c->nfiles;
	char size[SIZE_TEXT_LEN], part[64];

	snprintf(part, sizeof(part), "no problems found in part %u of %u", c->share->part,
		 c->share->parts);
	r->problems.failed |= c->forms.failed;
	report_begin(r);
	cJSON_AddBoolToObject(r->json, "data", c->data);
	json_add_int(r->json, "files", (int64_t)files);
	json_add_int(r->json, "bytes", (int64_t)c->bytes);
	report_line(r, "files", "%zu, %s", files, size_text(c->bytes, size));
	if (r->view) {
		json_add_int(r->json, "parameters", (int64_t)r->c->nparams);
		json_add_int(r->json, "tree_files", (int64_t)c->opened);
		json_add_int(r->json, "replicas", (int64_t)c->npairs);
	}
	if (r->view && c->opened)
		report_line(r, "parameters", "%zu, in %" PRIu64 " files of the universal tree",
			    r->c->nparams, c->opened);
	else if (r->view)
		report_line(r, "parameters", "%zu", r->c->nparams);
	if (c->data && r->c && r->c->ranks && c->share->part <= 1)
		report_line(r, "replicas", "%zu pairs of slices compared", c->npairs);
	notes_add_json(&c->forms, r->json, "convert");
	for (size_t i = 0; i < c->forms.n; i++)
		report_line(r, i ? "" : "can convert", "%s", c->forms.v[i]);
	return report_end(r,
			  c->share->parts ? part
			  : c->data       ? "the checkpoint is whole"
					  : "the checkpoint is whole; tensors were not read (--data)",
			  err);
}

int uckpt_check(struct uckpt *u, const char *const *paths, size_t n, unsigned flags,
		struct uckpt_error *error)
{
	struct errmsg *err = errmsg_of(error);
	const struct settings *s = u ? settings_of(u) : NULL;
	struct check c = { .report.u = u, .data = flags & UCKPT_DATA, .progress.u = u };
	int rc;

	if (!s)
		return u ? errmsg_nomem(err, NULL) : api_refuse(err);
	c.share = &s->share;
	if (c.share->parts && !c.data)
		return errmsg_set(err, -EINVAL, "part requires --data");
	rc = report_open(&c.report, paths, n, flags, err)
			       ?: check_all(&c, err)
			       ?: tell(&c, err);

	check_done(&c);
	return rc;
}
