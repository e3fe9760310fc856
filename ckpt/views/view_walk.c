/* SPDX-License-Identifier: Apache-2.0 */
/* Goes through all entries of a view's tree, as a reader of it would. */
#include "ckpt/views/view.h"

#include <errno.h>
#include <stdio.h>

#include "ckpt/base/errmsg.h"

struct walk {
	view_walk_fn *step;
	void *ctx;
	char path[PATH_MAX];
};

static int walk_dir(struct view *v, uint64_t dir, size_t len, struct walk *w, struct errmsg *err)
{
	struct view_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = view_next(v, dir, &pos, &e, err)) == 1) {
		const size_t left = sizeof(w->path) - len;
		const size_t n =
			(size_t)snprintf(w->path + len, left, "%s%s", len ? "/" : "", e.name);
		struct view_stat st;

		if (n >= left)
			return errmsg_set(err, -ENAMETOOLONG, "%s: path is too long", e.name);
		rc = view_stat(v, e.node, &st, err) ?: w->step(w->ctx, w->path, e.node, &st, err);
		if (!rc && st.is_dir)
			rc = walk_dir(v, e.node, len + n, w, err);
		if (rc)
			return rc;
	}
	return rc;
}

int view_walk(struct view *v, view_walk_fn *step, void *ctx, struct errmsg *err)
{
	struct walk w = { .step = step, .ctx = ctx };

	return walk_dir(v, VIEW_ROOT, 0, &w, err);
}

static int add_total(void *ctx, const char *path, uint64_t node, const struct view_stat *st,
		     struct errmsg *err)
{
	uint64_t *totals = ctx;

	(void)path, (void)node, (void)err;
	totals[0] += !st->is_dir;
	totals[1] += st->size;
	return 0;
}

int view_totals(struct view *v, uint64_t *files, uint64_t *bytes, struct errmsg *err)
{
	uint64_t totals[2] = { 0 };
	const int rc = view_walk(v, add_total, totals, err);

	*files = totals[0];
	*bytes = totals[1];
	return rc;
}
