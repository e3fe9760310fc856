/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOPOLOGY_H
#define UCTRAIN_TOPOLOGY_H

#include "gpu/comm/comm.h"

/*
 * The ranks of a run, in Megatron's order: rank (stage * data + d) * tensor + t is
 * number t of its tensor-parallel group, whose ranks hold parts of the same
 * parameters and compute the same rows; number d of its data-parallel group, whose
 * ranks hold the same parameters and compute different rows; and of that pipeline
 * stage, each of which holds other layers for the same rows.
 */
struct topology {
	struct comm *world;
	struct comm tensor, data, pipe; /* this rank's groups */
	/* The first and the last stage of the pipeline, which both have the
	 * embedding; on stages between them, those. */
	struct comm ends;
};

/* The product of the sizes of tensor-parallel groups and of pipelines divides
 * the number of ranks.  Collective: all ranks get the same result. -ENOMEM. */
int topology_init(struct topology *t, struct comm *world, unsigned tensor,
		  unsigned pipe, struct errmsg *err);
void topology_done(struct topology *t);

#endif
