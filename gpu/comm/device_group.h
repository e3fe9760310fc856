/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DEVICE_GROUP_H
#define UCTRAIN_DEVICE_GROUP_H

#include <stdbool.h>
#include <stddef.h>

struct backend;
struct backend_event;
struct comm;
struct devcomm;
struct errmsg;

/*
 * A group of ranks that exchange what is in the memory of their devices: by NCCL, or
 * by comm.h where that is the host's memory.  An operation comes after what was queued on QUEUE_COMPUTE
 * before it, and what is queued there later comes after the operation.  All ranks
 * of the group make the same calls in the same order.
 */
struct device_group {
	struct comm *comm;
	struct backend *b;
	struct devcomm *direct; /* NULL: on hosts, or one rank alone */
	struct backend_event *before, *after;
};

/* `comm` and `b` must remain while the group is used.  Collective: all ranks of `comm`
 * get the same result.  -ENOMEM, or as devcomm_new. */
int device_group_init(struct device_group *g, struct comm *comm,
		      struct backend *b, struct errmsg *err);
void device_group_done(struct device_group *g);

/* x = its sum over ranks: activations, act_t, and floats.  All ranks get the same
 * bits.  The computation waits for the sum of activations from device_group_wait on. */
void device_group_sum(struct device_group *g, void *x, size_t n);
void device_group_sum_float(struct device_group *g, float *x, size_t n);

/* The same for one number. */
void device_group_sum_double(struct device_group *g, double *x);

/* mine[n] = this rank's part of the sum over ranks of parts[size][n], act_t, for which
 * the computation waits from device_group_wait on.  The buffers of this and of the next
 * two do not overlap. */
void device_group_reduce_scatter(struct device_group *g, const void *parts,
				 void *mine, size_t n);

/* all[rank][bytes] = every rank's `mine`. */
void device_group_all_gather(struct device_group *g, const void *mine,
			     void *all, size_t bytes);

/* all[rank][bytes] = what every rank has for this one in parts[size][bytes]. */
void device_group_all_to_all(struct device_group *g, const void *parts,
			     void *all, size_t bytes);

/* Send `out` to a rank and receive as many bytes from it into `in`; either may be
 * NULL.  Not collective: `peer` makes the matching call.  The computation does not
 * wait for what is only sent: device_group_wait comes before `out` is written to
 * again. */
void device_group_exchange(struct device_group *g, unsigned peer,
			   const void *out, void *in, size_t bytes);
void device_group_wait(struct device_group *g);

#endif
