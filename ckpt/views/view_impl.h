/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_IMPL_H
#define UCKPT_VIEW_IMPL_H

#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/view.h"
#include "ckpt/views/view_paths.h"

struct entry_record;
struct ckpt_file;
struct value;

/* Attributes that a view knows without laying out a file.  Preset for a file that is computed
 * from shards; directories have the times and readers of the view. */
struct entry_attrs {
	int64_t mtime_s;
	/* Users that may read the file; NULL: those that may read all shards that it is computed
	 * from, and all model states, which describe them. */
	const struct permissions *readable_by;
	bool scattered; /* view_stat */
	/* The file is a copy of this shard, unless it is NULL. */
	struct shards *copied;
	uint32_t shard;
};

/* An entry of a group. */
struct entry {
	struct view *view;
	unsigned group;
	size_t i;         /* number in the group */
	size_t dir, k;    /* it is entry k of directory `dir` */
	struct errmsg *err;
};

/*
 * A tree is a table of groups.  The entries of a group are alike, and each directory
 * of group `dir` has `n` of them: entry k of directory d is number d * n + k.  Group
 * and number make up the node, so that nothing is stored for an entry until its file
 * is laid out.  Errors are those of view.h's functions.
 */
struct entry_group {
	unsigned dir;
	bool is_dir;
	size_t n;
	/* Directories with these paths, which may lie in each other; or the names of the n
	 * entries; or a function that returns 1 with the name, or 0 if there is no such entry. */
	const struct view_paths *paths;
	const char *const *names;
	/* Copies of these n files, unless `lay_out` makes them: some of the checkpoint's files, or
	 * all files of other shards. */
	const struct ckpt_file *files;
	struct shards *shards;
	int (*name)(const struct entry *e, char out[NAME_MAX + 1]);
	/* Return the index of an entry in a directory, or -1.  NULL: compare all names. */
	int64_t (*find)(const struct entry *dir, unsigned group, const char *name);
	const struct permissions *readable_by; /* as in entry_attrs */
	void (*attrs)(const struct entry *e, struct entry_attrs *out);
	/* Make the object of a file that is not a copy, or fill in the layout's `head`.  If no
	 * extents are wanted, few shards are opened. */
	struct value *(*lay_out)(const struct entry *e, struct file_layout *d);
	/* Private to view_tree.c: */
	size_t dirs; /* directories in group `dir` */
	struct entry_record **records;
};

#define ENTRY_GROUPS_MAX 8

enum { ENTRY_GROUP_ROOT, ENTRY_GROUP_FIRST };

extern const struct view_ops view_universal, view_hf, view_fp32, view_dcp, view_recut;

/* The part that all kinds of views share. */
struct view {
	const struct view_ops *ops;
	struct view_options options;
	struct checkpoint *c;
	bool owns; /* the view owns the checkpoint; otherwise another view does */
	struct permissions names;  /* users that may read the files with the names of the entries */
	/* The tree: */
	struct entry_group groups[ENTRY_GROUPS_MAX];
	unsigned ngroups; /* the context's lock protects their records of files */
};

/* Set the groups of a tree, from ENTRY_GROUP_FIRST on. */
void view_set_groups(struct view *v, const struct entry_group *groups, size_t n);

/* Free the tree's records of files. */
void view_forget_files(struct view *v);

/* Write a name and a suffix.  Returns 1, or -ENAMETOOLONG, without a message. */
int view_set_name(char out[NAME_MAX + 1], const char *name, const char *suffix);

/* Describe a file that is a copy of `f`, one of the `files` of `shards`. */
struct entry_attrs view_copy_of(const struct ckpt_file *f, const struct ckpt_file *files,
			       struct shards *shards);

/* Get the size of entry i of a group, which is not a copy. */
int view_file_size(struct view *v, unsigned group, size_t i, uint64_t *size, struct errmsg *err);

/* Fill in the attributes of a directory with entries whose names come from files that
 * `names` may read. */
void view_stat_dir(const struct view *v, const struct permissions *names, int64_t mtime_s,
		   struct view_stat *out);

/* view_warn for weights. */
void view_warn_of_weights(const struct checkpoint *c, const struct errmsg_sink *to);

/* Return the param_groups of a shard's optimizer_state_dict, or NULL: elastic checkpoints
 * have none. */
struct value *view_param_groups(const struct checkpoint *c, const struct value *optimizer);

/* Make the object of zero/optimizer_state.pt, from that of the first rank. */
struct value *view_lay_out_optimizer(const struct entry *e, struct file_layout *d);

/* Check that all parameters and their states can be computed. */
int view_check_params(struct view *v, struct errmsg *err);

/* view_warn for a universal tree. */
void view_universal_warn(struct view *v, const struct errmsg_sink *to);

#endif
