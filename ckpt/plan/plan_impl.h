/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_PLAN_IMPL_H
#define UCKPT_PLAN_IMPL_H

#include "ckpt/base/bytes.h"
#include "ckpt/plan/plan.h"
#include "ckpt/vfile/vfile.h"

struct content;

/*
 * A kind of tree: what plan.c asks of it.  Signatures and errors as those of
 * the functions in plan.h that are called the same.  Operations that a kind has
 * no use for may be NULL, as said.
 */
struct plan_ops {
	void (*close)(struct plan *p);
	int (*check)(struct plan *p, struct errmsg *err);
	/* NULL: no warnings. */
	int (*warning)(struct plan *p, size_t *pos, struct errmsg *out);
	bool (*is_dir)(const struct plan *p, uint64_t node);
	/* Of a directory that is not the root; NULL: there are none. */
	uint64_t (*parent)(const struct plan *p, uint64_t dir);
	int (*next)(struct plan *p, uint64_t dir, uint64_t *pos,
		    struct plan_entry *out, struct errmsg *err);
	/* NULL: by walking. */
	int (*lookup)(struct plan *p, uint64_t dir, const char *name,
		      uint64_t *node, struct errmsg *err);
	/* NULL: loaders go no way that could be foreseen. */
	int (*following)(struct plan *p, uint64_t node, enum plan_way way,
			 uint64_t *next, struct errmsg *err);
	int (*stat)(struct plan *p, uint64_t node, struct plan_stat *out,
		    struct errmsg *err);
	/* Whether its shards are those that were planned is asked afterwards. */
	int (*file_open)(struct plan *p, uint64_t node, struct vfile **out,
			 struct errmsg *err);
	/* NULL: nothing is kept. */
	int (*index)(struct plan *p, struct bytebuf *out, struct errmsg *err);
	/* Append `,"name":value' for what the kind tells of itself. */
	int (*json)(struct plan *p, struct bytebuf *out, struct errmsg *err);
};

/* What plans of all kinds have; a kind's own structure begins with it. */
struct plan {
	const struct plan_ops *ops;
	struct plan_options options;
	const char *tag;           /* see plan_tag */
	struct resolve *resolve;   /* see plan_resolve */
	struct shardcache *shards; /* see plan_shards */
};

/* For PLAN_WAY_NAMES: of `n` names, of which some may be NULL, the one that comes
 * after that of `after`, or first of all if that is `n`; `n` behind the last. */
unsigned plan_name_after(const char *const *names, unsigned n, unsigned after);

/* Make a kind's plan, with the members above filled in.  As plan_open_indexed. */
int plan_open_universal(const char *path, const struct plan_options *options,
			struct span index, struct plan **out,
			struct errmsg *refused, struct errmsg *err);

/* Of a Hugging Face directory: as plan_open. */
int plan_open_hfdir(const char *path, const struct plan_options *options,
		    struct plan **out, struct errmsg *err);

/* The same of weights, beside a universal plan of the tag, which is taken over,
 * also if it fails, if `owned`. */
int plan_open_weights(struct plan *universal, bool owned,
		      const struct plan_options *options, struct plan **out,
		      struct errmsg *err);

/* Fill in an entry; 1.  Name and suffix must fit (asserted). */
int plan_set_entry(struct plan_entry *e, uint64_t node, const char *name,
		   const char *suffix);

/* Open a file of torch.save, with checksums in `crc` unless the plan has none.
 * Uses up the content.  -ENOMEM. */
int plan_open_content(const struct plan *p, struct content *c, vfile_crc *crc,
		      struct vfile **out, struct errmsg *err);

/* plan_lookup by going through the directory. */
int plan_lookup_by_walking(struct plan *p, uint64_t dir, const char *name,
			   uint64_t *node, struct errmsg *err);

/* The files of a directory as members of a JSON object: their sizes and
 * runs. */
struct cJSON;
int plan_files_json(struct plan *p, uint64_t dir, struct cJSON *files,
		    struct errmsg *err);

/*
 * The parameters of a universal tree, each with its files; `describe` adds what
 * the kind of plan knows of the one in a directory.  Written object by object,
 * so that a tree of 100,000 parameters needs memory for its text only.
 */
typedef int plan_describe_fn(struct plan *p, const struct plan_entry *e,
			     struct cJSON *o, struct errmsg *err);
int plan_params_json(struct plan *p, plan_describe_fn *describe,
		     struct bytebuf *out, struct errmsg *err);
void plan_add_shape(struct cJSON *o, const uint64_t *shape, unsigned ndim);

/* Print and delete an object. */
void plan_add_json(struct bytebuf *out, struct cJSON *o);

#endif
