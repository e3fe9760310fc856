/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOPOLOGY_H
#define UCTRAIN_TOPOLOGY_H

#include "gpu/comm/comm.h"

/*
 * The ranks of a run, in Megatron's order: consecutive ranks are one
 * tensor-parallel group, whose ranks hold parts of the same parameters and
 * compute the same rows.  Ranks at the same place of their tensor-parallel
 * groups are a data-parallel group, whose ranks hold the same parameters and
 * compute different rows.
 */
struct topology {
	struct comm *world;
	struct comm tensor, data; /* this rank's groups */
};

/* `tensor`, the size of tensor-parallel groups, divides the number of ranks.
 * Collective: all ranks get the same result. -ENOMEM. */
int topology_init(struct topology *t, struct comm *world, unsigned tensor,
		  struct errmsg *err);
void topology_done(struct topology *t);

#endif
