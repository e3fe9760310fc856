/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_SHARD_H
#define UCKPT_SHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/base/arena.h"
#include "ckpt/table/rank_params.h"
#include "ckpt/table/checkpoint.h"
#include "ckpt/table/partition.h"

struct zero_dir;
struct errmsg;

/* A rank's slice of a flat group: states are 1-D tensors in its shard file. */
struct flat_group {
	struct param_states states;
	bool padding;    /* the rank's partition of this group is all padding */
	bool replicated; /* STATE_FLAT: whole parameters, see partition_whole */
};

/* The contents of one rank's optimizer shard, with their places.  Immutable once loaded. */
struct shard {
	struct arena arena;
	unsigned rank;
	struct flat_group *groups;
	size_t ngroups;
	const char *ds_version;
	bool mapping_ignored; /* param_slice_mappings contradict param_shapes */
};

/* How each flat group is cut (the same on all ranks), and the ranks that hold it. */
struct partitioning {
	unsigned ranks; /* data-parallel ranks */
	unsigned tp;    /* tensor-parallel ranks */
	struct partition *groups;
	struct rank_stripe *stripe; /* of each group */
	size_t ngroups;
};

/*
 * Read optimizer shard `number` of a directory. The first call for a model-parallel rank finds
 * `layout` empty (except for `ranks`) and fills it in; later calls check against it. Sizes are
 * checked against the parameter table: every slice has the length that ZeRO's arithmetic demands,
 * so reads return exactly the parameter's elements. Messages name the file.  Unexpected master
 * weights are an error; unexpected states are refused, and weights are served.
 */
int shard_load(struct shard *s, const struct zero_dir *dir, size_t number,
	       const struct rank_params *c, struct partitioning *layout, struct errmsg *err);
void shard_done(struct shard *s);

/* Check that no group's states are refused: 0, or the error of the first refused one. */
int shard_check_states(const struct shard *s, struct errmsg *err);

/* Return the state with that name, or NULL. */
const struct param_state *shard_find_state(const struct flat_group *g, const char *name);

/* Check that two ranks agree on the numbers among their states, such as steps, and if `alike`,
 * because they have slices of the same parameters, also on the names and types of states.
 * -EBADMSG if not. */
int shard_check_equal(const struct shard *a, const char *a_name, const struct shard *b,
		      const char *b_name, bool alike, struct errmsg *err);

void partitioning_done(struct partitioning *l);

#endif
