/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_TOPOLOGY_H
#define UCTRAIN_TOPOLOGY_H

#include <stdbool.h>

#include "gpu/comm/comm.h"
#include "gpu/comm/device_group.h"

/*
 * The ranks of a run, in Megatron's order: rank ((stage * data + d) * sequence + s) * tensor + t
 * is number t of its tensor-parallel group, whose ranks hold parts of the same parameters and
 * compute the same rows; number s of its sequence-parallel group, whose ranks hold the same
 * parameters and compute other positions of the same rows; number d of its data-parallel group,
 * whose ranks hold the same parameters and compute different rows; and of that pipeline stage,
 * each of which holds other layers for the same rows.
 */
struct topology {
	struct comm *world;
	struct comm tensor, sequence, data, pipe; /* this rank's groups */
	/* All ranks with the same parameters; this is rank d * sequence + s of them. */
	struct comm replicas;
	/* The first and the last stage of the pipeline, which both have the embedding; on a stage
	 * between them, the stages between. */
	struct comm ends;
	/* Device groups of the same ranks, valid after topology_connect. */
	struct device_group tensor_device, sequence_device, replicas_device;
	struct device_group pipe_device, ends_device;
};

/* Sizes of groups, whose product divides the number of ranks. */
struct topology_sizes {
	unsigned tensor, sequence, pipe;
};

/* Collective: all ranks get the same result. -ENOMEM. */
int topology_init(struct topology *t, struct comm *world, const struct topology_sizes *sizes,
		  struct errmsg *err);
void topology_done(struct topology *t);

/* Connect the devices of the ranks of each group.  `b` must remain until topology_disconnect.
 * Collective: all ranks get the same result.  Errors as devcomm_check_devices and devcomm_new. */
int topology_connect(struct topology *t, struct backend *b, struct errmsg *err);
void topology_disconnect(struct topology *t);

/* Return the first failure of an exchange between devices since the last check, and the failed
 * call. */
int topology_check(struct topology *t, struct errmsg *err);

#endif
