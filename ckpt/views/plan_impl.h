/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_IMPL_H
#define UCKPT_PLAN_IMPL_H

#include "ckpt/table/checkpoint.h"
#include "ckpt/vfile/file_layout.h"
#include "ckpt/vfile/vfile.h"
#include "ckpt/views/plan.h"
#include "ckpt/views/plan_paths.h"

struct plan_record;
struct tag_file;
struct value;

/* Attributes that a view knows without laying out a file.  Preset for a file that is computed
 * from shards; directories have the times and readers of the plan. */
struct plan_facts {
	int64_t mtime_s;
	/* Users that may read the file; NULL: those that may read all shards that it is computed
	 * from, and all model states, which describe them. */
	const struct permissions *readable_by;
	bool scattered; /* plan_stat */
	/* The file is a copy of this shard, unless it is NULL. */
	struct shards *copied;
	uint32_t shard;
};

/* An entry of a group. */
struct plan_item {
	struct plan *p;
	unsigned group;
	size_t i;         /* number in the group */
	size_t dir, k;    /* it is entry k of directory `dir` */
	struct errmsg *err;
};

/*
 * A tree is a table of groups.  The entries of a group are alike, and each directory
 * of group `dir` has `n` of them: entry k of directory d is number d * n + k.  Group
 * and number make up the node, so that nothing is stored for an entry until its file
 * is laid out.  Errors are those of plan.h's functions.
 */
struct plan_group {
	unsigned dir;
	bool is_dir;
	size_t n;
	/* Directories with these paths, which may lie in each other; or the names of the n
	 * entries; or a function that returns 1 with the name, or 0 if there is no such entry. */
	const struct plan_paths *paths;
	const char *const *names;
	/* Copies of these n files, unless `lay_out` makes them: some of the checkpoint's files, or
	 * all files of other shards. */
	const struct tag_file *files;
	struct shards *shards;
	int (*name)(const struct plan_item *e, char out[NAME_MAX + 1]);
	/* Return the index of an entry in a directory, or -1.  NULL: compare all names. */
	int64_t (*find)(const struct plan_item *dir, unsigned group, const char *name);
	const struct permissions *readable_by; /* as in plan_facts */
	void (*describe)(const struct plan_item *e, struct plan_facts *out);
	/* Make the object of a file that is not a copy, or fill in the layout's `head`.  If no
	 * extents are wanted, few shards are opened. */
	struct value *(*lay_out)(const struct plan_item *e, struct file_layout *d);
	/* Private to plan_tree.c: */
	size_t dirs; /* directories in group `dir` */
	struct plan_record **records;
};

#define PLAN_GROUPS_MAX 8

enum { PLAN_GROUP_ROOT, PLAN_GROUP_FIRST };

extern const struct plan_view plan_universal, plan_hf, plan_fp32, plan_dcp, plan_recut;

/* The part that all kinds of plans share. */
struct plan {
	const struct plan_view *view;
	struct plan_options options;
	struct checkpoint *c;
	bool owns; /* the plan owns the checkpoint; otherwise another plan does */
	struct permissions names;  /* users that may read the files with the names of the entries */
	/* The tree: */
	struct plan_group groups[PLAN_GROUPS_MAX];
	unsigned ngroups; /* the context's lock protects their records of files */
};

/* Set the groups of a tree, from PLAN_GROUP_FIRST on. */
void plan_set_groups(struct plan *p, const struct plan_group *groups, size_t n);

/* Free the tree's records of files. */
void plan_forget_files(struct plan *p);

/* Write a name and a suffix.  Returns 1, or -ENAMETOOLONG, without a message. */
int plan_set_name(char out[NAME_MAX + 1], const char *name, const char *suffix);

/* Describe a file that is a copy of `f`, one of the `files` of `shards`. */
struct plan_facts plan_copy_of(const struct tag_file *f, const struct tag_file *files,
			       struct shards *shards);

/* Get the size of entry i of a group, which is not a copy. */
int plan_file_size(struct plan *p, unsigned group, size_t i, uint64_t *size, struct errmsg *err);

/* Fill in the attributes of a directory with entries whose names come from files that
 * `names` may read. */
void plan_stat_dir(const struct plan *p, const struct permissions *names, int64_t mtime_s,
		   struct plan_stat *out);

/* plan_warn for weights. */
void plan_warn_of_weights(const struct checkpoint *c, const struct errmsg_sink *to);

/* Return the param_groups of a shard's optimizer_state_dict, or NULL: elastic checkpoints
 * have none. */
struct value *plan_param_groups(const struct checkpoint *c, const struct value *optimizer);

/* Make the object of zero/optimizer_state.pt, from that of the first rank. */
struct value *plan_lay_out_optimizer(const struct plan_item *e, struct file_layout *d);

/* Check that all parameters and their states can be computed. */
int plan_check_params(struct plan *p, struct errmsg *err);

/* plan_warn for a universal tree. */
void plan_universal_warn(struct plan *p, const struct errmsg_sink *to);

#endif
