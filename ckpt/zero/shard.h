/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARD_H
#define UCKPT_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/model/rank_params.h"
#include "ckpt/tensor/tensor.h"
#include "ckpt/zero/partition.h"

struct tagdir;
struct errmsg;
struct value;

/* Limit of optimizer states per group; Adam has three. */
#define SHARD_STATES_MAX 15

/* A rank's slice of a flat group: a 1-D tensor in its shard file. */
struct flat {
	uint64_t offset; /* of element 0 in the file, in bytes */
	uint32_t swapped; /* 1 + index in tagdir.swapped if the tensor lies
			   * in a file of its own, else 0 */
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
	/* Why its states cannot be divided among parameters, and an error that says so;
	 * NULL: they can.  A group that is refused has master weights and no states. */
	const char *refused;
	int refused_rc;
	bool padding; /* the rank's partition of this group is all padding */
	bool replicated; /* STATE_FLAT: whole parameters, see partition_whole */
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

/* How each flat group is cut (the same for all ranks), and which ranks hold
 * it. */
struct layout {
	unsigned ranks; /* data-parallel ranks */
	struct partition *groups;
	struct rank_stripe *stripe; /* of each group */
	size_t ngroups;
};

/*
 * Read optimizer shard `number` of a directory. The first call for a
 * model-parallel rank finds `layout` empty (except for `ranks`) and fills it in;
 * later calls check against it. Sizes are checked against the parameter table:
 * every slice has the length that ZeRO's arithmetic demands, so reads return
 * exactly the parameter's elements. Messages name the file.  Master weights have to be as
 * expected; states that are not are refused by themselves.
 */
int shard_load(struct shard *s, const struct tagdir *dir, size_t number,
	       const struct rank_params *c, struct layout *layout,
	       struct errmsg *err);
void shard_done(struct shard *s);

/* Are the states of all groups there?  0, or the error of the first that is refused. */
int shard_check_states(const struct shard *s, struct errmsg *err);

/* Are two states equal, apart from the elements of parameters? */
bool shard_state_equal(const struct shard_state *a,
		       const struct shard_state *b);

/* The state of that name, or NULL. */
const struct shard_state *shard_find_state(const struct shard_group *g,
					   const char *name);

/* The flat tensor of a group: its master weights (`state` is NULL), or the
 * optimizer state of that name; NULL if there is none. */
const struct flat *shard_find_flat(const struct shard_group *g,
				   const char *state);

/* Do two ranks agree on the numbers of states of one name, such as steps, and if
 * `alike`, since they have slices of the same parameters, on states and types?
 * -EBADMSG if not. */
int shard_check_equal(const struct shard *a, const char *a_name,
		      const struct shard *b, const char *b_name, bool alike,
		      struct errmsg *err);

void layout_done(struct layout *l);

/* The states of group g in a torch optimizer's `state`, or NULL.  It is a dict by
 * group, or a list, as DeepSpeed's unit tests write it. */
const struct value *shard_find_group_state(const struct value *state, size_t g);

#endif
