/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises the source, and makes the view that users look at first. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/attrs.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/tags.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/remote/site.h"
#include "ckpt/tree/tree_impl.h"

/* Open the newest usable tag.  Tags that are refused but not damaged are shown unchanged: programs
 * resume from them, and mounting warns why they have no views. */
static int open_tags(struct tree *t, const struct tag_list *tags, struct errmsg *err)
{
	struct errmsg why = { "" };
	bool refused = true;
	int rc = -ENOENT;
	char *path;

	for (size_t i = 0; i < tags->n && rc; i++) {
		if (asprintf(&path, "%s/%s", t->o->source, tags->v[i].name) < 0)
			return errmsg_nomem(err, NULL);
		rc = tree_open_tag(t, 0, path, i ? &why : err);
		refused &= rc == -ENOTSUP;
		free(path);
	}
	/* A newer tag, which `latest` does not name yet, may still be being saved. */
	if (!rc && tags->n > 1 && tags->v[1].step > tags->v[0].step &&
	    asprintf(&path, "%s/%s", t->o->source, tags->v[1].name) >= 0) {
		tree_open_tag(t, 0, path, &why);
		free(path);
	}
	return refused ? 0 : rc;
}

static int open_run(struct tree *t, struct errmsg *err)
{
	const char *const source = t->o->source;
	struct tag_list tags;
	uint64_t index;
	int rc = paths_add(t->paths, source, 0, &index);

	if (rc)
		return errmsg_set(err, rc, "out of memory");
	rc = tags_list(t->o->u, source, false, &tags, err);
	if (rc)
		return rc;
	if (tags.n)
		rc = open_tags(t, &tags, err);
	else if (!tags_exist_below(t->o->u, source) && !tags_weights_below(t->o->u, source))
		rc = detect_explain(t->o->u, source, err);
	if (!rc)
		warn_unservable(t, &tags);
	tags_done(&tags);
	return rc;
}

/* Add a slot of a tag or a Hugging Face directory, and make its view.  Errors as slot_view. */
static int open_slot(struct tree *t, const char *path, const struct view_type *type,
		     uint64_t parent, struct slot **slot, struct errmsg *err)
{
	struct view *view;
	int rc = slots_add(t->slots, path, type, parent, slot);

	if (rc)
		return errmsg_nomem(err, path);
	rc = slot_view(*slot, &view, err);
	if (rc)
		return rc;
	slot_put(*slot);
	return 0;
}

/* The universal tree was refused: make all other views that have their own names, and warn of
 * impossible ones.  Returns 0 if any is possible. */
static int view_others(struct tree *t, const char *path, uint64_t parent,
		       const struct errmsg *refused)
{
	const struct errmsg_sink warnings = context_warnings(t->o->u);
	struct errmsg why[VIEW_KINDS] = { [VIEW_UNIVERSAL] = *refused };
	struct view_type type = { 0 };
	struct slot *slot;
	unsigned n = 0;

	for (type.kind = VIEW_UNIVERSAL + 1; type.kind < VIEW_KINDS; type.kind++)
		n += !(all_views[type.kind]->takes & TAKES_RANKS) &&
		     open_slot(t, path, &type, parent, &slot, &why[type.kind]) == 0;
	for (int kind = 0; n && kind < VIEW_KINDS; kind++)
		if (*why[kind].text)
			errmsg_put(&warnings, "%s%s will not be served: %s",
				   roots_base(t->o->u, path), all_views[kind]->suffix,
				   why[kind].text);
	return n ? 0 : -ENOTSUP;
}

int tree_open_tag(struct tree *t, uint64_t index, const char *path, struct errmsg *err)
{
	static const struct view_type type = { .kind = VIEW_UNIVERSAL };
	const uint64_t parent = ino_of_run_file(t, index);
	struct slot *slot = NULL;
	struct errmsg why = { "" };
	int rc = open_slot(t, path, &type, parent, &slot, &why);

	if (rc && slot && slot_has_others(slot) &&
	    view_others(t, path, parent, &why) == 0)
		rc = 0;
	return rc ? errmsg_set(err, rc, "%s", why.text) : 0;
}

static int tree_open_view(struct tree *t, struct errmsg *err)
{
	const struct view_type *const type = &t->o->view.type;
	struct errmsg why = { "" };
	struct slot *slot = NULL;
	const int rc = open_slot(t, t->o->source, type, TREE_ROOT, &slot, &why);
	bool others;

	if (!rc) {
		atomic_init(&t->root_slot, slot);
		return 0;
	}
	others = rc == -ENOTSUP && type->kind != VIEW_HF && slot && slot_has_others(slot);
	return errmsg_set(err, rc, "%s%s", why.text, others ? "; weights need option view=hf" : "");
}

/* Tags have all views, Hugging Face weights all except ranks' files; a run is not a view. */
static int check_kind(const struct tree_options *o, bool tag, bool slot, struct errmsg *err)
{
	const enum view_kind kind = o->view.type.kind;

	if (kind != VIEW_UNIVERSAL && !tag && !(slot && !(all_views[kind]->takes & TAKES_RANKS)))
		return errmsg_set(err, -EINVAL, "%s: option view: not a tag directory", o->source);
	if (o->nrecut && tag && o->view.type.kind != VIEW_RECUT)
		return errmsg_set(err, -EINVAL, "%s: option ranks: a tag directory also needs"
				  " view=zero",
				  o->source);
	return 0;
}

/* Is the root a view?  Weights beside the tags of a run are ordinary files of the run. */
static bool is_one_view(struct uckpt *u, const char *source, enum dir_kind kind)
{
	return kind > DIR_WEIGHTS || (kind == DIR_WEIGHTS && !tags_exist_below(u, source));
}

/*
 * Return the length of the path that files must lie below: usually the source's.  In Hugging Face's
 * hub cache the files of a snapshot are links to blobs of the same repository (huggingface_hub,
 * file_download.py), so there it is the repository's directory.
 */
static size_t root_len(const char *source)
{
	static const char snapshots[] = "/snapshots/";
	const char *const in_repo = strstr(source, "/models--");
	const char *const at = in_repo ? strstr(in_repo, snapshots) : NULL;

	if (!at || strchr(in_repo + 1, '/') != at || strchr(at + strlen(snapshots), '/'))
		return strlen(source);
	return (size_t)(at - source);
}

/* For a pack, the root is the directory that contains it. */
static size_t confined_len(const char *source)
{
	const char *const slash = strrchr(source, '/');
	struct stat st;

	return slash && slash > source && stat(source, &st) == 0 &&
			       S_ISREG(st.st_mode)
		       ? (size_t)(slash - source)
		       : root_len(source);
}

/* In a shared mount, a link that the run's owner makes must not expose other
 * files to other users.  A server has no links and no owners. */
static int confine(struct tree *t, struct errmsg *err)
{
	const size_t n = roots_count(t->o->u, t->o->source);
	int rc = 0;

	t->search = PERMISSIONS_ALL;
	for (size_t i = 0; !rc && t->o->shared && i < n; i++) {
		const char *const source = roots_root(t->o->u, t->o->source, i);
		struct permissions search;

		if (site_is_url(source))
			continue;
		rc = beneath_confine(t->o->u, source, confined_len(source),
				     t->o->follow_links, &search, err);
		if (!rc)
			permissions_restrict(&t->search, &search);
	}
	return rc;
}

/* Recognise the root, and make its view. */
static int open_root(struct tree *t, struct errmsg *err)
{
	struct dirlist names = { 0 };
	const enum dir_kind kind = detect(t->o->u, t->o->source, &names);
	int rc;

	t->is_view = is_one_view(t->o->u, t->o->source, kind);
	slots_listed(t->slots, kind, t->is_view ? &names : NULL);
	rc = check_kind(t->o, kind > DIR_WEIGHTS, t->is_view, err) ?:
	     t->is_view ? tree_open_view(t, err) : open_run(t, err);
	slots_listed(t->slots, kind, NULL);
	dirlist_done(&names);
	return rc;
}

int tree_open(const struct tree_options *o, struct tree **out, struct errmsg *err)
{
	struct tree *const t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->o = o;
	t->paths = paths_new(o->u);
	t->slots = slots_new(o->u, &o->view, o->check);
	if (!t->paths || !t->slots)
		rc = errmsg_nomem(err, NULL);
	else
		rc = confine(t, err) ?:
		     io_stat(o->u, o->source, 0, &t->source, NULL, err) ?:
		     open_root(t, err);
	if (rc)
		tree_close(t);
	else
		*out = t;
	return rc;
}

void tree_warm(struct tree *t)
{
	struct errmsg why;
	struct view *view;
	struct slot *x;

	if (t->is_view && t->o->view.type.kind != VIEW_UNIVERSAL)
		return;
	for (size_t i = 0; (x = slots_get(t->slots, i)); i++) {
		if (slot_state(x, &why) != SLOT_MADE || slot_view(x, &view, NULL))
			continue;
		view_prefetch(view);
		slot_put(x);
		return;
	}
}

void tree_close(struct tree *t)
{
	if (!t)
		return;
	slots_free(t->slots);
	paths_free(t->paths);
	free(t);
}
