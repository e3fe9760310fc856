/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens every file of the trees that `ucckpt convert` writes, which lays out all of its
 * extents and checks its sources, and compares its size with the one in its attributes.
 *
 * Damage that only one form meets, such as in the model-states files that weights are
 * read from, is a problem of the checkpoint.  A form that is not supported for this
 * checkpoint is a note.
 */
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/context.h"
#include "ckpt/check/check.h"
#include "ckpt/plan/plan.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/sys/steps.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/zero/checkpoint.h"

struct walk {
	const struct check *c;
	struct plan *plan;
	struct plan_entry *v; /* entries of the root, then of /zero */
	size_t n, cap, nroot;
	/* Protected by the context's lock: */
	struct findings *problems;
	uint64_t opened; /* files */
	int rc;          /* of the first failure */
};

static void add_failure(struct walk *w, int rc, const char *text)
{
	assert(rc < 0);
	pthread_mutex_lock(&w->c->report.u->lock);
	findings_add_new(w->problems, text);
	if (!w->rc)
		w->rc = rc;
	pthread_mutex_unlock(&w->c->report.u->lock);
}

static void open_file(struct walk *w, const struct plan_entry *e)
{
	struct errmsg err = { "" };
	struct plan_stat st;
	struct vfile *f;
	int rc = plan_stat(w->plan, e->node, &st, &err)
			 ?: plan_file_open(w->plan, e->node, &f, &err);

	if (rc) {
		add_failure(w, rc, err.text);
		return;
	}
	if (vfile_size(f) != st.size) {
		rc = errmsg_set(&err, -EIO,
				"%s: has %" PRIu64 " bytes when opened, but"
				" %" PRIu64 " in its attributes",
				e->name, vfile_size(f), st.size);
		add_failure(w, rc, err.text);
	}
	vfile_free(f);
	pthread_mutex_lock(&w->c->report.u->lock);
	w->opened++;
	pthread_mutex_unlock(&w->c->report.u->lock);
}

/* Parameters with damaged shards, and optimizer_state.pt, which is made of rank 0's,
 * have been reported already. */
static bool has_shards(const struct check *c, const struct plan_entry *e,
		       bool is_dir)
{
	const struct zero_checkpoint *const r = plan_zckpt(c->report.plan);
	const struct param *const p =
		r && is_dir ? model_find(&r->model, e->name) : NULL;

	for (unsigned t = 0; p && !p->module && t < p->nslices; t++)
		if (p->slices[t] && !c->whole[p->slices[t]->mp])
			return false;
	return is_dir || !r || c->whole[0];
}

static int open_entry(void *ctx, size_t i, struct errmsg *ignored)
{
	struct walk *const w = ctx;
	const bool is_dir = plan_is_dir(w->plan, w->v[i].node);
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	(void)ignored;
	if (i < w->nroot ? is_dir : !has_shards(w->c, &w->v[i], is_dir))
		return 0;
	if (!is_dir) {
		open_file(w, &w->v[i]);
		return 0;
	}
	while ((rc = plan_next(w->plan, w->v[i].node, &pos, &e, &err)) == 1)
		open_file(w, &e);
	if (rc)
		add_failure(w, rc, err.text);
	return 0;
}

static void list_dir(struct walk *w, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(w->plan, dir, &pos, &e, &err)) == 1) {
		if (!array_reserve(&w->v, &w->cap, w->n + 1, sizeof(*w->v))) {
			rc = errmsg_nomem(&err, NULL);
			break;
		}
		w->v[w->n++] = e;
	}
	if (rc)
		add_failure(w, rc, err.text);
}

/* Open every file of a plan's tree.  Returns the first error. */
static int open_all(const struct check *c, struct plan *p, uint64_t *opened,
		    struct findings *problems)
{
	struct walk w = { .c = c, .plan = p, .problems = problems };

	list_dir(&w, PLAN_ROOT);
	w.nroot = w.n;
	if (plan_is_dir(p, PLAN_ZERO))
		list_dir(&w, PLAN_ZERO);
	steps_run(c->report.u, "laying out files", parallel_for, w.n, parallel_width(), open_entry,
		  &w, NULL);
	*opened = w.opened;
	free(w.v);
	return w.rc;
}

void check_tree(struct check *c)
{
	open_all(c, c->report.plan, &c->opened, &c->report.problems);
}

static const struct form {
	const char *name; /* options of convert */
	enum plan_kind kind;
	bool any_stage;
} forms[] = {
	{ "--to universal", PLAN_UNIVERSAL, false },
	{ "--to universal --stage any", PLAN_UNIVERSAL, true },
	{ "--to hf", PLAN_HF, false },
	{ "--to fp32", PLAN_FP32, false },
	{ "--to zero", PLAN_RESHARD, false },
};

#define WEIGHTS_FORMS 2 /* those of Hugging Face weights come first */

static int plan_form(const struct check *c, const struct form *f,
		     struct plan **out, struct errmsg *err)
{
	const struct plan_options options = { .crc_zero = true,
					      .any_stage = f->any_stage };
	struct plan *const p = c->report.plan;
	struct view_type type = { .kind = f->kind };
	unsigned ranks;

	if (f->kind == PLAN_UNIVERSAL)
		return plan_open(c->report.u, c->report.dir, &options, out, err);
	/* For twice the ranks every file is cut again.  A multiple of the old number
	 * suits expert parallelism. */
	ranks = plan_zckpt(p)->dir.dp_degree;
	if (ranks > RESHARD_RANKS_MAX)
		type.ranks = RESHARD_RANKS_MAX;
	else
		type.ranks = ranks <= RESHARD_RANKS_MAX / 2 ? 2 * ranks : ranks;
	return plan_open_derived(p, &type, out, err);
}

static int check_form(const struct check *c, const struct form *f,
		      struct findings *why)
{
	struct errmsg err = { "" };
	uint64_t opened;
	struct plan *p;
	int rc = plan_form(c, f, &p, &err);

	if (!rc) {
		rc = plan_check(p, &err) ?: open_all(c, p, &opened, why);
		plan_close(p);
	}
	findings_add_new(why, err.text);
	return rc;
}

void check_forms(struct check *c)
{
	const size_t n =
		plan_zckpt(c->report.plan) ? COUNT(forms) : WEIGHTS_FORMS;

	assert(c->report.plan && !c->report.problems.n);
	/* check_tree has opened the universal tree. */
	findings_add(&c->forms, "%s", forms[0].name);
	for (size_t i = 1; i < n; i++) {
		struct findings why = { 0 };
		const int rc = check_form(c, &forms[i], &why);

		if (!rc)
			findings_add(&c->forms, "%s", forms[i].name);
		for (size_t k = 0; rc && k < why.n; k++)
			if (rc == -ENOTSUP)
				findings_add(&c->report.notes,
					     "%s (convert %s is not possible)",
					     why.v[k], forms[i].name);
			else
				findings_add(&c->report.problems,
					     "%s (needed by convert %s)",
					     why.v[k], forms[i].name);
		findings_done(&why);
	}
}
