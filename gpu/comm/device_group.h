/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DEVICE_GROUP_H
#define UCTRAIN_DEVICE_GROUP_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/format/tensor.h"

struct backend;
struct backend_event;
struct backend_group;
struct comm;
struct devcomm;
struct errmsg;

/*
 * A group of ranks that exchange what is in the memory of their devices: by NCCL, or by comm.h
 * where that is the host's memory.  An operation comes after what was queued on QUEUE_COMPUTE
 * before it, and what is queued there after device_group_wait comes after the operation; until
 * then nothing accesses its buffers.  All ranks of the group make the same calls in the same
 * order.
 */
struct device_group {
	struct comm *comm;
	/* After device_group_connect. */
	struct backend *b;
	struct devcomm *direct; /* NULL: on hosts, or one rank alone */
	struct backend_event *before, *after;
	size_t *equal; /* comm->size */
	bool grouped;  /* between device_group_begin and device_group_end */
};

/* Connect the devices of g->comm, which and `b` must remain while the group is used. Collective:
 * all ranks of it get the same result.  -ENOMEM, or as devcomm_new. */
int device_group_connect(struct device_group *g, struct backend *b, struct errmsg *err);
void device_group_disconnect(struct device_group *g);

void device_group_wait(struct device_group *g);

/* What is queued on QUEUE_COMM from now on comes after the computation so far. */
void device_group_follow(struct device_group *g);

/* Between devices, operations between these two start as one, at the end.  They use nothing that
 * the computation is asked for in between. */
void device_group_begin(struct device_group *g);
void device_group_end(struct device_group *g);

/* The lengths of equal pieces, until the next call. */
const size_t *device_group_equal(struct device_group *g, size_t n);

/* x = its sum over ranks: floats of 64, 32 or 16 bits; on hosts 64 bits are for few elements. All
 * ranks get the same bits. */
void device_group_sum(struct device_group *g, void *x, size_t n, enum dtype dtype);

/* Like comm_reduce_scatter, comm_all_gather, comm_all_to_all. */
void device_group_reduce_scatter(struct device_group *g, const void *parts, const size_t *n,
				 enum dtype dtype, void *mine);
void device_group_all_gather(struct device_group *g, const void *mine, const size_t *bytes,
			     void *all);
void device_group_all_to_all(struct device_group *g, const void *parts, void *all, size_t bytes);

/* Like comm_exchange. */
void device_group_exchange(struct device_group *g, unsigned peer, const void *out, void *in,
			   size_t bytes);

/* The group as that of a backend's cross_entropy. */
struct backend_group device_group_of_backend(struct device_group *g);

#endif
