/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvidia/nccl_api.h"

#define LIBRARY "libnccl.so.2"

const struct nccl_api *nccl_api(const char **why)
{
	static struct nccl_api api;
	const struct dynlib_call calls[] = { NCCL_CALLS(DYNLIB_CALL) };

	return dynlib_load(LIBRARY, CUDA_DIRS, calls, sizeof(calls) / sizeof(*calls), why) ? &api
											   : NULL;
}
