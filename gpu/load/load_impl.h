/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_IMPL_H
#define UCTRAIN_LOAD_IMPL_H

#include <stddef.h>
#include <sys/stat.h>

#include "ckpt/base/source.h"
#include "ckpt/format/tensor.h"
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

/* Shared by the files of load. */

struct load;
struct load_tensor;

/* Consecutive elements of a file, and where they go. */
struct load_run {
	struct source file; /* borrowed */
	enum dtype dtype;   /* of its elements */
	uint64_t off;       /* of the first one */
	size_t n;
	float *to;
	bool direct; /* of a shard, past the mount */
	bool zero;   /* of no file: they are zero */
};

/* A kind of checkpoint: of a table, or a universal one. */
struct load_ops {
	size_t tensor_size; /* of the kind's own struct, whose first member is load_tensor */
	/*
	 * Find the masters of the parameter (`state` is NULL) or the named state, and fill in the
	 * rest of `t`, with ->file open.  -ENOENT with a message that names it if it is missing.
	 * Thread-safe, as are the next two: on storage that is far away many tensors are found at
	 * once.
	 */
	int (*begin)(struct load_tensor *t, const char *state, struct errmsg *err);
	/* The first elements of a run of ->file may lie in a shard as they are: make it a run of
	 * that one, of as many as do, or of those that do not.  It stays open until `end`. */
	int (*locate)(struct load_tensor *t, struct load_run *run, struct errmsg *err);
	void (*end)(struct load_tensor *t); /* or NULL */

	/* Call load_known for each parameter that the optimizer owns, until it fails.  A kind
	 * in which a missing parameter is a missing file looks for all parameters of the model,
	 * too. */
	int (*check)(const struct load *l, struct errmsg *err);
};

struct load_tensor {
	struct load *l;
	const char *name;     /* of its parameter, in the checkpoint */
	struct tensor tensor; /* flat ones have one dimension */
	struct source file;   /* has its elements one after the other ... */
	uint64_t at;          /* ... from here on */
	/* Its slices of queries, keys and values have been sorted into whole thirds. */
	bool sorted_thirds;
	struct load_run *runs; /* that have been found */
	size_t nruns, cap;
};

/* Add the runs in which elements [first, first + n) lie, which go to `to`. */
int load_tensor_find(struct load_tensor *t, uint64_t first, size_t n, float *to,
		     struct errmsg *err);

/* Does the model have a parameter of this name?  -EINVAL if not. */
int load_known(const struct load *l, const char *param, struct errmsg *err);

/* The checkpoint lacks a parameter of the model (`state` is NULL) or a state of it: return
 * -ENOENT with the message. */
int load_lacks(const struct load *l, const char *param, const char *state, struct errmsg *err);

extern const struct load_ops load_table_ops, load_universal_ops;

/* The path of what is below `dir`.  -ENAMETOOLONG. */
int load_path(char path[PATH_MAX], const char *dir, const char *name, struct errmsg *err);

/* The st_mode of what is below `dir`; 0 if it is not there. */
mode_t load_mode(struct uckpt *u, const char *dir, const char *name);

/* Find the tag's directory. */
int load_find(const struct load_options *o, char path[PATH_MAX], struct errmsg *err);

/* What a checkpoint says about itself.  Read by rank 0 and broadcast, as the result's scalars
 * are. */
struct load_metadata {
	uint64_t original_vocab;  /* 0: unknown */
	struct naming naming;     /* of its parameters */
	enum naming_qkv told_qkv; /* by `args`, whatever `naming` has */
	unsigned tensor_ranks;    /* that saved the checkpoint; 0: unknown */
	uint64_t updates;         /* if the result has them */
	/* The run's, with what the checkpoint stores. */
	struct optimizer_config optimizer;
};

/* A checkpoint that is being loaded. */
struct load {
	struct zero *z;
	const struct load_options *o;
	struct load_result *got;
	struct load_metadata metadata;
	struct gpt2 whole;
	const struct load_ops *ops;
	struct checkpoint *table; /* NULL: none is open, or it is a universal checkpoint */
	bool cut; /* tensors are this tensor-parallel rank's part, not the whole */
	struct naming_tensor *tensors; /* of the model, whole, by number */
	/* Of a universal checkpoint: */
	struct mount_shards shards;
	bool weights; /* made from Hugging Face weights: also non-parameters have states */
	size_t skip;  /* length of the name prefix that it omits */
	struct upload *upload;
	/* For tensors in another order: to host memory.  NULL if there are none. */
	struct backend *host;
	struct upload *host_upload;
	bool lent; /* files without descriptors are being read, and have to stay open */
	struct errmsg *err;
};

/* Queue the uploads of a tensor's runs to the memory of `b`, and count their bytes. */
int load_tensor_send(struct load *l, const struct load_tensor *t, struct backend *b,
		     struct upload *q);

/* Wait until all is read, also after an error `rc`, which is returned then. */
int load_wait(struct upload *q, int rc, struct errmsg *err);

/* Find all that this rank keeps, and queue its upload. */
int load_tensors(struct load *l);

/*
 * Read the fragment `f` of this rank's part `p` of a tensor that the checkpoint has in another
 * order, `form`, to `part` on the device, as pieces of the tensor's rows that hold it.  Takes
 * three times the fragment's bytes of host memory at most.
 */
int load_arranged_send(struct load *l, struct load_tensor *t, const struct naming_tensor *form,
		       const struct gpt2_param *p, const struct fragment *f, float *part);

/* Look at the names in a universal checkpoint. */
void load_look_at_tree(struct load *l);

/* Open the checkpoint's table, with the rules that there are. */
int load_open_table(struct load *l);

/* Fill in l->metadata, and the result's scalars.  Opens the table. */
int load_metadata(struct load *l);

/* Find out whether a checkpoint is Megatron's, with `root` the content of its
 * first model states (NULL: it has none), and what these tell about the model.
 * -EINVAL for a model that GPT-2 is not. */
int load_megatron(struct load *l, const struct value *root);

#endif
