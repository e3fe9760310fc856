/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_H
#define UCKPT_RESHARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/dirs/names.h"
#include "ckpt/zero/partition.h"

struct errmsg;
struct zero_checkpoint;
struct slice;

/*
 * A ZeRO checkpoint re-cut for another number of data-parallel ranks, or for
 * another ZeRO stage: how each flat group is partitioned then.  Each model-parallel
 * rank is re-cut separately.  "Old" is what is on disk, "new" what the view has.
 */
#define RESHARD_RANKS_MAX 4096u

struct reshard_options {
	unsigned ranks; /* data-parallel, 1 to RESHARD_RANKS_MAX */
	unsigned stage; /* 1 to 3; 0: the old one */
};

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
	size_t cap;
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
	size_t ngroups;
	bool elastic; /* base_optimizer_state is a list (elastic_checkpoint) */
	bool bf16;    /* BF16_Optimizer's: partitions keep their padding */
	bool same_groups; /* new groups are the old ones, parameter by parameter */
	bool same_order; /* and in their order */
	/* ds_id of each entry of param_shapes, in the order of groups; NULL if
	 * unknown or not needed. */
	int64_t *ids;
	size_t *ids_start; /* of each old group */
};

struct reshard {
	struct zero_checkpoint *r;
	unsigned ranks;
	unsigned stage, old_stage; /* 1 to 3 */
	bool last_padded; /* group_paddings counts the last rank's padding only */
	struct reshard_mp *mp;
	const char *warning; /* for the user, or NULL */
};

/*
 * Plan the new groups; opens the first optimizer shard of each model-parallel
 * rank.  `r` must outlive `s`.  Returns -ENOTSUP with the reason if the checkpoint
 * cannot be re-cut that way, otherwise errors of zckpt_profiles.
 */
int reshard_init(struct reshard *s, struct zero_checkpoint *r,
		 const struct reshard_options *options, struct errmsg *err);

/* Refuse a number of ranks over which experts cannot be spread: 0 or -ENOTSUP.  Reads
 * nothing; reshard_init refuses more. */
int reshard_check_ranks(const struct zero_checkpoint *r, unsigned ranks,
			struct errmsg *err);
void reshard_done(struct reshard *s);

/* Does the new stage partition parameters? */
static inline bool reshard_zero3(const struct reshard *s)
{
	return s->stage == 3;
}

/* Does the new stage cut groups in another way than the old one? */
static inline bool reshard_crosses(const struct reshard *s)
{
	return (s->stage == 3) != (s->old_stage == 3);
}

/* Return how many elements at the end of a rank's partition are padding. */
uint64_t reshard_padding(const struct reshard_group *g, unsigned rank);

/* --- elements ------------------------------------------------------------- */

/* Consecutive elements of an old rank's flat tensor, or zeros. */
struct reshard_run {
	bool zeros;
	unsigned rank; /* data-parallel */
	uint32_t group;
	uint64_t start;
	uint64_t numel;
};

struct reshard_runs {
	struct reshard_run *v;
	size_t n, cap;
};

void reshard_runs_done(struct reshard_runs *runs);

/* Append a run, unless it is empty.  0 or -ENOMEM. */
int reshard_add_run(struct reshard_runs *runs, struct reshard_run run);

/*
 * Append the runs that new rank `rank`'s flat tensor of a group consists of.
 * `replicated`: that of a state that ranks keep whole, see partition_whole.
 * 0 or -ENOMEM.
 */
int reshard_find_runs(const struct reshard *s, unsigned mp,
		      const struct reshard_group *g, unsigned rank,
		      bool replicated, struct reshard_runs *out);

/* Append the runs of a whole parameter.  0 or -ENOMEM. */
int reshard_find_param(const struct reshard *s, unsigned mp,
		       const struct reshard_param *p, struct reshard_runs *out);

#endif
