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
 * A new file while its object is put together (reshard_file.c): the graph of an
 * old file with other values in places.  What is not replaced stays the very
 * node that was read, so that what was shared stays shared.
 *
 * Functions that return a value return NULL if it could not be made; `rc` says
 * why, or it was memory.
 */
struct reshard_builder {
	const struct reshard *s;
	const struct reshard_mp *m;
	unsigned mp;
	unsigned rank; /* the new one */
	const struct tag_file *file; /* the old file that is the model */
	uint32_t number;	     /* the same, in the numbering of extents */
	struct ptfile pt;	     /* the same, open */
	bool extents;		     /* are they wanted? */
	struct arena a;		     /* of new values */
	struct reshard_storage *storages;
	size_t nstorages, cap;
	struct ptfile *frozen; /* model-states files of old ranks, as needed */
	struct errmsg *err;
	int rc; /* of the first failure; later ones leave it, and its message */
};

/* A storage that no old file has; its key is "new" and its number. */
struct reshard_storage {
	const char *key; /* in the arena */
	uint64_t len;
	struct extent_map map;
};

/* Where a parameter is among the new groups of a model-parallel rank. */
struct reshard_place {
	const char *name;
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

/* The module, its tensors where they are in a file of the new stage
 * (reshard_module.c), and the frozen parameters' entries. */
struct value *reshard_module(struct reshard_builder *b,
			     const struct reshard_places *places);
struct value *reshard_frozen_shapes(struct reshard_builder *b,
				    const struct reshard_places *places);
struct value *reshard_frozen_fragments(struct reshard_builder *b,
				       const struct reshard_places *places,
				       const struct value *module);

/* The elements [first, first + numel) of a frozen parameter that stage 3 cut
 * over the old ranks. */
bool reshard_add_frozen(struct reshard_builder *b, const char *name,
			uint64_t whole, uint64_t first, uint64_t numel,
			enum dtype dtype, struct extent_map *map);

/* The elements of a shape, in `t` also the shape itself; false if it is none. */
bool reshard_read_shape(const struct value *v, struct tensor *t,
			enum dtype dtype);

/* An OrderedDict without entries. */
struct value *reshard_new_dict(struct reshard_builder *b);

/* The objects of the two kinds of files (reshard_optim.c, reshard_model.c). */
struct value *reshard_optim_root(struct reshard_builder *b);
struct value *reshard_model_root(struct reshard_builder *b);

/* Sets `rc` to -ENOMEM, with its message; NULL. */
struct value *reshard_nomem(struct reshard_builder *b);

/*
 * A new storage for `t`, which gets its key.  Where extents are wanted the
 * caller adds them to `*map`; valid until the next storage is added.
 */
bool reshard_add_storage(struct reshard_builder *b, struct tensor *t,
			 struct extent_map **map);

/* A tensor of the model file with a storage of its own that has nothing but the
 * tensor. */
struct value *reshard_copy_tensor(struct reshard_builder *b,
				  const struct value *v);

/* Append old elements: of a state, or of the master weights (NULL). */
bool reshard_add_runs(struct reshard_builder *b, const struct reshard_runs *runs,
		      const char *state, enum dtype dtype, enum dtype to,
		      struct extent_map *map);

/* A dict as `from` with the values of some keys replaced; those that it has not
 * are left out. */
struct reshard_edit {
	const char *key;
	struct value *value; /* NULL: could not be made */
};

struct value *reshard_edit(struct reshard_builder *b, const struct value *from,
			   const struct reshard_edit *edits, size_t n);

/* Append a pair if there is a value of that key in `from`. */
bool reshard_take(struct reshard_builder *b, struct value *to,
		  const struct value *from, const char *key);

/* The root's ds_config, changed to the new stage; NULL if it has none. */
struct value *reshard_config(struct reshard_builder *b);

#endif
