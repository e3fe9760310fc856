/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODEL_H
#define UCKPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/merge_rules.h"
#include "ckpt/model/rank_params.h"

struct tagdir;
struct errmsg;
struct geometry;
struct user_rules;

/* A parameter of the whole model. */
struct param {
	const char *name; /* first: array_by_text */
	unsigned ndim; /* shape in its universal files */
	const uint64_t *shape;
	uint64_t numel;
	struct merge merge;
	size_t holders; /* most ranks that hold the same piece */
	bool computed; /* some of its elements are: averaged or scaled */
	/* Owned by the optimizer: the slice of each tensor-parallel rank of its
	 * pipeline stage, NULL where a rank has none; of fused experts, the
	 * slice of each expert-parallel rank. */
	const struct slice **slices;
	unsigned nslices;
	const struct slice *first; /* first of them that is not NULL */
	/* Not owned by the optimizer: the tensor in a module or an expert's
	 * file. */
	const struct module_tensor *module;
};

/*
 * The parameters of all model-parallel ranks, merged: model-parallel rank mp is
 * tensor-parallel rank mp % tp of pipeline stage mp / tp. Native experts have
 * their names in the whole model.
 * Immutable after model_load.
 */
struct model {
	struct arena arena;
	struct rank_params *ranks; /* of each model-parallel rank */
	unsigned tp, pp;
	struct param *params; /* sorted by name */
	size_t nparams;
	const struct param *scaled; /* a parameter with scaled pieces, or
				     * NULL */
};

/* Limit of parameters. Those of experts are multiplied by the ranks that share
 * them. */
#define MODEL_PARAMS_MAX (1u << 24)

/* Read the tables of all ranks of a scanned directory. The user's rules (may be
 * NULL) come before those of the checkpoint. -ENOTSUP, with the parameter's
 * name, for layouts that cannot be served. */
int model_load(struct model *m, const struct tagdir *dir,
	       const struct user_rules *user, struct errmsg *err);

void model_done(struct model *m);

/* The parameter called `name`, or NULL. */
const struct param *model_find(const struct model *m, const char *name);

/* The next pattern of merge rules from `*pos` on that matches no parameter, or NULL. */
const char *model_next_unused(const struct model *m, size_t *pos);

/* Compute how the parameter is made of its slices. model_load does so once for
 * the shape, which shows that rule and slices agree, and each open of a file
 * does so again: it takes microseconds, while keeping the result would take 600
 * bytes and more for each of a hundred thousand parameters. */
int model_geometry(const struct param *p, struct geometry *g,
		   struct errmsg *err);

/* Do universal files hold bare 1-D tensors, as for ZeRO-3 without tensor
 * parallelism? */
bool model_is_flat(const struct model *m);

#endif
