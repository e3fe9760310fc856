/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing directories.  A view's entries are computed from its plan.  A directory
 * of the run is read completely when it is opened, and the views of its tags are
 * added.
 */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/access.h"
#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/files/files.h"
#include "ckpt/pack/packfs.h"
#include "fs/tree/pathtab.h"
#include "fs/tree/tree.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

struct tree_dir {
	struct tree *t;
	uint64_t parent;
	bool is_view;
	size_t view;
	struct plan *plan;
	uint64_t node;
	struct access readers;
	/* Entries, unless it is a view: */
	struct tree_entry *v;
	size_t n, cap;
};

static int tree_dir_add(struct tree_dir *d, uint64_t ino, mode_t type,
			bool cheap, const char *name)
{
	struct tree_entry *e;

	if (strlen(name) > NAME_MAX)
		return 0; /* the tag's name leaves no room for the suffix */
	if (!array_reserve(&d->v, &d->cap, d->n + 1, sizeof(*d->v)))
		return -ENOMEM;
	e = &d->v[d->n++];
	e->ino = ino;
	e->type = type;
	e->cheap = cheap;
	strcpy(e->name, name);
	return 0;
}

static bool has_name(const struct tree_dir *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->v[i].name, name) == 0)
			return true;
	return false;
}

static int add_lower(struct tree_dir *d, const char *path, uint64_t index,
		     const char *name, mode_t type)
{
	uint64_t child;
	char *full;
	int rc;

	if (asprintf(&full, "%s/%s", path, name) < 0)
		return -ENOMEM;
	rc = pathtab_add(d->t->pathtab, full, index, &child);
	free(full);
	return rc ? rc
		  : tree_dir_add(d, ino_of_lower(d->t, child), type, true, name);
}

static int read_lower(struct tree_dir *d, const char *path, uint64_t index)
{
	struct dirlist dir;
	struct stat *const st = &dir.attrs.st;
	int rc = files_list(path, false, &dir, NULL);

	if (rc)
		return rc;
	if (d->t->o->shared) {
		tree_show_lower(d->t, index, dir.attrs.has_acl, st);
		d->readers = (struct access){ st->st_uid, st->st_gid,
					      st->st_mode & 0444 };
	}
	for (size_t i = 0; !rc && i < dir.n; i++)
		rc = add_lower(d, path, index, dir.v[i].name, dir.v[i].own_type);
	dirlist_done(&dir);
	return rc;
}

/* Add a view of a tag, unless a file on disk has its name. */
static int add_view(struct tree_dir *d, const char *tag, const char *name,
		    uint64_t index, const struct view_type *type)
{
	char own[NAME_MAX + VIEW_SUFFIX_MAX], suffix[VIEW_SUFFIX_MAX];
	uint64_t ino;
	int rc;

	view_type_suffix(type, suffix);
	snprintf(own, sizeof(own), "%s%s", name, suffix);
	if (has_name(d, own))
		return 0;
	rc = tree_add_view(d->t, tag, type, index, &ino);
	return rc ? rc : tree_dir_add(d, ino, S_IFDIR, false, own);
}

/* Add the re-cut views of a tag: those that options name, and those that have been
 * used lately. */
static int add_recut(struct tree_dir *d, const char *tag, const char *name,
		     uint64_t index)
{
	struct tree *const t = d->t;
	struct view_name view;
	size_t pos = 0;
	int rc = 0;

	for (size_t i = 0; !rc && i < t->o->nrecut; i++)
		rc = add_view(d, tag, name, index, &t->o->recut[i]);
	while (!rc && views_next_recut(t->views, &pos, &view))
		if (strcmp(view.path, tag) == 0)
			rc = add_view(d, tag, name, index, &view.type);
	return rc;
}

/* Show a tag, which is entry `i`, as the view that stands for it; one that is
 * packed, beside the pack. */
static int replace_tag(struct tree_dir *d, const char *tag, const char *name,
		       uint64_t index, size_t i)
{
	uint64_t ino;
	const int rc =
		tree_add_view(d->t, tag, &d->t->o->recut[0], index, &ino);

	if (rc)
		return rc;
	if (d->v[i].type == S_IFREG)
		return tree_dir_add(d, ino, S_IFDIR, false, name);
	d->v[i].ino = ino;
	return 0;
}

/* If entry `i` is a tag, or stands for one as a pack, add its views and set
 * `*added`. */
static int add_views(struct tree_dir *d, const char *path, uint64_t index,
		     size_t i, bool *added)
{
	const bool packed = d->v[i].type == S_IFREG;
	char *const name = packfs_dir_name(d->v[i].name);
	char *tag;
	int rc = 0;

	if (!name || asprintf(&tag, "%s/%s", path, name) < 0) {
		free(name);
		return -ENOMEM;
	}
	/* Where the directory itself is there the pack is a file like others, as
	 * is what is no pack. */
	if ((!packed || !has_name(d, name)) && tagdir_is_zero_tag(tag)) {
		*added = true;
		for (int kind = 0; !rc && kind < VIEW_KINDS; kind++)
			rc = add_view(d, tag, name, index,
				      &(struct view_type){
					      .kind = (enum plan_kind)kind });
		if (!rc)
			rc = add_recut(d, tag, name, index);
		if (!rc && d->t->o->replace)
			rc = replace_tag(d, tag, name, index, i);
	}
	free(name);
	free(tag);
	return rc;
}

/* Add the pointer to views of a type.  latest_universal replaces a file on disk;
 * other pointers do not. */
static int add_latest(struct tree_dir *d, uint64_t index,
		      const struct view_type *type)
{
	const uint64_t ino = ino_of_latest(type, index);
	char name[sizeof(LATEST_PREFIX) + VIEW_SUFFIX_MAX];
	char suffix[VIEW_SUFFIX_MAX];

	view_type_suffix(type, suffix);
	snprintf(name, sizeof(name), LATEST_PREFIX "%s", suffix);
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->v[i].name, name) == 0) {
			if (type->kind == PLAN_RESHARD)
				return 0;
			d->v[i].ino = ino;
			d->v[i].type = S_IFREG;
			return 0;
		}
	return tree_dir_add(d, ino, S_IFREG, true, name);
}

/* Add a pointer for each type of views in the directory. */
static int add_pointers(struct tree_dir *d, uint64_t index)
{
	struct tree *const t = d->t;
	struct view_name view;
	size_t pos = 0;
	int rc = add_latest(d, index,
			    &(struct view_type){ .kind = PLAN_UNIVERSAL });

	for (size_t i = 0; !rc && i < t->o->nrecut; i++)
		rc = add_latest(d, index, &t->o->recut[i]);
	while (!rc && views_next_recut(t->views, &pos, &view))
		if (view.parent == ino_of_lower(t, index))
			rc = add_latest(d, index, &view.type);
	return rc;
}

static int open_lower(struct tree_dir *d, uint64_t index)
{
	struct tree *const t = d->t;
	uint64_t parent = 0;
	const char *const path = pathtab_path(t->pathtab, index, &parent);
	bool views = false;
	size_t n;
	int rc;

	if (!path)
		return -ENOENT;
	d->parent = ino_of_lower(t, parent);
	rc = read_lower(d, path, index);
	n = d->n;
	for (size_t i = 0; !rc && i < n; i++)
		if (d->v[i].type == S_IFDIR || d->v[i].type == S_IFLNK ||
		    d->v[i].type == S_IFREG || d->v[i].type == 0)
			rc = add_views(d, path, index, i, &views);
	if (!rc && views)
		rc = add_pointers(d, index);
	return rc;
}

static int open_control(struct tree_dir *d, uint64_t ino)
{
	const size_t n = views_count(d->t->views);
	char name[NAME_MAX + 1];
	int rc = 0;

	d->parent = ino == INO_CONTROL ? TREE_ROOT : INO_CONTROL;
	if (ino == INO_CONTROL) {
		for (size_t i = 0; !rc && i < TREE_CONTROL_ENTRIES; i++) {
			const struct tree_control_entry *const e =
				&tree_control_entries[i];

			rc = tree_dir_add(d, e->ino,
					  e->ino == INO_CONTROL_PLANS ? S_IFDIR
								      : S_IFREG,
					  true, e->name);
		}
		return rc;
	}
	if (ino != INO_CONTROL_PLANS)
		return -ENOTDIR;
	for (size_t i = 0; !rc && i < n; i++) {
		if (!views_is_listed(d->t->views, i))
			continue;
		tree_control_name(d->t, i, name);
		rc = tree_dir_add(d, INO_CONTROL_PLAN0 + i, S_IFREG, false,
				  name);
	}
	return rc;
}

static int tree_dir_open_view(struct tree_dir *d, size_t view, uint64_t node,
			      struct errmsg *err)
{
	const int rc = views_plan(d->t->views, view, &d->plan, err);

	if (rc)
		return rc;
	d->view = view;
	d->is_view = true;
	d->node = node;
	if (node == PLAN_ROOT)
		d->parent = views_parent(d->t->views, view);
	else
		d->parent = ino_of_view(d->t, view, plan_parent(d->plan, node));
	return 0;
}

int tree_dir_open(struct tree *t, uint64_t ino, struct tree_dir **out,
		  struct errmsg *err)
{
	const struct tree_node n = ino_parse(t, ino);
	struct tree_dir *const d = calloc(1, sizeof(*d));
	int rc = -ENOTDIR;

	if (!d)
		return -ENOMEM;
	d->t = t;
	d->readers = ACCESS_ALL;
	if (n.kind == NODE_LOWER)
		rc = open_lower(d, n.index);
	else if (n.kind == NODE_CONTROL)
		rc = open_control(d, ino);
	else if (n.kind == NODE_VIEW)
		rc = tree_dir_open_view(d, n.view, n.index, err);
	if (rc)
		tree_dir_close(d);
	else
		*out = d;
	return rc;
}

void tree_dir_close(struct tree_dir *d)
{
	if (d->plan)
		views_put(d->t->views, d->view);
	free(d->v);
	free(d);
}

struct access tree_dir_readers(const struct tree_dir *d)
{
	return d->readers;
}

bool tree_is_immutable(const struct tree *t)
{
	return t->is_view;
}

bool tree_dir_is_immutable(const struct tree_dir *d)
{
	return d->is_view;
}

uint64_t tree_dir_parent(const struct tree_dir *d)
{
	return d->parent;
}

int tree_dir_next(struct tree_dir *d, uint64_t *pos, struct tree_entry *out,
		  struct errmsg *err)
{
	struct plan_entry e;
	int rc;

	assert(!d->is_view == !d->plan);
	if (!d->is_view) {
		if (*pos >= d->n)
			return 0;
		*out = d->v[(*pos)++];
		return 1;
	}
	rc = plan_next(d->plan, d->node, pos, &e, err);
	if (rc != 1)
		return rc;
	out->ino = ino_of_view(d->t, d->view, e.node);
	out->type = plan_is_dir(d->plan, e.node) ? S_IFDIR : S_IFREG;
	out->cheap = true;
	memcpy(out->name, e.name, sizeof(out->name));
	return 1;
}
