/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_BUILD_H
#define UCKPT_STAGE0_BUILD_H

#include "ckpt/base/array.h"
#include "ckpt/table/zero_dir.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/module_entries.h"
#include "ckpt/zero/stage0.h"

struct value_seq;

/* A state of a parameter, or its master weight: a tensor, or any other value. */
struct stage0_state {
	const char *field;
	const char *key;             /* for messages */
	const struct stored *tensor; /* NULL: use `value` */
	const struct value *value;
};

/* The optimizer's states under one number: for a parameter, or for a group whose parameters are
 * stored end to end. */
struct stage0_entry {
	size_t group;
	const struct stage0_param *param; /* found by stage0_match */
	struct stage0_state *states;      /* in order; includes the master weight, if there is
					   * one */
	size_t n;
	const struct stage0_state *like; /* a state of the parameter's shape; NULL: there is none */
};

/* A parameter of the model. */
struct stage0_param {
	const char *name;
	const struct stored *weight;
	const struct stage0_place *pieces; /* of a weight in several files: see stage0_owned */
};

/* A parameter of a tied module, in the pipeline stages processed so far. */
struct stage0_tied {
	unsigned rank; /* tensor-parallel rank */
	const struct stage0_param *param;
};

/* Return a tensor's place. */
static inline struct stage0_place stage0_place_of(const struct stored *t)
{
	return (struct stage0_place){ t->file, t->dtype, t->storage };
}

/* Shared by all ranks, which are processed in order. */
struct stage0 {
	const struct zero_dir *dir;
	struct arena arena;
	size_t *next;    /* number of the layer in dir->layer, by tensor-parallel rank */
	unsigned tensor; /* tensor-parallel ranks, if there are layers */
	unsigned tp;     /* tensor-parallel ranks as recorded in model states */
	unsigned nep;    /* expert-parallel ranks that saved an optimizer */
	struct stage0_tied *tied;
	size_t ntied, tied_cap;
};

/* A model-parallel rank being built; shared by stage0*.c. */
struct stage0_builder {
	struct stage0 *s;
	struct stage0_rank *o;
	unsigned mp;
	const struct ptfile *model; /* its model states */
	uint32_t model_number;
	const struct ptfile *pt; /* file with the optimizer, which differs from `model` if there are
				  * experts */
	uint32_t number;
	const char *file; /* its path, for messages */
	struct errmsg *err;
	struct experts experts; /* of layers of the model */
	unsigned ep;            /* expert-parallel rank that saved `pt` */
	bool peer;              /* this is not the first expert-parallel rank */
	/* The optimizer: */
	const struct value *torch; /* torch's state_dict */
	struct stage0_entry *entries;
	size_t nentries;
	size_t ndense; /* number of entries of dense parameters, which come first */
	uint64_t flat; /* elements of all flat groups; 0: parameters are not flattened */
	/* The model: */
	struct stage0_param **params;
	size_t nparams, params_cap; /* with experts, once the entries of dense parameters have
				     * theirs */
	uint64_t numel;        /* elements of all parameters */
	struct hashtab places; /* parameters by the place of their data */
	struct module_entries in_module; /* kinds of the module's names */
	char **ties; /* names of parameters of tied modules */
	size_t nties;
};

/* Limit of the memory kept, for each byte of the values in a file. */
#define STAGE0_MEMORY_PER_BYTE 8

/* Describe a tensor of the open file `pt`, number `file`.  As ptfile_run. */
int stage0_tensor(struct stage0_builder *b, const struct ptfile *pt, uint32_t file,
		  const struct value *v, const char *key, const struct stored **out);

/* Add a parameter without any data.  NULL when the arena is exhausted. */
struct stage0_param *stage0_new_param(struct stage0_builder *b);

/* Add the experts of the rank that saved the optimizer, after the dense parameters, in the order
 * of its entries.  -ENOTSUP if they cannot be identified. */
int stage0_find_experts(struct stage0_builder *b);
size_t stage0_count_dense(const struct stage0_builder *b);

/* Set `*of` to the parameter that has a tensor of AutoEP under its first name, or to NULL. */
int stage0_find_alias(struct stage0_builder *b, const char *name, const struct stored *t,
		      const struct stage0_param **of);

/* Find the groups of all other expert-parallel ranks; and of one of them. */
int stage0_find_peers(struct stage0_builder *b);
int stage0_find_peer(const struct stage0_builder *b, struct stage0_rank *o,
		     const struct ckpt_file *optim, unsigned ep);

/* Return the torch state_dict in the optimizer of model states, and its groups; NULL: none. */
const struct value *stage0_torch(const struct value *root);
const struct value_seq *stage0_groups(const struct value *root);

/* Find a stage's parameters with the names and shapes in param_shapes, in the files of its layers.
 * -ENOTSUP for a tied module, -EBADMSG for a missing layer. */
int stage0_find_listed(struct stage0_builder *b, const struct value_seq *shapes);

/* Find the model's parameters, in the module or in a stage's layers. */
int stage0_find_params(struct stage0_builder *b);

/* Find a rank's groups, including groups without states.  As stage0_find. */
int stage0_find_groups(struct stage0_builder *b);

/* Find the parameter of each entry; an entry without `like` may get none.  Entries are in the
 * optimizer's order, parameters in the model's.  -ENOTSUP if shapes do not identify them. */
int stage0_match(struct stage0_builder *b);

/* As stage0_match, for entries that are flat groups: set `owners`, the group of each parameter. */
int stage0_match_flat(const struct stage0_builder *b, size_t *owners);

/* Check that rounding the first elements of the masters gives the 16-bit weights. */
int stage0_match_check(const struct stage0_builder *b);

#endif
