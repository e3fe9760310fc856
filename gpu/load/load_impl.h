/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_IMPL_H
#define UCTRAIN_LOAD_IMPL_H

#include <stddef.h>
#include <sys/stat.h>

#include "ckpt/base/source.h"
#include "ckpt/format/tensor.h"
#include "ckpt/vfile/extent.h"
#include "gpu/load/load.h"
#include "gpu/load/load_mount.h"
#include "gpu/model/gpt2.h"
#include "gpu/model/naming.h"

struct backend;
struct checkpoint;
struct fragment;
struct upload;
struct user_rules;
struct value;

/* Shared by the files of gpu/load. */

struct load;

/* Consecutive elements of a file, and their destination. */
struct load_run {
	struct source file; /* borrowed */
	enum dtype dtype;   /* of the file's elements */
	uint64_t off;       /* of the first element, in bytes */
	size_t n;
	float *to;
	bool direct; /* in a shard, bypassing the mount */
	bool zero;   /* no file: the elements are zero */
};

struct load_tensor {
	struct load *l;
	const char *name;     /* of its parameter, in the checkpoint */
	struct tensor tensor; /* dimensions; a flat tensor has one */
	struct source file;   /* has the tensor's elements in order ... */
	uint64_t at;          /* ... starting here (bytes) */
	char path[PATH_MAX];  /* of a file of a universal checkpoint */
	/* Where the file's bytes lie: zeros, in l->shards, or else in the file only.  Empty: in the
	 * file only. */
	struct extent_map extents;
	uint32_t *used; /* shards in use */
	size_t nused, used_cap;
	/* The query, key and value slices have been sorted into whole thirds. */
	bool sorted_thirds;
	struct load_run *runs; /* found so far */
	size_t nruns, cap;
};

/*
 * Find the masters of the parameter (`state` is NULL) or the named state, in a table or in a
 * universal checkpoint, and fill in the rest of `t`, with ->file open; what was filled in is freed
 * by the caller, also after an error.  -ENOENT with a message that names it if it is missing.
 * Thread-safe: many tensors are located at once on remote storage.
 */
int load_table_begin(struct load_tensor *t, const char *state, struct errmsg *err);
int load_universal_begin(struct load_tensor *t, const char *state, struct errmsg *err);

/* Call load_is_param for each parameter that the optimizer owns, until it fails.  A universal
 * checkpoint has one file per parameter: also check that all parameters of the model exist. */
int load_table_check(const struct load *l, struct errmsg *err);
int load_universal_check(const struct load *l, struct errmsg *err);

/* Add the runs that have elements [first, first + n), with destination `to`. */
int load_tensor_find(struct load_tensor *t, uint64_t first, size_t n, float *to,
		     struct errmsg *err);

/* Check that the model has a parameter of this name.  -EINVAL if not. */
int load_is_param(const struct load *l, const char *param, struct errmsg *err);

/* Return -ENOENT with a message that the checkpoint lacks a parameter of the model (`state` is
 * NULL) or a state. */
int load_missing(const struct load *l, const char *param, const char *state, struct errmsg *err);

/* Return the path of a name below `dir`.  -ENAMETOOLONG. */
int load_path(char path[PATH_MAX], const char *dir, const char *name, struct errmsg *err);

/* Return the st_mode of a name below `dir`; 0 if it does not exist. */
mode_t load_mode(struct uckpt *u, const char *dir, const char *name);

/* Find the tag's directory. */
int load_find(const struct load_options *o, char path[PATH_MAX], struct errmsg *err);

/* A checkpoint's metadata.  Read by rank 0 and broadcast, like the result's scalars. */
struct load_metadata {
	uint64_t original_vocab;  /* 0: unknown */
	struct naming naming;     /* of its parameters */
	enum naming_qkv told_qkv; /* from `args`, independent of `naming` */
	unsigned tensor_ranks;    /* number of ranks that saved the checkpoint; 0: unknown */
	uint64_t updates;         /* valid if the result has updates */
	/* The run's, with the checkpoint's hyperparameters. */
	struct optimizer_config optimizer;
};

/* A checkpoint that is being loaded. */
struct load {
	struct zero *z;
	const struct load_options *o;
	struct load_result *got;
	struct load_metadata metadata;
	struct gpt2 whole;
	struct checkpoint *table; /* NULL: none is open, or it is a universal checkpoint */
	struct shards *shards;    /* the table's, or the mount's; NULL: there are none */
	bool cut; /* tensors are this tensor-parallel rank's part */
	struct naming_tensor *tensors; /* the model's, whole, by number */
	/* For a universal checkpoint: */
	struct mount mount;
	bool weights; /* made from Hugging Face weights: tensors that are not parameters have
		       * states, too */
	size_t skip;  /* length of the name prefix that the checkpoint omits */
	struct upload *upload;
	/* The upload to host memory, for tensors in another order.  NULL if there are none. */
	struct backend *host;
	struct upload *host_upload;
	struct errmsg *err;
};

/* Add a tensor's runs to an upload to the memory of `b`, and count their bytes.  They must stay as
 * they are until it is finished. */
int load_tensor_send(struct load *l, const struct load_tensor *t, struct backend *b,
		     struct upload *q);

/* Locate all elements that this rank keeps, and upload them. */
int load_tensors(struct load *l);

/*
 * Read fragment `f` of this rank's part `p` of a tensor that the checkpoint stores in another
 * order, `form`, to `part` on the device.  Reads the ranges of the tensor's rows that hold the
 * fragment.  Takes at most three times the fragment's bytes of host memory.
 */
int load_arranged_send(struct load *l, struct load_tensor *t, const struct naming_tensor *form,
		       const struct gpt2_param *p, const struct fragment *f, float *part);

/* Detect the kind of names in a universal checkpoint, and whether it is a mount's. */
int load_look_at_tree(struct load *l);

/* Open the checkpoint's table with the rules of l. */
int load_open_table(struct load *l);

/* Fill in l->metadata, and the result's scalars.  Opens the table. */
int load_metadata(struct load *l);

/* Detect whether a checkpoint is Megatron's, and read what its first model states say about the
 * model; `root` is their content (NULL: there are none).  -EINVAL for a model that is not GPT-2. */
int load_megatron(struct load *l, const struct value *root);

#endif
