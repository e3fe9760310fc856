/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RANK_PARAMS_BUILD_H
#define UCKPT_RANK_PARAMS_BUILD_H

#include "ckpt/table/rank_params.h"

struct zero_dir;
struct errmsg;
struct ptfile;
struct value;
struct value_dict;

/* Shared by rank_params*.c. */
struct rank_params_loader {
	struct rank_params *c;
	const struct ptfile *pt;         /* the model-states file */
	const struct value_dict *module; /* see module_dict.h */
	const char *file;                /* its path */
	const struct zero_dir *dir;
	unsigned tp; /* tensor-parallel ranks, once they are known */
	struct errmsg *err;
};

/* Add a warning that says why something was skipped.  0 or -ENOMEM. */
#define RANK_PARAMS_WARN(l, fmt, ...)                                                    \
	(errmsg_list_add(&(l)->c->warnings, &(l)->c->arena, fmt, ##__VA_ARGS__) ? 0       \
	 : errmsg_nomem((l)->err, (l)->file))

/* rank_params_module.c: add the tensors that the optimizer does not own. */
int rank_params_load_module(const struct rank_params_loader *l);

/* Add an entry for `name`, tensor `v` of the open file `f`, and set `t` to the tensor.  Errors
 * of the tensor are returned, too, except in stage 3, whose universal tree does not have it. */
int rank_params_add_entry(const struct rank_params_loader *l, const struct ptfile *pt,
			  const struct ckpt_file *f, const struct value *name, const struct value *v,
			  struct rank_entry **out, struct tensor *t);

#endif
