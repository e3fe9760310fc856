/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ucfs: information about the mount itself.
 *
 *   plan/<tag>.json	the byte ranges of shards behind a view's files
 *   stats		the mount's statistics
 *   errors		views that cannot be served, and the last log lines; for
 *			the owner only, as they name tags and files
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "fs/log/log.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

const struct tree_control_entry tree_control_entries[TREE_CONTROL_ENTRIES] = {
	{ "plan", INO_CONTROL_PLANS },
	{ "stats", INO_CONTROL_STATS },
	{ "errors", INO_CONTROL_ERRORS },
};

static bool is_dir(uint64_t ino)
{
	return ino == INO_CONTROL || ino == INO_CONTROL_PLANS;
}

/* The path of a view, and its name in the mount. */
static char *view_label(struct tree *t, size_t view)
{
	const struct view_type type = views_type(t->views, view);
	char suffix[VIEW_SUFFIX_MAX], *label;

	view_type_suffix(&type, suffix);
	return asprintf(&label, "%s%s", views_path(t->views, view), suffix) < 0 ?
		       NULL : label;
}

/* The part of a path below the source, or its last component. */
static const char *within_source(const struct tree *t, const char *path)
{
	const size_t n = strlen(t->o->source);

	if (strncmp(path, t->o->source, n) == 0 && path[n] == '/')
		return path + n + 1;
	return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

/* Views that cannot be served, a line each, then what was logged last. */
static int control_errors(struct tree *t, struct bytebuf *out)
{
	const size_t n = views_count(t->views);
	struct errmsg why;

	for (size_t i = 0; i < n; i++)
		if (views_failed(t->views, i, &why)) {
			char *const label = view_label(t, i);

			if (!label)
				return -ENOMEM;
			bytebuf_add_str(out, label);
			bytebuf_add_str(out, ": ");
			bytebuf_add_str(out, why.text);
			bytebuf_add_str(out, "\n");
			free(label);
		}
	log_recent(out);
	return out->failed ? -ENOMEM : 0;
}

int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out,
		       struct errmsg *err)
{
	struct plan *p;
	size_t view;
	int rc;

	if (is_dir(ino))
		return -EISDIR;
	if (ino == INO_CONTROL_STATS)
		return stats_text(t->stats, out);
	if (ino == INO_CONTROL_ERRORS)
		return control_errors(t, out);
	view = (size_t)(ino - INO_CONTROL_PLAN0);
	rc = views_plan(t->views, view, &p, err);
	if (rc)
		return rc;
	rc = plan_json(p, out, err);
	views_put(t->views, view);
	return rc;
}

/* In a shared mount the plan directory cannot be listed: a user may know the
 * names of tags only from directories of the run. */
static mode_t dir_mode(const struct tree *t, uint64_t ino)
{
	return ino == INO_CONTROL_PLANS && t->o->shared ? 0511 : 0555;
}

/* A plan names shards and describes their contents, so only users that may read
 * all of these shards may read it. */
static int restrict_plan(struct tree *t, uint64_t ino, struct stat *st,
			 struct errmsg *err)
{
	struct access readers;
	const size_t view = (size_t)(ino - INO_CONTROL_PLAN0);
	struct plan *p;
	const int rc = views_plan(t->views, view, &p, err);

	if (rc)
		return rc;
	plan_readers(p, &readers);
	views_put(t->views, view);
	st->st_mode = S_IFREG | readers.mode;
	if (!t->o->has_uid)
		st->st_uid = readers.uid;
	if (!t->o->has_gid)
		st->st_gid = readers.gid;
	return 0;
}

int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out,
		      struct errmsg *err)
{
	struct bytebuf text = { 0 };
	int rc = 0;

	if (!is_dir(ino))
		rc = tree_control_bytes(t, ino, &text, err);
	tree_synthesize(t, ino,
			is_dir(ino) ? S_IFDIR | dir_mode(t, ino)
				    : S_IFREG | (ino == INO_CONTROL_ERRORS ? 0400 : 0444),
			text.len,
			ino == INO_CONTROL ? 3
			: is_dir(ino)      ? 2
					   : 1,
			t->source.st_mtim.tv_sec, &out->st);
	if (!rc && ino >= INO_CONTROL_PLAN0)
		rc = restrict_plan(t, ino, &out->st, err);
	out->timeout = is_dir(ino)                ? A_MOMENT
		       : ino >= INO_CONTROL_PLAN0 ? A_MOMENT
						  : 0;
	bytebuf_done(&text);
	return rc;
}

void tree_control_name(struct tree *t, size_t view, char name[NAME_MAX + 1])
{
	const struct view_type type = views_type(t->views, view);
	char suffix[VIEW_SUFFIX_MAX] = "";
	/* A tag in a subdirectory is named by its path:
	 * checkpoint-4+global_step4. */
	const char *const path = within_source(t, views_path(t->views, view));

	if (type.kind != PLAN_UNIVERSAL)
		view_type_suffix(&type, suffix);
	snprintf(name, NAME_MAX + 1, "%.*s%s.json",
		 NAME_MAX - 5 - VIEW_SUFFIX_MAX, path, suffix);
	for (char *c = name; *c; c++)
		if (*c == '/')
			*c = '+';
}

int tree_control_lookup(struct tree *t, uint64_t dir, const char *name,
			uint64_t *ino)
{
	const size_t n = views_count(t->views);
	char own[NAME_MAX + 1];

	for (size_t i = 0; dir == INO_CONTROL && i < TREE_CONTROL_ENTRIES; i++)
		if (strcmp(name, tree_control_entries[i].name) == 0) {
			*ino = tree_control_entries[i].ino;
			return 0;
		}
	for (size_t i = 0; dir == INO_CONTROL_PLANS && i < n; i++) {
		if (!views_is_listed(t->views, i))
			continue;
		tree_control_name(t, i, own);
		if (strcmp(own, name) == 0) {
			*ino = INO_CONTROL_PLAN0 + i;
			return 0;
		}
	}
	return -ENOENT;
}
