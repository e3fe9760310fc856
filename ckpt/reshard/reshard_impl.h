/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_IMPL_H
#define UCKPT_RESHARD_IMPL_H

#include "ckpt/base/errmsg.h"
#include "ckpt/pickle/value.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/vfile/draft.h"
#include "ckpt/zero/checkpoint.h"

/* How a checkpoint is re-cut: the new flat groups of each model-parallel rank. */

/* A parameter of the optimizer: entry `listed` of the old param_shapes[group]. */
struct reshard_param {
	uint32_t group;
	uint32_t listed;
	const struct slice *slice; /* NULL: a parameter without elements */
};

/* A new flat group. */
struct reshard_group {
	struct reshard_param *params; /* in the order of the flat group */
	size_t n;
	struct partition part; /* of `params` */
	struct rank_stripe stripe;
	uint32_t like;        /* the old group that holds its first parameter */
	uint32_t param_group; /* of the optimizer */
	uint64_t *padding; /* alignment padding after each parameter, or NULL */
	/*
	 * What param_slice_mappings says.  DeepSpeed computes it in the model's
	 * order even if round_robin_gradients reorders the group: position k of
	 * `recorded` is parameter recorded_order[k].  NULL: `part` is right.
	 */
	struct partition recorded;
	size_t *recorded_order;
};

/* The optimizer files of one model-parallel rank. */
struct reshard_mp {
	struct reshard_group *groups;
	size_t ngroups, cap;
	bool elastic; /* base_optimizer_state is a list (elastic_checkpoint) */
	bool bf16;    /* BF16_Optimizer's: partitions keep their padding */
	bool same_groups; /* new groups are the old ones, parameter by parameter */
	bool same_order; /* and in their order */
};

/* Does the new stage cut groups in another way than the old one? */
static inline bool reshard_crosses(const struct reshard *s)
{
	return (s->stage == 3) != (s->old_stage == 3);
}

/* One model-parallel rank while its groups are built. */
struct resharder {
	struct reshard *s;
	struct reshard_mp *m;
	unsigned mp;
	const struct rank_params *c;
	const struct layout *old;
	const struct value *root; /* of the first optimizer shard */
	double sub_group_size;
	uint32_t *param_group; /* of each old group */
	uint32_t nparam_groups;
	bool bf16;        /* BF16_Optimizer wrote the old files */
	const char *file; /* for messages */
	struct errmsg *err;
};

/* Allocate what lives as long as the re-cut checkpoint.  NULL, with a message, if there
 * is no memory. */
void *reshard_alloc(const struct resharder *b, size_t n, size_t item);

/*
 * Append to `b->m` the new flat groups of one parameter group of the optimizer:
 * one of stages 1 and 2, or the sub-groups of stage 3.
 */
int reshard_build_flat_group(struct resharder *b, uint32_t param_group);
int reshard_build_sub_groups(struct resharder *b, uint32_t param_group);

/* A set of names with what belongs to each of them. */
struct reshard_name {
	const char *name;      /* first: array_by_text */
	struct value *value; /* of an entry of a dict */
	uint32_t index;
};

struct reshard_names {
	struct reshard_name *v; /* sorted by name */
	size_t n;
};

/* Set up the names of a dict's entries or a list's texts; `index` counts them.
 * Memory comes from the arena, with room for `more` names; if it runs out there are none. */
void reshard_names_init(struct reshard_names *s, struct arena *a,
			const struct value *v, size_t more);
void reshard_names_sort(struct reshard_names *s);
const struct reshard_name *reshard_names_find(const struct reshard_names *s,
					      const char *name);

/* Entries of the module in a model-states file. */
struct reshard_entries {
	struct reshard_names buffers;
	struct reshard_names shared; /* `value` is the name of the same tensor that
				      * DeepSpeed saves */
};

/* Set up what the entries of `root`'s module are: what the file lists, and what it does
 * not list but tells by the storage of its tensors. */
void reshard_entries_init(struct reshard_entries *e, struct arena *a,
			  const struct value *root);

/*
 * A new file while its object is built (reshard_file.c): the graph of an old file
 * with some values replaced.  All other nodes are the very ones that were read, so
 * that shared objects stay shared.  Failures are noted in the draft (draft.h).
 */
struct reshard_builder {
	const struct reshard *s;
	const struct reshard_mp *m;
	unsigned mp;
	unsigned rank;               /* the new one */
	const struct tag_file *file; /* the old file it is modelled on */
	struct draft *d;             /* that file is d->old */
	struct arena *a;             /* of the draft */
	struct reshard_entries entries; /* of model states */
	struct frozen frozen; /* of stage 3 */
	struct value *module; /* the new one, once it is built */
};

/* Note why building failed.  NULL. */
static inline struct value *reshard_fail(struct reshard_builder *b, int rc)
{
	draft_try(b->d, rc);
	return NULL;
}

#define RESHARD_FAIL(b, code, fmt, ...)                                  \
	reshard_fail(b, errmsg_set((b)->d->err, code, "%s: " fmt,        \
				   (b)->file->path, ##__VA_ARGS__))

/* The objects of the two kinds of files (reshard_optim.c, reshard_model.c). */
struct value *reshard_optim_root(struct reshard_builder *b);
struct value *reshard_model_root(struct reshard_builder *b);

/*
 * A field of a dict, and what returns its new value.  `old` is the value in the old
 * dict, or NULL.
 */
struct reshard_field {
	const char *key;
	struct value *(*make)(struct reshard_builder *b, struct value *old);
};

/* Stands for no value: the key is left out. */
extern struct value *const reshard_left_out;

/* Return a dict like `from` with new values of the fields that it has. */
struct value *reshard_edit(struct reshard_builder *b, struct value *from,
			   const struct reshard_field *fields, size_t n);

/* Return a dict like `from` with another value of `key`, if it has that. */
struct value *reshard_set(struct reshard_builder *b, struct value *from,
			  const char *key, struct value *value);

/* Append the pairs of `from` to the dict `out`, with values that `make` returns, and
 * return it. */
typedef struct value *reshard_make(struct reshard_builder *b, void *ctx,
				   const struct value_pair *pair);
struct value *reshard_map(struct reshard_builder *b, struct value *out,
			  const struct value *from, reshard_make *make,
			  void *ctx);

/* Return a dict or an OrderedDict like `from`, without entries. */
struct value *reshard_new_like(struct reshard_builder *b,
			       const struct value *from);

/* Return a list of what `make` returns for each new group. */
typedef struct value *reshard_make_group(struct reshard_builder *b,
					 const struct reshard_group *g);
struct value *reshard_list_groups(struct reshard_builder *b,
				  reshard_make_group *make);

/* Return the ds_config of the old file, with the new stage. */
struct value *reshard_config(struct reshard_builder *b, struct value *old);

/* The parameter of the optimizer that has this name, or NULL. */
const struct slice *reshard_find_param(const struct reshard_builder *b, const char *name);

/* The fields of new model states: module (reshard_module.c), frozen_param_shapes and
 * frozen_param_fragments (reshard_frozen.c). */
struct value *reshard_module(struct reshard_builder *b, struct value *old);
struct value *reshard_frozen_shapes(struct reshard_builder *b,
				    struct value *old);
struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       struct value *old);

/*
 * Return a frozen parameter as the new stage has it: the whole, or in stage 3 the
 * new rank's slot.  `old` is its old tensor: of the module, or of stage 3.
 */
struct value *reshard_frozen_tensor(struct reshard_builder *b, const char *name,
				    const struct value *old);

/* The tensors of an optimizer shard (reshard_states.c): torch's dict {state,
 * param_groups}, and the list of master weights of all groups. */
struct value *reshard_base_optimizer(struct reshard_builder *b,
				     struct value *old);
struct value *reshard_master_weights(struct reshard_builder *b,
				     struct value *old);

/* The dict that ZeRO keeps in the old optimizer file. */
struct value *reshard_zero_dict(const struct reshard_builder *b);

/* The new rank's part of a group, and the padding that group_paddings records. */
unsigned reshard_part_of(const struct reshard_builder *b,
			 const struct reshard_group *g);
uint64_t reshard_recorded_padding(const struct reshard_builder *b,
				  const struct reshard_group *g);

#endif
