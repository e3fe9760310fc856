/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RECUT_IMPL_H
#define UCKPT_RECUT_IMPL_H

#include "ckpt/base/errmsg.h"
#include "ckpt/table/experts.h"
#include "ckpt/table/partition.h"
#include "ckpt/views/recut.h"

/* How a checkpoint is re-cut: the new flat groups of each model-parallel rank. */

/* A parameter of the optimizer: an old rank's slice of it, and its place in the old groups. */
struct recut_param {
	const struct slice *slice;
	/* `ep`: if a rank replaces several old expert-parallel ranks, which of them has the slice.
	 * `times`: number of AutoEP's slices, end to end. */
	unsigned ep, times;
};

/* A new flat group. */
struct recut_group {
	struct recut_param *params; /* in the order of the flat group */
	size_t n;
	struct partition part; /* of `params` */
	struct rank_stripe stripe;
	uint32_t like;        /* the old group that holds its first parameter */
	uint32_t param_group; /* of the optimizer */
	uint64_t *padding;    /* alignment padding after each parameter, or NULL */
	/*
	 * The partition that param_slice_mappings records.  DeepSpeed computes it in the model's
	 * order even if round_robin_gradients reorders the group: position k of `recorded` is
	 * parameter recorded_order[k].  NULL: `part` is right.
	 */
	struct partition recorded;
	size_t *recorded_order;
};

/* The optimizer files of one model-parallel rank. */
struct recut_mp {
	struct recut_group *groups;
	size_t ngroups, cap;
	bool elastic;     /* base_optimizer_state is a list (elastic_checkpoint) */
	bool bf16;        /* BF16_Optimizer's: partitions keep their padding */
	bool same_groups; /* the new groups have the same parameters as the old ones */
	bool same_order;  /* and in the same order */
};

/* Do the old and the new stage cut groups in different ways? */
static inline bool recut_crosses(const struct recut *s)
{
	return (s->stage == 3) != (s->old_stage == 3);
}

/* One model-parallel rank while its groups are built. */
struct recutter {
	struct recut *s;
	struct recut_mp *m;
	unsigned mp;
	const struct rank_table *t;
	const struct value *root; /* of the first optimizer shard */
	double sub_group_size;
	uint32_t *param_group; /* for each old group */
	uint32_t nparam_groups;
	bool bf16;        /* BF16_Optimizer wrote the old files */
	const char *file; /* for messages */
	struct errmsg *err;
};

/* Allocate memory that lives as long as the re-cut checkpoint.  NULL, with a message, if there
 * is none. */
void *recut_alloc(const struct recutter *b, size_t n, size_t item);

/*
 * Append to `b->m` the new flat groups of one parameter group of the optimizer:
 * one of stages 1 and 2, or the sub-groups of stage 3.
 */
int recut_build_flat_group(struct recutter *b, uint32_t param_group);
int recut_build_sub_groups(struct recutter *b, uint32_t param_group);

/* recut_experts.c: return how many of `ranks` ranks experts are spread over, after `degree` old
 * ones. */
unsigned recut_degree(unsigned degree, unsigned ranks);

/* Check that experts can be spread over the new ranks, and that these find the files that they
 * load. Joins the parameter groups whose ep_size has become equal.  -ENOTSUP. */
int recut_check_experts(struct recutter *b);

/* Give each rank of a new group the experts of all old ranks that it replaces. */
int recut_widen(const struct recutter *b, struct recut_group *g);

/* Return the name on a new rank of a parameter with elements; `name` is a buffer for it. */
const char *recut_param_name(const struct recut_param *p, char name[EXPERT_NAME_MAX]);

#endif
