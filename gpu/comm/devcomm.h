/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_DEVCOMM_H
#define UCTRAIN_DEVCOMM_H

#include <stdbool.h>
#include <stddef.h>

#include "ckpt/format/tensor.h"

struct backend;
struct comm;
struct errmsg;

/*
 * Collectives on device memory, by NCCL. They are queued on QUEUE_COMM and must be called by all
 * ranks in the same order.  NCCL chooses the order of sums, unlike comm.h.
 */
struct devcomm;

/*
 * Check that the ranks' devices can exchange data.  -EINVAL if several ranks share a device,
 * -ENOTSUP if NCCL cannot be loaded or was not built in; 0 for one rank, and where device memory
 * is the host's.  Collective: all ranks get the same result.
 */
int devcomm_check_devices(struct comm *world, struct backend *b, struct errmsg *err);

/* Connect the devices of a group; *out is NULL if the group is a single rank.  Collective: all
 * ranks of `c` get the same result. */
int devcomm_new(struct devcomm **out, struct comm *c, struct backend *b, struct errmsg *err);
void devcomm_free(struct devcomm *d);

/* Make the sums of devcomms created later the same in every run. */
void devcomm_fix_order(void);

/* Like comm_reduce_scatter, also of float64, comm_all_gather, comm_all_to_all and
 * comm_exchange. */
void devcomm_reduce_scatter(struct devcomm *d, const void *parts, const size_t *n, enum dtype dtype,
			    void *mine);
void devcomm_all_gather(struct devcomm *d, const void *mine, const size_t *bytes, void *all);
void devcomm_all_to_all(struct devcomm *d, const void *out, void *in, size_t bytes);
void devcomm_exchange(struct devcomm *d, unsigned peer, const void *out, void *in, size_t bytes);

/* x = its sum over ranks: floats of 64, 32 or 16 bits.  All ranks get the same bits. */
void devcomm_sum(struct devcomm *d, void *x, size_t n, enum dtype dtype);

/* The collectives queued between these two calls start together, at the end. */
void devcomm_group_begin(struct devcomm *d);
void devcomm_group_end(struct devcomm *d);

/* Can backend_ops.record_begin record collectives? */
bool devcomm_is_recorded(const struct devcomm *d);

/* The first failure of a collective, queued or called, since the last check. */
int devcomm_check(struct devcomm *d, struct errmsg *err);

#endif
