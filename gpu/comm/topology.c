/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/topology.h"

#include <assert.h>

int topology_init(struct topology *t, struct comm *world, unsigned tensor,
		  unsigned pipe, struct errmsg *err)
{
	const unsigned rank = world->rank, of_stage = world->size / pipe;
	const unsigned stage = rank / of_stage;
	const bool between = stage > 0 && stage + 1 < pipe;
	int rc;

	assert(tensor && pipe && world->size % (tensor * pipe) == 0);
	*t = (struct topology){ .world = world };
	rc = comm_split(&t->tensor, world, rank / tensor, err);
	if (!rc)
		rc = comm_split(&t->data, world, stage * tensor + rank % tensor,
				err);
	if (!rc)
		rc = comm_split(&t->pipe, world, rank % of_stage, err);
	if (!rc)
		rc = comm_split(&t->ends, world, rank % of_stage * 2 + between,
				err);
	if (rc)
		topology_done(t);
	return rc;
}

void topology_done(struct topology *t)
{
	comm_join(&t->tensor);
	comm_join(&t->data);
	comm_join(&t->pipe);
	comm_join(&t->ends);
}
