/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_STAGE0_BUILD_H
#define UCKPT_STAGE0_BUILD_H

#include "ckpt/base/hashtab.h"
#include "ckpt/dcp/stage0.h"

struct errmsg;
struct value;
struct value_seq;

/* A parameter of the model's. */
struct stage0_param {
	const char *name;
	struct dcp_item *weight;
};

/* What an optimizer has under a number: the states of a parameter, or of a whole group
 * whose parameters it has end to end. */
struct stage0_entry {
	size_t group;
	const struct stage0_param *param; /* found by stage0_match */
	struct dcp_item *states; /* in order; and the master weight, if it has one */
	size_t n;
	const struct dcp_item *like; /* a tensor of its shape; NULL: there is none */
};

/* Shared by stage0*.c: one model-parallel rank in the making. */
struct stage0_builder {
	struct stage0 *s;
	const struct stage0_file *f; /* its model states */
	struct dcp_blobs *b;
	struct dcp_model *o;
	const char *file; /* for messages */
	struct errmsg *err;
	/* The optimizer's: */
	const struct value *torch; /* the state_dict of torch's */
	struct stage0_entry *entries;
	size_t nentries;
	size_t states_cap;
	uint64_t flat; /* elements of all flat groups; 0: parameters are apart */
	/* The model's: */
	struct stage0_param *params;
	size_t nparams, params_cap, extras_cap;
	uint64_t numel; /* of all */
	struct hashtab places; /* parameters, by their data's place */
	const char **buffers; /* names, sorted */
	size_t nbuffers;
	char **ties; /* names of parameters of tied modules */
	size_t nties;
};

/* Memory that is kept, for each byte of the values in a file. */
#define STAGE0_MEMORY_PER_BYTE 8

/* Fill in the item of a tensor of a file. */
int stage0_item(struct stage0_builder *b, const struct stage0_file *f,
		const struct value *v, const char *key, struct dcp_item *out);

/* Is an optimizer read from the object of model states?  -ENOTSUP if not, in a message that
 * begins with `file`. */
int stage0_check_optimizer(const struct value *root, const char *file,
			   struct errmsg *err);

/* Find a stage's parameters of these names and shapes, param_shapes, in the files of its
 * layers.  -ENOTSUP for a tied module, -EBADMSG for a layer that is missing. */
int stage0_find_listed(struct stage0_builder *b, size_t part,
		       const struct value_seq *shapes);

/* Find the model's parameters: those of the module, or of a stage's layers. */
int stage0_find_params(struct stage0_builder *b, size_t part);

/* Find the parameter of each entry; those without `like` may stay without one.  Entries are
 * in the optimizer's order, parameters in the model's.  -ENOTSUP if shapes do not tell which
 * is which. */
int stage0_match(struct stage0_builder *b);

/* The same where entries are flat groups: set the group that owns each parameter, by the
 * parameter's number. */
int stage0_match_flat(const struct stage0_builder *b, size_t *owners);

/* Check that masters of 16-bit weights begin with what these were rounded from. */
int stage0_match_check(const struct stage0_builder *b);

#endif
