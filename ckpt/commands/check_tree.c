/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens every file of the trees that `ucckpt convert` writes, which lays out all of its
 * extents and checks its sources.
 *
 * Damage that affects only one form, such as in the model-states files that weights are read from,
 * is a problem of the checkpoint.  A form that is not supported for this checkpoint is a note.
 */
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/commands/check.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"

/* A form of tree that convert can write. */
struct form {
	const struct check *c;
	struct view *view;
	uint64_t *v; /* nodes of its files */
	size_t n, cap;
	/* Reasons why the form cannot be written; protected by the context's lock: */
	struct notes why;
	int rc; /* first error other than -ENOTSUP, or else -ENOTSUP */
};

static void add_failure(struct form *f, int rc, const char *text)
{
	assert(rc < 0);
	pthread_mutex_lock(&f->c->report.u->lock);
	notes_add_new(&f->why, text);
	if (!f->rc || f->rc == -ENOTSUP)
		f->rc = rc;
	pthread_mutex_unlock(&f->c->report.u->lock);
}

static int open_file(void *ctx, size_t i, struct errmsg *ignored)
{
	struct form *f = ctx;
	struct errmsg err = { "" };
	struct vfile *file;
	const int rc = view_file_open(f->view, f->v[i], &file, &err);

	(void)ignored;
	if (rc)
		add_failure(f, rc, err.text);
	else
		vfile_free(file);
	return 0;
}

/* List the files of a directory and of its subdirectories. */
static void list_files(struct form *f, uint64_t dir)
{
	struct errmsg err = { "" };
	struct view_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = view_next(f->view, dir, &pos, &e, &err)) == 1) {
		if (view_is_dir(f->view, e.node))
			list_files(f, e.node);
		else if (array_reserve(&f->v, &f->cap, f->n + 1, sizeof(*f->v)))
			f->v[f->n++] = e.node;
		else
			f->why.failed = true;
	}
	if (rc)
		add_failure(f, rc, err.text);
}

/* Can this form be written?  A reason that does not concern the universal tree is a note. */
static void check_form(struct check *c, struct form *f, size_t i)
{
	const struct errmsg_sink notes = { notes_add_new, &c->report.notes };
	struct errmsg err = { "" };
	const struct report_form form = report_form(i);
	const int rc = report_open_form(&c->report, &form, &f->view, &err);

	f->c = c;
	if (rc) {
		add_failure(f, rc, err.text);
		return;
	}
	list_files(f, VIEW_ROOT);
	parallel_steps(c->report.u, "laying out files", parallel_for, f->n, parallel_width(),
		       open_file, f, NULL);
	if (!f->rc && !i)
		c->opened = f->n;
	else if (!f->rc)
		view_lack(f->view, &notes);
	if (!f->rc)
		notes_add(&c->forms, "%s", form.options);
	view_close(f->view);
	free(f->v);
}

/* Report once the reasons why form `first`, and others with the same error, cannot be written. */
static void add_refusals(struct check *c, const struct form v[REPORT_FORMS], size_t first)
{
	const struct form *f = &v[first];

	for (size_t k = 0; k < f->why.n; k++) {
		const char *text = f->why.v[k];
		struct bytebuf names = { 0 };
		bool said = false;
		char *list;

		for (size_t i = 0; i < REPORT_FORMS; i++) {
			if (v[i].rc != f->rc || !notes_have(&v[i].why, text))
				continue;
			said |= i < first;
			bytebuf_add_format(&names, "%s%s", names.len ? ", " : "",
					   report_form(i).options);
		}
		list = bytebuf_take_text(&names);
		if (!list)
			c->forms.failed = true;
		else if (!said && f->rc == -ENOTSUP)
			notes_add(&c->report.notes, "%s (convert %s is not possible)", text, list);
		else if (!said)
			notes_add(&c->report.problems, "%s (needed by convert %s)", text, list);
		free(list);
	}
}

void check_forms(struct check *c)
{
	struct form v[REPORT_FORMS] = { 0 };

	assert(c->report.view && !c->report.problems.n);
	for (size_t i = 0; i < REPORT_FORMS; i++)
		check_form(c, &v[i], i);
	for (size_t i = 0; i < REPORT_FORMS; i++)
		add_refusals(c, v, i);
	for (size_t i = 0; i < REPORT_FORMS; i++) {
		c->forms.failed |= v[i].why.failed;
		notes_done(&v[i].why);
	}
}
