/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_WEIGHTS_IMPL_H
#define UCKPT_WEIGHTS_IMPL_H

#include "ckpt/weights/weights.h"

struct ptfile;
struct value;
struct value_dict;

/* Another name of a weight. */
struct weights_tie {
	const char *name, *of;
};

struct weights_names {
	const char **v; /* sorted by text */
	size_t n, cap;
};

struct weights_loader {
	struct weights *w;
	struct zero_checkpoint *r;
	struct shardcache *shards;
	struct errmsg *err;
	void *names; /* search tree of weights by name */
	/* The rank whose file is open, and its contents: */
	unsigned mp;
	size_t model; /* index of the file among the model-states files */
	const struct ptfile *pt;
	const struct value_dict *module; /* NULL for a pipeline */
	const char *file;
	struct weights_names buffers, owned, shared;
	struct weights_placed *placed; /* the module's tensors */
	void *places;                  /* search tree of `placed`, by place */
	struct weights_tie *ties;      /* in the order of `module` */
	size_t nties;
};

/* The place of a tensor in the open file. */
struct weights_placed {
	uint64_t at;
	uint64_t numel;
	const char *name;
};

/* Report that memory ran out.  Returns -ENOMEM. */
int weights_nomem(const struct weights_loader *l);

/* Add a warning: "NAME: WHAT". -ENOMEM. */
int weights_warn(struct weights_loader *l, const char *what, const char *name);

struct weight *weights_find(const struct weights_loader *l, const char *name);

/* Append a weight with its name, shape and numel.  The caller has checked that the
 * product does not overflow.  NULL if memory is short. */
struct weight *weights_new(struct weights_loader *l, const char *name,
			   const uint64_t *shape, size_t ndim);

/* For tdestroy: the nodes of the search trees have other owners. */
void weights_keep(void *node);

/* Iterate over the entries of a dict (NULL: an empty one) that have a text as name.
 * Start with `*pos` 0.  Returns the name, or NULL at the end. */
const char *weights_next(const struct value_dict *d, size_t *pos,
			 const struct value **v);

bool weights_has_name(const struct weights_names *s, const char *name);

/* In weights_module.c: load buffers, frozen parameters and everything else that
 * the open file holds.  The parts of ZeRO-3's frozen parameters are read from
 * the other ranks' files as well. */
int weights_load_buffers(struct weights_loader *l);
int weights_load_frozen(struct weights_loader *l);
int weights_load_rest(struct weights_loader *l);

/* Free what weights_load_rest has allocated. */
void weights_forget_rest(struct weights_loader *l);

#endif
