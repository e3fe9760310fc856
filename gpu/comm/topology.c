/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/comm/topology.h"

#include <assert.h>
#include <stddef.h>

#include "ckpt/base/array.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/devcomm.h"

int topology_init(struct topology *t, struct comm *world,
		  const struct topology_sizes *sizes, struct errmsg *err)
{
	const unsigned tensor = sizes->tensor, pipe = sizes->pipe;
	const unsigned of_rows = tensor * sizes->sequence;
	const unsigned rank = world->rank, of_stage = world->size / pipe;
	const unsigned stage = rank / of_stage;
	const bool between = stage > 0 && stage + 1 < pipe;
	const struct {
		struct comm *out;
		unsigned group;
	} groups[] = {
		{ &t->tensor, rank / tensor },
		{ &t->sequence, rank / of_rows * tensor + rank % tensor },
		{ &t->data, stage * of_rows + rank % of_rows },
		{ &t->replicas, stage * tensor + rank % tensor },
		{ &t->pipe, rank % of_stage },
		{ &t->ends, rank % of_stage * 2 + between },
	};
	int rc = 0;

	assert(of_rows && pipe && world->size % (of_rows * pipe) == 0);
	*t = (struct topology){ .world = world };
	for (size_t i = 0; i < COUNT(groups) && !rc; i++)
		rc = comm_split(groups[i].out, world, groups[i].group, err);
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

int topology_connect(struct topology *t, struct backend *b, struct errmsg *err)
{
	const struct {
		struct device_group *g;
		struct comm *ranks;
	} groups[] = { { &t->tensor_device, &t->tensor },
		       { &t->sequence_device, &t->sequence },
		       { &t->pipe_device, &t->pipe },
		       { &t->ends_device, &t->ends } };
	int rc = devcomm_check_devices(t->world, b, err);

	for (size_t i = 0; i < COUNT(groups) && !rc; i++)
		rc = comm_agree(t->world,
				device_group_init(groups[i].g, groups[i].ranks,
						  b, err),
				err);
	if (!rc && *b->device)
		rc = comm_agree(
			t->world,
			devcomm_new(&t->replicas_device, &t->replicas, b, err),
			err);
	if (rc)
		topology_disconnect(t);
	return rc;
}

void topology_disconnect(struct topology *t)
{
	device_group_done(&t->tensor_device);
	device_group_done(&t->sequence_device);
	device_group_done(&t->pipe_device);
	device_group_done(&t->ends_device);
	devcomm_free(t->replicas_device);
	t->replicas_device = NULL;
}

bool topology_is_direct(const struct topology *t)
{
	return t->tensor_device.direct || t->sequence_device.direct ||
	       t->pipe_device.direct || t->ends_device.direct ||
	       t->replicas_device;
}

int topology_check(const struct topology *t, struct errmsg *err)
{
	struct devcomm *const all[] = {
		t->tensor_device.direct, t->sequence_device.direct,
		t->pipe_device.direct, t->ends_device.direct, t->replicas_device
	};
	int rc = 0;

	for (size_t i = 0; i < COUNT(all); i++) {
		const int failed =
			all[i] ? devcomm_check(all[i], rc ? NULL : err) : 0;

		rc = rc ? rc : failed;
	}
	return rc;
}
