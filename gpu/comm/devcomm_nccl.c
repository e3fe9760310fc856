/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between ranks that have one device each.  NCCL's reduce-scatter and all-gather
 * require pieces of equal length; other pieces take a group of reductions or broadcasts, each with
 * its own root.
 */
#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/base/errmsg.h"
#include "gpu/backend/backend.h"
#include "gpu/comm/comm.h"
#include "gpu/comm/devcomm.h"
#include "gpu/comm/pieces.h"
#include "gpu/nvidia/nccl_api.h"
#include "gpu/watch/watch.h"

/* Recent collectives whose completion is tracked. */
#define RECENT 64

struct devcomm {
	const struct nccl_api *nccl;
	const struct backend *b;
	unsigned rank, size;
	cudaStream_t stream;
	ncclComm_t comm;
	struct errmsg failure; /* the first since the last check; "" if none */
	bool broken;           /* some call or collective has failed */
	struct {
		cudaEvent_t done; /* NULL: none could be made */
		const char *what;
	} recent[RECENT];
	uint64_t n;   /* collectives so far */
	bool grouped; /* between group_begin and group_end: collectives start later */
	struct watch_probe probe;
};

static bool devcomm_nccl_ok(struct devcomm *d, ncclResult_t r, const char *call)
{
	if (r == ncclSuccess)
		return true;
	d->broken = true;
	if (!*d->failure.text)
		errmsg_set(&d->failure, -EIO, "%s: %s", call, d->nccl->ncclGetErrorString(r));
	return false;
}
#define NCCL_CALL(d, function, ...) devcomm_nccl_ok(d, (d)->nccl->function(__VA_ARGS__), #function)

/* Register a queued collective, in which the GPU may wait, with the watchdog; a group counts as
 * one.  The events of recorded collectives must not be queried: during a replay the computation is
 * watched instead. */
static void queued(struct devcomm *d, const char *what)
{
	uint64_t i;

	if (d->grouped || d->b->recording) {
		watch_end();
		return;
	}
	i = d->n++ % RECENT;
	d->recent[i].what = what;
	if (d->recent[i].done)
		cudaEventRecord(d->recent[i].done, d->stream);
	watch_end();
}

static const char *oldest_pending(void *ctx)
{
	const struct devcomm *const d = ctx;
	const uint64_t n = d->n < RECENT ? d->n : RECENT;

	for (uint64_t i = d->n - n; i < d->n; i++)
		if (d->recent[i % RECENT].done &&
		    cudaEventQuery(d->recent[i % RECENT].done) == cudaErrorNotReady)
			return d->recent[i % RECENT].what;
	return NULL;
}

static int late_error(void *ctx, struct errmsg *why)
{
	const struct devcomm *const d = ctx;
	ncclResult_t late = ncclSuccess;

	d->nccl->ncclCommGetAsyncError(d->comm, &late);
	return late == ncclSuccess || late == ncclInProgress
		       ? 0
		       : errmsg_set(why, -EIO, "a collective of NCCL: %s",
				    d->nccl->ncclGetErrorString(late));
}

static void watch_devcomm(struct devcomm *d)
{
	for (size_t i = 0; i < RECENT; i++)
		if (cudaEventCreateWithFlags(&d->recent[i].done, cudaEventDisableTiming) !=
		    cudaSuccess)
			d->recent[i].done = NULL;
	d->probe = (struct watch_probe){ .check = late_error, .pending = oldest_pending, .ctx = d };
	watch_add(&d->probe);
}

static void unwatch_devcomm(struct devcomm *d)
{
	watch_remove(&d->probe);
	for (size_t i = 0; i < RECENT; i++)
		if (d->recent[i].done)
			cudaEventDestroy(d->recent[i].done);
}

void devcomm_fix_order(void)
{
	/* The order of sums in trees and switches varies between runs. */
	setenv("NCCL_ALGO", "Ring", 0);
	setenv("NCCL_PROTO", "Simple", 0);
}

/* A rank's device.  Device numbers are ambiguous if each process sees only its own device, as with
 * Slurm: compare names. */
struct seat {
	unsigned node;
	char device[BACKEND_DEVICE_LEN];
};

static bool is_same(const struct seat *a, const struct seat *b)
{
	return a->node == b->node && strcmp(a->device, b->device) == 0;
}

/* Refuse a device that two ranks share.  All ranks get the same result. */
static int check_shared(struct comm *c, const struct seat *seats, struct errmsg *err)
{
	for (unsigned r = 1; r < c->size; r++)
		for (unsigned q = 0; q < r; q++)
			if (is_same(&seats[q], &seats[r]))
				return errmsg_set(err, -EINVAL,
					"ranks %u and %u share device %s; each needs a GPU of its own",
					q, r, seats[r].device);
	return 0;
}

int devcomm_check_devices(struct comm *c, struct backend *b, struct errmsg *err)
{
	struct seat *seats;
	const char *why;
	int rc;

	if (c->size == 1 || !*b->device)
		return 0;
	seats = calloc(c->size, sizeof(*seats));
	rc = comm_agree(c, seats ? 0 : errmsg_nomem(err, NULL), err);
	if (!rc) {
		seats[c->rank].node = c->node;
		memcpy(seats[c->rank].device, b->device, sizeof(seats->device));
		for (unsigned r = 0; r < c->size; r++)
			comm_broadcast(c, &seats[r], sizeof(*seats), r);
		rc = check_shared(c, seats, err);
	}
	free(seats);
	if (rc)
		return rc;
	if (!nccl_api(&why))
		rc = errmsg_set(err, -ENOTSUP, "%u ranks with GPUs need NCCL: %s", c->size, why);
	return comm_agree(c, rc, err);
}

static int devcomm_nccl_join(struct devcomm *d, struct comm *c)
{
	ncclUniqueId id = { 0 };
	const bool well = d->rank || NCCL_CALL(d, ncclGetUniqueId, &id);
	int rc;

	comm_broadcast(c, &id, sizeof(id), 0);
	/* ncclCommInitRank waits for all ranks: agree first that all of them can call it. */
	rc = comm_agree(c, well ? 0 : -EIO, &d->failure);
	if (rc)
		return rc;
	watch_begin("the beginning of NCCL");
	if (!NCCL_CALL(d, ncclCommInitRank, &d->comm, (int)d->size, id, (int)d->rank))
		comm_abort(c, &d->failure);
	watch_end();
	watch_devcomm(d);
	return 0;
}

int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b, struct errmsg *err)
{
	struct devcomm *d;
	const char *why;
	int rc;

	*out = NULL;
	if (c->size == 1)
		return 0;
	d = calloc(1, sizeof(*d));
	rc = d ? 0 : errmsg_nomem(err, NULL);
	rc = comm_agree(c, rc, err);
	if (rc) {
		free(d);
		return rc;
	}
	d->nccl = nccl_api(&why); /* loaded by devcomm_check_devices */
	assert(d->nccl);
	d->b = b;
	d->rank = c->rank;
	d->size = c->size;
	d->stream = b->ops->native_queue(b, QUEUE_COMM);
	rc = devcomm_nccl_join(d, c);
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
	if (d && d->comm) {
		unwatch_devcomm(d);
		/* ncclCommDestroy would wait for operations that can never complete. */
		if (d->broken)
			d->nccl->ncclCommAbort(d->comm);
		else
			d->nccl->ncclCommDestroy(d->comm);
	}
	free(d);
}

int devcomm_check(struct devcomm *d, struct errmsg *err)
{
	ncclResult_t late = ncclSuccess;
	int rc;

	NCCL_CALL(d, ncclCommGetAsyncError, d->comm, &late);
	devcomm_nccl_ok(d, late, "a collective of NCCL");
	rc = *d->failure.text ? errmsg_set(err, -EIO, "%s", d->failure.text) : 0;
	*d->failure.text = '\0';
	return rc;
}

/* NVIDIA documents that graphs may contain collectives from NCCL 2.9 on, whose first release was
 * 2.9.6; its version numbers have this form from then on. */
#define VERSION_RECORDED 20906

bool devcomm_is_recorded(const struct devcomm *d)
{
	int version = 0;

	return d->nccl->ncclGetVersion(&version) == ncclSuccess && version >= VERSION_RECORDED;
}

static bool all_equal(const struct devcomm *d, const size_t *n)
{
	for (unsigned r = 1; r < d->size; r++)
		if (n[r] != n[0])
			return false;
	return true;
}

static ncclDataType_t type_of(enum dtype dtype)
{
	return dtype == DTYPE_BF16  ? ncclBfloat16
	       : dtype == DTYPE_F16 ? ncclFloat16
	       : dtype == DTYPE_F64 ? ncclFloat64
				    : ncclFloat32;
}

static void reduce_pieces(struct devcomm *d, const uint8_t *parts, const size_t *n,
			  enum dtype dtype, void *mine)
{
	const size_t size = dtype_size(dtype);

	NCCL_CALL(d, ncclGroupStart);
	for (unsigned r = 0; r < d->size; parts += n[r] * size, r++)
		if (n[r])
			NCCL_CALL(d, ncclReduce, parts, mine, n[r], type_of(dtype), ncclSum, (int)r,
				  d->comm, d->stream);
	NCCL_CALL(d, ncclGroupEnd);
}

void devcomm_reduce_scatter(struct devcomm *d, const void *parts, const size_t *n, enum dtype dtype,
			    void *mine)
{
	static const char what[] = "a reduce-scatter by NCCL";

	watch_begin(what);
	if (all_equal(d, n))
		NCCL_CALL(d, ncclReduceScatter, parts, mine, n[0], type_of(dtype), ncclSum, d->comm,
			  d->stream);
	else
		reduce_pieces(d, parts, n, dtype, mine);
	queued(d, what);
}

static void gather_pieces(struct devcomm *d, const void *mine, const size_t *bytes, uint8_t *to)
{
	NCCL_CALL(d, ncclGroupStart);
	for (unsigned r = 0; r < d->size; to += bytes[r], r++)
		if (bytes[r])
			NCCL_CALL(d, ncclBroadcast, r == d->rank ? mine : to, to, bytes[r],
				  ncclUint8, (int)r, d->comm, d->stream);
	NCCL_CALL(d, ncclGroupEnd);
}

void devcomm_all_gather(struct devcomm *d, const void *mine, const size_t *bytes, void *all)
{
	static const char what[] = "an all-gather by NCCL";

	watch_begin(what);
	if (all_equal(d, bytes))
		NCCL_CALL(d, ncclAllGather, mine, all, bytes[0], ncclUint8, d->comm, d->stream);
	else
		gather_pieces(d, mine, bytes, all);
	queued(d, what);
}

void devcomm_sum(struct devcomm *d, void *x, size_t n, enum dtype dtype)
{
	static const char what[] = "an all-reduce by NCCL";

	watch_begin(what);
	NCCL_CALL(d, ncclAllReduce, x, x, n, type_of(dtype), ncclSum, d->comm, d->stream);
	queued(d, what);
}

/* Send to a rank and receive from it; NULL skips that direction. */
static void transfer(struct devcomm *d, unsigned peer, const void *out, void *in, size_t bytes)
{
	if (out)
		NCCL_CALL(d, ncclSend, out, bytes, ncclUint8, (int)peer, d->comm, d->stream);
	if (in)
		NCCL_CALL(d, ncclRecv, in, bytes, ncclUint8, (int)peer, d->comm, d->stream);
}

void devcomm_all_to_all(struct devcomm *d, const void *out, void *in, size_t bytes)
{
	static const char what[] = "an all-to-all by NCCL";

	watch_begin(what);
	NCCL_CALL(d, ncclGroupStart);
	for (unsigned r = 0; r < d->size; r++)
		transfer(d, r, (const char *)out + r * bytes, (char *)in + r * bytes, bytes);
	NCCL_CALL(d, ncclGroupEnd);
	queued(d, what);
}

void devcomm_exchange(struct devcomm *d, unsigned peer, const void *out, void *in, size_t bytes)
{
	static const char what[] = "an exchange with a neighbour by NCCL";

	assert(peer < d->size && peer != d->rank);
	watch_begin(what);
	NCCL_CALL(d, ncclGroupStart);
	transfer(d, peer, out, in, bytes);
	NCCL_CALL(d, ncclGroupEnd);
	queued(d, what);
}

void devcomm_group_begin(struct devcomm *d)
{
	assert(!d->grouped);
	d->grouped = true;
	NCCL_CALL(d, ncclGroupStart);
}

void devcomm_group_end(struct devcomm *d)
{
	static const char what[] = "the collectives of a unit by NCCL";

	assert(d->grouped);
	d->grouped = false;
	watch_begin(what);
	NCCL_CALL(d, ncclGroupEnd);
	queued(d, what);
}
