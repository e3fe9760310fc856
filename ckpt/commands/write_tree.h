/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WRITE_TREE_H
#define UCKPT_WRITE_TREE_H

struct errmsg;
struct view;
struct progress;
struct resume;
struct share;
struct uckpt_done;

struct write_tree_args {
	const char *shown;         /* the output directory's name in messages */
	unsigned width;            /* files written at once */
	struct progress *progress; /* of bytes written */
	struct resume *resume;     /* knows the files that are already complete */
	const struct share *share; /* selects the files to write */
};

/*
 * Write the tree of `v` into `dir`, an open directory that is empty except for files that
 * options->resume knows, and sync it to the disk.  Copies of shards keep their mode and times.
 * -EINTR as progress_add.  `done` counts the files that this process writes or finds complete.
 * After a failure the files written so far remain.
 */
int write_tree(struct view *v, int dir, const struct write_tree_args *options,
	       struct uckpt_done *done, struct errmsg *err);

#endif
