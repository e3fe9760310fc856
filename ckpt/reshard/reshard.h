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
 * A ZeRO checkpoint as if it had been saved on another number of data-parallel
 * ranks, or by another ZeRO stage: how each flat group is cut then.  Each
 * model-parallel rank is cut for itself.  "New" is what the files made here
 * hold, "old" what is on disk.
 */
#define RESHARD_RANKS_MAX 4096u

struct reshard_options {
	unsigned ranks; /* data-parallel ones, 1 to RESHARD_RANKS_MAX */
	unsigned stage; /* 1 to 3; 0: that it was saved with */
};

/* A parameter of the optimizer: entry `listed` of the old param_shapes[group]. */
struct reshard_param {
	uint32_t group;
	uint32_t listed;
	const struct slice *slice; /* NULL: it has no elements, nor a place */
};

/* A new flat group. */
struct reshard_group {
	struct reshard_param *params; /* in the order of the flat group */
	size_t n;
	size_t cap;
	struct partition part; /* of `params` */
	struct rank_stripe stripe;
	uint32_t like;	      /* the old group that holds its first parameter */
	uint32_t param_group; /* of the optimizer */
	uint64_t *padding;    /* alignment padding after each parameter, or NULL */
	/*
	 * As recorded in param_slice_mappings, which DeepSpeed computes in the
	 * model's order also where round_robin_gradients shuffles the group:
	 * position k of `recorded` is parameter recorded_order[k].  NULL: `part`.
	 */
	struct partition recorded;
	size_t *recorded_order;
};

/* What one model-parallel rank's optimizer files are like. */
struct reshard_mp {
	struct reshard_group *groups;
	size_t ngroups;
	bool elastic;	 /* base_optimizer_state is a list (elastic_checkpoint) */
	bool bf16;	 /* of BF16_Optimizer: partitions keep their padding */
	bool same_groups; /* new groups are the old ones, parameter by parameter */
	bool same_order;  /* and in their order */
	/* ds_id of each entry of param_shapes, in the order of groups; NULL:
	 * not known, or not needed. */
	int64_t *ids;
	size_t *ids_start; /* of each old group */
};

struct reshard {
	struct zero_checkpoint *r;
	unsigned ranks;
	unsigned stage, old_stage; /* 1 to 3 */
	bool last_padded; /* group_paddings counts the last rank's padding only */
	struct reshard_mp *mp;
	const char *warning; /* what users should know, or NULL */
};

/*
 * Work out how the checkpoint is cut; opens the first optimizer shard of each
 * model-parallel rank.  `r` must outlive it.  -ENOTSUP with the reason if it
 * cannot be cut so; otherwise errors as zckpt_profiles.
 */
int reshard_init(struct reshard *s, struct zero_checkpoint *r,
		 const struct reshard_options *options, struct errmsg *err);
void reshard_done(struct reshard *s);

/* Are the groups stage 3's? */
static inline bool reshard_zero3(const struct reshard *s)
{
	return s->stage == 3;
}

/* Is the stage another one, with another cut? */
static inline bool reshard_crosses(const struct reshard *s)
{
	return (s->stage == 3) != (s->old_stage == 3);
}

/* Elements of the tail of rank `rank`'s partition that belong to no parameter. */
uint64_t reshard_padding(const struct reshard_group *g, unsigned rank);

/* --- elements ---------------------------------------------------------------- */

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

/* Append a run; one without elements is none.  -ENOMEM. */
int reshard_add_run(struct reshard_runs *runs, struct reshard_run run);

/*
 * What new rank `rank`'s flat tensor of a group consists of, in order.
 * `replicated`: of a state that ranks keep whole, see partition_whole.
 * -ENOMEM.
 */
int reshard_find_runs(const struct reshard *s, unsigned mp,
		      const struct reshard_group *g, unsigned rank,
		      bool replicated, struct reshard_runs *out);

/* The same of all elements of one parameter. */
int reshard_find_param(const struct reshard *s, unsigned mp,
		       const struct reshard_param *p, struct reshard_runs *out);

#endif
