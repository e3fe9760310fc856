/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARD_H
#define UCKPT_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/rank_params.h"
#include "ckpt/zero/partition.h"
#include "ckpt/tensor/tensor.h"

struct ckdir;
struct errmsg;
struct ptfile;
struct value;

/* Optimizer states per group that we keep track of; Adam has three. */
#define SHARD_STATES_MAX 15

/* A rank's slice of a flat group: a 1-D tensor in its shard file. */
struct flat {
	uint64_t offset; /* of element 0, bytes in the file */
	uint32_t swapped; /* number of another file (ckdir's `swapped`), from 1
			   * on: not in the shard itself */
	uint64_t numel;
	enum dtype dtype;
	bool requires_grad;
};

enum state_kind {
	STATE_FLAT,   /* one element per parameter element: exp_avg */
	STATE_TENSOR, /* a 0-d tensor for the whole group: torch Adam's step */
	STATE_INT,    /* a number for the whole group: FusedAdam's step */
	STATE_FLOAT,
};

/* One optimizer state of one flat group. */
struct shard_state {
	const char *name;
	enum state_kind kind;
	struct flat flat;   /* STATE_FLAT, STATE_TENSOR */
	uint8_t bytes[16];  /* STATE_TENSOR: its element */
	int64_t i;	    /* STATE_INT */
	double f;	    /* STATE_FLOAT */
};

struct shard_group {
	struct flat fp32; /* the master weights */
	struct shard_state *states;
	size_t nstates;
	bool padding; /* the rank holds nothing else of this group */
	bool whole;   /* STATE_FLAT: whole parameters, see partition_whole */
};

/* What one rank's optimizer shard holds and where.  Immutable once loaded. */
struct shard {
	struct arena arena;
	unsigned rank;
	struct shard_group *groups;
	size_t ngroups;
	const char *ds_version;
	bool mapping_ignored; /* param_slice_mappings contradict param_shapes */
};

/* How each flat group is cut, the same for all ranks, and which ranks hold
 * it. */
struct layout {
	unsigned ranks; /* data-parallel ones */
	struct partition *groups;
	struct spread *spread; /* of each group */
	size_t ngroups;
};

/*
 * Read optimizer shard `number` of a directory.  The first call, for any
 * data-parallel rank of a model-parallel one, finds `layout` empty (but for `ranks`) and fills it in; others
 * check against it.  Sizes are checked against the catalogue: every slice has
 * the length that ZeRO's arithmetic demands, so what is later read is exactly
 * the parameter's.  Messages name the file.
 */
int shard_load(struct shard *s, const struct ckdir *dir, size_t number,
	       const struct catalogue *c, struct layout *layout,
	       struct errmsg *err);
void shard_done(struct shard *s);

/* Are two states the same but for the elements of parameters? */
bool shard_state_equal(const struct shard_state *a,
		       const struct shard_state *b);

/* Do two ranks agree on states, types and steps?  -EBADMSG if not. */
int shard_check_equal(const struct shard *a, const char *a_name,
		      const struct shard *b, const char *b_name,
		      struct errmsg *err);

void layout_done(struct layout *l);

/* --- between shard.c and the stages' readers ------------------------------ */

struct shard_reader {
	struct shard *s;
	const struct ckdir *dir;
	const struct ptfile *pt;
	const struct catalogue *c;
	struct layout *layout;
	const struct value *dict; /* the file's optimizer_state_dict */
	const char *file;
	struct errmsg *err;
};

/* Fill in the layout (if it is empty) and the groups of the shard. */
int shard_read_zero12(struct shard_reader *r);
int shard_read_zero3(struct shard_reader *r);

/*
 * Fill in the layout, if it is empty: `build` cuts group g, whose parameters
 * have `numel` elements each.
 */
int shard_build_layout(const struct shard_reader *r,
		       int (*build)(const struct shard_reader *r, size_t g,
				    const uint64_t *numel,
				    struct partition *out));

/* How many elements an optimizer state of group g may have on the rank, in
 * stages 1 and 2. */
void shard_bound_states(const struct shard_reader *r, size_t g, uint64_t *need,
			uint64_t *most);

/* Can it be a state's name?  It becomes a file's, beside fp32.pt. */
bool shard_is_state_name(const struct value *v);

/* The first parameter of group g, which tells people more than its number. */
const char *shard_group_name(const struct shard_reader *r, size_t g);

/* The part of group g that the rank holds. */
unsigned shard_part(const struct shard_reader *r, size_t g);

/* A flat tensor without elements should have `need`: the file that has them,
 * see shard_nvme.c.  -EBADMSG if there is none of that size. */
int shard_find_swapped(const struct shard_reader *r, const struct value *v,
		       const char *what, size_t g, uint64_t need,
		       struct flat *flat);

/* Read a flat tensor; `what` and `g` are for messages. */
int shard_read_flat(const struct shard_reader *r, const struct value *v,
		    const char *what, size_t g, struct flat *out);

/*
 * Read the state dict of group g.  Tensors with elements must have at least
 * `need` and at most `most` of them.
 */
int shard_read_states(const struct shard_reader *r, size_t g,
		      const struct value *states, uint64_t need,
		      uint64_t most);

/* The states of group g in a torch optimizer's `state` dict, or NULL. */
const struct value *shard_find_group_state(const struct value *state, size_t g);

#endif
