/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ucfs: information about the mount itself.
 *
 *   plan/<tag>.json	the byte ranges of shards behind a view's files
 *   stats, stats.json	the mount's statistics
 *   metrics		the same for Prometheus
 *   errors		views that cannot be served, and the last log lines; for
 *			the owner only, as they name tags and files
 */
#include <errno.h>
#include <stdio.h>
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
	{ "stats.json", INO_CONTROL_STATS_JSON },
	{ "metrics", INO_CONTROL_METRICS },
	{ "errors", INO_CONTROL_ERRORS },
};

static bool is_dir(uint64_t ino)
{
	return ino == INO_CONTROL || ino == INO_CONTROL_PLANS;
}

static void control_add(struct bytebuf *out, const char *text)
{
	bytebuf_add(out, text, strlen(text));
}

/* Views that cannot be served, a line each, then what was logged last. */
static int control_errors(struct tree *t, struct bytebuf *out)
{
	const size_t n = views_count(t->views);
	char suffix[VIEW_SUFFIX_MAX];
	struct errmsg why;

	for (size_t i = 0; i < n; i++)
		if (views_failed(t->views, i, &why)) {
			const struct view_type type = views_type(t->views, i);

			view_type_suffix(&type, suffix);
			control_add(out, views_path(t->views, i));
			control_add(out, suffix);
			control_add(out, ": ");
			control_add(out, why.text);
			control_add(out, "\n");
		}
	log_recent(out);
	return out->failed ? -ENOMEM : 0;
}

int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out,
		       struct errmsg *err)
{
	struct plan *p;
	int rc;

	if (is_dir(ino))
		return -EISDIR;
	if (ino == INO_CONTROL_STATS)
		return stats_text(t->stats, out);
	if (ino == INO_CONTROL_STATS_JSON)
		return stats_json(t->stats, out);
	if (ino == INO_CONTROL_METRICS)
		return stats_metrics(t->stats, t->o->source, out);
	if (ino == INO_CONTROL_ERRORS)
		return control_errors(t, out);
	rc = views_plan(t->views, (size_t)(ino - INO_CONTROL_PLAN0), &p, err);
	return rc ? rc : plan_json(p, out, err);
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
	struct plan *p;
	const int rc = views_plan(t->views, (size_t)(ino - INO_CONTROL_PLAN0),
				  &p, err);

	if (rc)
		return rc;
	plan_readers(p, &readers);
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
			is_dir(ino)                 ? S_IFDIR | dir_mode(t, ino)
			: ino == INO_CONTROL_ERRORS ? S_IFREG | 0400
						    : S_IFREG | 0444,
			text.len,
			ino == INO_CONTROL ? 3
			: is_dir(ino)      ? 2
					   : 1,
			t->source.st_mtim.tv_sec, &out->st);
	if (!rc && ino >= INO_CONTROL_PLAN0)
		rc = restrict_plan(t, ino, &out->st, err);
	out->timeout = is_dir(ino)                ? A_MOMENT
		       : ino >= INO_CONTROL_PLAN0 ? FOREVER
						  : 0;
	bytebuf_done(&text);
	return rc;
}

void tree_control_name(struct tree *t, size_t view, char name[NAME_MAX + 1])
{
	const struct view_type type = views_type(t->views, view);
	char suffix[VIEW_SUFFIX_MAX] = "";
	const char *path = views_path(t->views, view);
	const size_t n = strlen(t->o->source);

	/* A tag in a subdirectory is named by its path:
	 * checkpoint-4+global_step4. */
	if (strncmp(path, t->o->source, n) == 0 && path[n] == '/')
		path += n + 1;
	else if (strrchr(path, '/'))
		path = strrchr(path, '/') + 1;
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
		tree_control_name(t, i, own);
		if (strcmp(own, name) == 0) {
			*ino = INO_CONTROL_PLAN0 + i;
			return 0;
		}
	}
	return -ENOENT;
}
