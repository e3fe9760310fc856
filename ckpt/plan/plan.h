/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_H
#define UCKPT_PLAN_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/bytebuf.h"
#include "ckpt/base/bytes.h"
#include "ckpt/tensor/tensor.h"

struct errmsg;
struct resolve;
struct shardcache;
struct vfile;

/*
 * A tree of files that a converter would have made of a checkpoint, without
 * anything being written.  There are kinds of it (enum plan_kind).
 *
 * Nodes are numbers, the same for the plan's life and below PLAN_NODE_END; the
 * root is PLAN_ROOT.  Thread-safe after plan_open.
 */
struct plan;

/*
 * The universal tree, as of ds_to_universal.py:
 *
 *     /                     PLAN_ROOT
 *     /zero/                PLAN_ZERO
 *     /zero/<param>/fp32.pt, exp_avg.pt, ...
 *     /zero/optimizer_state.pt
 *     /mp_rank_00_model_states.pt, ...
 *
 * and that of a Hugging Face directory, as of hf_to_universal.py:
 *
 *     /zero/<param>/fp32.pt, exp_avg.pt, exp_avg_sq.pt
 *     /source.txt
 */
enum plan_kind {
	PLAN_UNIVERSAL,
	/* Weights alone, as of zero_to_fp32.py, in the root: model.safetensors,
	 * with what transformers wants beside it; and pytorch_model.bin. */
	PLAN_HF,
	PLAN_FP32,
	PLAN_KINDS
};

/* A kind as options name it: universal, hf, fp32.  False if it is none. */
bool plan_parse_kind(const char *text, enum plan_kind *out);

#define PLAN_ROOT UINT64_C(0)
#define PLAN_ZERO UINT64_C(1)
#define PLAN_NODE_END (UINT64_C(1) << 40)

struct plan_options {
	enum plan_kind kind;
	bool crc_zero; /* leave checksums zero instead of computing them */
	/* Not the converter's own tree, which only engines of the same stage
	 * load, but one that those of every stage do. */
	bool any_stage;
	/* A Hugging Face directory will do, too, if it is no tag; plan_resolve
	 * is NULL then. */
	bool hugging_face;
	/* PLAN_HF: the type of floats, DTYPE_F16 or DTYPE_BF16; any other stands
	 * for float32. */
	enum dtype dtype;
	/* Of PLAN_HF and PLAN_FP32: the most that a file may have; 0 stands for
	 * HFSPLIT_SIZE. */
	uint64_t shard_size;
};

/*
 * Plan a tree of a tag directory, or of a Hugging Face one.  Opens one
 * model-states file of each model-parallel rank, and for weights what they need
 * besides, for a universal tree no optimizer shard; or all files of weights.
 * Errors are those of a checkpoint that cannot be served, with one message that
 * names the file: -ENOENT, -ENOTSUP, -EBADMSG, -EIO, -E2BIG, -ENOMEM or what the
 * system said.
 */
int plan_open(const char *path, const struct plan_options *options,
	      struct plan **out, struct errmsg *err);
void plan_close(struct plan *p);

/*
 * The same with what plan_index has made of an earlier plan of the directory
 * (empty: nothing): then no file is opened, and none in plan_check.  What the
 * index tells is checked like a file's content.  If it is stale, damaged or
 * contradicts itself the files are read as if there were none, and `refused`
 * tells why.
 */
int plan_open_indexed(const char *path, const struct plan_options *options,
		      struct span index, struct plan **out,
		      struct errmsg *refused, struct errmsg *err);

/*
 * Append what is known by now of shards, and the checksums that have been
 * computed, for the next plan_open_indexed: 1, or 0 and nothing if it is no more
 * than what the plan was opened with, or plan_index was told before.  Errors as
 * index_write.  By one thread at a time; others may be using the plan.
 */
int plan_index(struct plan *p, struct bytebuf *out, struct errmsg *err);

/*
 * Plan weights of the tag of a universal tree, with its options and `kind`.  What
 * one of them learns of the files the others know, so that they are made one at a
 * time.  `universal` must outlive the new plan.
 */
int plan_open_beside(struct plan *universal, enum plan_kind kind,
		     struct plan **out, struct errmsg *err);

/*
 * Do the files define the tree?  Reads the first optimizer shard of each
 * model-parallel rank; what it learns is kept.  That other shards are not
 * damaged is found out when they are needed.  Errors as plan_open.
 */
int plan_check(struct plan *p, struct errmsg *err);

/* What users should know of a tree that can be served, one text per call: begin
 * with `*pos` 0.  1 and a text without the tag's path, or 0 after the last
 * one. */
int plan_warning(struct plan *p, size_t *pos, struct errmsg *out);

struct plan_stat {
	bool is_dir;
	bool repeats; /* bytes of shards that are in other files, too */
	unsigned nlink;
	unsigned mode; /* permissions: who may read the shards, and no writing */
	uint64_t size; /* 0 for directories */
	int64_t mtime_s;
};

struct plan_entry {
	uint64_t node;
	char name[NAME_MAX + 1];
};

/* -ENOENT if there is no such entry; other errors come from shards. */
int plan_lookup(struct plan *p, uint64_t dir, const char *name,
		uint64_t *node, struct errmsg *err);

/*
 * The entries of a directory, one per call: begin with `*pos` 0.  Returns 1
 * and an entry, 0 after the last one, or an error.
 */
int plan_next(struct plan *p, uint64_t dir, uint64_t *pos,
	      struct plan_entry *out, struct errmsg *err);

/* Ways in which loaders go through the files of parameters. */
enum plan_way {
	PLAN_WAY_FILES,	 /* all files of a parameter, then the next one's */
	PLAN_WAY_NAMES,	 /* the same, a parameter's in the order of their names */
	PLAN_WAY_PARAMS, /* the same file of each parameter */
	PLAN_WAYS
};

/* The file that comes after a parameter's file: -ENOENT after the last one, and
 * after other nodes. */
int plan_following(struct plan *p, uint64_t node, enum plan_way way,
		   uint64_t *next, struct errmsg *err);

/* Is the node a directory?  Opens nothing. */
bool plan_is_dir(const struct plan *p, uint64_t node);

/* The directory that a directory is in; the root is in itself. */
uint64_t plan_parent(const struct plan *p, uint64_t dir);

int plan_stat(struct plan *p, uint64_t node, struct plan_stat *out,
	      struct errmsg *err);

/* Open a file of the tree.  It must be freed before the plan is closed. */
int plan_file_open(struct plan *p, uint64_t node, struct vfile **out,
		   struct errmsg *err);

/* For reports: the tag, what it was planned from, and its shards in the
 * numbering of extents. */
const char *plan_tag(const struct plan *p);
struct resolve *plan_resolve(struct plan *p); /* NULL: of no tag */
struct shardcache *plan_shards(struct plan *p);

/* Files in the tree and their bytes. */
int plan_totals(struct plan *p, uint64_t *files, uint64_t *bytes,
		struct errmsg *err);

/* The plan as JSON: its files, those of a universal tree by parameter, and the
 * runs of shards that they are made of.  Reads all shards' maps. */
int plan_json(struct plan *p, struct bytebuf *out, struct errmsg *err);

#endif
