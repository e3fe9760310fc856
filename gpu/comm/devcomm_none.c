/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Replaces devcomm_nccl.c in builds without NCCL: only one rank can use a GPU, so there is no
 * devcomm, and no other function of this file is called.
 */
#include "gpu/comm/devcomm.h"

#include <errno.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"

#pragma GCC diagnostic ignored "-Wunused-parameter"

#define NEVER(type, name, ...) \
	type name(__VA_ARGS__) \
	{                      \
		abort();       \
	}

int devcomm_check_devices(struct comm *world, struct backend *b, struct errmsg *err)
{
	if (world->size == 1 || !*b->device)
		return 0;
	return errmsg_set(err, -ENOTSUP,
			  "%u ranks with GPUs need NCCL, and this uctrain was built without it",
			  world->size);
}

int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b, struct errmsg *err)
{
	*out = NULL;
	return 0;
}

void devcomm_free(struct devcomm *d)
{
}

void devcomm_fix_order(void)
{
}

NEVER(bool, devcomm_is_recorded, const struct devcomm *d)
NEVER(int, devcomm_check, struct devcomm *d, struct errmsg *err)
NEVER(void, devcomm_reduce_scatter, struct devcomm *d, const void *parts, const size_t *n,
      enum dtype dtype, void *mine)
NEVER(void, devcomm_all_gather, struct devcomm *d, const void *mine, const size_t *bytes, void *all)
NEVER(void, devcomm_all_to_all, struct devcomm *d, const void *out, void *in, size_t bytes)
NEVER(void, devcomm_exchange, struct devcomm *d, unsigned peer, const void *out, void *in,
      size_t bytes)
NEVER(void, devcomm_sum, struct devcomm *d, void *x, size_t n, enum dtype dtype)
NEVER(void, devcomm_group_begin, struct devcomm *d)
NEVER(void, devcomm_group_end, struct devcomm *d)
