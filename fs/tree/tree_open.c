/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Recognising the source, and saying at once what of it will not be served: the
 * user is at the terminal now, and a run that resumes tomorrow is not.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/array.h"
#include "ckpt/base/beneath.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/dirs/hfdir.h"
#include "ckpt/dirs/tagdir.h"
#include "ckpt/dirs/tags.h"
#include "ckpt/pack/packfs.h"
#include "ckpt/plan/plan.h"
#include "ckpt/sys/parallel.h"
#include "fs/log/log.h"
#include "fs/tree/pathtab.h"
#include "fs/tree/tree.h"
#include "fs/tree/tree_impl.h"
#include "fs/tree/views.h"

/* --- the newest tag ------------------------------------------------------------ */

/* Plan a tag of the run's directory `index`. */
static int try_tag(struct tree *t, uint64_t index, const char *path,
		    struct errmsg *why)
{
	const struct view_type type = { .kind = PLAN_UNIVERSAL };
	struct plan *plan;
	size_t view;
	int rc = views_add(t->views, path, &type, ino_of_lower(t, index),
			   &view);

	if (rc)
		return errmsg_nomem(why, path);
	rc = views_plan(t->views, view, &plan, why);
	if (!rc)
		views_put(t->views, view);
	return rc;
}

/* Plan the newest usable tag. */
static int open_tags(struct tree *t, const struct tag_list *tags,
		     struct errmsg *err)
{
	int rc = -ENOENT;

	for (size_t i = 0; i < tags->n && rc; i++) {
		struct errmsg why = { "" };
		char *path;

		if (asprintf(&path, "%s/%s", t->o->source, tags->v[i].name) < 0)
			return errmsg_nomem(err, NULL);
		rc = try_tag(t, 0, path, i ? &why : err);
		free(path);
	}
	return rc;
}

/* --- what will not be served --------------------------------------------------- */

#define SURVEY_WIDTH 16 /* directories that are scanned at once */

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
static int survey_entry(struct survey *s, const char *dir,
			const struct dirent *e)
{
	char *name;
	int rc;

	if (e->d_name[0] == '.')
		return 0;
	if (e->d_type != DT_REG)
		return survey_add(s, dir, e->d_name);
	name = packfs_dir_name(e->d_name);
	if (!name)
		return -ENOMEM;
	rc = strcmp(name, e->d_name) == 0 ? 0 : survey_add(s, dir, name);
	free(name);
	return rc;
}

/* A tag is scanned, which looks at all names and opens no file. */
static int survey_scan(void *ctx, size_t i)
{
	const struct survey *const s = ctx;
	struct tagdir d;

	if (!tagdir_is_tag(s->paths[i]))
		return 0;
	s->odd[i] = tagdir_scan(&d, s->paths[i], NULL);
	if (!s->odd[i])
		tagdir_done(&d);
	/* With option `check` the plan says more. */
	s->odd[i] |= s->t->o->check;
	return 0;
}

/* Was the tag tried already, and could not be planned? */
static bool has_failed(const struct survey *s, const char *path)
{
	const size_t n = views_count(s->t->views);
	struct errmsg why;

	for (size_t i = 0; i < n; i++)
		if (strcmp(views_path(s->t->views, i), path) == 0 &&
		    views_failed(s->t->views, i, &why))
			return true;
	return false;
}

/* A tag without optimizer shards has no view, so only the scan can say why. */
static void survey_report(const struct survey *s, const char *path)
{
	struct errmsg why = { "" };
	struct tagdir d;
	int rc;

	if (tagdir_is_zero_tag(path)) {
		rc = try_tag(s->t, s->index, path, &why);
	} else {
		rc = tagdir_scan(&d, path, &why);
		if (!rc)
			tagdir_done(&d);
	}
	if (rc)
		log_warning("%s will not be served: %s", strrchr(path, '/') + 1,
			    why.text);
}

static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       unsigned levels);

/* The Hugging Face Trainer's directories, checkpoint-N, hold a tag each. */
static void survey_below(struct survey *s, size_t i, unsigned levels)
{
	uint64_t child;

	if (!tagdir_is_tag(s->paths[i]) &&
	    !pathtab_add(s->t->pathtab, s->paths[i], s->index, &child))
		survey_dir(s->t, s->paths[i], child, levels - 1);
}

/* `latest` is written after the tag, so it can name one that was removed. */
static void survey_latest(const char *dir)
{
	struct tag_list tags;

	if (tags_list(dir, &tags, NULL))
		return;
	if (tags.latest && tags.n && tags.choice != TAGS_LATEST)
		log_warning("%s/latest names %s, which is not a ZeRO checkpoint"
			    " here; latest_universal names %s_universal",
			    dir, tags.latest, tags.v[0].name);
	tags_done(&tags);
}

/* Warn of what in the directory, and `levels` below, will not be served. */
static void survey_dir(struct tree *t, const char *dir, uint64_t index,
		       unsigned levels)
{
	struct survey s = { .t = t, .index = index };
	DIR *const d = beneath_opendir(dir);
	const struct dirent *e;

	while (d && (e = readdir(d)))
		if (survey_entry(&s, dir, e))
			break;
	if (d)
		closedir(d);
	s.odd = calloc(s.n + 1, sizeof(*s.odd));
	if (s.odd)
		parallel_for(s.n, SURVEY_WIDTH, survey_scan, &s);
	for (size_t i = 0; s.odd && i < s.n; i++)
		if (s.odd[i] || has_failed(&s, s.paths[i]))
			survey_report(&s, s.paths[i]);
		else if (levels)
			survey_below(&s, i, levels);
	survey_latest(dir);
	for (size_t i = 0; i < s.n; i++)
		free(s.paths[i]);
	free(s.paths);
	free(s.odd);
}

static int open_run(struct tree *t, struct errmsg *err)
{
	const char *const source = t->o->source;
	struct tag_list tags;
	uint64_t index;
	int rc = pathtab_add(t->pathtab, source, 0, &index);

	if (rc)
		return errmsg_set(err, rc, "out of memory");
	rc = tags_list(source, &tags, err);
	if (rc)
		return rc;
	if (tags.n)
		rc = open_tags(t, &tags, err);
	else if (!tags_exist_below(source))
		rc = errmsg_set(err, -ENOENT,
				"%s: no DeepSpeed checkpoint here: found neither"
				" *_optim_states.pt files, nor directories with"
				" such files, nor Hugging Face weights",
				source);
	if (!rc)
		survey_dir(t, source, 0, tags.n ? 0 : 2);
	tags_done(&tags);
	return rc;
}

/* --- opening --------------------------------------------------------------------- */

static int tree_open_view(struct tree *t, struct errmsg *err)
{
	const struct view_type type = tree_root_type(t);
	struct plan *plan;
	size_t view;
	int rc = views_add(t->views, t->o->source, &type, TREE_ROOT, &view);

	if (rc)
		return errmsg_set(err, rc, "out of memory");
	rc = views_plan(t->views, view, &plan, err);
	if (!rc)
		views_put(t->views, view);
	atomic_init(&t->root_view, view);
	return rc;
}

/* Only a tag has several views. */
static int check_kind(const struct tree_options *o, struct errmsg *err)
{
	const bool tag = tagdir_is_tag(o->source);

	if (o->plan.kind != PLAN_UNIVERSAL && !tag)
		return errmsg_set(err, -EINVAL,
				  "%s: option view: not a tag directory",
				  o->source);
	if (o->nrecut && tag && o->plan.kind != PLAN_RESHARD)
		return errmsg_set(err, -EINVAL,
				  "%s: option ranks: a tag directory also needs"
				  " view=zero",
				  o->source);
	return 0;
}

/* Is the root a view?  Weights beside the tags of a run are files of the
 * run. */
static bool is_one_view(const char *source)
{
	return tagdir_is_tag(source) ||
	       (hfdir_is_one(source) && !tags_exist_below(source));
}

/*
 * The length of the path that files must lie below.  In the cache of Hugging
 * Face's hub the files of a snapshot are links to blobs of the same repository
 * (huggingface_hub, file_download.py), so that this is the repository's
 * directory.  Otherwise it is the source.
 */
static size_t root_len(const char *source)
{
	static const char snapshots[] = "/snapshots/";
	const char *const in_repo = strstr(source, "/models--");
	const char *const at = in_repo ? strstr(in_repo, snapshots) : NULL;

	if (!at || strchr(in_repo + 1, '/') != at ||
	    strchr(at + strlen(snapshots), '/'))
		return strlen(source);
	return (size_t)(at - source);
}

/* A pack is in the directory that is the root. */
static size_t confined_len(const char *source)
{
	const char *const slash = strrchr(source, '/');
	struct stat st;

	return slash && slash > source && stat(source, &st) == 0 &&
			       S_ISREG(st.st_mode) ?
		       (size_t)(slash - source) :
		       root_len(source);
}

/* In a shared mount, a link that the run's owner makes must not expose other
 * files to other users. */
static int confine(struct tree *t, struct errmsg *err)
{
	const char *const source = t->o->source;
	char *root;
	int rc;

	t->search = ACCESS_ALL;
	if (!t->o->shared || t->o->follow_links)
		return 0;
	root = strndup(source, confined_len(source));
	rc = root ? beneath_confine(root, &t->search, err)
		  : errmsg_nomem(err, NULL);
	free(root);
	return rc;
}

int tree_open(const struct tree_options *o, const struct stats *stats,
	      struct tree **out, struct errmsg *err)
{
	struct tree *const t = calloc(1, sizeof(*t));
	int rc;

	if (!t)
		return errmsg_nomem(err, NULL);
	t->o = o;
	t->stats = stats;
	t->pathtab = pathtab_new();
	t->views = views_new(&o->plan, o->check,
			     o->index.path ? &o->index : NULL);
	if (!t->pathtab || !t->views) {
		rc = errmsg_nomem(err, NULL);
	} else if ((rc = confine(t, err))) {
		/* err is set */
	} else if (stat(o->source, &t->source) < 0) {
		rc = errmsg_set(err, -errno, "%s: %s", o->source,
				strerror(errno));
	} else if (!(rc = check_kind(o, err))) {
		t->is_view = is_one_view(o->source);
		rc = t->is_view ? tree_open_view(t, err) : open_run(t, err);
	}
	if (rc)
		tree_close(t);
	else
		*out = t;
	return rc;
}

void tree_save(struct tree *t)
{
	views_save(t->views);
}

void tree_close(struct tree *t)
{
	if (!t)
		return;
	if (t->views)
		tree_save(t);
	views_free(t->views);
	pathtab_free(t->pathtab);
	free(t);
}
