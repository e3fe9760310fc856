/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing directories.  A view's entries are counted off its plan; a real
 * directory is read at once when it is opened, and the views that belong into
 * it are put in.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/dirs/tagdir.h"
#include "ckpt/base/errmsg.h"
#include "fs/options.h"
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
	/* A snapshot, if it is no view: */
	struct tree_entry *v;
	size_t n, cap;
};

static int add(struct tree_dir *d, uint64_t ino, mode_t type, bool cheap,
	       const char *name)
{
	struct tree_entry *e;

	if (strlen(name) > NAME_MAX)
		return 0; /* a view of a tag with the longest of names */
	if (d->n == d->cap) {
		const size_t cap = d->cap ? d->cap * 2 : 32;
		void *const grown = realloc(d->v, cap * sizeof(*d->v));

		if (!grown)
			return -ENOMEM;
		d->v = grown;
		d->cap = cap;
	}
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

static int add_real(struct tree_dir *d, const char *path, uint64_t index,
		    const struct dirent *e)
{
	uint64_t child;
	char *full;
	int rc;

	if (asprintf(&full, "%s/%s", path, e->d_name) < 0)
		return -ENOMEM;
	rc = reals_add(d->t->reals, full, index, &child);
	free(full);
	return rc ? rc :
		    add(d, ino_of_real(d->t, child), DTTOIF(e->d_type), true,
			e->d_name);
}

static int read_real(struct tree_dir *d, const char *path, uint64_t index)
{
	DIR *const dir = opendir(path);
	const struct dirent *e;
	int rc = 0;

	if (!dir)
		return -errno;
	while (!rc && (errno = 0, e = readdir(dir)))
		if (strcmp(e->d_name, ".") != 0 &&
		    strcmp(e->d_name, "..") != 0)
			rc = add_real(d, path, index, e);
	if (!rc)
		rc = -errno;
	closedir(dir);
	return rc;
}

/* A view of a tag, unless something real has its name. */
static int add_view(struct tree_dir *d, const char *tag, const char *name,
		    uint64_t index, enum plan_kind kind)
{
	char own[NAME_MAX + VIEW_SUFFIX_MAX];
	size_t view;
	int rc;

	snprintf(own, sizeof(own), "%s%s", name, view_suffixes[kind]);
	if (has_name(d, own))
		return 0;
	rc = views_add(d->t->views, tag, kind, ino_of_real(d->t, index), &view);
	return rc ? rc
		  : add(d, ino_of_view(d->t, view, PLAN_ROOT), S_IFDIR, false,
			own);
}

/* The views of the tag that an entry is, if it is one. */
static int add_views(struct tree_dir *d, const char *path, uint64_t index,
		     const char *name, bool *added)
{
	char *tag;
	int rc = 0;

	if (asprintf(&tag, "%s/%s", path, name) < 0)
		return -ENOMEM;
	if (ckdir_is_zero_tag(tag)) {
		*added = true;
		for (int kind = 0; !rc && kind < PLAN_KINDS; kind++)
			rc = add_view(d, tag, name, index, (enum plan_kind)kind);
	}
	free(tag);
	return rc;
}

/* Ours stands for one that is there. */
static int add_latest(struct tree_dir *d, uint64_t index)
{
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->v[i].name, LATEST_NAME) == 0) {
			d->v[i].ino = INO_LATEST | index;
			d->v[i].type = S_IFREG;
			return 0;
		}
	return add(d, INO_LATEST | index, S_IFREG, true, LATEST_NAME);
}

static int open_real(struct tree_dir *d, uint64_t index)
{
	struct tree *const t = d->t;
	uint64_t parent = 0;
	const char *const path = reals_path(t->reals, index, &parent);
	bool views = false;
	size_t reals;
	int rc;

	if (!path)
		return -ENOENT;
	d->parent = ino_of_real(t, parent);
	rc = read_real(d, path, index);
	reals = d->n;
	for (size_t i = 0; !rc && i < reals; i++)
		if (d->v[i].type == S_IFDIR || d->v[i].type == S_IFLNK ||
		    d->v[i].type == 0)
			rc = add_views(d, path, index, d->v[i].name, &views);
	if (!rc && views)
		rc = add_latest(d, index);
	return rc;
}

static int open_control(struct tree_dir *d, uint64_t ino)
{
	const size_t n = views_count(d->t->views);
	char name[NAME_MAX + 1];
	int rc = 0;

	d->parent = ino == INO_CONTROL ? TREE_ROOT : INO_CONTROL;
	if (ino == INO_CONTROL) {
		rc = add(d, INO_CONTROL_PLANS, S_IFDIR, true, PLANS_NAME);
		if (!rc)
			rc = add(d, INO_CONTROL_STATS, S_IFREG, true,
				 STATS_NAME);
		return rc ? rc :
			    add(d, INO_CONTROL_STATS_JSON, S_IFREG, true,
				STATS_JSON_NAME);
	}
	if (ino != INO_CONTROL_PLANS)
		return -ENOTDIR;
	for (size_t i = 0; !rc && i < n; i++) {
		tree_control_name(d->t, i, name);
		rc = add(d, INO_CONTROL_PLAN0 + i, S_IFREG, false, name);
	}
	return rc;
}

static int open_view(struct tree_dir *d, size_t view, uint64_t node,
		     struct errmsg *err)
{
	const int rc = views_plan(d->t->views, view, &d->plan, err);

	if (rc)
		return rc;
	d->is_view = true;
	d->view = view;
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
	if (n.kind == NODE_REAL)
		rc = open_real(d, n.index);
	else if (n.kind == NODE_CONTROL)
		rc = open_control(d, ino);
	else if (n.kind == NODE_VIEW)
		rc = open_view(d, n.view, n.index, err);
	if (rc)
		tree_dir_close(d);
	else
		*out = d;
	return rc;
}

void tree_dir_close(struct tree_dir *d)
{
	free(d->v);
	free(d);
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
