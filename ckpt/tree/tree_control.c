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

#include "ckpt/base/array.h"
#include "ckpt/base/bytebuf.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/tree/tree_impl.h"

#define INO_PLANS (INO_CONTROL | 1)
#define INO_STATS (INO_CONTROL | 2)
#define INO_ERRORS (INO_CONTROL | 3)
#define INO_PLAN0 (INO_CONTROL | 16) /* + view */

bool tree_control_is_dir(uint64_t ino)
{
	return ino == INO_CONTROL || ino == INO_PLANS;
}

/* The part of a path below the source, or its last component. */
static const char *within_source(const struct tree *t, const char *path)
{
	const size_t n = strlen(t->o->source);

	if (strncmp(path, t->o->source, n) == 0 && path[n] == '/')
		return path + n + 1;
	return strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
}

/* The name of a view's plan.  A tag in a subdirectory is named by its path:
 * checkpoint-4+global_step4. */
static void plan_name(const struct tree *t, const struct view *x,
		      char name[NAME_MAX + 1])
{
	char suffix[VIEW_SUFFIX_MAX] = "";

	if (x->type.kind != PLAN_UNIVERSAL)
		view_type_suffix(&x->type, suffix);
	snprintf(name, NAME_MAX + 1, "%.*s%s.json",
		 NAME_MAX - 5 - VIEW_SUFFIX_MAX, within_source(t, x->path),
		 suffix);
	for (char *c = name; *c; c++)
		if (*c == '/')
			*c = '+';
}

int tree_control_next(struct tree *t, uint64_t dir, uint64_t *pos,
		      struct uckpt_entry *out)
{
	static const struct uckpt_entry entries[] = {
		{ INO_PLANS, S_IFDIR, true, "plan" },
		{ INO_STATS, S_IFREG, true, "stats" },
		{ INO_ERRORS, S_IFREG, true, "errors" },
	};
	struct view *x;

	if (dir == INO_CONTROL) {
		if (*pos >= COUNT(entries))
			return 0;
		*out = entries[(*pos)++];
		return 1;
	}
	while ((x = views_get(t->views, (size_t)(*pos)++)))
		if (view_is_listed(x)) {
			out->node = INO_PLAN0 + x->number;
			out->type = S_IFREG;
			out->cheap = false;
			plan_name(t, x, out->name);
			return 1;
		}
	return 0;
}

static void put_text(void *bytes, const char *text)
{
	bytebuf_add_str(bytes, text);
}

/* Views that cannot be served, a line each, then what the caller knows. */
static int control_errors(struct tree *t, struct bytebuf *out)
{
	const struct uckpt_calls *const calls = &t->o->u->calls;
	char suffix[VIEW_SUFFIX_MAX];
	struct errmsg why;
	struct view *x;

	for (size_t i = 0; (x = views_get(t->views, i)); i++) {
		const enum view_state state = view_state(x, &why);

		if (state != VIEW_FAILED && state != VIEW_REFUSED)
			continue;
		view_type_suffix(&x->type, suffix);
		bytebuf_add_format(out, "%s%s: %s\n", x->path, suffix, why.text);
	}
	if (calls->errors)
		calls->errors(calls->arg, put_text, out);
	return out->failed ? -ENOMEM : 0;
}

/* Get the plan that a file of .ucfs/plan describes, until view_put. */
static int get_plan(struct tree *t, uint64_t ino, struct view **x,
		    struct plan **p, struct errmsg *err)
{
	*x = views_get(t->views, (size_t)(ino - INO_PLAN0));
	return *x ? view_plan(*x, p, err) : -ENOENT;
}

int tree_control_bytes(struct tree *t, uint64_t ino, struct bytebuf *out,
		       struct errmsg *err)
{
	const struct uckpt_calls *const calls = &t->o->u->calls;
	struct view *x;
	struct plan *p;
	int rc;

	if (tree_control_is_dir(ino))
		return -EISDIR;
	if (ino == INO_STATS) {
		if (calls->stats)
			calls->stats(calls->arg, put_text, out);
		return out->failed ? -ENOMEM : 0;
	}
	if (ino == INO_ERRORS)
		return control_errors(t, out);
	rc = get_plan(t, ino, &x, &p, err);
	if (rc)
		return rc;
	rc = plan_json(p, out, err);
	view_put(x);
	return rc;
}

/* A plan names shards and describes their contents, so only users that may read
 * all of these shards may read it. */
static int restrict_plan(struct tree *t, uint64_t ino, struct stat *st,
			 struct errmsg *err)
{
	struct access readers;
	struct view *x;
	struct plan *p;
	const int rc = get_plan(t, ino, &x, &p, err);

	if (rc)
		return rc;
	plan_readers(p, &readers);
	view_put(x);
	st->st_mode = S_IFREG | readers.mode;
	st->st_uid = readers.uid;
	st->st_gid = readers.gid;
	tree_set_owner(t, st);
	return 0;
}

/* In a shared mount the plan directory cannot be listed: a user may know the
 * names of tags only from directories of the run. */
static mode_t mode_of(const struct tree *t, uint64_t ino)
{
	if (tree_control_is_dir(ino))
		return S_IFDIR |
		       (ino == INO_PLANS && t->o->shared ? 0511 : 0555);
	return S_IFREG | (ino == INO_ERRORS ? 0400 : 0444);
}

int tree_control_stat(struct tree *t, uint64_t ino, struct tree_attr *out,
		      struct errmsg *err)
{
	const bool is_dir = tree_control_is_dir(ino);
	struct bytebuf text = { 0 };
	int rc = is_dir ? 0 : tree_control_bytes(t, ino, &text, err);

	tree_synthesize(t, ino, mode_of(t, ino), text.len,
			1 + is_dir + (ino == INO_CONTROL),
			t->source.st_mtim.tv_sec, &out->st);
	if (!rc && ino >= INO_PLAN0)
		rc = restrict_plan(t, ino, &out->st, err);
	out->timeout = is_dir || ino >= INO_PLAN0 ? A_MOMENT : 0;
	bytebuf_done(&text);
	return rc;
}
