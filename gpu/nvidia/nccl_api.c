/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/nccl_api.h"

#include "gpu/nvidia/dynlib.h"

#define LIBRARY "libnccl.so.2"

const struct nccl_api *nccl_api(const char **why)
{
	static struct nccl_api api;
	const struct dynlib_call calls[] = {
		{ "ncclGetUniqueId", (void **)&api.get_unique_id },
		{ "ncclCommInitRank", (void **)&api.comm_init_rank },
		{ "ncclCommDestroy", (void **)&api.comm_destroy },
		{ "ncclCommGetAsyncError", (void **)&api.comm_get_async_error },
		{ "ncclGetErrorString", (void **)&api.get_error_string },
		{ "ncclGroupStart", (void **)&api.group_start },
		{ "ncclGroupEnd", (void **)&api.group_end },
		{ "ncclReduce", (void **)&api.reduce },
		{ "ncclBroadcast", (void **)&api.broadcast },
		{ "ncclReduceScatter", (void **)&api.reduce_scatter },
		{ "ncclAllGather", (void **)&api.all_gather },
		{ "ncclAllReduce", (void **)&api.all_reduce },
	};

	return dynlib_load(LIBRARY, calls, sizeof(calls) / sizeof(*calls), why)
		       ? &api
		       : NULL;
}
