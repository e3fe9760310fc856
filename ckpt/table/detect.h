/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_DETECT_H
#define UCKPT_DETECT_H

#include <stdbool.h>

struct dirlist;
struct errmsg;
struct uckpt;
struct value;

/* The kind of a directory, from the names in it; a later kind takes precedence. */
enum dir_kind {
	DIR_OTHER,
	DIR_WEIGHTS, /* weights of Hugging Face */
	DIR_STATES,  /* files of DeepSpeed's ranks, but not enough of them to load */
	DIR_STAGE0,  /* saved without ZeRO, or optimizer shards are missing: stage0_look */
	DIR_DCP,     /* a distributed checkpoint, or a pair of them */
	DIR_ZERO,    /* has optimizer shards */
	DIR_KINDS
};

/* List a directory once, into `names`, which the caller frees and hands to the loader.  If
 * `names` is NULL, the listing stops at the first optimizer shard, since large runs have
 * thousands of names. */
enum dir_kind detect(struct uckpt *u, const char *path, struct dirlist *names);

#define STAGE0_FIRST "mp_rank_00_model_states.pt"

/*
 * The contents of a DIR_STAGE0 directory, from its first model states; STAGE0_NONE for any other
 * directory.  Opens only that file, since a run may have many tags.  STAGE0_WEIGHTS: weights are
 * served without the optimizer, which cannot be read or whose files were deleted.  STAGE0_NONE,
 * with a message, if the weights cannot be read.
 */
enum stage0_kind { STAGE0_NONE, STAGE0_WEIGHTS, STAGE0_OPTIMIZER };
enum stage0_kind stage0_look(struct uckpt *u, const char *dir, struct errmsg *err);

/* Can an optimizer be read from the object of model states? -ENOTSUP if not, in a message that
 * begins with `file`. */
int stage0_check_optimizer(const struct value *root, const char *file, struct errmsg *err);

/* Does the directory get views, like one of ZeRO's ranks?  Opens a file if the optimizer may be
 * missing. */
bool detect_has_views(struct uckpt *u, const char *path);

/* Return the names of a directory's two distributed checkpoints, from names_dcp_pairs, or NULL.
 * `names` is the directory's list, or NULL. */
const char *const *detect_dcp_pair(struct uckpt *u, const char *path, const struct dirlist *names);

/* Is the directory a universal checkpoint, which needs no view? */
bool detect_is_universal(struct uckpt *u, const char *path);

/*
 * Explain the format of `path`, which is not a ZeRO checkpoint, and how to use it.  Returns
 * -ENOTSUP if the format is known, -ENOENT if there is no checkpoint, or the system's error.
 */
int detect_explain(struct uckpt *u, const char *path, struct errmsg *err);

#endif
