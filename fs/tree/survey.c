/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Says at mount what of a run will not be served: the user is at the terminal now,
 * and a run that resumes tomorrow is not.
 */
#include "fs/tree/survey.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/kinds.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/files/files.h"
#include "ckpt/files/roots.h"
#include "ckpt/pack/packfs.h"
#include "ckpt/sys/parallel.h"
#include "fs/log/log.h"
#include "fs/tree/pathtab.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

#define SURVEY_WIDTH 16 /* directories that are scanned at once */

int survey_plan_tag(struct tree *t, uint64_t index, const char *path,
		    struct errmsg *err)
{
	const struct view_type type = { .kind = PLAN_UNIVERSAL };
	size_t view;

	return tree_plan(t, path, &type, ino_of_lower(t, index), &view, err);
}

/* The entries of a directory of the run that may be tags. */
struct survey {
	struct tree *t;
	uint64_t index; /* of the directory */
	char **paths;
	bool *odd; /* has files of a checkpoint, but cannot be served */
	size_t n, cap;
};

static int survey_add(struct survey *s, const char *dir, const char *name)
{
	char *path;

	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return -ENOMEM;
	if (!array_reserve(&s->paths, &s->cap, s->n + 1, sizeof(*s->paths))) {
		free(path);
		return -ENOMEM;
	}
	s->paths[s->n++] = path;
	return 0;
}

/* Add an entry: a directory, or a pack without one under the name that it stands
 * for. */
static int survey_entry(struct survey *s, const char *dir, const char *entry,
			mode_t type)
{
	char *name;
	int rc;

	if (entry[0] == '.')
		return 0;
	if (!S_ISREG(type))
		return survey_add(s, dir, entry);
	name = packfs_dir_name(entry);
	if (!name)
		return -ENOMEM;
	rc = strcmp(name, entry) == 0 ? 0 : survey_add(s, dir, name);
	free(name);
	return rc;
}

enum tried { NOT_TRIED, PLANNED, FAILED };

/* What became of a tag when the newest usable one was looked for? */
static enum tried tried_before(const struct survey *s, const char *path)
{
	const size_t n = views_count(s->t->views);
	struct errmsg why;

	for (size_t i = 0; i < n; i++) {
		if (strcmp(views_path(s->t->views, i), path) != 0)
			continue;
		if (views_is_planned(s->t->views, i))
			return PLANNED;
		if (views_failed(s->t->views, i, &why))
			return FAILED;
	}
	return NOT_TRIED;
}

/* A tag is scanned, which looks at all names and sizes and opens no file. */
static int survey_scan(void *ctx, size_t i, struct errmsg *err)
{
	const struct survey *const s = ctx;
	const enum tried tried = tried_before(s, s->paths[i]);
	struct tagdir d;
	size_t tiny;

	(void)err;
	s->odd[i] = tried == FAILED;
	if (tried != NOT_TRIED || !tagdir_is_tag(s->paths[i]) ||
	    kinds_is_universal(s->paths[i])) /* shown as it is */
		return 0;
	s->odd[i] = tagdir_scan(&d, s->paths[i], NULL);
	if (!s->odd[i]) {
		s->odd[i] = tagdir_find_tiny(&d, &tiny);
		tagdir_done(&d);
	}
	/* With option `check`, or for files that are too small, the plan says
	 * more. */
	s->odd[i] |= s->t->o->check;
	return 0;
}

/* A tag without optimizer shards has no view, so only the scan can say why. */
static void survey_report(const struct survey *s, const char *path)
{
	struct errmsg why = { "" };
	struct tagdir d;
	int rc;

	if (tagdir_is_zero_tag(path)) {
		rc = survey_plan_tag(s->t, s->index, path, &why);
	} else {
		rc = tagdir_scan(&d, path, &why);
		if (!rc)
			tagdir_done(&d);
	}
	if (rc)
		log_warning("%s will not be served: %s", roots_base(path),
			    why.text);
}

/* `latest` is written after the tag, so it can name one that was removed. */
static void survey_latest(const char *dir, const struct tag_list *tags)
{
	if (tags->latest && tags->n && tags->choice != TAGS_LATEST)
		log_warning("%s/latest names %s, which is not a ZeRO checkpoint"
			    " here; latest_universal names %s_universal",
			    dir, tags->latest, tags->v[0].name);
}

static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels);

/* The Hugging Face Trainer's directories, checkpoint-N, hold a tag each. */
static void survey_below(struct survey *s, size_t i, unsigned levels)
{
	const char *const dir = s->paths[i];
	struct tag_list tags;
	uint64_t child;

	if (tagdir_is_tag(dir) ||
	    pathtab_add(s->t->pathtab, dir, s->index, &child) ||
	    tags_list(dir, &tags, NULL))
		return;
	survey_dir(s->t, dir, child, &tags, levels - 1);
	tags_done(&tags);
}

/* Warn of what in the directory, and `levels` below, will not be served. */
static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       const struct tag_list *tags, unsigned levels)
{
	struct survey s = { .t = t, .index = index };
	struct dirlist d;
	int rc = files_list(dir, false, &d, NULL);

	if (!rc) {
		for (size_t i = 0; !rc && i < d.n; i++)
			rc = survey_entry(&s, dir, d.v[i].name, d.v[i].own_type);
		dirlist_done(&d);
	}
	s.odd = calloc(s.n + 1, sizeof(*s.odd));
	if (s.odd)
		parallel_for(s.n, SURVEY_WIDTH, survey_scan, &s, NULL);
	for (size_t i = 0; s.odd && i < s.n; i++)
		if (s.odd[i])
			survey_report(&s, s.paths[i]);
		else if (levels)
			survey_below(&s, i, levels);
	survey_latest(dir, tags);
	for (size_t i = 0; i < s.n; i++)
		free(s.paths[i]);
	free(s.paths);
	free(s.odd);
}

void survey_run(struct tree *t, const struct tag_list *tags)
{
	survey_dir(t, t->o->source, 0, tags, tags->n ? 0 : 2);
}
