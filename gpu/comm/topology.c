/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/topology.h"

#include <assert.h>
#include <stddef.h>

#include "ckpt/base/array.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/devcomm.h"

int topology_init(struct topology *t, struct comm *world, const struct topology_sizes *sizes,
		  struct errmsg *err)
{
	const unsigned tensor = sizes->tensor, pipe = sizes->pipe;
	const unsigned of_rows = tensor * sizes->sequence;
	const unsigned rank = world->rank, of_stage = world->size / pipe;
	const unsigned stage = rank / of_stage;
	const bool between = stage > 0 && stage + 1 < pipe;
	const struct {
		struct comm *out;
		struct device_group *device;
		unsigned group;
	} groups[] = {
		{ &t->tensor, &t->tensor_device, rank / tensor },
		{ &t->sequence, &t->sequence_device, rank / of_rows * tensor + rank % tensor },
		{ &t->data, NULL, stage * of_rows + rank % of_rows },
		{ &t->replicas, &t->replicas_device, stage * tensor + rank % tensor },
		{ &t->pipe, &t->pipe_device, rank % of_stage },
		{ &t->ends, &t->ends_device, rank % of_stage * 2 + between },
	};
	int rc = 0;

	assert(of_rows && pipe && world->size % (of_rows * pipe) == 0);
	*t = (struct topology){ .world = world };
	for (size_t i = 0; i < COUNT(groups) && !rc; i++) {
		rc = comm_split(groups[i].out, world, groups[i].group, err);
		if (groups[i].device)
			groups[i].device->comm = groups[i].out;
	}
	if (rc)
		topology_done(t);
	return rc;
}

void topology_done(struct topology *t)
{
	comm_join(&t->tensor);
	comm_join(&t->sequence);
	comm_join(&t->data);
	comm_join(&t->replicas);
	comm_join(&t->pipe);
	comm_join(&t->ends);
}

/* Groups that exchange device memory. */
#define DEVICE_GROUPS 5

static struct device_group *device_group(struct topology *t, size_t i)
{
	struct device_group *const all[DEVICE_GROUPS] = { &t->tensor_device, &t->sequence_device,
							  &t->pipe_device, &t->ends_device,
							  &t->replicas_device };

	return all[i];
}

int topology_connect(struct topology *t, struct backend *b, struct errmsg *err)
{
	int rc = devcomm_check_devices(t->world, b, err);

	for (size_t i = 0; i < DEVICE_GROUPS && !rc; i++)
		rc = comm_agree(t->world, device_group_connect(device_group(t, i), b, err), err);
	if (rc)
		topology_disconnect(t);
	return rc;
}

void topology_disconnect(struct topology *t)
{
	for (size_t i = 0; i < DEVICE_GROUPS; i++)
		device_group_disconnect(device_group(t, i));
}

int topology_check(struct topology *t, struct errmsg *err)
{
	int rc = 0;

	for (size_t i = 0; i < DEVICE_GROUPS; i++) {
		struct devcomm *const d = device_group(t, i)->direct;
		const int failed = d ? devcomm_check(d, rc ? NULL : err) : 0;

		rc = rc ? rc : failed;
	}
	return rc;
}
