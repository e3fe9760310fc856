/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_LOAD_IMPL_H
#define UCTRAIN_LOAD_IMPL_H

#include <stddef.h>

#include "ckpt/tensor/tensor.h"
#include "gpu/load/load.h"
#include "gpu/model/naming.h"

struct gpt2;
struct upload;
struct user_rules;
struct value;

/* Shared by the files of load. */

/* A kind of checkpoint as a source of parameter elements. */
struct load_source;

struct load_ops {
	size_t size; /* of the kind's own struct, whose first member is
		      * load_source */
	/* Open the checkpoint at ->path.  After an error `close` is not
	 * called. */
	int (*open)(struct load_source *s, struct errmsg *err);
	/*
	 * Start reading parameter i's masters (`state` is NULL) or the named
	 * state, and fill in ->tensor: the whole, or if the source is ->cut
	 * this tensor-parallel rank's part.  Flat tensors have one dimension.
	 * -ENOENT with a message that names it if it is missing.
	 */
	int (*begin)(struct load_source *s, const char *param,
		     const char *state, struct errmsg *err);
	/* Queue the upload of its elements [first, first + n) to `to`. */
	int (*send)(struct load_source *s, uint64_t first, size_t n, float *to,
		    struct upload *q, struct errmsg *err);
	void (*end)(struct load_source *s);

	/* Call load_known for each parameter that the optimizer owns, until it
	 * fails. */
	int (*check)(struct load_source *s, struct errmsg *err);
	void (*close)(struct load_source *s); /* frees all but `s` itself */
};

struct load_source {
	const struct load_ops *ops;
	const char *path;                 /* of the tag; borrowed */
	const struct gpt2 *model, *whole; /* this rank's part, and all of it */
	const struct user_rules *rules;   /* NULL: none */
	bool cut;
	struct naming naming; /* of its parameters */
	struct tensor tensor; /* the tensor being read */
	/* Its slices of queries, keys and values have been sorted into whole
	 * thirds. */
	bool sorted_thirds;
	uint64_t bytes, direct;
};

/* Does the model have a parameter of this name?  -EINVAL if not. */
int load_known(const struct load_source *s, const char *param,
	       struct errmsg *err);

extern const struct load_ops load_zero_ops, load_stage0_ops, load_universal_ops;

/* Find the tag's directory. */
int load_find(const struct load_options *o, char path[PATH_MAX],
	      struct errmsg *err);

/* A checkpoint's scalars.  Read by rank 0 and broadcast. */
struct load_metadata {
	uint64_t step, skipped;  /* of the run */
	uint64_t original_vocab; /* 0: unknown */
	struct naming naming;    /* of parameters; HF: see the next */
	bool knows_qkv;          /* the order of query_key_value is known */
	unsigned tensor_ranks;   /* that saved the checkpoint; 0: unknown */
	bool exact_gelu;         /* the model was trained with it */
	bool has_updates;        /* the next two are known */
	uint64_t updates;
	int flavor; /* enum optimizer_flavor */
	/* Of the optimizer's first parameter group; NAN where missing. */
	double lr, beta1, beta2, eps, weight_decay;
	bool has_scaler;
	struct loss_scaler scaler;
};

int load_metadata(const struct load_options *o, const struct gpt2 *model,
		  const char *path, struct load_metadata *f, struct errmsg *err);

/* Find out whether a checkpoint is Megatron's, with `root` the content of its
 * first model states (NULL: it has none), and what these tell about the model.
 * -EINVAL for a model that GPT-2 is not. */
int load_megatron(const struct load_options *o, const struct gpt2 *model,
		  const char *dir, const struct value *root,
		  struct load_metadata *f, struct errmsg *err);

#endif
