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
 * A group of ranks that exchange device memory: by NCCL, or by comm.h where device memory is the
 * host's.  An operation runs after everything queued on QUEUE_COMPUTE before it; operations queued
 * there after device_group_wait run after it.  Until then nothing may access its buffers.  All
 * ranks of the group make the same calls in the same order.
 */
struct device_group {
	struct comm *comm;
	/* Set by device_group_connect: */
	struct backend *b;
	struct devcomm *direct; /* NULL: host memory, or a single rank */
	struct backend_event *before, *after;
	size_t *equal; /* comm->size lengths */
	bool grouped;  /* between device_group_begin and device_group_end */
};

/* Connect the devices of g->comm. g->comm and `b` must outlive the connection.  Collective: all
 * ranks of the group get the same result.  -ENOMEM, or as devcomm_new. */
int device_group_connect(struct device_group *g, struct backend *b, struct errmsg *err);
void device_group_disconnect(struct device_group *g);

void device_group_wait(struct device_group *g);

/* Order operations queued on QUEUE_COMM from now on after the computation queued so far. */
void device_group_follow(struct device_group *g);

/* Between devices, operations queued between these two calls start together, at the end.
 * Computation queued in between must not access their buffers. */
void device_group_begin(struct device_group *g);
void device_group_end(struct device_group *g);

/* Return the lengths for equal pieces, valid until the next call. */
const size_t *device_group_equal(struct device_group *g, size_t n);

/* x = its sum over ranks, of 64, 32 or 16-bit floats; on hosts, 64-bit sums are for few elements.
 * All ranks get the same bits. */
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

/* Return the group in the form that a backend's cross_entropy takes. */
struct backend_group device_group_of_backend(struct device_group *g);

#endif
