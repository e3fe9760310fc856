/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCKPT_RESHARD_GROUPS_H
#define UCKPT_RESHARD_GROUPS_H

#include <stdbool.h>
#include <stdint.h>

struct errmsg;
struct layout;
struct rank_params;
struct reshard;
struct reshard_mp;

/* One model-parallel rank while its groups are built. */
struct resharder {
	struct reshard *s;
	struct reshard_mp *m;
	unsigned mp;
	const struct rank_params *c;
	const struct layout *old;
	double sub_group_size;
	uint32_t *param_group; /* of each old group */
	uint32_t nparam_groups;
	bool bf16;        /* BF16_Optimizer wrote the old files */
	const char *file; /* for messages */
	struct errmsg *err;
};

/*
 * Append to `b->m` the new flat groups of one parameter group of the optimizer:
 * one of stages 1 and 2, or the sub-groups of stage 3.
 */
int reshard_build_flat_group(struct resharder *b, uint32_t param_group);
int reshard_build_sub_groups(struct resharder *b, uint32_t param_group);

#endif
