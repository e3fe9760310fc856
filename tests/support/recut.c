/* SPDX-License-Identifier: Apache-2.0 */
/* Re-cut checkpoints, written to a disk without threads or sync. */
#include "tests/support/context.h"
#include "tests/support/recut.h"
#include "tests/support/walk.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/views/view.h"

int recut_open(const char *tag, unsigned ranks, unsigned stage,
	       struct view **out, struct errmsg *err)
{
	const struct view_options options = {
		.type = { VIEW_RECUT, ranks, stage },
	};
	int rc = view_open(test_context(), tag, &options, out, err);

	if (rc)
		return rc;
	rc = view_check(*out, err);
	if (rc)
		view_close(*out);
	return rc;
}

static int write_bytes(const char *path, const void *bytes, size_t len,
		       struct errmsg *err)
{
	FILE *const f = fopen(path, "wb");
	const bool ok = f && fwrite(bytes, 1, len, f) == len;

	if (f && fclose(f) == 0 && ok)
		return 0;
	return errmsg_set(err, -EIO, "%s: cannot be written", path);
}

static int write_file(struct view *v, const struct view_entry *e,
		      const char *dir, struct errmsg *err)
{
	char path[PATH_MAX];
	uint64_t size;
	uint8_t *bytes = walk_read_node(v, e->node, &size, err);
	int rc;

	if (!bytes)
		return -EIO;
	snprintf(path, sizeof(path), "%s/%s", dir, e->name);
	rc = write_bytes(path, bytes, size, err);
	free(bytes);
	return rc;
}

int recut_write(struct view *v, const char *dir, struct errmsg *err)
{
	struct view_entry e;
	uint64_t pos = 0;
	int rc;

	while ((rc = view_next(v, VIEW_ROOT, &pos, &e, err)) == 1) {
		rc = write_file(v, &e, dir, err);
		if (rc)
			return rc;
	}
	return rc;
}
