/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NCCL_API_H
#define UCTRAIN_NCCL_API_H

#include <nccl.h>

/* The calls of NCCL that we use.  It is loaded when several ranks with devices
 * need it. */
struct nccl_api {
	__typeof__(ncclGetUniqueId) *get_unique_id;
	__typeof__(ncclCommInitRank) *comm_init_rank;
	__typeof__(ncclCommDestroy) *comm_destroy;
	__typeof__(ncclCommGetAsyncError) *comm_get_async_error;
	__typeof__(ncclGetErrorString) *get_error_string;
	__typeof__(ncclGroupStart) *group_start;
	__typeof__(ncclGroupEnd) *group_end;
	__typeof__(ncclReduce) *reduce;
	__typeof__(ncclBroadcast) *broadcast;
	__typeof__(ncclReduceScatter) *reduce_scatter;
	__typeof__(ncclAllGather) *all_gather;
	__typeof__(ncclAllReduce) *all_reduce;
};

/* NULL, with the reason in *why, if it cannot be loaded. */
const struct nccl_api *nccl_api(const char **why);

#endif
