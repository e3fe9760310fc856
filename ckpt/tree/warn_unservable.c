/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Warn at mount about tags of a run that cannot be served, while the user is still at the terminal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/base/parallel.h"
#include "ckpt/table/detect.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/table/tags.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/tree/tree_impl.h"

#define SCAN_WIDTH 16 /* directories scanned at once */

/* An entry of a directory of the run that may be a tag. */
struct candidate {
	char *path;
	bool pack;
	bool odd; /* has files of a checkpoint, but perhaps cannot be served */
};

struct scan {
	struct tree *t;
	uint64_t index; /* number of the directory */
	struct candidate *v;
	size_t n, cap;
};

/* Add an entry: a directory, or a pack under the name of the directory it replaces.  False if
 * memory is short. */
static bool scan_add(struct scan *s, const char *dir, const char *entry, mode_t type)
{
	char *name = entry[0] == '.' ? NULL : io_tag_name(entry, type);
	struct candidate x = { .pack = S_ISREG(type) };
	const bool ok = !name || (array_reserve(&s->v, &s->cap, s->n + 1, sizeof(x)) &&
				  asprintf(&x.path, "%s/%s", dir, name) >= 0);

	if (ok && name)
		s->v[s->n++] = x;
	free(name);
	return ok;
}

/* Return the result for a tag that was tried in the search for the newest usable one.  A tag counts
 * as planned if one of its views is. */
static enum slot_state tried_before(const struct scan *s, const char *path)
{
	enum slot_state tried = SLOT_NEW;
	struct errmsg why;
	struct slot *x;

	for (size_t i = 0; tried != SLOT_MADE && (x = slots_get(s->t->slots, i)); i++)
		if (strcmp(x->path, path) == 0)
			tried = slot_state(x, &why);
	return tried;
}

/* Does a tag look unusable by names and sizes, or lack an optimizer?  Scanning opens none of
 * ZeRO's files.  With option `check`, or for files that are too small, the view decides. */
static bool is_odd(struct uckpt *u, const char *path, bool check)
{
	const enum dir_kind kind = detect(u, path, NULL);
	struct zero_dir d;
	size_t tiny;
	bool odd;

	/* A universal checkpoint is shown unchanged. */
	if (kind <= DIR_WEIGHTS || (kind == DIR_DCP && !check) || detect_is_universal(u, path))
		return false;
	if (check || zero_dir_scan(u, &d, path, NULL, NULL))
		return true;
	odd = zero_dir_find_tiny(&d, &tiny) ||
	      (kind == DIR_STAGE0 && stage0_look(u, path, NULL) == STAGE0_WEIGHTS);
	zero_dir_done(&d);
	return odd;
}

static int scan_entry(void *ctx, size_t i, struct errmsg *err)
{
	const struct scan *const s = ctx;
	struct candidate *const x = &s->v[i];
	const enum slot_state tried = tried_before(s, x->path);
	struct uckpt *u = s->t->o->u;
	struct attrs a;
	int rc;

	(void)err;
	rc = x->pack ? io_stat(u, x->path, 0, &a, NULL, NULL) : 0;
	x->odd = tried == SLOT_FAILED || tried == SLOT_REFUSED ||
		 (rc && !beneath_is_missing(rc)) ||
		 (tried == SLOT_NEW && is_odd(u, x->path, s->t->o->check));
	return 0;
}

/* A tag without optimizer shards has no view, so only the scan can report the reason. */
static void scan_report(const struct scan *s, const char *path)
{
	const struct errmsg_sink warnings = context_warnings(s->t->o->u);
	struct errmsg why = { "" };
	struct zero_dir d;
	int rc;

	if (detect_has_views(s->t->o->u, path)) {
		rc = tree_open_tag(s->t, s->index, path, &why);
	} else {
		rc = zero_dir_scan(s->t->o->u, &d, path, NULL, &why);
		if (!rc)
			zero_dir_done(&d);
	}
	if (rc)
		errmsg_put(&warnings, "%s will not be served: %s",
			   roots_base(s->t->o->u, path), why.text);
}

/* Recursive to a depth of two. */
static void scan_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels);

/* The Hugging Face Trainer's directories, checkpoint-N, contain one tag each. */
static void scan_below(struct scan *s, const char *dir, unsigned levels)
{
	struct tag_list tags;
	uint64_t child;

	if (detect(s->t->o->u, dir, NULL) > DIR_WEIGHTS ||
	    paths_add(s->t->paths, dir, s->index, &child) ||
	    tags_list(s->t->o->u, dir, false, &tags, NULL))
		return;
	scan_dir(s->t, dir, child, &tags, levels - 1);
	tags_done(&tags);
}

static void scan_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels)
{
	const struct errmsg_sink warnings = context_warnings(t->o->u);
	struct scan s = { .t = t, .index = index };
	struct errmsg why = { "" };
	struct dirlist d = { 0 };

	io_list(t->o->u, dir, IO_PLAIN, &d, NULL);
	for (size_t i = 0; i < d.n; i++)
		if (!scan_add(&s, dir, d.v[i].name, d.v[i].type))
			break;
	dirlist_done(&d);
	parallel_steps(t->o->u, "looking at other checkpoints", parallel_for, s.n,
		       SCAN_WIDTH, scan_entry, &s, NULL);
	for (size_t i = 0; i < s.n; i++)
		if (s.v[i].odd)
			scan_report(&s, s.v[i].path);
		else if (levels)
			scan_below(&s, s.v[i].path, levels);
	/* `latest` is written after the tag, so it can name one that was
	 * removed. */
	if (tags_ignored_latest(t->o->u, dir, tags->choice, &why))
		errmsg_put(&warnings, "%s; latest_universal names %s_universal", why.text,
			   tags->v[0].name);
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i].path);
	free(s.v);
}

void warn_unservable(struct tree *t, const struct tag_list *tags)
{
	scan_dir(t, t->o->source, 0, tags, tags->n ? 0 : 2);
}
