/* SPDX-License-Identifier: Apache-2.0 */
#ifndef UCTRAIN_NCCL_API_H
#define UCTRAIN_NCCL_API_H

#include <nccl.h>

#include "ckpt/base/system.h"

/* The calls of NCCL that we use.  It is loaded when several ranks with devices need it. */
#define NCCL_CALLS(X)            \
	X(ncclGetVersion)        \
	X(ncclGetUniqueId)       \
	X(ncclCommInitRank)      \
	X(ncclCommDestroy)       \
	X(ncclCommAbort)         \
	X(ncclCommGetAsyncError) \
	X(ncclGetErrorString)    \
	X(ncclGroupStart)        \
	X(ncclGroupEnd)          \
	X(ncclReduce)            \
	X(ncclBroadcast)         \
	X(ncclReduceScatter)     \
	X(ncclAllGather)         \
	X(ncclAllReduce)         \
	X(ncclSend)              \
	X(ncclRecv)

struct nccl_api {
	NCCL_CALLS(DYNLIB_MEMBER)
};

/* Return the table, or NULL with the reason in *why if NCCL cannot be loaded. */
const struct nccl_api *nccl_api(const char **why);

#endif
