/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks with a device each.  Pieces of ranks differ in length, which NCCL's
 * reduce-scatter and all-gather do not allow: then it is a group of reductions,
 * or of broadcasts, with another root each.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/nvidia/nccl_api.h"
#include "gpu/comm/pieces.h"

struct devcomm {
	const struct nccl_api *nccl;
	unsigned rank, size;
	cudaStream_t stream;
	ncclComm_t comm;
	struct errmsg failure; /* the first; "" if none */
};

static bool ok(struct devcomm *d, ncclResult_t r, const char *call)
{
	if (r == ncclSuccess)
		return true;
	if (!*d->failure.text)
		errmsg_set(&d->failure, -EIO, "%s: %s", call,
			   d->nccl->get_error_string(r));
	return false;
}

/* --- beginning and end ----------------------------------------------------- */

void devcomm_fix_order(void)
{
	/* Trees and switches may add up in another order in another run. */
	setenv("NCCL_ALGO", "Ring", 0);
	setenv("NCCL_PROTO", "Simple", 0);
}

/* Has every rank a device of its own, and NCCL? */
static const struct nccl_api *wanted(struct comm *c, struct backend *b)
{
	const struct nccl_api *api = NULL;
	const char *why = NULL;
	double lacking;

	if (c->size == 1)
		return NULL;
	lacking = b->devices < c->local_size;
	comm_max_double(c, &lacking, 1);
	if (lacking)
		return NULL;
	api = nccl_api(&why);
	if (!api)
		fprintf(stderr,
			"uctrain: rank %u: without NCCL ranks talk through "
			"their hosts: %s\n",
			c->rank, why);
	lacking = !api;
	comm_max_double(c, &lacking, 1);
	return lacking ? NULL : api;
}

static int join(struct devcomm *d, struct comm *c)
{
	ncclUniqueId id = { 0 };
	const bool well = d->rank ||
			  ok(d, d->nccl->get_unique_id(&id), "ncclGetUniqueId");
	int rc;

	comm_broadcast(c, &id, sizeof(id), 0);
	/* All ranks must call this, or none: in there they wait for each
	 * other. */
	rc = comm_agree(c, well ? 0 : -EIO, &d->failure);
	if (!rc && !ok(d,
		       d->nccl->comm_init_rank(&d->comm, (int)d->size, id,
					       (int)d->rank),
		       "ncclCommInitRank"))
		comm_abort(c, &d->failure);
	return rc;
}

int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b,
		struct errmsg *err)
{
	const struct nccl_api *api = wanted(c, b);
	struct devcomm *d = NULL;
	int rc = 0;

	*out = NULL;
	if (!api)
		return 0;
	d = calloc(1, sizeof(*d));
	rc = d ? 0 : errmsg_set(err, -ENOMEM, "out of memory");
	rc = comm_agree(c, rc, err);
	if (rc) {
		free(d);
		return rc;
	}
	d->nccl = api;
	d->rank = c->rank;
	d->size = c->size;
	d->stream = b->ops->native_queue(b, QUEUE_COMM);
	rc = join(d, c);
	if (rc) {
		errmsg_set(err, rc, "%s", d->failure.text);
		devcomm_free(d);
		return rc;
	}
	*out = d;
	return 0;
}

void devcomm_free(struct devcomm *d)
{
	if (d && d->comm)
		d->nccl->comm_destroy(d->comm);
	free(d);
}

int devcomm_check(struct devcomm *d, struct errmsg *err)
{
	ncclResult_t late = ncclSuccess;

	ok(d, d->nccl->comm_get_async_error(d->comm, &late),
	   "ncclCommGetAsyncError");
	ok(d, late, "a collective of NCCL");
	return *d->failure.text ? errmsg_set(err, -EIO, "%s", d->failure.text)
				: 0;
}

/* --- collectives ----------------------------------------------------------- */

static bool all_equal(const struct devcomm *d, const size_t *n)
{
	for (unsigned r = 1; r < d->size; r++)
		if (n[r] != n[0])
			return false;
	return true;
}

void devcomm_reduce_scatter(struct devcomm *d, const float *parts,
			    const size_t *n, float *mine)
{
	if (all_equal(d, n)) {
		ok(d,
		   d->nccl->reduce_scatter(parts, mine, n[0], ncclFloat32,
					   ncclSum, d->comm, d->stream),
		   "ncclReduceScatter");
		return;
	}
	ok(d, d->nccl->group_start(), "ncclGroupStart");
	for (unsigned r = 0; r < d->size; parts += n[r], r++)
		if (n[r])
			ok(d,
			   d->nccl->reduce(parts, mine, n[r], ncclFloat32,
					   ncclSum, (int)r, d->comm, d->stream),
			   "ncclReduce");
	ok(d, d->nccl->group_end(), "ncclGroupEnd");
}

void devcomm_all_gather(struct devcomm *d, const void *mine,
			const size_t *bytes, void *all)
{
	uint8_t *to = all;

	if (all_equal(d, bytes)) {
		ok(d,
		   d->nccl->all_gather(mine, all, bytes[0], ncclUint8, d->comm,
				       d->stream),
		   "ncclAllGather");
		return;
	}
	ok(d, d->nccl->group_start(), "ncclGroupStart");
	for (unsigned r = 0; r < d->size; to += bytes[r], r++)
		if (bytes[r])
			ok(d,
			   d->nccl->broadcast(r == d->rank ? mine : to, to,
					      bytes[r], ncclUint8, (int)r,
					      d->comm, d->stream),
			   "ncclBroadcast");
	ok(d, d->nccl->group_end(), "ncclGroupEnd");
}

void devcomm_sum_float(struct devcomm *d, float *x, size_t n)
{
	ok(d,
	   d->nccl->all_reduce(x, x, n, ncclFloat32, ncclSum, d->comm,
			       d->stream),
	   "ncclAllReduce");
}
