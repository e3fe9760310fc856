/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says at mount what of a run will not be served: the user is at the terminal now,
 * and a run that resumes tomorrow is not.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/kinds.h"
#include "ckpt/dirs/stage0_look.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"
#include "ckpt/sys/parallel.h"
#include "ckpt/tree/tree_impl.h"

#define SURVEY_WIDTH 16 /* directories that are scanned at once */

/* An entry of a directory of the run that may be a tag. */
struct candidate {
	char *path;
	bool pack;
	bool odd; /* has files of a checkpoint, but may not be served */
};

struct survey {
	struct tree *t;
	uint64_t index; /* of the directory */
	struct candidate *v;
	size_t n, cap;
};

/* Add an entry: a directory, or a pack without one under the name that it stands
 * for.  False if memory is short. */
static bool survey_add(struct survey *s, const char *dir, const char *entry,
		       mode_t type)
{
	char *const name =
		S_ISREG(type) ? io_dir_name(entry) : strdup(entry);
	const bool may_be = name && entry[0] != '.' &&
			    (!S_ISREG(type) || strcmp(name, entry) != 0);
	struct candidate x = { .pack = S_ISREG(type) };
	bool ok = name;

	if (may_be) {
		ok = array_reserve(&s->v, &s->cap, s->n + 1, sizeof(x)) &&
		     asprintf(&x.path, "%s/%s", dir, name) >= 0;
		if (ok)
			s->v[s->n++] = x;
	}
	free(name);
	return ok;
}

/* What became of a tag when the newest usable one was looked for?  It is planned if one of
 * its views is. */
static enum view_state tried_before(const struct survey *s, const char *path)
{
	enum view_state tried = VIEW_NEW;
	struct errmsg why;
	struct view *x;

	for (size_t i = 0; tried != VIEW_PLANNED && (x = views_get(s->t->views, i)); i++)
		if (strcmp(x->path, path) == 0)
			tried = view_state(x, &why);
	return tried;
}

/* A tag is scanned, which looks at all names and sizes and opens no file. */
static int survey_scan(void *ctx, size_t i, struct errmsg *err)
{
	const struct survey *const s = ctx;
	struct candidate *const x = &s->v[i];
	const enum view_state tried = tried_before(s, x->path);
	struct tagdir d;
	struct attrs a;
	size_t tiny;
	bool dcp;
	int rc;

	(void)err;
	rc = x->pack ? io_stat(s->t->o->u, x->path, 0, &a, NULL, NULL) : 0;
	x->odd = tried == VIEW_FAILED || tried == VIEW_REFUSED ||
		 (rc && !beneath_is_missing(rc));
	if (x->odd || tried != VIEW_NEW || !tagdir_is_tag(s->t->o->u, x->path) ||
	    kinds_is_universal(s->t->o->u, x->path)) /* shown as it is */
		return 0;
	dcp = tagdir_is_dcp(s->t->o->u, x->path);
	x->odd = !dcp &&
		 tagdir_scan(s->t->o->u, &d, x->path, NULL);
	if (!dcp && !x->odd) {
		x->odd = tagdir_find_tiny(&d, &tiny) ||
			 stage0_look(s->t->o->u, x->path, NULL) == STAGE0_WEIGHTS;
		tagdir_done(&d);
	}
	/* With option `check`, or for files that are too small, the plan says
	 * more. */
	x->odd |= s->t->o->check;
	return 0;
}

/* A tag without optimizer shards has no view, so only the scan can say why. */
static void survey_report(const struct survey *s, const char *path)
{
	const struct errmsg_sink warnings = context_warnings(s->t->o->u);
	struct errmsg why = { "" };
	struct tagdir d;
	int rc;

	if (tagdir_is_zero_tag(s->t->o->u, path)) {
		rc = tree_plan_tag(s->t, s->index, path, &why);
	} else {
		rc = tagdir_scan(s->t->o->u, &d, path, &why);
		if (!rc)
			tagdir_done(&d);
	}
	if (rc)
		errmsg_put(&warnings, "%s will not be served: %s",
			   roots_base(s->t->o->u, path), why.text);
}

/* Recursive to a depth of two. */
static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels);

/* The Hugging Face Trainer's directories, checkpoint-N, hold a tag each. */
static void survey_below(struct survey *s, const char *dir, unsigned levels)
{
	struct tag_list tags;
	uint64_t child;

	if (tagdir_is_tag(s->t->o->u, dir) ||
	    pathtab_add(s->t->pathtab, dir, s->index, &child) ||
	    tags_list(s->t->o->u, dir, false, &tags, NULL))
		return;
	survey_dir(s->t, dir, child, &tags, levels - 1);
	tags_done(&tags);
}

static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels)
{
	const struct errmsg_sink warnings = context_warnings(t->o->u);
	struct survey s = { .t = t, .index = index };
	struct dirlist d = { 0 };

	io_list(t->o->u, dir, IO_PLAIN, &d, NULL);
	for (size_t i = 0; i < d.n; i++)
		if (!survey_add(&s, dir, d.v[i].name, d.v[i].own_type))
			break;
	dirlist_done(&d);
	parallel_steps(t->o->u, "looking at other checkpoints", parallel_for, s.n,
		       SURVEY_WIDTH, survey_scan, &s, NULL);
	for (size_t i = 0; i < s.n; i++)
		if (s.v[i].odd)
			survey_report(&s, s.v[i].path);
		else if (levels)
			survey_below(&s, s.v[i].path, levels);
	/* `latest` is written after the tag, so it can name one that was
	 * removed. */
	if (tags->latest && tags->n && tags->choice != TAGS_LATEST)
		errmsg_put(&warnings,
			   "%s/latest names %s, which is not a ZeRO checkpoint"
			   " here; latest_universal names %s_universal",
			   dir, tags->latest, tags->v[0].name);
	for (size_t i = 0; i < s.n; i++)
		free(s.v[i].path);
	free(s.v);
}

void survey_run(struct tree *t, const struct tag_list *tags)
{
	survey_dir(t, t->o->source, 0, tags, tags->n ? 0 : 2);
}
