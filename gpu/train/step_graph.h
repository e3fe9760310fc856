/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_STEP_GRAPH_H
#define UCTRAIN_STEP_GRAPH_H

#include <stdbool.h>

struct backend_graph;
struct errmsg;
struct run;

/*
 * What the device does in every step: recorded once, in the second step, when all that
 * is chosen or allocated on the way has been, and replayed from then on.
 */
struct step_graph {
	bool used;   /* a step is to be recorded */
	bool forced; /* it is an error if it cannot be */
	bool warm;   /* a step was queued */
	struct backend_graph *recorded;
};

/* Decide whether steps are recorded, by --cuda_graph and by what the run is.  The
 * training state is open.  All ranks get the same result. */
int step_graph_open(struct run *r, struct errmsg *err);
void step_graph_close(struct run *r);

/* Queue what `queue` queues, which is the same in every step.  Collective when it is
 * recorded. */
int step_graph_queue(struct run *r, void (*queue)(struct run *r),
		     struct errmsg *err);

#endif
