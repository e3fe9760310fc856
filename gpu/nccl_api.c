/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nccl_api.h"

#include <dlfcn.h>
#include <stddef.h>

#define LIBRARY "libnccl.so.2"

const struct nccl_api *nccl_api(const char **why)
{
	static struct nccl_api api;
	const struct {
		const char *name;
		void **at;
	} calls[] = {
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
	void *const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);

	*why = NULL;
	for (size_t i = 0; library && i < sizeof(calls) / sizeof(*calls); i++) {
		*calls[i].at = dlsym(library, calls[i].name);
		if (!*calls[i].at)
			*why = dlerror();
	}
	if (!library)
		*why = dlerror();
	return *why ? NULL : &api;
}
