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
	const char **v; /* sorted */
	size_t n;
};

struct weights_loader {
	struct weights *w;
	struct resolve *r;
	struct shardcache *shards;
	struct errmsg *err;
	void *names; /* a tree of the weights, by name */
	/* The rank whose file is open: */
	unsigned mp;
	size_t model; /* the file's number among model states */
	const struct ptfile *pt;
	const struct value_dict *module; /* NULL: a pipeline's */
	const char *file;
	struct weights_names buffers, owned, shared;
	struct weights_placed *placed; /* tensors of the module */
	void *places;                  /* a tree of these */
	struct weights_tie *ties;      /* by place */
	size_t nties;
};

/* Where a tensor of the open file lies. */
struct weights_placed {
	uint64_t at;
	uint64_t numel;
	const char *name;
};

/* -ENOMEM. */
int weights_fail_nomem(const struct weights_loader *l);

/* Remember why something was left out. */
int weights_warn(struct weights_loader *l, const char *what, const char *name);

struct weight *weights_find(const struct weights_loader *l, const char *name);

/* A weight that is not there yet, without anything but its name; NULL without
 * memory. */
struct weight *weights_new(struct weights_loader *l, const char *name);

/* The shape, and the elements that it makes, which the caller has checked; false
 * without memory. */
bool weights_set_shape(struct weights_loader *l, struct weight *x,
		       const uint64_t *shape, unsigned ndim);

bool weights_has_name(const struct weights_names *s, const char *name);

/* weights_module.c: what lies in the open file, and of frozen parameters in those
 * of the other ranks of ZeRO-3. */
int weights_load_buffers(struct weights_loader *l);
int weights_load_frozen(struct weights_loader *l);
int weights_load_rest(struct weights_loader *l);

/* Forget what weights_load_rest has found. */
void weights_forget_rest(struct weights_loader *l);

#endif
