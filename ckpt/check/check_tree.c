/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens every file of the trees that `ucckpt convert` writes, which lays out all of its
 * extents and checks its sources.
 *
 * Damage that only one form meets, such as in the model-states files that weights are
 * read from, is a problem of the checkpoint.  A form that is not supported for this
 * checkpoint is a note.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/model/geometry.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"

struct walk {
	const struct check *c;
	struct plan *plan;
	struct plan_entry *v;
	size_t n, cap;
	/* Protected by the context's lock: */
	struct notes *problems;
	uint64_t opened; /* files */
	int rc; /* of the first failure that is not only -ENOTSUP */
};

static void add_failure(struct walk *w, int rc, const char *text)
{
	assert(rc < 0);
	pthread_mutex_lock(&w->c->report.u->lock);
	notes_add_new(w->problems, text);
	if (!w->rc || w->rc == -ENOTSUP)
		w->rc = rc;
	pthread_mutex_unlock(&w->c->report.u->lock);
}

static void open_file(struct walk *w, const struct plan_entry *e)
{
	struct errmsg err = { "" };
	struct vfile *f;
	const int rc = plan_file_open(w->plan, e->node, &f, &err);

	if (rc) {
		add_failure(w, rc, err.text);
		return;
	}
	vfile_free(f);
	pthread_mutex_lock(&w->c->report.u->lock);
	w->opened++;
	pthread_mutex_unlock(&w->c->report.u->lock);
}

/* Open all files of a directory, and of those in it. */
static void open_dir(struct walk *w, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(w->plan, dir, &pos, &e, &err)) == 1)
		if (plan_is_dir(w->plan, e.node))
			open_dir(w, e.node);
		else
			open_file(w, &e);
	if (rc)
		add_failure(w, rc, err.text);
}

static int open_entry(void *ctx, size_t i, struct errmsg *ignored)
{
	struct walk *w = ctx;
	const struct plan_entry *e = &w->v[i];

	(void)ignored;
	if (plan_is_dir(w->plan, e->node))
		open_dir(w, e->node);
	else
		open_file(w, e);
	return 0;
}

/* List what is opened in parallel: files of the root, and entries of its directories. */
static void list_dir(struct walk *w, uint64_t dir)
{
	struct errmsg err = { "" };
	struct plan_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = plan_next(w->plan, dir, &pos, &e, &err)) == 1) {
		if (dir == PLAN_ROOT && plan_is_dir(w->plan, e.node)) {
			list_dir(w, e.node);
			continue;
		}
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
		    struct notes *problems)
{
	struct walk w = { .c = c, .plan = p, .problems = problems };

	list_dir(&w, PLAN_ROOT);
	parallel_steps(c->report.u, "laying out files", parallel_for, w.n,
		       parallel_width(), open_entry, &w, NULL);
	*opened = w.opened;
	free(w.v);
	return w.rc;
}

/* Can this form be written?  What it lacks, and the universal tree does not, is a note. */
static int check_form(struct check *c, const struct report_form *f,
		      struct notes *why)
{
	const struct errmsg_sink notes = { notes_add_new, &c->report.notes };
	struct errmsg err = { "" };
	uint64_t opened = 0;
	struct plan *p;
	int rc = report_plan_form(&c->report, f, &p, &err);

	if (!rc) {
		rc = open_all(c, p, &opened, why);
		if (!rc && f > report_forms)
			plan_lack(p, &notes);
		if (!rc && f == report_forms)
			c->opened = opened;
		plan_close(p);
	} else {
		notes_add_new(why, err.text);
	}
	return rc;
}

/* What keeps a form from being written. */
struct refusal {
	int rc;
	struct notes why;
};

static bool has_text(const struct notes *l, const char *text)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->v[i], text) == 0)
			return true;
	return false;
}

/* Say once what keeps form `first`, and others of that error, from being written. */
static void add_refusals(struct check *c, const struct refusal v[REPORT_FORMS], size_t first)
{
	const struct refusal *r = &v[first];

	for (size_t k = 0; k < r->why.n; k++) {
		const char *text = r->why.v[k];
		struct bytebuf names = { 0 };
		bool said = false;
		char *list;

		for (size_t i = 0; i < REPORT_FORMS; i++) {
			if (v[i].rc != r->rc || !has_text(&v[i].why, text))
				continue;
			said |= i < first;
			bytebuf_add_format(&names, "%s%s", names.len ? ", " : "",
					   report_forms[i].options);
		}
		list = bytebuf_take_text(&names);
		if (!list)
			c->forms.failed = true;
		else if (!said && r->rc == -ENOTSUP)
			notes_add(&c->report.notes, "%s (convert %s is not possible)",
				  text, list);
		else if (!said)
			notes_add(&c->report.problems, "%s (needed by convert %s)", text,
				  list);
		free(list);
	}
}

void check_forms(struct check *c)
{
	struct refusal v[REPORT_FORMS] = { 0 };

	assert(c->report.plan && !c->report.problems.n);
	for (size_t i = 0; i < REPORT_FORMS; i++) {
		v[i].rc = check_form(c, &report_forms[i], &v[i].why);
		if (!v[i].rc)
			notes_add(&c->forms, "%s", report_forms[i].options);
	}
	for (size_t i = 0; i < REPORT_FORMS; i++)
		if (v[i].rc)
			add_refusals(c, v, i);
	for (size_t i = 0; i < REPORT_FORMS; i++) {
		c->forms.failed |= v[i].why.failed;
		notes_done(&v[i].why);
	}
}
