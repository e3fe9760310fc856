/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in a mount.
 *
 * In a directory of a run, a tag's views appear beside the tag as <tag>_universal, <tag>_hf and
 * <tag>_fp32, and as <tag>_dp<ranks> while their view is kept (slots.h).  A file on disk with such
 * a name, for example an earlier conversion, is shown instead of the view: files are never hidden.
 * latest_universal is the exception, since a file on disk would name an older conversion.  .ucfs
 * can be looked up but is not listed, so that a copy of the mount contains only the tree.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "ckpt/tree/tree_impl.h"

/* Find or add a view of `tag`, a path in directory `index` of the run.  -ENOENT if
 * there is no such tag. */
static int lookup_tag(struct tree *t, uint64_t index, const char *tag, const struct view_type *type,
		      uint64_t *ino)
{
	return tree_is_tag(t, tag) ? tree_add_view(t, tag, type, index, ino) : -ENOENT;
}

/* Find or add the view for `name`, such as "<tag>_universal", in a directory that holds <tag>.
 * -ENOENT if `name` is not a view's. */
static int lookup_view(struct tree *t, uint64_t index, const char *dir, const char *name,
		       uint64_t *ino)
{
	struct view_type type;
	size_t n;
	char *path;
	int rc;

	if (!view_type_parse(name, &n, &type))
		return -ENOENT;
	if (asprintf(&path, "%s/%.*s", dir, (int)n, name) < 0)
		return -ENOMEM;
	rc = lookup_tag(t, index, path, &type, ino);
	free(path);
	return rc;
}

/* Return the inode of a path, with the bits of its kind. */
static int lookup_path(struct tree *t, uint64_t index, const char *path, uint64_t *ino)
{
	uint64_t child;
	const int rc = paths_add(t->paths, path, index, &child);

	if (!rc)
		*ino = ino_of_run_file(t, child);
	return rc;
}

/* Find latest_universal.  -ENOENT if `path` has another name, or the directory has no tags. */
static int lookup_latest(struct tree *t, uint64_t index, const char *dir, const char *path,
			 uint64_t *ino)
{
	char text[LATEST_TEXT_MAX];
	uint64_t child;
	int rc;

	if (strcmp(path + strlen(dir) + 1, LATEST_NAME) != 0)
		return -ENOENT;
	rc = tree_latest_text(t, index, dir, text) ?: paths_add(t->paths, path, index, &child);
	if (rc)
		return rc == -ENOMEM ? rc : -ENOENT;
	*ino = INO_LATEST | child;
	return 0;
}

/* Look up a path that exists on disk.  A tag may be shown as a re-cut view. */
static int lookup_run_file(struct tree *t, uint64_t index, const char *path, mode_t mode, uint64_t *ino)
{
	const int rc = t->o->replace && !S_ISREG(mode)
			       ? lookup_tag(t, index, path, &t->o->recut[0], ino)
			       : -ENOENT;

	return rc == -ENOENT ? lookup_path(t, index, path, ino) : rc;
}

/* Look up a name that is not on disk: a view, or a file that replaces a rank's missing file. */
static int lookup_synthesized(struct tree *t, uint64_t index, const char *dir, const char *path,
			      uint64_t *ino)
{
	const char *name = path + strlen(dir) + 1;
	char *twin;
	int rc = lookup_view(t, index, dir, name, ino);

	if (rc != -ENOENT || !t->o->replace)
		return rc;
	/* A packed tag. */
	rc = lookup_tag(t, index, path, &t->o->recut[0], ino);
	if (rc != -ENOENT)
		return rc;
	rc = rng_files_find(t->o->u, dir, name, t->o->recut[0].ranks, &twin);
	if (rc)
		return rc;
	rc = lookup_path(t, index, twin, ino);
	free(twin);
	return rc;
}

static int lookup_in_run(struct tree *t, uint64_t index, const char *name, uint64_t *ino)
{
	const char *dir = paths_path(t->paths, index, NULL);
	struct attrs a;
	char *path;
	int rc;

	if (!dir)
		return -ENOENT;
	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return -ENOMEM;
	rc = lookup_latest(t, index, dir, path, ino);
	if (rc == -ENOENT) {
		rc = tree_dir_stat(t, path, &a);
		if (!rc)
			rc = lookup_run_file(t, index, path, a.st.st_mode, ino);
		else if (rc == -ENOENT)
			rc = lookup_synthesized(t, index, dir, path, ino);
	}
	free(path);
	return rc;
}

static int lookup_in_view(struct tree *t, struct slot *x, uint64_t node, const char *name,
			  uint64_t *ino, struct errmsg *err)
{
	struct view *v;
	uint64_t child;
	int rc = slot_view(x, &v, err);

	if (rc)
		return rc;
	rc = view_lookup(v, node, name, &child, err);
	slot_put(x);
	if (!rc)
		*ino = ino_of_view(t, x, child);
	return rc;
}

static int lookup_in_control(uint64_t dir, const char *name, uint64_t *ino)
{
	struct uckpt_entry e;
	uint64_t pos = 0;

	while (tree_control_is_dir(dir) && tree_control_next(&pos, &e))
		if (strcmp(e.name, name) == 0) {
			*ino = e.node;
			return 0;
		}
	return -ENOENT;
}

int tree_lookup(struct tree *t, uint64_t dir, const char *name, struct tree_attr *out,
		double *timeout, struct errmsg *err)
{
	struct view_type type;
	struct tree_node n;
	uint64_t ino = INO_CONTROL;
	size_t tag_len;
	int rc = tree_parse(t, dir, &n);

	if (rc)
		return rc;
	*timeout = n.kind == NODE_VIEW && dir != TREE_ROOT ? TTL_IMMUTABLE : tree_attr_ttl(t);
	if (dir == TREE_ROOT && strcmp(name, CONTROL_NAME) == 0)
		rc = 0;
	else if (n.kind == NODE_RUN)
		rc = lookup_in_run(t, n.index, name, &ino);
	else if (n.kind == NODE_VIEW)
		rc = lookup_in_view(t, n.slot, n.index, name, &ino, err);
	else
		rc = lookup_in_control(dir, name, &ino);
	if (!rc)
		rc = tree_getattr(t, ino, out, err);
	/* A file of a view exists even if its shard is missing. */
	if (rc == -ENOENT && n.kind == NODE_VIEW && err && *err->text)
		rc = -EIO;
	/* The view is listed as soon as its tag has been saved. */
	if (rc == -ENOENT && n.kind == NODE_RUN && view_type_parse(name, &tag_len, &type))
		*timeout = 0;
	if (!rc)
		*timeout = tree_entry_timeout(t, dir, out);
	return rc;
}

double tree_entry_timeout(const struct tree *t, uint64_t dir, const struct tree_attr *attr)
{
	/* Directories of a run change, and so does the root, whose tag may be saved again. */
	const bool changes = dir < UINT64_C(1) << INO_VIEW_SHIFT;
	const double moment = tree_attr_ttl(t);

	return changes && attr->timeout > moment ? moment : attr->timeout;
}
