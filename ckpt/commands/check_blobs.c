/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of a distributed checkpoint are those of the blobs in its files. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/commands/check.h"
#include "ckpt/foreign/dcp.h"

struct blobs_check {
	struct check *c;
	struct dcp_checkpoint *d;
	struct notes *problems; /* of each item */
	_Atomic size_t bare;    /* items without checksums */
};

static int check_item(void *ctx, size_t i, struct errmsg *err)
{
	struct blobs_check *b = ctx;
	struct errmsg why;
	bool summed;
	const int rc = dcp_blobs_check(&b->d->blobs, &b->d->metadata.items[i], &b->c->progress,
				       &summed, &why);

	b->bare += !rc && !summed;
	if (rc == -EINTR || rc == -ENOMEM)
		return errmsg_set(err, rc, "%s", why.text);
	if (rc)
		notes_add_new(&b->problems[i], why.text);
	return 0;
}

int check_blobs(struct check *c, struct errmsg *err)
{
	struct blobs_check b = { .c = c, .d = dcp_of(c->report.c) };
	const size_t n = b.d ? b.d->metadata.nitems : 0;
	int rc;

	if (!c->data || !b.d)
		return 0;
	b.problems = calloc(n + 1, sizeof(*b.problems));
	rc = b.problems ? parallel_for(n, parallel_width(), check_item, &b, err)
			: errmsg_nomem(err, c->report.dir);
	for (size_t i = 0; b.problems && i < n; i++)
		notes_take(&c->report.problems, &b.problems[i]);
	if (!rc && b.bare)
		notes_add(
			&c->report.notes,
			"%s: %zu of %zu entries have no checksums: they were read, but not compared",
			c->report.dir, (size_t)b.bare, n);
	free(b.problems);
	return rc;
}
