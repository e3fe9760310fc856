/* SPDX-License-Identifier: Apache-2.0 */
/* Replaces devcomm_nccl.c in builds without NCCL, in which only one rank uses a GPU. */
#include "gpu/comm/devcomm.h"

#include <errno.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"

int devcomm_check_devices(struct comm *world, struct backend *b,
			  struct errmsg *err)
{
	if (world->size == 1 || !*b->device)
		return 0;
	return errmsg_set(err, -ENOTSUP,
			  "%u ranks with GPUs need NCCL, and this uctrain was built without it",
			  world->size);
}

int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b,
		struct errmsg *err)
{
	(void)c;
	(void)b;
	(void)err;
	*out = NULL;
	return 0;
}

void devcomm_free(struct devcomm *d)
{
	(void)d;
}

bool devcomm_is_recorded(const struct devcomm *d)
{
	(void)d;
	return false;
}

void devcomm_fix_order(void)
{
}

void devcomm_reduce_scatter(struct devcomm *d, const void *parts,
			    const size_t *n, enum dtype dtype, void *mine)
{
	(void)d;
	(void)parts;
	(void)n;
	(void)dtype;
	(void)mine;
}

void devcomm_reduce_scatter_equal(struct devcomm *d, const void *parts,
				  size_t n, enum dtype dtype, void *mine)
{
	(void)d;
	(void)parts;
	(void)n;
	(void)dtype;
	(void)mine;
}

void devcomm_all_gather(struct devcomm *d, const void *mine,
			const size_t *bytes, void *all)
{
	(void)d;
	(void)mine;
	(void)bytes;
	(void)all;
}

void devcomm_all_gather_equal(struct devcomm *d, const void *mine, size_t bytes,
			      void *all)
{
	(void)d;
	(void)mine;
	(void)bytes;
	(void)all;
}

void devcomm_all_to_all(struct devcomm *d, const void *out, void *in,
			size_t bytes)
{
	(void)d;
	(void)out;
	(void)in;
	(void)bytes;
}

void devcomm_exchange(struct devcomm *d, unsigned peer, const void *out,
		      void *in, size_t bytes)
{
	(void)d;
	(void)peer;
	(void)out;
	(void)in;
	(void)bytes;
}

void devcomm_sum(struct devcomm *d, void *x, size_t n, enum dtype dtype)
{
	(void)d;
	(void)x;
	(void)n;
	(void)dtype;
}

void devcomm_group_begin(struct devcomm *d)
{
	(void)d;
}

void devcomm_group_end(struct devcomm *d)
{
	(void)d;
}

int devcomm_check(struct devcomm *d, struct errmsg *err)
{
	(void)d;
	(void)err;
	return 0;
}
