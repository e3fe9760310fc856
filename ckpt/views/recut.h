/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RECUT_H
#define UCKPT_RECUT_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/format/names.h"
#include "ckpt/table/checkpoint.h"

struct file_layout;
struct recut_mp;

/*
 * A ZeRO checkpoint re-cut for another number of data-parallel ranks, or for another ZeRO stage.
 * Each model-parallel rank is re-cut separately.  "Old" refers to the checkpoint on disk, "new" to
 * the view.
 */
#define RECUT_RANKS_MAX 4096u

struct recut {
	struct checkpoint *c;
	unsigned ranks;            /* data-parallel */
	unsigned stage, old_stage; /* old and new ZeRO stage, 1 to 3 */
	bool last_padded;          /* group_paddings counts only the last rank's padding */
	struct recut_mp *mp;       /* the new groups of each model-parallel rank */
	const char *warning;       /* for the user, or NULL */
	struct arena arena;        /* owns `mp` and everything it points to */
};

/*
 * Plan the new groups for 1 to RECUT_RANKS_MAX ranks and a stage, 0 for the old one;
 * opens the first optimizer shard of each model-parallel rank.  `c` must outlive `s`.
 * Returns -ENOTSUP with the reason if the checkpoint cannot be re-cut that way,
 * otherwise errors of checkpoint_ops.check.  Call recut_done in any case.
 */
int recut_init(struct recut *s, struct checkpoint *c, unsigned ranks, unsigned stage,
	       struct errmsg *err);
void recut_done(struct recut *s);

/* Refuse experts of stage 3, and a change of stage unless there is only data parallelism: 0 or
 * -ENOTSUP.  Reads nothing; recut_init refuses more. */
int recut_check_cut(const struct checkpoint *c, unsigned stage, struct errmsg *err);

/*
 * The files of a re-cut checkpoint that differ from those on disk: objects of one kind,
 * numbered by model-parallel rank, then by data-parallel rank.  Without stage 3 only the first
 * data-parallel rank has model states.
 */
size_t recut_count(const struct recut *s, enum checkpoint_object what);

/* A file of a re-cut checkpoint.  It is modelled on an old rank's object: with n old ranks, new
 * rank r uses the object of rank r mod n. */
struct recut_file {
	struct ckname id;
	unsigned old_rank;
	const struct ckpt_file *old; /* the file with that object, and the time of the new file;
				     * NULL: no file has it */
};

struct recut_file recut_file_of(const struct recut *s, enum checkpoint_object what, size_t number);

/* Return the name that DeepSpeed gives to a file. */
void recut_name(const struct recut *s, enum checkpoint_object what, size_t number,
		char name[NAME_MAX + 1]);

/* Do the files of experts change, too?  And: make the object of such a file. */
bool recut_edits_experts(const struct recut *s);
struct value *recut_lay_out_expert(const struct recut *s, const struct ckpt_file *f,
				   struct file_layout *d);

/* Make the object of a file.  If no extents are wanted, the only optimizer shard opened is the
 * file's template. */
struct value *recut_lay_out(const struct recut *s, enum checkpoint_object what, size_t number,
			  struct file_layout *d);

#endif
