/* SPDX-License-Identifier: Apache-2.0 */
/* Checks every promise that view.h and vfile.h make about any tree. */
#include "tests/support/walk.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/vfile/extent.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "ckpt/zero/checkpoint.h"
#include "tests/support/context.h"

static int broken(struct errmsg *err, const char *what, const char *name)
{
	return errmsg_set(err, WALK_BROKEN, "walk: %s: %s", name, what);
}

/* Check that extents are in order, without gaps, and end where the file does. */
static bool is_map(const struct vfile *f)
{
	const struct extent_map *m = vfile_extents(f);

	for (size_t i = 0; i < m->n; i++)
		if (m->v[i].start >= m->v[i + 1].start)
			return false;
	return extent_size(m) == vfile_size(f) && (m->n == 0 || m->v[0].start == 0);
}

/* Read the whole file, first its end, so that checksums are needed early; then in pieces from its
 * start. */
static int read_file(struct vfile *f, const char *name, struct errmsg *err)
{
	const uint64_t size = vfile_size(f);
	uint8_t *whole = malloc(size + 1);
	uint8_t piece[777];
	int64_t got = 0;
	int rc = 0;

	if (!whole)
		return errmsg_set(err, -ENOMEM, "walk: out of memory");
	if (size)
		got = vfile_read(f, piece, 1, size - 1, err);
	if (got >= 0)
		got = vfile_read(f, whole, size + 1, 0, err);
	if (got < 0)
		rc = (int)got;
	else if ((uint64_t)got != size || !is_map(f))
		rc = broken(err, "not as long as it should be", name);
	for (uint64_t at = 0; !rc && at < size; at += sizeof(piece)) {
		const size_t left = (size_t)(size - at);
		const size_t n = left < sizeof(piece) ? left : sizeof(piece);

		got = vfile_read(f, piece, sizeof(piece), at, err);
		if (got < 0)
			rc = (int)got;
		else if ((size_t)got != n || memcmp(piece, whole + at, n) != 0)
			rc = broken(err, "pieces differ from the whole", name);
	}
	free(whole);
	return rc;
}

static int walk_file(struct view *v, const struct view_entry *e, const struct view_stat *st,
		     struct errmsg *err)
{
	struct vfile *f;
	int rc = view_file_open(v, e->node, &f, err);

	if (rc)
		return rc;
	rc = vfile_size(f) == st->size ? read_file(f, e->name, err)
				       : broken(err, "not of the size that stat reports", e->name);
	vfile_free(f);
	return rc;
}

static int walk_dir(struct view *v, uint64_t dir, struct errmsg *err);

static int walk_entry(struct view *v, uint64_t dir, const struct view_entry *e, struct errmsg *err)
{
	struct view_stat st;
	uint64_t node;
	int rc;

	if (!*e->name || strchr(e->name, '/') || strcmp(e->name, ".") == 0 ||
	    strcmp(e->name, "..") == 0)
		return broken(err, "no name for a file", e->name);
	if (e->node >= VIEW_NODE_END)
		return broken(err, "node number out of range", e->name);
	rc = view_lookup(v, dir, e->name, &node, err);
	if (rc)
		return rc == -ENOENT ? broken(err, "listed, not found", e->name) : rc;
	if (node != e->node)
		return broken(err, "listed under another number", e->name);
	rc = view_stat(v, node, &st, err);
	if (rc)
		return rc;
	return st.is_dir ? walk_dir(v, node, err) : walk_file(v, e, &st, err);
}

static int walk_dir(struct view *v, uint64_t dir, struct errmsg *err)
{
	struct view_entry e;
	uint64_t pos = 0, node;
	int rc;

	while ((rc = view_next(v, dir, &pos, &e, err)) == 1) {
		rc = walk_entry(v, dir, &e, err);
		if (rc)
			return rc;
	}
	if (rc)
		return rc;
	/* No checkpoint can have this name, which contains a slash. */
	return view_lookup(v, dir, "no/such", &node, err) == -ENOENT
		       ? 0
		       : broken(err, "finds what is not there", "no/such");
}

int walk_view(struct view *v, struct errmsg *err)
{
	struct zero_checkpoint *r = zero_of(view_checkpoint(v));
	uint64_t files, bytes;
	int rc = walk_dir(v, VIEW_ROOT, err);

	if (!rc)
		rc = view_totals(v, &files, &bytes, err);
	/* Ranks that hold only padding have not been read yet. */
	for (unsigned mp = 0; !rc && r && mp < r->dir.mp_degree; mp++)
		rc = zero_load_shards(r, mp, 0, r->dir.dp_degree, 1, err);
	return rc;
}

int walk_views(struct view *universal, struct errmsg *err)
{
	static const struct view_type types[] = {
		{ .kind = VIEW_HF },
		{ .kind = VIEW_FP32 },
		{ .kind = VIEW_DCP },
		{ .kind = VIEW_RECUT, .ranks = 3 },
		{ .kind = VIEW_RECUT, .ranks = 4, .stage = 1 },
		{ .kind = VIEW_RECUT, .ranks = 2, .stage = 3 },
	};

	for (size_t i = 0; i < COUNT(types); i++) {
		struct errmsg why = { "" };
		struct view *v;
		int rc = view_open_derived(universal, &types[i], &v, &why);

		if (!rc) {
			rc = walk_view(v, &why);
			view_close(v);
		}
		if (rc == WALK_BROKEN || (rc && !*why.text))
			return errmsg_set(err, WALK_BROKEN, "view %zu: %s", i,
					  *why.text ? why.text : strerror(-rc));
	}
	return 0;
}

void walk_directory(const char *dir, const struct view_options *options)
{
	struct errmsg err = { "" };
	struct view *v;
	int rc = view_open(test_context(), dir, options, &v, &err);

	if (!rc) {
		rc = view_check(v, &err) ?: walk_view(v, &err);
		if (rc != WALK_BROKEN && walk_views(v, &err))
			rc = WALK_BROKEN;
		view_close(v);
	}
	if (rc != WALK_BROKEN && (!rc || *err.text))
		return;
	fprintf(stderr, "%s\n", err.text);
	abort();
}

uint8_t *walk_read_node(struct view *v, uint64_t node, uint64_t *size, struct errmsg *err)
{
	struct vfile *f;
	uint8_t *bytes;

	if (view_file_open(v, node, &f, err))
		return NULL;
	*size = vfile_size(f);
	bytes = malloc(*size + 1);
	if (!bytes)
		abort();
	if (vfile_read(f, bytes, *size, 0, err) != (int64_t)*size) {
		free(bytes);
		bytes = NULL;
	}
	vfile_free(f);
	return bytes;
}

uint8_t *walk_read(struct view *v, uint64_t dir, const char *name, uint64_t *size,
		   struct errmsg *err)
{
	uint64_t node;

	return view_lookup(v, dir, name, &node, err) ? NULL : walk_read_node(v, node, size, err);
}
