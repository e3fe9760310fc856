/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_VIEW_H
#define UCKPT_VIEW_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "ckpt/base/attrs.h"
#include "ckpt/table/detect.h"
#include "ckpt/format/tensor.h"
#include "ckpt/views/all_views.h"

struct checkpoint;
struct errmsg;
struct errmsg_sink;
struct uckpt;
struct user_rules;
struct vfile;

/*
 * The tree of files that a converter would write for a checkpoint, computed
 * instead of written.
 *
 * Nodes are numbers below VIEW_NODE_END. They stay the same as long as the view
 * is open; the root is VIEW_ROOT. Thread-safe after view_open.
 */
struct view;

/*
 * The universal tree:
 *
 *     /                     VIEW_ROOT
 *     /zero/                VIEW_ZERO
 *     /zero/<param>/fp32.pt, exp_avg.pt, ...	of a/b: /zero/a/b/fp32.pt
 *     /zero/optimizer_state.pt
 *     /mp_rank_00_model_states.pt, ...
 *
 * and that of a Hugging Face directory:
 *
 *     /zero/<param>/fp32.pt, exp_avg.pt, exp_avg_sq.pt
 *     /source.txt
 */
#define VIEW_ROOT UINT64_C(0)
#define VIEW_ZERO (UINT64_C(1) << 36)
#define VIEW_NODE_END (UINT64_C(1) << 40)

/* The naming convention of a PyTorch distributed checkpoint. */
enum dcp_style {
	DCP_FSDP2,	/* get_state_dict: model.NAME, optim.state.NAME.exp_avg */
	DCP_FLAT,	/* with flatten_optimizer_state_dict */
	DCP_TITAN,	/* torchtitan: NAME, optimizer.state.NAME.exp_avg */
	DCP_TITAN_FUSED, /* with fuse_qkv: states of wq, wk and wv as those of wqkv */
	DCP_ACCELERATE, /* separate directories for model and optimizer */
	DCP_LIGHTNING,	/* its Trainer: model.NAME, optimizer_0.state.NAME.exp_avg */
	DCP_FABRIC,	/* model.NAME, optimizer.state.NAME.exp_avg */
	DCP_STYLES
};

struct view_options {
	struct view_type type;
	bool crc_zero; /* leave checksums zero; do not compute them */
	/* Plan a tree that every ZeRO stage can load.  The converter's own
	 * tree, which is the default, can be loaded only by the stage that the
	 * checkpoint was saved with. */
	bool any_stage;
	/* Merge rules that take precedence over the checkpoint's; NULL: none.  They must outlive
	 * the view. */
	const struct user_rules *rules;
	/* VIEW_HF: type of floating-point weights, DTYPE_F16 or DTYPE_BF16;
	 * every other value means float32. */
	enum dtype dtype;
	/* VIEW_HF: a directory with the model's configuration files that the tag and its run
	 * lack; NULL: none.  It must outlive the view. */
	const char *hf_config;
	/* VIEW_HF and VIEW_FP32: largest file in bytes; 0 means
	 * WEIGHTS_SPLIT_SIZE. */
	uint64_t shard_size;
	/* VIEW_DCP: naming convention, and number of ranks that tensors are cut for; 0: any
	 * number. */
	enum dcp_style dcp_style;
	unsigned dcp_ranks;
};

/*
 * Make the view of a tag directory, or else of a Hugging Face directory, which has no optimizer.  A
 * universal tree opens one model-states file per model-parallel rank and no optimizer shard;
 * weights open what checkpoint_order reads; a Hugging Face directory opens all files of weights.
 * Fails if the checkpoint cannot be served, with one message that names the file: -ENOENT,
 * -ENOTSUP, -EBADMSG, -EIO, -E2BIG, -ENOMEM or the system's error.  Call view_close after success.
 */
int view_open(struct uckpt *u, const char *path,
	      const struct view_options *options, struct view **out,
	      struct errmsg *err);
void view_close(struct view *v);

/* As view_open, for a directory that detect() has listed. */
int view_open_listed(struct uckpt *u, const char *path, enum dir_kind kind,
		     const struct dirlist *names, const struct view_options *options,
		     struct view **out, struct errmsg *err);

/*
 * Make another view of a view's checkpoint, which must outlive the new one; view_open_derived
 * keeps the view's options except the type.  Views that share a checkpoint must be made one at a
 * time, since each fills in data that the others read.
 */
int view_open_other(struct view *v, const struct view_options *options, struct view **out,
		    struct errmsg *err);
int view_open_derived(struct view *v, const struct view_type *type, struct view **out,
		      struct errmsg *err);

/*
 * Check that the files define the whole tree.  Reads the first optimizer shard of each
 * model-parallel rank and keeps its map.  Damage in other shards shows when they are first read.
 * Errors as view_open.
 */
int view_check(struct view *v, struct errmsg *err);

/* All checks before a tree is written: view_check, that no row is refused, and, unless
 * `lenient`, that every pattern of merge rules matches a parameter where rules merge; -ENOTSUP
 * if not. */
int view_prove(struct view *v, bool lenient, struct errmsg *err);

/* Check also that all files of the tag belong together, by reading every shard's
 * map and every model-states file; see checkpoint_ops. */
int view_check_files(struct view *v, struct errmsg *err);

/*
 * Prefetch data that the first readers of a remote tree need: load shards' maps and open shards, up
 * to VIEW_PREFETCH_SHARDS. Does nothing for a local tree.  Ignores errors; readers get them later.
 */
#define VIEW_PREFETCH_SHARDS 64
void view_prefetch(struct view *v);

/* Warn of unusual facts about a tree that can be served, without the tag's path; includes
 * view_lack. */
void view_warn(struct view *v, const struct errmsg_sink *to);

/* Name the parts of the checkpoint that a view lacks. */
void view_lack(struct view *v, const struct errmsg_sink *to);

struct view_stat {
	bool is_dir;
	bool scattered; /* many small reads in no order */
	unsigned nlink;
	/* A file is readable by users that may read all files it is made from.  A directory has
	 * the tag directory's permissions, without read permission for users that may not read
	 * the files that its entries' names come from. */
	uid_t uid;
	gid_t gid;
	unsigned mode;
	uint64_t size; /* in bytes; 0 for directories */
	int64_t mtime_s;
};

struct view_entry {
	uint64_t node;
	char name[NAME_MAX + 1];
};

/* Find a name.  -ENOENT if there is no such entry; other errors come from shards. */
int view_lookup(struct view *v, uint64_t dir, const char *name, uint64_t *node, struct errmsg *err);

/*
 * Iterate over the entries of a directory.  Start with `*pos` 0.  Returns 1 and
 * an entry, 0 at the end, or an error.
 */
int view_next(struct view *v, uint64_t dir, uint64_t *pos,
	      struct view_entry *out, struct errmsg *err);

/* True for a directory.  Opens no file. */
bool view_is_dir(const struct view *v, uint64_t node);

/* Return the parent of a directory; the root is its own parent. */
uint64_t view_parent(const struct view *v, uint64_t dir);

int view_stat(struct view *v, uint64_t node, struct view_stat *out, struct errmsg *err);

/* Stat the root of the VIEW_RECUT that view_open_derived would make of a universal view, without
 * making it.  Detects some, but not all, reasons to refuse it. */
int view_stat_recut(const struct view *universal, const struct view_type *type,
		    struct view_stat *out, struct errmsg *err);

/* Open a file of the tree.  Free it with vfile_free before the view is
 * closed. */
int view_file_open(struct view *v, uint64_t node, struct vfile **out, struct errmsg *err);

/* Return the checkpoint that the view was made from and depends on. */
struct checkpoint *view_checkpoint(struct view *v);

/* Call `step` for each file and directory below the root, a directory before its entries.
 * Returns the first result that is not 0. */
typedef int view_walk_fn(void *ctx, const char *path, uint64_t node, const struct view_stat *st,
			 struct errmsg *err);
int view_walk(struct view *v, view_walk_fn *step, void *ctx, struct errmsg *err);

/* Count the files of the tree and add up their sizes. */
int view_totals(struct view *v, uint64_t *files, uint64_t *bytes, struct errmsg *err);

/*
 * Hash the inputs of all files: options, merge rules, and paths, inodes, sizes and times of the
 * view's shards.  For files made from other shards, such as the configuration of a tokenizer, it
 * covers the names only.  -ENOMEM.
 */
int view_identity(struct view *v, uint64_t *out, struct errmsg *err);

#endif
