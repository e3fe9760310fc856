/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_IMPL_H
#define UCKPT_PLAN_IMPL_H

#include "ckpt/base/access.h"
#include "ckpt/base/bytes.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"

struct tagdir;
struct uc_file;

/*
 * Operations of a kind of plan.  Signatures and errors are those of plan.h's
 * functions of the same name.  An operation may be NULL where a comment says
 * so.
 */
struct plan_ops {
	void (*close)(struct plan *p);
	int (*check)(struct plan *p, struct errmsg *err);
	/* NULL: nothing that takes long */
	void (*warm)(struct plan *p);
	/* NULL: no warnings */
	int (*warning)(struct plan *p, size_t *pos, struct errmsg *out);
	bool (*is_dir)(const struct plan *p, uint64_t node);
	/* Never called for the root.  NULL: there are no other directories */
	uint64_t (*parent)(const struct plan *p, uint64_t dir);
	int (*next)(struct plan *p, uint64_t dir, uint64_t *pos,
		    struct plan_entry *out, struct errmsg *err);
	/* NULL: plan_lookup_by_walking */
	int (*lookup)(struct plan *p, uint64_t dir, const char *name,
		      uint64_t *node, struct errmsg *err);
	int (*stat)(struct plan *p, uint64_t node, struct plan_stat *out,
		    struct errmsg *err);
	/* plan_file_open checks afterwards that the shards are the planned
	 * ones. */
	int (*file_open)(struct plan *p, uint64_t node, struct vfile **out,
			 struct errmsg *err);
	/* Append `,"key":value` for each fact about the kind. */
	int (*json)(struct plan *p, struct bytebuf *out, struct errmsg *err);
};

/* The part that all kinds share.  A kind's own structure begins with it. */
struct plan {
	const struct plan_ops *ops;
	struct plan_options options;
	const char *tag;           /* plan_tag */
	struct zero_checkpoint *zckpt; /* plan_zckpt */
	struct shardcache *shards; /* plan_shards */
	struct access readers;     /* plan_readers */
};

/* Open a plan of one kind and fill in the fields above: of a tag, of a Hugging Face
 * directory.  As plan_open. */
int plan_open_universal(const char *path, const struct plan_options *options,
			struct plan **out, struct errmsg *err);
int plan_open_hfdir(const char *path, const struct plan_options *options,
		    struct plan **out, struct errmsg *err);

/* The part that plans made over a universal plan of the same tag share.  Their own
 * structure begins with it. */
struct plan_over {
	struct plan plan;
	struct plan *universal;
	bool owned; /* `universal` is closed together with this plan */
};

/* A kind of such plans.  `ops->close` ends with plan_over_close, and takes what
 * `make` has left when it failed. */
struct plan_over_kind {
	const struct plan_ops *ops;
	size_t size; /* of the kind's own structure */
	/* Fill in the kind's own fields, all zero; 0 or a negative errno. */
	int (*make)(struct plan *p, struct errmsg *err);
};

extern const struct plan_over_kind plan_weights, plan_reshard;

/* Close the shared part and free the structure. */
void plan_over_close(struct plan_over *o);

/* Fill in an entry.  Name and suffix must fit (asserted).  Returns 1. */
int plan_set_entry(struct plan_entry *e, uint64_t node, const char *name,
		   const char *suffix);

/* Fill in the owner, group and mode of a file that `readers` may read, and of a
 * directory in place of `dir` whose entries' names come from files that
 * `readers` may read. */
void plan_set_file(struct plan_stat *out, const struct access *readers);
void plan_set_dir(struct plan_stat *out, const struct stat *dir,
		  const struct access *readers);

/* Fill in the same for a file computed from shards of a tag.  It can be read by
 * those who may read these shards and all model states, which describe them.
 * Errors as plan_file_open. */
int plan_set_computed(struct plan *p, const struct tagdir *dir, uint64_t node,
		      struct plan_stat *out, struct errmsg *err);

/* Open a torch.save file, with checksums kept in `crc` unless the options leave
 * them zero.  Uses up `c`. -ENOMEM. */
int plan_open_uc_file(const struct plan *p, struct uc_file *c, vfile_crc *crc,
		      struct vfile **out, struct errmsg *err);

/* As plan_lookup, by a linear search with plan_next. */
int plan_lookup_by_walking(struct plan *p, uint64_t dir, const char *name,
			   uint64_t *node, struct errmsg *err);

struct cJSON;

/* Append the files of the root, with sizes and runs: for trees without parameters. */
int plan_files_json(struct plan *p, struct bytebuf *out, struct errmsg *err);

/*
 * Append the parameters of a universal tree with their files; `describe` adds
 * what the kind knows about one parameter.  Objects are printed one by one, so
 * that a tree of 100,000 parameters takes memory only for its text.
 */
typedef int plan_describe_fn(struct plan *p, const struct plan_entry *e,
			     struct cJSON *o, struct errmsg *err);
int plan_params_json(struct plan *p, plan_describe_fn *describe,
		     struct bytebuf *out, struct errmsg *err);
void plan_add_shape(struct cJSON *o, const uint64_t *shape, unsigned ndim);

#endif
