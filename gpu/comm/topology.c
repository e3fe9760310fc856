/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/topology.h"

#include <assert.h>

int topology_init(struct topology *t, struct comm *world, unsigned tensor,
		  struct errmsg *err)
{
	int rc;

	assert(tensor && world->size % tensor == 0);
	*t = (struct topology){ .world = world };
	rc = comm_split(&t->tensor, world, world->rank / tensor, err);
	if (!rc)
		rc = comm_split(&t->data, world, world->rank % tensor, err);
	if (rc)
		topology_done(t);
	return rc;
}

void topology_done(struct topology *t)
{
	comm_join(&t->tensor);
	comm_join(&t->data);
}
