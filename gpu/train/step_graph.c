/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/train/step_graph.h"

#include <errno.h>
#include <stdio.h>

#include "ckpt/base/errmsg.h"
#include "gpu/comm/comm.h"
#include "gpu/config/config.h"
#include "gpu/train/train_impl.h"

int step_graph_open(struct run *r, struct errmsg *err)
{
	const enum cuda_graph asked = r->config->cuda_graph;
	const char *why = "the device is not a GPU";

	r->graph.forced = asked == CUDA_GRAPH_ON;
	if (asked != CUDA_GRAPH_OFF && r->backend->ops->record_begin)
		r->graph.used = zero_is_recorded(&r->zero, &why);
	if (r->graph.used || !r->graph.forced)
		return 0;
	return errmsg_set(err, -ENOTSUP, "--cuda_graph on: %s", why);
}

void step_graph_close(struct run *r)
{
	if (r->graph.recorded)
		r->backend->ops->graph_free(r->backend, r->graph.recorded);
	r->graph.recorded = NULL;
}

/* Record on all ranks, or on none: *why is the first failure.  An error of `queue` is
 * the run's. */
static int record(struct run *r, int (*queue)(struct run *r, struct errmsg *err),
		  int *failed, struct errmsg *why, struct errmsg *err)
{
	const struct backend_ops *const o = r->backend->ops;
	int rc;

	*failed = comm_agree(r->comm, o->record_begin(r->backend, why), why);
	rc = *failed ? 0 : queue(r, err);
	if (r->backend->recording && !*failed)
		*failed = o->record_end(r->backend, &r->graph.recorded, why);
	else if (r->backend->recording)
		o->record_end(r->backend, &r->graph.recorded, err);
	/* Calls of NCCL that cannot be recorded fail the recording, not the run. */
	if (rc || *failed)
		topology_check(&r->ranks, NULL);
	else
		*failed = topology_check(&r->ranks, why);
	*failed = comm_agree(r->comm, *failed, why);
	if (*failed)
		step_graph_close(r);
	return rc;
}

static int record_or_not(struct run *r,
			 int (*queue)(struct run *r, struct errmsg *err),
			 struct errmsg *err)
{
	struct errmsg why;
	/* What has failed until now is not blamed on the graph. */
	int failed, rc = r->backend->ops->sync(r->backend, err);

	rc = comm_agree(r->comm, rc, err);
	if (!rc)
		rc = record(r, queue, &failed, &why, err);
	if (rc || !failed)
		return rc;
	if (r->graph.forced)
		return errmsg_set(err, failed, "--cuda_graph on: %s", why.text);
	r->graph.used = false;
	if (r->comm->rank == 0)
		fprintf(stderr,
			"uctrain: the step cannot be recorded as a CUDA graph, going on without: %s\n",
			why.text);
	return 0;
}

int step_graph_queue(struct run *r,
		     int (*queue)(struct run *r, struct errmsg *err),
		     struct errmsg *err)
{
	struct step_graph *const g = &r->graph;
	double begun;
	int rc = 0;

	if (g->used && g->warm && !g->recorded)
		rc = record_or_not(r, queue, err);
	if (rc)
		return rc;
	if (!g->recorded) {
		g->warm = true;
		return queue(r, err);
	}
	begun = train_phase_begin(r, PHASE_PASSES);
	r->backend->ops->replay(r->backend, g->recorded);
	train_phase_end(r, PHASE_PASSES, begun);
	return 0;
}
