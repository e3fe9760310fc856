/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the newest checkpoint of a run directory.
 *
 * DeepSpeed's engine writes the tag's name into `latest` when a save is complete
 * (deepspeed/runtime/engine.py, save_checkpoint); the file is trusted if it names a
 * ZeRO tag.  Checkpoints may have been deleted, or copied without `latest`: then
 * the highest step number counts, and the time of change if no name has a number.
 * The text of `latest` is never used as a path, only compared with the names of
 * tags.
 */
#include "ckpt/table/tags.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/base/array.h"
#include "ckpt/base/context.h"
#include "ckpt/base/errmsg.h"
#include "ckpt/table/hfdir.h"
#include "ckpt/table/detect.h"
#include "ckpt/format/names.h"
#include "ckpt/io/io.h"
#include "ckpt/io/roots.h"

#define STEP_DIGITS_MAX 18 /* fits int64_t */

/* Trainers leave tags in "checkpoint-4/global_step4"; Accelerate, if it names its checkpoints,
 * in "checkpoints/checkpoint_4/pytorch_model". */
#define LEVELS 2

char *tags_join(const char *dir, const char *name)
{
	size_t n = strlen(dir);
	char *path;

	while (n > 1 && dir[n - 1] == '/')
		n--;
	return asprintf(&path, "%.*s/%s", (int)n, dir, name) < 0 ? NULL : path;
}

int64_t tags_step(const char *name)
{
	/* verl; DeepSpeed; torchtitan; transformers; Accelerate; Megatron-LM. */
	static const char *const prefixes[] = { "global_step_", "global_step", "step-", "checkpoint-",
						"checkpoint_", "iter_" };
	size_t skip = 0, digits;

	for (size_t i = 0; !skip && i < COUNT(prefixes); i++)
		if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0)
			skip = strlen(prefixes[i]);
	if (!skip)
		return -1;
	digits = strspn(name + skip, "0123456789");
	if (!digits || digits > STEP_DIGITS_MAX || name[skip + digits])
		return -1;
	return strtoll(name + skip, NULL, 10);
}

/* Return the step of a tag, or of its parent directory: "checkpoint_4/pytorch_model". */
static int64_t step_of(const char *below, const char *name)
{
	const char *const slash = below ? strrchr(below, '/') : NULL;
	const int64_t step = tags_step(name);

	return step < 0 && below ? tags_step(slash ? slash + 1 : below) : step;
}

/* `below` is the path from the listed directory to the tag's parent, or NULL. */
static int add_tag(struct tag_list *t, const char *below, const char *name, const struct stat *st)
{
	if (!array_reserve(&t->v, &t->cap, t->n + 1, sizeof(*t->v)))
		return -ENOMEM;
	t->v[t->n] = (struct tag){
		.name = below ? tags_join(below, name) : strdup(name),
		.step = step_of(below, name),
		.mtime_ns = fileid_time_ns(&st->st_mtim),
	};
	return t->v[t->n].name ? (t->n++, 0) : -ENOMEM;
}

/*
 * Return the path and the name of the tag that an entry stands for: its own if it is a
 * directory, those of the packed directory if it is a pack whose directory is missing.
 * NULL if it is neither, or memory runs out.
 */
static char *tag_path(struct uckpt *u, const char *dir, const struct dirlist_entry *e, char **name)
{
	const bool is_dir = S_ISDIR(e->type);
	char *path = NULL;
	struct attrs a;

	*name = e->name[0] != '.' && (is_dir || S_ISREG(e->type)) ? io_tag_name(e->name, e->type)
								  : NULL;
	if (*name)
		path = tags_join(dir, *name);
	if (path && (is_dir || io_stat(u, path, IO_PLAIN, &a, NULL, NULL) == -ENOENT))
		return path;
	free(path);
	free(*name);
	*name = NULL;
	return NULL;
}

/* What to search for, and where to list it. */
struct tag_search {
	struct uckpt *u;
	bool (*is_wanted)(struct uckpt *u, const char *path);
	struct tag_list *t;
	size_t max; /* limit of these */
};

/* Add the tags of `dir`, and of directories to a depth of `levels`, until `max` are found.  A
 * tag that is removed meanwhile is ignored. */
static int collect(const struct tag_search *s, const char *dir, const char *below,
		   unsigned levels, struct errmsg *err)
{
	struct uckpt *const u = s->u;
	struct tag_list *const t = s->t;
	struct dirlist d = { 0 };
	int rc = io_list(u, dir, 0, &d, err);

	if (rc)
		return rc;
	for (size_t i = 0; !rc && t->n < s->max && i < d.n; i++) {
		char *name, *const path = tag_path(u, dir, &d.v[i], &name);
		char *const child = below && name ? tags_join(below, name) : NULL;
		struct attrs a;

		progress_step(u, "looking for checkpoints", i, d.n);
		if (path && s->is_wanted(u, path)) {
			if (io_stat(u, path, 0, &a, NULL, NULL) == 0)
				rc = add_tag(t, below, name, &a.st);
		} else if (path && levels) {
			collect(s, path, child ? child : name, levels - 1, NULL);
		}
		free(child);
		free(path);
		free(name);
	}
	if (rc)
		errmsg_nomem(err, dir);
	dirlist_done(&d);
	return rc;
}

/* Return the name in a text, without white space. */
static char *strip(char *text)
{
	char *end;

	while (isspace((unsigned char)*text))
		text++;
	end = text + strlen(text);
	while (end > text && isspace((unsigned char)end[-1]))
		*--end = '\0';
	return text;
}

int tags_pointer(struct uckpt *u, const char *dir, const char *file, char **out,
		 struct errmsg *err)
{
	char text[NAME_MAX + 32] = "";
	char *const path = tags_join(dir, file);
	struct source src;
	int rc = path ? io_open(u, path, NULL, &src, err) : errmsg_nomem(err, dir);

	*out = NULL;
	if (!rc) {
		rc = source_read(&src, text,
				 src.size < sizeof(text) ? (size_t)src.size : sizeof(text) - 1, 0,
				 err);
		source_close(&src);
		if (!rc && !(*out = strdup(strip(text))))
			rc = errmsg_nomem(err, dir);
	}
	free(path);
	return rc == -ENOENT ? 0 : rc;
}

/* Return the text of `latest`, or of another file, or NULL if it cannot be a tag's name. */
static char *read_latest(struct uckpt *u, const char *dir, const char *file)
{
	char *text;

	if (tags_pointer(u, dir, file, &text, NULL))
		return NULL;
	if (text && !names_is_file(text)) {
		free(text);
		text = NULL;
	}
	return text;
}

bool tags_ignored_latest(struct uckpt *u, const char *run, enum tags_choice choice,
			 struct errmsg *why)
{
	const bool may_be = choice == TAGS_STEP || choice == TAGS_MTIME;
	char *text = NULL;
	int rc = may_be ? tags_pointer(u, run, "latest", &text, why) : 0;

	if (text && *text)
		rc = errmsg_set(why, -ENOENT,
				"%s/latest names %s, which is not a ZeRO checkpoint here", run,
				text);
	else if (text)
		rc = errmsg_set(why, -ENOENT, "%s/latest names nothing", run);
	free(text);
	return rc != 0;
}

static bool is_actor(const struct tag *t)
{
	return t->step >= 0 && names_ends_with(t->name, "/actor");
}

/* Compare by age, newest first.  Names without a number have step -1, and come last; among models
 * of one step verl's "actor" comes first, since it is the one being trained. */
static int by_age(const void *a, const void *b)
{
	const struct tag *const x = a, *const y = b;

	return ORDER(y->step, x->step) ?: is_actor(y) - is_actor(x) ?:
	       ORDER(y->mtime_ns, x->mtime_ns) ?: strcmp(x->name, y->name);
}

static void put_first(struct tag_list *t, size_t i)
{
	const struct tag named = t->v[i];

	memmove(t->v + 1, t->v, i * sizeof(*t->v));
	t->v[0] = named;
}

/* A tag without an optimizer may be one whose save was interrupted. */
static bool is_bare(struct uckpt *u, const char *dir, const struct tag *t)
{
	char *const path = tags_join(dir, t->name);
	const bool is = path && detect(u, path, NULL) == DIR_STAGE0 &&
			stage0_look(u, path, NULL) == STAGE0_WEIGHTS;

	free(path);
	return is;
}

/* Put the tags in order, the one that `latest` names before all others. */
static void sort_tags(struct uckpt *u, const char *dir, struct tag_list *t)
{
	size_t i = 0;

	if (t->n == 0)
		return;
	qsort(t->v, t->n, sizeof(*t->v), by_age);
	t->choice = t->v[0].step < 0 ? TAGS_MTIME : TAGS_STEP;
	while (t->latest && i < t->n && strcmp(t->v[i].name, t->latest) != 0)
		i++;
	if (t->latest && i < t->n) {
		put_first(t, i);
		t->choice = TAGS_LATEST;
		return;
	}
	for (i = 0; i < t->n && is_bare(u, dir, &t->v[i]);)
		i++;
	if (i < t->n)
		put_first(t, i);
}

/* verl writes the number of the newest complete step, as Megatron-LM does. */
static void put_iteration_first(struct uckpt *u, const char *dir, struct tag_list *t)
{
	char *text = read_latest(u, dir, "latest_checkpointed_iteration.txt");
	char *end = text;
	const long step = text ? strtol(text, &end, 10) : -1;
	size_t i = 0;

	while (i < t->n && t->v[i].step != step)
		i++;
	if (end > text && !*end && step >= 0 && i < t->n)
		put_first(t, i);
	free(text);
}

static int list(struct uckpt *u, const char *dir, bool below,
		bool (*is_wanted)(struct uckpt *u, const char *path), struct tag_list *out,
		struct errmsg *err)
{
	struct tag_list t = { .choice = TAGS_NONE };
	const struct tag_search s = { u, is_wanted, &t, SIZE_MAX };
	const int rc = collect(&s, dir, NULL, below ? LEVELS : 0, err);

	if (rc) {
		tags_done(&t);
		return rc == -ENOTDIR ? detect_explain(u, dir, err) : rc;
	}
	if (!below)
		t.latest = read_latest(u, dir, "latest");
	sort_tags(u, dir, &t);
	if (below)
		put_iteration_first(u, dir, &t);
	assert(!t.n == (t.choice == TAGS_NONE));
	*out = t;
	return 0;
}

int tags_list(struct uckpt *u, const char *dir, bool below, struct tag_list *out,
	      struct errmsg *err)
{
	return list(u, dir, below, detect_has_views, out, err);
}

/* Is it a tag, or does it look like an incomplete one, by its name or its files? */
static bool should_be_tag(struct uckpt *u, const char *path)
{
	const enum dir_kind kind = detect(u, path, NULL);
	const char *base = roots_base(u, path);

	if (kind == DIR_OTHER)
		return tags_step(base) >= 0 && !detect_is_universal(u, path) &&
		       !tags_exist_below(u, path);
	return detect_has_views(u, path) ||
	       ((kind == DIR_STATES || kind == DIR_STAGE0) && !detect_is_universal(u, path));
}

int tags_list_all(struct uckpt *u, const char *dir, struct tag_list *out, struct errmsg *err)
{
	return list(u, dir, false, should_be_tag, out, err);
}

void tags_done(struct tag_list *t)
{
	for (size_t i = 0; i < t->n; i++)
		free(t->v[i].name);
	free(t->v);
	free(t->latest);
	*t = (struct tag_list){ .choice = TAGS_NONE };
}

static bool exist_below(struct uckpt *u, const char *dir,
			bool (*is_wanted)(struct uckpt *u, const char *path))
{
	struct tag_list t = { .choice = TAGS_NONE };
	const struct tag_search s = { u, is_wanted, &t, 1 };
	bool exist;

	collect(&s, dir, NULL, LEVELS, NULL);
	exist = t.n > 0;
	tags_done(&t);
	return exist;
}

bool tags_exist_below(struct uckpt *u, const char *dir)
{
	return exist_below(u, dir, detect_has_views);
}

bool tags_weights_below(struct uckpt *u, const char *dir)
{
	return exist_below(u, dir, hfdir_is_one);
}

/* Return the newest directory below that has weights, or `path`. */
static char *choose_weights(struct uckpt *u, const char *path, struct tag_list *t)
{
	const struct tag_search s = { u, hfdir_is_one, t, SIZE_MAX };

	collect(&s, path, NULL, LEVELS, NULL);
	sort_tags(u, path, t);
	t->choice = t->n ? TAGS_WEIGHTS : TAGS_NONE;
	return t->n ? tags_join(path, t->v[0].name) : strdup(path);
}

/* Choose a directory if there is no ZeRO tag: the one that `latest` names, or `path`, unless it
 * has tags below. */
static char *choose_other(struct uckpt *u, const char *path, struct tag_list *t)
{
	char *const named = t->latest ? tags_join(path, t->latest) : NULL;
	struct attrs a;
	const bool is_named = named && !io_stat(u, named, 0, &a, NULL, NULL) &&
			      S_ISDIR(a.st.st_mode);
	char *const dir = is_named ? strdup(named) : strdup(path);

	free(named);
	t->choice = dir && hfdir_is_one(u, dir) ? TAGS_WEIGHTS : TAGS_NONE;
	if (is_named || t->choice == TAGS_WEIGHTS)
		return dir;
	tags_done(t);
	free(dir);
	if (tags_list(u, path, true, t, NULL) || !t->n)
		return choose_weights(u, path, t);
	t->choice = TAGS_BELOW;
	return tags_join(path, t->v[0].name);
}

int tags_choose(struct uckpt *u, const char *path, char **out,
		enum tags_choice *choice, struct errmsg *err)
{
	struct tag_list t = { .choice = TAGS_ITSELF };
	char *dir;
	int rc = 0;

	if (detect(u, path, NULL) > DIR_WEIGHTS) {
		dir = strdup(path);
	} else {
		rc = tags_list(u, path, false, &t, err);
		if (rc)
			return rc;
		dir = t.n ? tags_join(path, t.v[0].name)
			  : choose_other(u, path, &t);
	}
	if (dir) {
		*choice = t.choice;
		*out = dir;
	} else {
		rc = errmsg_nomem(err, path);
	}
	tags_done(&t);
	return rc;
}
