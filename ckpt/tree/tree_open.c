/* SPDX-License-Identifier: Apache-2.0 */
/* Recognises the source, and plans the tag that users look at first. */
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

/* Plan the newest usable tag.  Tags that are refused but not damaged are shown unchanged: programs
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
		rc = tree_plan_tag(t, 0, path, i ? &why : err);
		refused &= rc == -ENOTSUP;
		free(path);
	}
	/* A newer tag, which `latest` does not name yet, may still be being saved. */
	if (!rc && tags->n > 1 && tags->v[1].step > tags->v[0].step &&
	    asprintf(&path, "%s/%s", t->o->source, tags->v[1].name) >= 0) {
		tree_plan_tag(t, 0, path, &why);
		free(path);
	}
	return refused ? 0 : rc;
}

static int open_run(struct tree *t, struct errmsg *err)
{
	const char *const source = t->o->source;
	struct tag_list tags;
	uint64_t index;
	int rc = pathtab_add(t->pathtab, source, 0, &index);

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

/* Add a view of a tag or a Hugging Face directory, and make its plan.  Errors as view_plan. */
static int tree_plan(struct tree *t, const char *path, const struct view_type *type,
		     uint64_t parent, struct view **view, struct errmsg *err)
{
	struct plan *plan;
	int rc = views_add(t->views, path, type, parent, view);

	if (rc)
		return errmsg_nomem(err, path);
	rc = view_plan(*view, &plan, err);
	if (rc)
		return rc;
	view_put(*view);
	return 0;
}

/* The universal tree was refused: plan all other views that have their own names, and warn of
 * impossible ones.  Returns 0 if any is possible. */
static int plan_others(struct tree *t, const char *path, uint64_t parent,
		       const struct errmsg *refused)
{
	const struct errmsg_sink warnings = context_warnings(t->o->u);
	struct errmsg why[PLAN_KINDS] = { [PLAN_UNIVERSAL] = *refused };
	struct view_type type = { 0 };
	struct view *view;
	unsigned n = 0;

	for (type.kind = PLAN_UNIVERSAL + 1; type.kind < PLAN_KINDS; type.kind++)
		n += !(plan_views[type.kind]->takes & TAKES_RANKS) &&
		     tree_plan(t, path, &type, parent, &view, &why[type.kind]) == 0;
	for (int kind = 0; n && kind < PLAN_KINDS; kind++)
		if (*why[kind].text)
			errmsg_put(&warnings, "%s%s will not be served: %s",
				   roots_base(t->o->u, path), plan_views[kind]->suffix,
				   why[kind].text);
	return n ? 0 : -ENOTSUP;
}

int tree_plan_tag(struct tree *t, uint64_t index, const char *path, struct errmsg *err)
{
	static const struct view_type type = { .kind = PLAN_UNIVERSAL };
	const uint64_t parent = ino_of_run_file(t, index);
	struct view *view = NULL;
	struct errmsg why = { "" };
	int rc = tree_plan(t, path, &type, parent, &view, &why);

	if (rc && view && view_has_others(view) &&
	    plan_others(t, path, parent, &why) == 0)
		rc = 0;
	return rc ? errmsg_set(err, rc, "%s", why.text) : 0;
}

static int tree_open_view(struct tree *t, struct errmsg *err)
{
	const struct view_type *const type = &t->o->plan.type;
	struct errmsg why = { "" };
	struct view *view = NULL;
	const int rc = tree_plan(t, t->o->source, type, TREE_ROOT, &view, &why);
	bool others;

	if (!rc) {
		atomic_init(&t->root_view, view);
		return 0;
	}
	others = rc == -ENOTSUP && type->kind != PLAN_HF && view && view_has_others(view);
	return errmsg_set(err, rc, "%s%s", why.text, others ? "; weights need option view=hf" : "");
}

/* Tags have all views, Hugging Face weights all except ranks' files; a run is not a view. */
static int check_kind(const struct tree_options *o, bool tag, bool view, struct errmsg *err)
{
	const enum plan_kind kind = o->plan.type.kind;

	if (kind != PLAN_UNIVERSAL && !tag && !(view && !(plan_views[kind]->takes & TAKES_RANKS)))
		return errmsg_set(err, -EINVAL, "%s: option view: not a tag directory", o->source);
	if (o->nrecut && tag && o->plan.type.kind != PLAN_RECUT)
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

/* Recognise the root, and plan it. */
static int open_root(struct tree *t, struct errmsg *err)
{
	struct dirlist names = { 0 };
	const enum dir_kind kind = detect(t->o->u, t->o->source, &names);
	int rc;

	t->is_view = is_one_view(t->o->u, t->o->source, kind);
	views_listed(t->views, kind, t->is_view ? &names : NULL);
	rc = check_kind(t->o, kind > DIR_WEIGHTS, t->is_view, err) ?:
	     t->is_view ? tree_open_view(t, err) : open_run(t, err);
	views_listed(t->views, kind, NULL);
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
	t->pathtab = pathtab_new(o->u);
	t->views = views_new(o->u, &o->plan, o->check);
	if (!t->pathtab || !t->views)
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
	struct plan *plan;
	struct view *x;

	if (t->is_view && t->o->plan.type.kind != PLAN_UNIVERSAL)
		return;
	for (size_t i = 0; (x = views_get(t->views, i)); i++) {
		if (view_state(x, &why) != VIEW_PLANNED || view_plan(x, &plan, NULL))
			continue;
		plan_warm(plan);
		view_put(x);
		return;
	}
}

void tree_close(struct tree *t)
{
	if (!t)
		return;
	views_free(t->views);
	pathtab_free(t->pathtab);
	free(t);
}
