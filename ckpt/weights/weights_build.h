/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_BUILD_H
#define UCKPT_WEIGHTS_BUILD_H

/* For weights_load and weights_layers alone: weights while they are read. */

#include "ckpt/weights/weights.h"

struct ptfile;
struct rank_params;
struct value;
struct value_dict;

struct weights_loader {
	struct weights *w;
	struct zero_checkpoint *r;
	struct errmsg *err;
	void *names;         /* search tree of weights by name */
	const char **wanted; /* buffers of a pipeline's layers; in the arena of `w` */
	size_t nwanted, wanted_cap;
	/* The rank whose file is open, and its contents: */
	const struct rank_params *params;
	uint32_t shard; /* the file's number */
	const struct ptfile *pt;
	const struct value_dict *module; /* NULL for a pipeline */
	const char *file;
	struct arena arena;
	struct listed *listed; /* sorted by name */
	size_t nlisted, listed_cap;
	void *places;     /* search tree of the module's tensors, by place */
	struct tie *ties; /* of shared_params, then in the order of `module` */
	size_t nties, ties_cap;
};

int weights_nomem(const struct weights_loader *l);

/* Add a warning: "NAME: WHAT". -ENOMEM. */
int weights_warn(struct weights_loader *l, const char *what, const char *name);

/* NULL if there is none. */
struct weight *weights_find(const struct weights_loader *l, const char *name);

/* Append a weight without elements.  The caller has checked that the product of the
 * shape does not overflow.  NULL if memory is short. */
struct weight *weights_append(struct weights_loader *l, const char *name,
			      const uint64_t *shape, size_t ndim,
			      enum dtype dtype, bool requires_grad);

/* Append a weight whose elements are tensor `t` of a file.  -ENOMEM. */
int weights_new(struct weights_loader *l, const char *name,
		const struct tensor *t, uint32_t shard, uint64_t storage);

/* Read where a tensor of the open file is.  Returns 1, with a warning, for what
 * tensor_from_any does. */
int weights_read(struct weights_loader *l, const char *name,
		 const struct value *v, struct tensor *t, uint64_t *storage);

/*
 * Check that a tensor of the open file equals that of an earlier rank; its first element is
 * at `at`.  How a parameter is cut follows from the optimizer's shards; for other tensors
 * nothing records a cut, so the ranks' copies must be equal: -ENOTSUP.
 */
int weights_check_same(const struct weights_loader *l, const struct weight *x,
		       const struct tensor *t, uint64_t at);

/* Fill in the weights of a source without an optimizer: all its rows.  -ENOMEM. */
int weights_take_rows(struct weights *w, const struct checkpoint *c, struct errmsg *err);

/* Add a warning to `weights`: for an errmsg_sink. */
void weights_note(void *weights, const char *text);

/* Add what a pipeline's layers have besides the optimizer's parameters. */
int weights_load_layers(struct weights_loader *l);

#endif
