/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_IMPL_H
#define UCKPT_RESHARD_IMPL_H

#include "ckpt/base/arena.h"
#include "ckpt/format/ptfile.h"
#include "ckpt/pickle/value.h"
#include "ckpt/reshard/reshard.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/vfile/extent.h"

struct tag_file;

/*
 * A new file while its object is built (reshard_file.c): the graph of an old file
 * with some values replaced.  All other nodes are the very ones that were read, so
 * that shared objects stay shared.
 *
 * Functions that return a value or bool return NULL or false on failure, with the
 * cause in `rc`; 0 there means out of memory.
 */
struct reshard_builder {
	const struct reshard *s;
	const struct reshard_mp *m;
	unsigned mp;
	unsigned rank;               /* the new one */
	const struct tag_file *file; /* the old file it is modelled on */
	uint32_t number;             /* of that file, in extents */
	struct ptfile pt;            /* that file, open */
	bool extents;                /* are they wanted? */
	struct arena a;              /* of new values */
	struct reshard_storage *storages;
	size_t nstorages, cap;
	struct ptfile *frozen; /* model-states files of old ranks, opened on demand */
	struct errmsg *err;
	int rc; /* of the first failure; later ones leave it, and its message */
};

/* A new storage; its key is "new" and its number. */
struct reshard_storage {
	const char *key; /* in the arena */
	uint64_t len;
	struct extent_map map;
};

/* The position of a parameter in the new groups. */
struct reshard_place {
	const char *name; /* first: array_by_text */
	uint32_t group;
	uint32_t index;
};

struct reshard_places {
	struct reshard_place *v; /* sorted by name */
	size_t n;
};

bool reshard_find_places(struct reshard_builder *b, struct reshard_places *out);
const struct reshard_place *reshard_place(const struct reshard_places *p,
					  const char *name);

/* The fields of new model states: module (reshard_module.c), frozen_param_shapes and
 * frozen_param_fragments (reshard_frozen.c; `module` is the new one). */
struct value *reshard_module(struct reshard_builder *b,
			     const struct reshard_places *places);
struct value *reshard_frozen_shapes(struct reshard_builder *b,
				    const struct reshard_places *places);
struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       const struct reshard_places *places,
				       const struct value *module);

/* Append elements [first, first + numel) of a frozen parameter, which the old ranks
 * of stage 3 have in slots. */
bool reshard_add_frozen(struct reshard_builder *b, const char *name,
			uint64_t whole, uint64_t first, uint64_t numel,
			enum dtype dtype, struct extent_map *map);

/* Describe the whole of a frozen parameter of stage 3, by frozen_param_shapes. */
bool reshard_frozen_shape(struct reshard_builder *b, const char *name,
			  enum dtype dtype, struct tensor *t);

/* An OrderedDict without entries. */
struct value *reshard_new_dict(struct reshard_builder *b);

/* The dict that ZeRO keeps in the old optimizer file, with torch's dict in it. */
const struct value *reshard_zero_dict(const struct reshard_builder *b);

/* The new rank's place in a group, and the padding that group_paddings records. */
unsigned reshard_part_of(const struct reshard_builder *b,
			 const struct reshard_group *g);
uint64_t reshard_recorded_padding(const struct reshard_builder *b,
				  const struct reshard_group *g);

/* The tensors of an optimizer shard (reshard_states.c): torch's dict {state,
 * param_groups}, and the list of master weights of all groups. */
struct value *reshard_base_optimizer(struct reshard_builder *b);
struct value *reshard_master_weights(struct reshard_builder *b);

/* The objects of the two kinds of files (reshard_optim.c, reshard_model.c). */
struct value *reshard_optim_root(struct reshard_builder *b);
struct value *reshard_model_root(struct reshard_builder *b);

/* Set `rc` to -ENOMEM, with a message, and return NULL. */
struct value *reshard_nomem(struct reshard_builder *b);

/*
 * Add a storage for `t` and set its key.  If extents are wanted, the caller appends
 * them to `*map`, which is valid until the next storage is added.
 */
bool reshard_add_storage(struct reshard_builder *b, struct tensor *t,
			 struct extent_map **map);

/* Return a copy of an old tensor in a new storage that holds nothing else. */
struct value *reshard_copy_tensor(struct reshard_builder *b,
				  const struct value *v);

/* Append runs of a state, or of the master weights (`state` NULL). */
bool reshard_add_runs(struct reshard_builder *b,
		      const struct reshard_runs *runs, const char *state,
		      enum dtype dtype, enum dtype to, struct extent_map *map);

/* Return a dict like `from` with the values of some keys replaced.  Keys that `from`
 * lacks are not added. */
struct reshard_edit {
	const char *key;
	struct value *value; /* NULL after a failure */
};

struct value *reshard_edit(struct reshard_builder *b, const struct value *from,
			   const struct reshard_edit *edits, size_t n);

/* Copy the pair of that key, if `from` has it. */
bool reshard_take(struct reshard_builder *b, struct value *to,
		  const struct value *from, const char *key);

/* Return the ds_config of the old file, with the new stage. */
struct value *reshard_config(struct reshard_builder *b);

#endif
