/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_TAGS_H
#define UCKPT_TAGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct errmsg;
struct uckpt;

/* A directory of a run directory that holds a checkpoint. */
struct tag {
	char *name;
	int64_t step; /* as returned by tags_step */
	int64_t mtime_ns;
};

/* Why a tag was chosen. */
enum tags_choice {
	TAGS_ITSELF, /* the path given is a tag directory */
	TAGS_LATEST, /* `latest` names it */
	TAGS_STEP,   /* it has the highest global_step number */
	TAGS_MTIME,  /* it was changed last; none has a number */
	TAGS_BELOW,  /* it is the newest tag in subdirectories of the path */
	TAGS_WEIGHTS, /* there is no ZeRO tag, but weights of Hugging Face */
	TAGS_NONE,   /* neither a tag nor weights */
};

/* The ZeRO tags of a run directory, the newest first. */
struct tag_list {
	struct tag *v;
	size_t n;
	size_t cap;
	enum tags_choice choice; /* reason why v[0] is the newest, or TAGS_NONE */
	char *latest;		 /* the name that `latest` holds, or NULL */
};

/* List the tags of `dir`, which may have none; if `below`, also those in its directories and in
 * theirs, as trainers leave them: "checkpoint-4/global_step4".  Errors: -ENOMEM, or the system's
 * error when the directory was listed. */
int tags_list(struct uckpt *u, const char *dir, bool below,
	      struct tag_list *out, struct errmsg *err);

/* List also incomplete tags of `dir`: directories with some of a tag's files, or with the name
 * of a step. */
int tags_list_all(struct uckpt *u, const char *dir, struct tag_list *out, struct errmsg *err);
void tags_done(struct tag_list *t);

/* Return the path of tag `name` of the run `dir`, in the form of tags_choose; the caller frees it.
 * NULL when memory runs out. */
char *tags_join(const char *dir, const char *name);

/* Read the text of `latest`, or of another file of a run: without white space around it, as
 * DeepSpeed strips it.  The caller frees `*out`, which is NULL if there is no such file. */
int tags_pointer(struct uckpt *u, const char *dir, const char *file, char **out,
		 struct errmsg *err);

/* If `run` has a `latest` that did not make the choice, say so in `why`, in a sentence without an
 * end: it cannot be read, or names no checkpoint. */
bool tags_ignored_latest(struct uckpt *u, const char *run, enum tags_choice choice,
			 struct errmsg *why);

/* Return the number in a name such as "global_step<N>", "step-<N>", "checkpoint-<N>",
 * "checkpoint_<N>" or "iter_<N>"; -1 for other names. */
int64_t tags_step(const char *name);

/* Is there a ZeRO tag, or are there Hugging Face weights, in `dir` or up to two directories
 * below? */
bool tags_exist_below(struct uckpt *u, const char *dir);
bool tags_weights_below(struct uckpt *u, const char *dir);

/*
 * The tag directory that `path` means: itself, or the newest tag of the run
 * directory that it is, or the newest below.  Without any the result is `path`, what
 * `latest` names in it, or the newest directory with weights below, and the choice
 * TAGS_WEIGHTS or TAGS_NONE.  The caller frees `*out`.
 */
int tags_choose(struct uckpt *u, const char *path, char **out,
		enum tags_choice *choice, struct errmsg *err);

#endif
