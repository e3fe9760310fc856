/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DEVCOMM_H
#define UCTRAIN_DEVCOMM_H

#include <stddef.h>

struct backend;
struct comm;
struct errmsg;

/*
 * Collectives on memory of devices, by NCCL.  They are queued in QUEUE_COMM,
 * and called by all ranks in the same order.  Sums are taken in an order that
 * NCCL chooses, which comm.h's are not.
 */
struct devcomm;

/*
 * *out is NULL where ranks have to talk through their hosts: there is but one,
 * several share a device, or there is no NCCL, which is told.  All ranks get
 * the same result.
 */
int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b,
		struct errmsg *err);
void devcomm_free(struct devcomm *d);

/* For devcomms to come: let sums be the same in every run. */
void devcomm_fix_order(void);

/* As comm_reduce_scatter, comm_all_gather and comm_sum_float. */
void devcomm_reduce_scatter(struct devcomm *d, const float *parts,
			    const size_t *n, float *mine);
void devcomm_all_gather(struct devcomm *d, const void *mine,
			const size_t *bytes, void *all);
void devcomm_sum_float(struct devcomm *d, float *x, size_t n);

/* The first failure of what was queued, with the call and the rank. */
int devcomm_check(struct devcomm *d, struct errmsg *err);

#endif
