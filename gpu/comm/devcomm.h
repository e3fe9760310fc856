/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DEVCOMM_H
#define UCTRAIN_DEVCOMM_H

#include <stddef.h>

struct backend;
struct comm;
struct errmsg;

/*
 * Collectives on device memory, by NCCL. They are queued on QUEUE_COMM and must
 * be called by all ranks in the same order.  NCCL chooses the order of sums,
 * unlike comm.h.
 */
struct devcomm;

/*
 * *out is NULL if ranks must communicate through their hosts: there is only one
 * rank, several ranks share a device, or NCCL cannot be loaded, which is
 * reported.  Collective: all ranks get the same result.
 */
int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b,
		struct errmsg *err);
void devcomm_free(struct devcomm *d);

/* Make the sums of devcomms created later the same in every run. */
void devcomm_fix_order(void);

/* Like comm_reduce_scatter, comm_all_gather and comm_sum_float. */
void devcomm_reduce_scatter(struct devcomm *d, const float *parts,
			    const size_t *n, float *mine);
void devcomm_all_gather(struct devcomm *d, const void *mine,
			const size_t *bytes, void *all);
void devcomm_sum_float(struct devcomm *d, float *x, size_t n);

/* The first failure of a queued collective, with the call and the rank. */
int devcomm_check(struct devcomm *d, struct errmsg *err);

#endif
