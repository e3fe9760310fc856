/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CATALOGUE_IMPL_H
#define UCKPT_CATALOGUE_IMPL_H

#include "ckpt/model/rank_params.h"

struct ckdir;
struct errmsg;
struct ptfile;
struct value;

/* Limits that no run comes near. */
#define CATALOGUE_PARAMS_MAX (1u << 22)
#define CATALOGUE_GROUPS_MAX (1u << 16)

/* What the parts of rank_params.c share, and the index, which fills in a
 * catalogue again. */
struct catalogue_loader {
	struct catalogue *c;
	const struct ptfile *pt; /* the model-states file */
	const char *file;        /* its path */
	const struct ckdir *dir;
	struct errmsg *err;
};

int catalogue_fail_nomem(const struct catalogue_loader *l);

/* Remember why something was left out. */
int catalogue_warn(const struct catalogue_loader *l, const char *fmt,
		   const char *name, const char *why);

/* Append a slice, which is valid until the next one; NULL without memory. */
struct slice *catalogue_add_slice(const struct catalogue_loader *l,
				  const char *name, size_t len);

/* Can it be a directory's name, beside optimizer_state.pt? */
bool catalogue_is_name(const struct value *v);

/* Multiply the elements of a parameter by a dimension; false if that is more
 * than any tensor has. */
bool catalogue_multiply(uint64_t *numel, uint64_t n);

/* A copy in the arena; NULL without memory. */
uint64_t *catalogue_copy_dims(const struct catalogue_loader *l,
			      const uint64_t *dims, unsigned n);

/* catalogue_find among the first `n` slices, which are sorted. */
const struct slice *catalogue_find_among(const struct catalogue *c, size_t n,
					 const char *name);

/* The groups' lists of parameters, once these have their final places: -EBADMSG
 * if two have the same.  Groups and slices' groups are there. */
int catalogue_index_groups(const struct catalogue_loader *l);

/* rank_params_module.c: add what `module` has and the optimizer not. */
int catalogue_load_module(const struct catalogue_loader *l);

/* Add tensor `v` of an open file, which is number `file` of the model-states
 * and expert files, as a slice called `name` without a place in a group. */
int catalogue_add_tensor(const struct catalogue_loader *l,
			 const struct ptfile *pt, uint32_t file,
			 const struct value *name, const struct value *v);

/* rank_params_experts.c: learn from the expert files which experts there are,
 * find the slices that are theirs, and add what the optimizer has not. */
int catalogue_load_experts(const struct catalogue_loader *l);

/* The second of these steps by itself: which slices are whose.  Files are only
 * opened for layers whose prefix is not known yet. */
int catalogue_place_experts(const struct catalogue_loader *l);

#endif
