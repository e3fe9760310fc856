/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Listing directories.  The entries of a view, and of .ucfs, are computed.  A directory of the run
 * is read completely when it is opened; views of its tags, and replacements for ranks' missing
 * files, are added.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/attrs.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/io/io.h"
#include "ckpt/remote/site.h"
#include "ckpt/tree/tree_impl.h"

static int tree_dir_add(struct uckpt_dir *d, uint64_t ino, mode_t type, bool cheap, const char *name)
{
	struct uckpt_entry *e;

	if (strlen(name) > NAME_MAX)
		return 0; /* the tag's name leaves no room for the suffix */
	if (!array_reserve(&d->v, &d->cap, d->n + 1, sizeof(*d->v)))
		return -ENOMEM;
	e = &d->v[d->n++];
	e->node = ino;
	e->type = type;
	e->cheap = cheap;
	strcpy(e->name, name);
	return 0;
}

static struct uckpt_entry *find_name(const struct uckpt_dir *d, const char *name)
{
	for (size_t i = 0; i < d->n; i++)
		if (strcmp(d->v[i].name, name) == 0)
			return &d->v[i];
	return NULL;
}

static int add_run_file(struct uckpt_dir *d, const char *path, uint64_t index, const char *name,
		     mode_t type)
{
	uint64_t child;
	char *full;
	int rc;

	if (asprintf(&full, "%s/%s", path, name) < 0)
		return -ENOMEM;
	rc = paths_add(d->t->paths, full, index, &child);
	free(full);
	return rc ? rc : tree_dir_add(d, ino_of_run_file(d->t, child), type, true, name);
}

bool tree_dir_has_attrs(const struct uckpt_dir *d, const struct uckpt_entry *e)
{
	return e->cheap && (d->immutable || !(d->remote || latency_is_high(&d->t->latency)));
}

static int read_run_dir(struct uckpt_dir *d, const char *path, uint64_t index)
{
	struct dirlist dir = { 0 };
	struct stat *st = &dir.attrs.st;
	int rc = io_list(d->t->o->u, path, IO_PLAIN, &dir, NULL);

	if (rc)
		return rc;
	if (d->t->o->shared) {
		tree_show_run_file(d->t, index, dir.attrs.has_acl, st);
		d->readable_by = (struct permissions){ st->st_uid, st->st_gid, st->st_mode & 0444 };
	}
	for (size_t i = 0; !rc && i < dir.n; i++)
		rc = add_run_file(d, path, index, dir.v[i].name, dir.v[i].own_type);
	dirlist_done(&dir);
	return rc;
}

/* Add a view of a tag, unless it should not be listed, or a file on disk or another view has its
 * name. */
static int add_view(struct uckpt_dir *d, const char *tag, uint64_t index,
		    const struct view_type *type)
{
	char own[NAME_MAX + VIEW_SUFFIX_MAX], suffix[VIEW_SUFFIX_MAX];
	uint64_t ino;
	int rc;

	view_type_suffix(type, suffix);
	snprintf(own, sizeof(own), "%s%s", strrchr(tag, '/') + 1, suffix);
	if (find_name(d, own))
		return 0;
	rc = tree_list_view(d->t, tag, type, index, &ino);
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	return tree_dir_add(d, ino, S_IFDIR, false, own);
}

/* Replace a tag, which is entry `i`, by its view; if the tag is packed, add the view beside the
 * pack. */
static int replace_tag(struct uckpt_dir *d, const char *tag, const char *name, uint64_t index,
		       size_t i)
{
	uint64_t ino;
	const int rc = tree_list_view(d->t, tag, &d->t->o->recut[0], index, &ino);

	if (rc == -ENOENT)
		*d->v[i].name = '\0'; /* removes the entry */
	if (rc)
		return rc == -ENOENT ? 0 : rc;
	if (d->v[i].type == S_IFREG)
		return tree_dir_add(d, ino, S_IFDIR, false, name);
	d->v[i].node = ino;
	return 0;
}

/* If entry `i` is a tag, or a packed tag, add its views and set `*added`. */
static int add_views(struct uckpt_dir *d, const char *path, uint64_t index, size_t i, bool *added)
{
	const bool packed = d->v[i].type == S_IFREG;
	char *name = io_tag_name(d->v[i].name, d->v[i].type);
	char *tag;
	int rc = 0;

	if (!name)
		return 0;
	if (asprintf(&tag, "%s/%s", path, name) < 0) {
		free(name);
		return -ENOMEM;
	}
	/* If the directory itself exists, the pack is an ordinary file. */
	if ((!packed || !find_name(d, name)) && tree_is_tag(d->t, tag)) {
		*added = true;
		for (enum view_kind kind = 0; !rc && kind < VIEW_KINDS; kind++)
			if (!(all_views[kind]->takes & TAKES_RANKS))
				rc = add_view(d, tag, index, &(struct view_type){ .kind = kind });
		for (size_t k = 0; !rc && k < d->t->o->nrecut; k++)
			rc = add_view(d, tag, index, &d->t->o->recut[k]);
		if (!rc && d->t->o->replace)
			rc = replace_tag(d, tag, name, index, i);
	}
	free(name);
	free(tag);
	return rc;
}

/* Add latest_universal to directory `index`, whose path is `dir`.  It replaces a file on disk. */
static int add_latest(struct uckpt_dir *d, const char *dir, uint64_t index)
{
	char text[LATEST_TEXT_MAX], *path;
	struct uckpt_entry *e = find_name(d, LATEST_NAME);
	uint64_t child;
	int rc = tree_latest_text(d->t, index, dir, text);

	if (rc)
		return rc == -ENOMEM ? rc : 0;
	if (asprintf(&path, "%s/" LATEST_NAME, dir) < 0)
		return -ENOMEM;
	rc = paths_add(d->t->paths, path, index, &child);
	if (!rc && !e) {
		rc = tree_dir_add(d, INO_LATEST | child, S_IFREG, true, LATEST_NAME);
	} else if (!rc) {
		e->node = INO_LATEST | child;
		e->type = S_IFREG;
	}
	free(path);
	return rc;
}

/* Add latest_universal, and the recently used views for other numbers of ranks. */
static int add_others(struct uckpt_dir *d, const char *dir, uint64_t index)
{
	struct tree *t = d->t;
	struct slot *x;
	int rc = add_latest(d, dir, index);

	for (size_t i = 0; !rc && (x = slots_get(t->slots, i)); i++)
		if (x->type.ranks && x->parent == d->ino && slot_is_listed(x) &&
		    tree_is_tag(t, x->path))
			rc = add_view(d, x->path, index, &x->type);
	return rc;
}

/* Add a file that replaces a rank's missing file. */
static int add_rng_file(void *arg, const char *name, const char *path)
{
	struct uckpt_dir *d = arg;
	uint64_t child;
	int rc;

	if (find_name(d, name))
		return 0;
	rc = paths_add(d->t->paths, path, d->node, &child);
	return rc ? rc : tree_dir_add(d, ino_of_run_file(d->t, child), S_IFREG, true, name);
}

static int open_run_dir(struct uckpt_dir *d, uint64_t index)
{
	struct tree *t = d->t;
	uint64_t parent = 0;
	const char *path = paths_path(t->paths, index, &parent);
	bool views = false;
	size_t n;
	int rc;

	if (!path)
		return -ENOENT;
	d->parent = ino_of_run_file(t, parent);
	d->remote = site_is_url(path);
	rc = read_run_dir(d, path, index);
	n = d->n;
	for (size_t i = 0; !rc && i < n; i++)
		if (d->v[i].type == S_IFDIR || d->v[i].type == S_IFLNK || d->v[i].type == S_IFREG ||
		    d->v[i].type == 0)
			rc = add_views(d, path, index, i, &views);
	if (!rc && views)
		rc = add_others(d, path, index);
	if (!rc && t->o->replace)
		rc = rng_files_each(t->o->u, path, t->o->recut[0].ranks, add_rng_file, d);
	return rc;
}

static int open_view(struct uckpt_dir *d, struct errmsg *err)
{
	const int rc = slot_view(d->slot, &d->view, err);

	if (rc)
		return rc;
	if (!view_is_dir(d->view, d->node))
		return -ENOTDIR;
	d->parent = d->node == VIEW_ROOT ? d->slot->parent
					 : ino_of_view(d->t, d->slot, view_parent(d->view, d->node));
	return 0;
}

int tree_dir_open(struct tree *t, uint64_t ino, struct uckpt_dir **out, struct errmsg *err)
{
	struct uckpt_dir *d = calloc(1, sizeof(*d));
	struct tree_node n;
	int rc;

	if (!d)
		return -ENOMEM;
	rc = tree_parse(t, ino, &n);
	d->t = t;
	d->immutable = n.kind == NODE_VIEW;
	d->ino = ino;
	d->readable_by = PERMISSIONS_ALL;
	d->slot = n.slot;
	d->node = n.index;
	if (!rc && n.kind == NODE_RUN) {
		rc = open_run_dir(d, n.index);
	} else if (!rc && n.kind == NODE_VIEW) {
		rc = open_view(d, err);
	} else if (!rc) {
		d->parent = TREE_ROOT;
		rc = tree_control_is_dir(ino) ? 0 : -ENOTDIR;
	}
	if (rc)
		tree_dir_close(d);
	else
		*out = d;
	return rc;
}

void tree_dir_close(struct uckpt_dir *d)
{
	if (d->view)
		slot_put(d->slot);
	free(d->v);
	free(d);
}

bool tree_is_immutable(const struct tree *t)
{
	return t->is_view;
}

int tree_dir_next(struct uckpt_dir *d, uint64_t *pos, struct uckpt_entry *out, struct errmsg *err)
{
	struct view_entry e;
	int rc;

	if (tree_control_is_dir(d->ino))
		return tree_control_next(pos, out);
	if (!d->immutable) {
		while (*pos < d->n && !*d->v[*pos].name)
			++*pos;
		if (*pos >= d->n)
			return 0;
		*out = d->v[(*pos)++];
		return 1;
	}
	rc = view_next(d->view, d->node, pos, &e, err);
	if (rc != 1)
		return rc;
	out->node = ino_of_view(d->t, d->slot, e.node);
	out->type = view_is_dir(d->view, e.node) ? S_IFDIR : S_IFREG;
	out->cheap = true;
	memcpy(out->name, e.name, sizeof(out->name));
	return 1;
}
