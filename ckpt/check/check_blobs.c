/* SPDX-License-Identifier: Apache-2.0 */
/* The files that a distributed checkpoint shows have no checksums: its blobs may have. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/check/check.h"
#include "ckpt/dcp/dcp.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/checkpoint.h"

bool check_is_foreign(const struct check *c)
{
	return c->report.c && c->report.c->facts.source;
}

struct blobs_check {
	struct check *c;
	struct dcp *d;
	struct notes *problems; /* of each item */
	_Atomic size_t bare;       /* items without checksums */
};

static int check_item(void *ctx, size_t i, struct errmsg *err)
{
	struct blobs_check *b = ctx;
	struct errmsg why;
	bool summed;
	const int rc = dcp_check(b->d, i, &b->c->progress, &summed, &why);

	b->bare += !rc && !summed;
	if (rc == -EINTR || rc == -ENOMEM)
		return errmsg_set(err, rc, "%s", why.text);
	if (rc)
		notes_add_new(&b->problems[i], why.text);
	return 0;
}

int check_blobs(struct check *c, struct errmsg *err)
{
	struct blobs_check b = { .c = c };
	const char *path;
	size_t n;
	char *dir;
	int rc;

	if (!c->data || !check_is_foreign(c) || !c->report.c->ops->file)
		return 0;
	path = checkpoint_path(c->report.c, OBJECT_MODEL, 0, 0);
	dir = strndup(path, (size_t)(strrchr(path, '/') - path));
	rc = dir ? dcp_open(c->report.u, dir, &b.d, err) : errmsg_nomem(err, path);
	free(dir);
	if (rc)
		return rc;
	n = dcp_count(b.d);
	b.problems = calloc(n + 1, sizeof(*b.problems));
	rc = b.problems ? parallel_for(n, parallel_width(), check_item, &b, err)
			: errmsg_nomem(err, c->report.dir);
	for (size_t i = 0; b.problems && i < n; i++)
		notes_take(&c->report.problems, &b.problems[i]);
	if (!rc && b.bare)
		notes_add(&c->report.notes,
			  "%s: %zu of %zu entries have no checksums: they were"
			  " read, but not compared",
			  c->report.dir, (size_t)b.bare, n);
	free(b.problems);
	dcp_close(b.d);
	return rc;
}
