/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_CATALOGUE_IMPL_H
#define UCKPT_CATALOGUE_IMPL_H

#include "ckpt/catalogue.h"

struct ckdir;
struct errmsg;
struct ptfile;
struct value;

/* What the parts of catalogue.c share. */
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

/* A copy in the arena; NULL without memory. */
uint64_t *catalogue_copy_dims(const struct catalogue_loader *l,
			      const uint64_t *dims, unsigned n);

/* catalogue_find among the first `n` slices, which are sorted. */
const struct slice *catalogue_find_among(const struct catalogue *c, size_t n,
					 const char *name);

/* catalogue_module.c: add what `module` has and the optimizer not. */
int catalogue_load_module(const struct catalogue_loader *l);

/* Add tensor `v` of an open file, which is number `file` of the model-states
 * and expert files, as a slice called `name` without a place in a group. */
int catalogue_add_tensor(const struct catalogue_loader *l,
			 const struct ptfile *pt, uint32_t file,
			 const struct value *name, const struct value *v);

/* catalogue_experts.c: learn from the expert files which experts there are,
 * find the slices that are theirs, and add what the optimizer has not. */
int catalogue_load_experts(const struct catalogue_loader *l);

#endif
