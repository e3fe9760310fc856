/* SPDX-License-Identifier: Apache-2.0 */
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

	if (asked != CUDA_GRAPH_OFF && r->backend->ops->record_begin)
		r->graph.used = zero_is_recorded(&r->zero, &why);
	if (r->graph.used || asked != CUDA_GRAPH_ON)
		return 0;
	return errmsg_set(err, -ENOTSUP, "--cuda_graph on: %s", why);
}

void step_graph_close(struct run *r)
{
	if (r->graph.recorded)
		r->backend->ops->graph_free(r->backend, r->graph.recorded);
	r->graph.recorded = NULL;
}

/* Record on all ranks, or on none; then return the first failure. */
static int record(struct run *r, void (*queue)(struct run *r), struct errmsg *why)
{
	const struct backend_ops *const o = r->backend->ops;
	int rc = comm_agree(r->comm, o->record_begin(r->backend, why), why);
	int failed;

	if (!rc)
		queue(r);
	if (r->backend->recording) {
		failed = o->record_end(r->backend, &r->graph.recorded, rc ? NULL : why);
		rc = rc ? rc : failed;
	}
	/* If NCCL's calls cannot be recorded, the recording fails, but the run goes on. */
	failed = topology_check(&r->ranks, rc ? NULL : why);
	rc = comm_agree(r->comm, rc ? rc : failed, why);
	if (rc)
		step_graph_close(r);
	return rc;
}

static int record_or_not(struct run *r, void (*queue)(struct run *r), struct errmsg *err)
{
	struct errmsg why;
	int failed;
	/* Check first, so that earlier failures are not attributed to the graph. */
	const int rc = comm_agree(r->comm, r->backend->ops->sync(r->backend, err), err);

	if (rc)
		return rc;
	failed = record(r, queue, &why);
	if (!failed)
		return 0;
	if (r->config->cuda_graph == CUDA_GRAPH_ON)
		return errmsg_set(err, failed, "--cuda_graph on: %s", why.text);
	r->graph.used = false;
	if (r->comm->rank == 0)
		fprintf(stderr,
			"uctrain: the step cannot be recorded as a CUDA graph, going on without: %s\n",
			why.text);
	return 0;
}

int step_graph_queue(struct run *r, void (*queue)(struct run *r), struct errmsg *err)
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
		queue(r);
		return 0;
	}
	begun = train_phase_begin(r, PHASE_PASSES);
	r->backend->ops->replay(r->backend, g->recorded);
	train_phase_end(r, PHASE_PASSES, begun);
	return 0;
}
