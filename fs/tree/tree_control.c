/* SPDX-License-Identifier: Apache-2.0 */
/*
 * .ucfs: what a mount tells about itself.
 *
 *   plan/<tag>.json	which bytes of which shards a view's files are made of
 *   stats, stats.json	what the mount has done
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/errmsg.h"
#include "fs/options.h"
#include "fs/log/stats.h"
#include "fs/tree/tree.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

static bool is_dir(uint64_t ino)
{
	return ino == INO_CONTROL || ino == INO_CONTROL_PLANS;
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
	rc = views_plan(t->views, (size_t)(ino - INO_CONTROL_PLAN0), &p, err);
	return rc ? rc : plan_json(p, out, err);
}

int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out,
		      struct errmsg *err)
{
	struct bytebuf text = { 0 };
	int rc = 0;

	if (!is_dir(ino))
		rc = tree_control_bytes(t, ino, &text, err);
	tree_make_up(t, ino, is_dir(ino) ? S_IFDIR | 0555 : S_IFREG | 0444,
		     text.len,
		     ino == INO_CONTROL ? 3
		     : is_dir(ino)      ? 2
					: 1,
		     t->source.st_mtim.tv_sec, &out->st);
	out->timeout = is_dir(ino)                ? A_MOMENT
		       : ino >= INO_CONTROL_PLAN0 ? FOREVER
						  : 0;
	bytebuf_done(&text);
	return rc;
}

void tree_control_name(struct tree *t, size_t view, char name[NAME_MAX + 1])
{
	const enum plan_kind kind = views_kind(t->views, view);
	const char *path = views_path(t->views, view);
	const size_t n = strlen(t->o->source);

	/* A tag further down goes by its path: checkpoint-4+global_step4. */
	if (strncmp(path, t->o->source, n) == 0 && path[n] == '/')
		path += n + 1;
	else if (strrchr(path, '/'))
		path = strrchr(path, '/') + 1;
	snprintf(name, NAME_MAX + 1, "%.*s%s.json",
		 NAME_MAX - 5 - VIEW_SUFFIX_MAX, path,
		 kind == PLAN_UNIVERSAL ? "" : view_suffixes[kind]);
	for (char *c = name; *c; c++)
		if (*c == '/')
			*c = '+';
}

int tree_control_lookup(struct tree *t, uint64_t dir, const char *name,
			uint64_t *ino)
{
	const size_t n = views_count(t->views);
	char own[NAME_MAX + 1];

	if (dir == INO_CONTROL && strcmp(name, PLANS_NAME) == 0) {
		*ino = INO_CONTROL_PLANS;
		return 0;
	}
	if (dir == INO_CONTROL && strcmp(name, STATS_NAME) == 0) {
		*ino = INO_CONTROL_STATS;
		return 0;
	}
	if (dir == INO_CONTROL && strcmp(name, STATS_JSON_NAME) == 0) {
		*ino = INO_CONTROL_STATS_JSON;
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
