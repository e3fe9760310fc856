/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_MODEL_H
#define UCKPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/base/arena.h"
#include "ckpt/table/geometry.h"
#include "ckpt/table/rank_params.h"

struct errmsg;
struct merge_rules;
struct zero_dir;
struct user_rules;

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

/* Read the tables of all ranks of a scanned directory, as rank_params_load.  The user's rules (may
 * be NULL) take precedence over the checkpoint's.  -ENOTSUP, with the parameter's name, for layouts
 * that cannot be served. */
int model_load(struct model *m, const struct zero_dir *dir, const struct user_rules *user,
	       const struct rank_object *object, struct errmsg *err);

void model_done(struct model *m);

/* Add the user's rules (may be NULL) to those of a checkpoint, with precedence. */
int model_override(struct merge_rules *rules, const struct user_rules *u, struct errmsg *err);

/* Find the rule of each row that the optimizer owns, unless files are flat, and the shape of the
 * whole.  Rows that no rule joins are refused with a text that names `file`.  `*scaled` is set
 * to a row with scaled pieces.  Messages name the parameter. */
int model_match(struct param *v, size_t n, struct merge_rules *rules, const char *file, bool flat,
		struct arena *a, const struct param **scaled, struct errmsg *err);

#endif
